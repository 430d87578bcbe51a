"""Quadratic problems with bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .scaling import positive_or_one


def bounded_quadratic(
    matrix: Float[Array, "m m"], linear: Float[Array, " m"], free: Bool[Array, " m"], rounds: int = 30
) -> Float[Array, " m"]:
    """Return argmin ½ yᵀKy + bᵀy over y with y_i ≥ 0 where not `free`; K is positive definite.

    Mehrotra's predictor-corrector method solves Ky + b = z, y_i z_i = μ → 0 (z = 0 where y is free) with one factorization
    per round, until one of every y_i and z_i is less than eps² of the other. Degenerate problems, where both vanish, need no
    special case: they take all rounds. One linear solve on the active set that it found then makes the zeros exact; that
    solution is kept where it is no worse.
    """
    if linear.size == 0:
        return linear
    scale = positive_or_one(jnp.max(jnp.abs(linear)))
    b = linear / scale
    start = jnp.where(free, 0.0, 1.0).astype(b.dtype)

    def improve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        y, z, count = carry
        return *_predict_and_correct(matrix, b, free, (y, z)), count + 1

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        y, z, count = carry
        separate = jnp.minimum(y, z) <= jnp.finfo(b.dtype).eps ** 2 * jnp.maximum(y, z)
        return ~jnp.all(free | separate) & (count < rounds)

    y, z, _ = jax.lax.while_loop(unfinished, improve, (start, start, jnp.int32(0)))
    exact = _on_active_set(matrix, b, ~free, ~free & (y < z))

    def objective(y: Array) -> Array:
        return y @ (0.5 * matrix @ y + b)

    return scale * jnp.where(objective(exact) <= objective(y), exact, y)


def _predict_and_correct(
    matrix: Float[Array, "m m"], b: Float[Array, " m"], free: Bool[Array, " m"], pair: tuple[Array, Array]
) -> tuple[Array, Array]:
    """One round of Mehrotra's method on (y, z); the pair itself where the step is not finite."""
    bounded, count = ~free, jnp.maximum(jnp.sum(~free), 1)
    floor = jnp.finfo(b.dtype).tiny ** 0.5
    pivot_rounding = b.size * jnp.finfo(b.dtype).eps * jnp.max(jnp.diag(matrix))  # no pivot may fall below 0
    y, z = pair
    ratio, mean = jnp.where(free, 0.0, z / y), z @ y / count
    factor = jax.scipy.linalg.cho_factor(matrix + jnp.diag(ratio + pivot_rounding))

    def direction(target: Array) -> tuple[Array, Array]:
        """The Newton step toward y z = target."""
        push = jnp.where(free, 0.0, target / y)
        dy = jax.scipy.linalg.cho_solve(factor, push - matrix @ y - b)
        return dy, jnp.where(free, 0.0, push - z - ratio * dy)

    def longest(dy: Array, dz: Array) -> Array:
        """The longest step that keeps y and z positive."""
        room = jnp.where(bounded & (dy < 0), -y / dy, jnp.inf), jnp.where(bounded & (dz < 0), -z / dz, jnp.inf)
        return jnp.minimum(1.0, 0.995 * jnp.minimum(jnp.min(room[0]), jnp.min(room[1])))

    dy, dz = direction(jnp.zeros_like(y))
    step = longest(dy, dz)
    reached = (z + step * dz) @ jnp.where(free, 0.0, y + step * dy) / count
    center = jnp.where(mean > 0, (reached / positive_or_one(mean)) ** 3, 0.0)
    dy, dz = direction(center * mean - dy * dz)
    step = longest(dy, dz)
    new = y + step * dy, z + step * dz
    kept = jax.tree.map(lambda a: jnp.where(bounded, jnp.maximum(a, floor), a), new)
    finite = jnp.all(jnp.isfinite(new[0]) & jnp.isfinite(new[1]))
    return jax.tree.map(lambda a, old: jnp.where(finite, a, old), kept, pair)


def _on_active_set(
    matrix: Float[Array, "m m"], b: Float[Array, " m"], bounded: Bool[Array, " m"], active: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """The minimizer with y = 0 on the active bounds, clipped to the others."""
    kept = jnp.where(active[:, None] | active[None, :], jnp.diag(active.astype(b.dtype)), matrix)
    exact = jnp.linalg.solve(kept, jnp.where(active, 0.0, -b))
    return jnp.where(bounded, jnp.maximum(exact, 0.0), exact)
