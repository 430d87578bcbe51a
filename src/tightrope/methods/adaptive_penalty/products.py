"""The model with products Jd and Jᵀy alone: no Jacobian is formed, and the multipliers come from conjugate gradients.

They start from the last ones and go only as far as a step needs. A step that is not quite the model's minimizer is a step all
the same: the reduction is predicted for the step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.products import Linear, range_multipliers_by_products, range_multipliers_on_set_by_products
from ...numerics.prox_linear import ProxLinearModel
from ...numerics.ranges import RangePenalty
from .constants import CORRECTION_PRODUCTS, MAX_FACES, MAX_OUTSIDE
from .faces import FaceSearch, nearest_face
from .model import ModelStep, PenaltyModel, Steering, Trial
from .quasi_newton import LBFGSMemory


class ProductFace(NamedTuple):
    """The model on a face of X: M⁻¹ along it, and the part of a step that it dictates."""

    inverse: Callable[[Float[Array, " n"]], Float[Array, " n"]]
    fixed: Float[Array, " n"]
    jacobian: Linear
    row_norm: Float[Array, " rows"]

    def gram(self, multipliers: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """Return JM⁻¹Jᵀ times the multipliers."""
        return self.jacobian.push(self.inverse(self.jacobian.pull(multipliers)))

    def restore(
        self, miss: Float[Array, " rows"], held: Bool[Array, " rows"]
    ) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        zero = jnp.zeros_like(miss)
        ranges = RangePenalty(zero, zero, jnp.where(held, jnp.inf, 0.0))
        q, _ = range_multipliers_by_products(self.gram, miss, ranges, zero, self.row_norm, products=CORRECTION_PRODUCTS)
        force = self.jacobian.pull(q)
        step = -self.inverse(force)
        return step, -step @ force


@dataclass(frozen=True)
class ProductModel(PenaltyModel):
    """The model from the rows' linearization on the step's own sample; `sampled` are the sample's rows at x."""

    sampled: Float[Array, " rows"]
    memory: LBFGSMemory
    damping: Float[Array, ""]
    inverse: Callable[[Float[Array, " n"]], Float[Array, " n"]]
    """M⁻¹ times a vector."""
    objective_change: Float[Array, " rows"]
    """JM⁻¹v: by how much the step for the objective alone lowers the rows."""

    def minimize(self, weight: Array, penalty: Float[Array, " rows"], start: Float[Array, " rows"]) -> ModelStep:
        h, (push, pull), ranges = self.value, self.jacobian, self.ranges(penalty)
        if self.oracle.whole_space:
            gram, reach = self._face(self.inverse, jnp.zeros_like(self.x)).gram, h - weight * self.objective_change
            y, solved = range_multipliers_by_products(gram, reach, ranges, start, self.row_norm)
            force = weight * self.gradient + pull(y)
            d = -self.inverse(force)
            return ModelStep(y, h + push(d), -d @ force, solved)
        v, step_size = weight * self.gradient, 1.0 / self.curvature
        proximal = ProxLinearModel(v, h, self.jacobian, step_size, self.x, self.oracle.project)
        y, solved = range_multipliers_on_set_by_products(proximal, ranges, start, self.row_norm)
        d = self.proximal_step(weight, y)
        return ModelStep(y, h + push(d), self.curvature * d @ d, solved)

    def restoration(self, multipliers: Float[Array, " rows"]) -> Float[Array, " n"]:
        if self.oracle.whole_space:
            return -self.inverse(self.jacobian.pull(multipliers))
        return self.proximal_step(0.0, multipliers)

    def rows_after(self, step: Float[Array, " n"]) -> Float[Array, " rows"]:
        found = self.oracle.c(self.x + step, self.sample)
        return self.value + found - self.sampled if self.oracle.stochastic_constraints else found

    def miss(self, x: Float[Array, " n"], ends: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """Sampled rows are not corrected: the model's Jacobian is that of the step's own sample."""
        return jnp.zeros_like(ends) if self.oracle.stochastic_constraints else self.oracle.c(x, self.sample) - ends

    def solve(self, steering: Steering) -> Trial:
        h, v, (push, pull), rows, penalty = self.value, self.gradient, self.jacobian, self.oracle.rows, steering.penalty
        if self.oracle.whole_space:
            face, y = self._face(self.inverse, jnp.zeros_like(self.x)), steering.multipliers
        else:
            face, y = self._on_set(steering)
        force = v + pull(y)
        step = -face.inverse(force)
        square, d = -step @ force, face.fixed + step
        predicted = penalty @ (rows.violation(h) - rows.violation(h + push(d))) - v @ d
        predicted = predicted - 0.5 * (square + self.curvature * face.fixed @ face.fixed)
        return Trial(self.x + d, penalty, y, predicted, square, face)

    def _face(self, inverse: Callable[[Array], Array], fixed: Float[Array, " n"]) -> ProductFace:
        return ProductFace(inverse, fixed, self.jacobian, self.row_norm)

    def _on_set(self, steering: Steering) -> tuple[ProductFace, Float[Array, " rows"]]:
        """Return the face whose step stays in X and its multipliers; after `MAX_FACES` faces those of the proximal step."""
        x, v, (push, pull), y = self.x, self.gradient, self.jacobian, steering.multipliers
        ranges, project = self.ranges(steering.penalty), self.oracle.project
        proximal = x - (v + pull(y)) / self.curvature

        def again(c: FaceSearch) -> FaceSearch:
            face, normal = self._face_at(c.target, jnp.bool_(True))
            reach = self.value + push(face.fixed) - push(face.inverse(v))
            multipliers, _ = range_multipliers_by_products(face.gram, reach, ranges, c.multipliers, self.row_norm)
            d = face.fixed - face.inverse(v + pull(multipliers))
            leaves = jnp.linalg.norm(project(x + d) - x - d) > MAX_OUTSIDE * jnp.linalg.norm(d)
            return FaceSearch(x + d + normal, multipliers, c.target, leaves, c.tried + 1)

        start = FaceSearch(proximal, y, proximal, jnp.bool_(True), jnp.int32(0))
        found = jax.lax.while_loop(lambda c: c.leaves & (c.tried < MAX_FACES), again, start)
        stays = ~found.leaves
        face, _ = self._face_at(jnp.where(stays, found.face, proximal), stays)
        return face, jnp.where(stays, found.multipliers, y)

    def _face_at(self, q: Float[Array, " n"], quasi_newton: Bool[Array, ""]) -> tuple[ProductFace, Float[Array, " n"]]:
        """Return the face of X nearest to q and its normal; where not `quasi_newton`, only the face's nearest point."""
        point, along, fixed, normal = nearest_face(self.oracle.project, q, self.x)
        inverse = self.memory.with_vectors(jax.vmap(jax.vmap(along))(self.memory.vectors)).inverse(self.damping)
        fixed = jnp.where(quasi_newton, fixed, point - self.x)
        return self._face(lambda w: jnp.where(quasi_newton, inverse.apply(along(w)), 0.0), fixed), normal
