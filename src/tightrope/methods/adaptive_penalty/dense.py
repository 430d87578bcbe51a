"""The model with the Jacobian as a matrix: the m×m matrix G = JM⁻¹Jᵀ is formed, and the multipliers are exact.

A step is −M⁻¹ times a weighted sum of the vectors v, J_1, …, J_m. With their inner products in M⁻¹, everything about the
step but the step itself costs O(m²).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.products import inner_products
from ...numerics.prox_linear import ProxLinearModel
from ...numerics.ranges import range_multipliers, range_multipliers_on_set, solve_active_rows
from ...oracles.oracle import Sample
from ..shared.halves import halves_of, variance_from_halves
from .constants import MAX_FACES, MAX_OUTSIDE, SIGNIFICANT_SQ
from .faces import FaceSearch, nearest_face
from .model import ModelStep, PenaltyModel, Steering, Trial
from .quasi_newton import InverseHessian, LBFGSMemory


class Estimates(NamedTuple):
    """The gradient of the objective, the rows and their Jacobian; or one number or array for each of the three."""

    gradient: Float[Array, " n"]
    value: Float[Array, " rows"]
    jacobian: Float[Array, "rows n"]


class DenseFace(NamedTuple):
    """The model on a face of X: a step is `fixed`, which the face dictates, and −M⁻¹ times a weighted sum of `vectors`.

    The vectors are v and the rows of J, projected onto the directions of the face.
    """

    inverse: InverseHessian
    vectors: Float[Array, "1+rows n"]
    products: Float[Array, "1+rows two_pairs"]
    """Inner products with the vectors of M⁻¹."""
    inner: Float[Array, "1+rows 1+rows"]
    """Inner products of the vectors in M⁻¹."""
    plain: Float[Array, "1+rows 1+rows"]
    """Inner products of the vectors."""
    fixed: Float[Array, " n"]
    value: Float[Array, " rows"]
    """Linearized rows after `fixed`."""

    @classmethod
    def of(
        cls, inverse: InverseHessian, vectors: Float[Array, "1+rows n"], fixed: Float[Array, " n"], value: Array
    ) -> DenseFace:
        """Return the face with these vectors."""
        plain = inner_products(vectors, vectors)
        inner, products = inverse.inner(vectors, plain)
        return cls(inverse, vectors, products, inner, plain, fixed, value)

    @property
    def gram(self) -> Float[Array, "rows rows"]:
        """G = JM⁻¹Jᵀ."""
        return self.inner[1:, 1:]

    def step(self, weights: Float[Array, " 1+rows"]) -> Float[Array, " n"]:
        """Return −M⁻¹ times the weighted sum of the vectors."""
        return -self.inverse.times(weights, self.vectors, self.products)

    def rows(self, weights: Float[Array, " 1+rows"]) -> Float[Array, " rows"]:
        """Return the linearized rows after the step with these weights."""
        return self.value - self.inner[1:] @ weights

    def square(self, weights: Float[Array, " 1+rows"]) -> Float[Array, ""]:
        """Return dᵀMd for the step with these weights."""
        return weights @ self.inner @ weights

    def restore(
        self, miss: Float[Array, " rows"], held: Bool[Array, " rows"]
    ) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        q = solve_active_rows(self.gram, miss, held)
        return self.step(with_weight(0.0, q)), q @ self.gram @ q


@dataclass(frozen=True)
class DenseModel(PenaltyModel):
    """The model from estimates of gradient, rows and Jacobian; `here` are the sample's own at x."""

    estimates: Estimates
    here: Estimates
    last_sample: Sample
    """The sample of the step before."""
    memory: LBFGSMemory
    damping: Float[Array, ""]
    whole: DenseFace
    """The whole space."""

    def minimize(self, weight: Array, penalty: Float[Array, " rows"], start: Float[Array, " rows"]) -> ModelStep:
        (v, h, J), ranges = self.estimates, self.ranges(penalty)
        if self.oracle.whole_space:
            y = range_multipliers(self.whole.gram, h - weight * self.whole.inner[1:, 0], ranges, start)
            weights = with_weight(weight, y)
            return ModelStep(y, self.whole.rows(weights), self.whole.square(weights))
        proximal = ProxLinearModel(weight * v, h, J, 1.0 / self.curvature, self.x, self.oracle.project)
        y = range_multipliers_on_set(proximal, ranges, start)
        d = self.proximal_step(weight, y)
        return ModelStep(y, h + J @ d, self.curvature * d @ d)

    def restoration(self, multipliers: Float[Array, " rows"]) -> Float[Array, " n"]:
        if self.oracle.whole_space:
            return self.whole.step(with_weight(0.0, multipliers))
        return self.proximal_step(0.0, multipliers)

    def rows_after(self, step: Float[Array, " n"]) -> Float[Array, " rows"]:
        found = self.oracle.c(self.x + step, self.sample)
        if not self.oracle.stochastic_constraints:
            return found
        _, h, J = self.estimates
        return h + (J - self.here.jacobian) @ step + found - self.here.value

    def miss(self, x: Float[Array, " n"], ends: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """Sampled rows miss by how much they bend, h(x⁺, ζ) − h(x, ζ) − J(x, ζ)d, on the sample of the step before.

        The step's own sample judges the trial, so it must not choose it. A bend that noise explains does not count.
        """
        if not self.oracle.stochastic_constraints:
            return self.oracle.c(x, self.sample) - ends

        def bend(half: Sample) -> Float[Array, " rows"]:
            before, change = self.oracle.jvp(self.x, x - self.x, half)
            return self.oracle.c(x, half) - before - change

        bends = jax.vmap(bend)(halves_of(self.oracle, self.last_sample))
        mean = jnp.mean(bends, axis=0)
        return jnp.where(mean**2 > SIGNIFICANT_SQ * variance_from_halves(bends), mean, 0.0)

    def solve(self, steering: Steering) -> Trial:
        face, y = (self.whole, steering.multipliers) if self.oracle.whole_space else self._on_set(steering)
        weights, penalty, rows = with_weight(1.0, y), steering.penalty, self.oracle.rows
        square = face.square(weights)
        predicted = penalty @ (rows.violation(self.value) - rows.violation(face.rows(weights)))
        predicted = predicted + face.inner[0] @ weights - self.gradient @ face.fixed
        predicted = predicted - 0.5 * (square + self.curvature * face.fixed @ face.fixed)
        return Trial(self.x + face.fixed + face.step(weights), penalty, y, predicted, square, face)

    def _on_set(self, steering: Steering) -> tuple[DenseFace, Float[Array, " rows"]]:
        """Return the face whose step stays in X and its multipliers; after `MAX_FACES` faces those of the proximal step."""
        oracle, x, y = self.oracle, self.x, steering.multipliers
        proximal = x - (self.gradient + self.jacobian.pull(y)) / self.curvature

        def again(c: FaceSearch) -> FaceSearch:
            quasi_newton = c.tried < MAX_FACES
            face, normal = self._face_at(c.target, quasi_newton)
            multipliers = c.multipliers
            if y.size:
                reach, ranges = face.value - face.inner[1:, 0], self.ranges(steering.penalty)
                multipliers = range_multipliers(face.gram, reach, ranges, multipliers)
            multipliers = jnp.where(quasi_newton, multipliers, y)
            end = x + face.fixed + face.step(with_weight(1.0, multipliers))
            leaves = jnp.linalg.norm(oracle.project(end) - end) > MAX_OUTSIDE * jnp.linalg.norm(end - x)
            target = jnp.where(c.tried + 1 < MAX_FACES, end + normal, proximal)
            return FaceSearch(target, multipliers, face, leaves & quasi_newton, c.tried + 1)

        shape = jax.eval_shape(lambda: self._face_at(proximal, jnp.bool_(True))[0])
        no_face = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shape)
        start = FaceSearch(proximal, y, no_face, jnp.bool_(True), jnp.int32(0))
        found = jax.lax.while_loop(lambda c: c.leaves, again, start)
        return found.face, found.multipliers

    def _face_at(self, q: Float[Array, " n"], quasi_newton: Bool[Array, ""]) -> tuple[DenseFace, Float[Array, " n"]]:
        """Return the face of X nearest to q, with M or else (δ + σ)I, and its normal."""
        _, along, fixed, normal = nearest_face(self.oracle.project, q, self.x)
        _, h, J = self.estimates
        pairs = jnp.where(quasi_newton, jax.vmap(jax.vmap(along))(self.memory.vectors), 0.0)
        inverse = self.memory.with_vectors(pairs).inverse(self.damping)
        return DenseFace.of(inverse, jax.vmap(along)(self.whole.vectors), fixed, h + J @ fixed), normal


def with_weight(weight: Array | float, multipliers: Float[Array, " rows"]) -> Float[Array, " 1+rows"]:
    """Return the weights of v and of the rows of J."""
    return jnp.concatenate([jnp.asarray(weight, multipliers.dtype)[None], multipliers])
