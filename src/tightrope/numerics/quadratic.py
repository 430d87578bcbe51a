"""Quadratic problems with bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def bounded_quadratic(
    matrix: Float[Array, "m m"], linear: Float[Array, " m"], free: Bool[Array, " m"], rounds: int = 30
) -> Float[Array, " m"]:
    """Argmin ½ yᵀKy + bᵀy over y with y_i ≥ 0 where not `free`; K positive definite.

    Mehrotra's predictor-corrector method on Ky + b = z, y_i z_i = μ → 0 (z = 0 where y is free), one factorization a
    round; its cost does not depend on the data and degenerate cases need nothing special. Then one solve on the set it
    found, which makes the zeros exact, taken where it is no worse.
    """
    if linear.size == 0:
        return linear
    bounded, size = ~free, jnp.max(jnp.abs(linear))
    scale = jnp.where(size > 0, size, 1.0)
    b, count = linear / scale, jnp.maximum(jnp.sum(~free), 1)
    floor = jnp.finfo(linear.dtype).tiny ** 0.5
    rounding = (
        linear.size * jnp.finfo(linear.dtype).eps * jnp.max(jnp.diag(matrix))
    )  # of a pivot: none may fall below 0

    def objective(y: Array) -> Array:
        return y @ (0.5 * matrix @ y + b)

    def improve(_: int, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        y, z = pair
        ratio, mean = jnp.where(free, 0.0, z / y), z @ y / count
        factor = jax.scipy.linalg.cho_factor(matrix + jnp.diag(ratio + rounding))

        def direction(target: Array) -> tuple[Array, Array]:
            """The Newton step towards y z = target."""
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
        center = jnp.where(mean > 0, (reached / jnp.where(mean > 0, mean, 1.0)) ** 3, 0.0)
        dy, dz = direction(center * mean - dy * dz)
        step = longest(dy, dz)
        new = y + step * dy, z + step * dz
        kept = jax.tree.map(lambda a: jnp.where(bounded, jnp.maximum(a, floor), a), new)
        finite = jnp.all(jnp.isfinite(new[0]) & jnp.isfinite(new[1]))
        return jax.tree.map(lambda a, old: jnp.where(finite, a, old), kept, pair)

    start = jnp.where(free, 0.0, 1.0).astype(b.dtype)
    y, z = jax.lax.fori_loop(0, rounds, improve, (start, start))
    fixed = bounded & (y < z)
    kept = jnp.where(fixed[:, None] | fixed[None, :], jnp.diag(fixed.astype(b.dtype)), matrix)
    exact = jnp.linalg.solve(kept, jnp.where(fixed, 0.0, -b))
    exact = jnp.where(bounded, jnp.maximum(exact, 0.0), exact)
    return scale * jnp.where(objective(exact) <= objective(y), exact, y)
