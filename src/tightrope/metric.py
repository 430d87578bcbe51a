"""A limited-memory metric: the BFGS matrix of the last few changes of a gradient, damped.

With pairs (s_i, y_i) of a step and the change of the gradient along it, M is the BFGS matrix of the pairs (s_i, y_i + σs_i)
from (δ + σ)I: about H + σI. As σ grows it becomes a multiple of the identity, as σ falls a quasi-Newton metric. Its
inverse has the compact form

    M⁻¹ = γI + WᵀKW          γ = 1/(δ + σ)          W = [S; Y], rows s_i and y_i + σs_i

    K = [ R⁻ᵀ(D + γYYᵀ)R⁻¹   −γR⁻ᵀ ]          R the upper triangle of SYᵀ, oldest pair first, D its diagonal
        [ −γR⁻¹                  0  ]

so everything a method needs of M are inner products with the rows of W.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

LEAST_CURVATURE = 0.1
"""The least cosine between a step and the change of the gradient; a smaller one is raised to this."""


class Pairs(NamedTuple):
    """The last few steps, each at length one, and the changes of the gradient along them; `next` is the oldest's place."""

    steps: Float[Array, "pairs n"]
    changes: Float[Array, "pairs n"]
    curvature: Float[Array, ""]
    """δ: the curvature where no pair says more."""
    next: Int[Array, ""]


def no_pairs(count: int, x: Float[Array, " n"], curvature: Float[Array, ""]) -> Pairs:
    """Room for this many pairs."""
    return Pairs(jnp.zeros((count, x.size), x.dtype), jnp.zeros((count, x.size), x.dtype), curvature, jnp.int32(0))


def with_pair(pairs: Pairs, step: Float[Array, " n"], change: Float[Array, " n"]) -> Pairs:
    """The pairs with one more in the place of the oldest; one that is not finite, or no step, is left out.

    A step along which the gradient did not change says that there is less curvature than was thought: δ is halved.
    """
    length, size = jnp.linalg.norm(step), jnp.linalg.norm(change)
    cosine = step @ change / _positive(length * size)
    lift = jnp.maximum(LEAST_CURVATURE - cosine, 0.0)
    unit = step / _positive(length)
    changed = (change + lift * size * unit) / _positive(length)
    curvature = changed @ changed / _positive(unit @ changed)
    good = jnp.isfinite(curvature) & (length > 0) & (size > 0) & (unit @ changed > 0)
    place = pairs.next
    return Pairs(
        pairs.steps.at[place].set(jnp.where(good, unit, pairs.steps[place])),
        pairs.changes.at[place].set(jnp.where(good, changed, pairs.changes[place])),
        jnp.where(good, curvature, jnp.where((length > 0) & (size == 0), 0.5, 1.0) * pairs.curvature),
        jnp.where(good, (place + 1) % len(pairs.steps), place),
    )


class Metric(NamedTuple):
    """M⁻¹ = scale · I + rowsᵀ · core · rows."""

    scale: Float[Array, ""]
    rows: Float[Array, "two_pairs n"]
    core: Float[Array, "two_pairs two_pairs"]

    def inner(self, vectors: Float[Array, "k n"]) -> tuple[Float[Array, "k k"], Float[Array, "k two_pairs"]]:
        """The inner products uᵀM⁻¹w of these vectors, and their products with the rows, for `times`."""
        seen = vectors @ self.rows.T
        return self.scale * vectors @ vectors.T + seen @ self.core @ seen.T, seen

    def times(
        self, weights: Float[Array, " k"], vectors: Float[Array, "k n"], seen: Float[Array, "k two_pairs"]
    ) -> Float[Array, " n"]:
        """M⁻¹ times the sum of the vectors with these weights."""
        return self.scale * weights @ vectors + (weights @ seen @ self.core) @ self.rows


def metric(pairs: Pairs, damping: Float[Array, ""]) -> Metric:
    """The damped metric of these pairs."""
    count = len(pairs.steps)
    scale = 1.0 / (pairs.curvature + damping)
    rows = jnp.concatenate([pairs.steps, pairs.changes + damping * pairs.steps])
    products = rows @ rows.T
    sizes = jnp.sqrt(jnp.diag(products))
    bent = jnp.diag(products[:count, count:])
    good = jnp.tile(bent > 0.5 * LEAST_CURVATURE * sizes[:count] * sizes[count:], 2)
    rows = jnp.where(good[:, None], rows, 0.0)
    products = jnp.where(good[:, None] & good[None, :], products, 0.0)
    order = (pairs.next + jnp.arange(count)) % count
    both, changes = products[:count, count:][jnp.ix_(order, order)], products[count:, count:][jnp.ix_(order, order)]
    used = jnp.diag(both) > 0
    triangle = jnp.triu(both) + jnp.diag(jnp.where(used, 0.0, 1.0))
    inverse = jax.scipy.linalg.solve_triangular(triangle, jnp.eye(count, dtype=rows.dtype))
    corner = inverse.T @ (jnp.diag(jnp.diag(both)) + scale * changes) @ inverse
    side = -scale * inverse
    place = jnp.argsort(order)
    put = jnp.ix_(place, place)
    core = jnp.block([[corner[put], side.T[put]], [side[put], jnp.zeros_like(corner)]])
    return Metric(scale, rows, core)


def _positive(number: Array) -> Array:
    return jnp.where(number > 0, number, 1.0)
