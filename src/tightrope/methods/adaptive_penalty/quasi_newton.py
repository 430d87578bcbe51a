"""A limited-memory metric: the BFGS matrix of the last few changes of a gradient, damped.

With pairs (s_i, y_i) of a step and the change of the gradient along it, M is the BFGS matrix of the pairs (s_i, y_i + σs_i)
from (δ + σ)I: about H + σI. As σ grows it becomes a multiple of the identity, as σ falls a quasi-Newton metric. Its
inverse has the compact form

    M⁻¹ = γI + WᵀKW          γ = 1/(δ + σ)          W = [S; Y + σS], rows s_i and y_i + σs_i

    K = [ A   Bᵀ ]          A = R⁻ᵀ(D + γ(Y + σS)(Y + σS)ᵀ)R⁻¹          B = −γR⁻¹
        [ B   0  ]          R the upper triangle of S(Y + σS)ᵀ, oldest pair first, D its diagonal

and in the rows [S; Y] themselves the core A + σ(B + Bᵀ) in place of A. So everything a method needs of M are inner
products with these rows; those of the rows with each other are kept, and no vector is formed for another σ.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...numerics.scaling import positive_or_one

LEAST_CURVATURE = 0.1
"""The least cosine between a step and the change of the gradient; a smaller one is raised to this."""


class Pairs(NamedTuple):
    """The last few steps, each at length one, and the changes of the gradient along them; `next` is the oldest's place."""

    rows: Float[Array, "two pairs n"]
    """The steps, then the changes."""
    products: Float[Array, "two pairs two pairs"]
    """Their inner products, oldest first."""
    curvature: Float[Array, ""]
    """δ: the curvature where no pair says more."""
    next: Int[Array, ""]

    def of(self, rows: Float[Array, "two pairs n"]) -> Self:
        """Pairs with these rows in the places of the old ones."""
        ordered = jnp.roll(rows, -self.next, axis=1)
        return self._replace(rows=rows, products=jnp.einsum("aik,bjk->aibj", ordered, ordered))


def no_pairs(count: int, x: Float[Array, " n"], curvature: Float[Array, ""]) -> Pairs:
    """Room for this many pairs."""
    rows, products = jnp.zeros((2, count, x.size), x.dtype), jnp.zeros((2, count, 2, count), x.dtype)
    return Pairs(rows, products, curvature, jnp.int32(0))


def with_pair(
    pairs: Pairs, step: Float[Array, " n"], change: Float[Array, " n"], taken: Bool[Array, ""] | bool = True
) -> Pairs:
    """The pairs with one more in the place of the oldest; one that is not finite, or no step, is left out.

    A step along which the gradient did not change says that there is less curvature than was thought: δ is halved, if the step
    was `taken` to get somewhere; where it was refused, something else than the gradient bends.
    """
    both = jnp.stack([step, change])
    (square, along), (_, size) = both @ both.T
    length, size = jnp.sqrt(square), jnp.sqrt(size)
    lift = jnp.maximum(LEAST_CURVATURE * size - along / positive_or_one(length), 0.0)
    bend = (along / positive_or_one(length) + lift) / positive_or_one(length)
    curvature = (
        (size**2 + lift * (2.0 * along / positive_or_one(length) + lift))
        / positive_or_one(square)
        / positive_or_one(bend)
    )
    good = jnp.isfinite(curvature) & (length > 0) & (size > 0) & (bend > 0)

    place, count = pairs.next, pairs.rows.shape[1]
    unit = jnp.stack([step, change + lift * step / positive_or_one(length)])[:, None] / positive_or_one(length)
    unit = jnp.where(good, unit, jax.lax.dynamic_slice_in_dim(pairs.rows, place, 1, axis=1))
    rows = jax.lax.dynamic_update_slice_in_dim(pairs.rows, unit, place, axis=1)
    newest = jnp.roll(jnp.einsum("an,bjn->abj", unit[:, 0], rows), -(place + 1), axis=2)
    products = jnp.pad(pairs.products[:, 1:, :, 1:], ((0, 0), (0, 1), (0, 0), (0, 1)))
    products = products.at[:, -1].set(newest).at[:, :, :, -1].set(jnp.moveaxis(newest, 0, -1))
    return Pairs(
        rows,
        jnp.where(good, products, pairs.products),
        jnp.where(good, curvature, jnp.where(taken & (length > 0) & (size == 0), 0.5, 1.0) * pairs.curvature),
        jnp.where(good, (place + 1) % count, place),
    )


class Metric(NamedTuple):
    """M⁻¹ = scale · I + rowsᵀ · core · rows; core is for the rows' order by age, of which the oldest is at `next`."""

    scale: Float[Array, ""]
    rows: Float[Array, "two pairs n"]
    core: Float[Array, "two_pairs two_pairs"]
    next: Int[Array, ""]

    def inner(
        self, vectors: Float[Array, "k n"], plain: Float[Array, "k k"]
    ) -> tuple[Float[Array, "k k"], Float[Array, "k two_pairs"]]:
        """The products uᵀM⁻¹w of these vectors, whose plain ones are given, and those with the rows, for `times`."""
        k = len(vectors)
        seen = (vectors @ self.rows.reshape(len(self.core), -1).T).reshape(k, 2, -1)
        seen = jnp.roll(seen, -self.next, axis=2).reshape(k, -1)
        return self.scale * plain + seen @ self.core @ seen.T, seen

    def times(
        self, weights: Float[Array, " k"], vectors: Float[Array, "k n"], seen: Float[Array, "k two_pairs"]
    ) -> Float[Array, " n"]:
        """M⁻¹ times the sum of the vectors with these weights."""
        shares = jnp.roll((weights @ seen @ self.core).reshape(2, -1), self.next, axis=1).reshape(-1)
        return (self.scale * weights) @ vectors + shares @ self.rows.reshape(len(self.core), -1)

    def apply(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """M⁻¹ times a vector."""
        _, seen = self.inner(vector[None], jnp.zeros((1, 1), vector.dtype))
        return self.times(jnp.ones(1, vector.dtype), vector[None], seen)


def metric(pairs: Pairs, damping: Float[Array, ""]) -> Metric:
    """The damped metric of these pairs; one whose change is hardly along its step is left out."""
    (steps, both), (turned, changes) = jnp.moveaxis(pairs.products, 2, 1)
    both, changes = both + damping * steps, changes + damping * (both + turned + damping * steps)
    scale = 1.0 / (pairs.curvature + damping)
    bent = jnp.diag(both)
    good = bent > 0.5 * LEAST_CURVATURE * jnp.sqrt(jnp.diag(steps) * jnp.diag(changes))
    pair = good[:, None] & good[None, :]
    triangle = jnp.triu(jnp.where(pair, both, 0.0)) + jnp.diag(jnp.where(good, 0.0, 1.0))
    inverse = jax.scipy.linalg.solve_triangular(triangle, jnp.eye(len(bent), dtype=bent.dtype))
    inverse = jnp.where(pair, inverse, 0.0)
    side = -scale * inverse
    corner = inverse.T @ (jnp.diag(bent) + scale * changes) @ inverse + damping * (side + side.T)
    core = jnp.block([[corner, side.T], [side, jnp.zeros_like(corner)]])
    return Metric(scale, pairs.rows, core, pairs.next)
