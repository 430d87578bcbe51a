"""Small optimisation problems that are solved inside larger ones."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def bounded_quadratic(
    matrix: Float[Array, "m m"], linear: Float[Array, " m"], free: Bool[Array, " m"], rounds: int = 30
) -> Float[Array, " m"]:
    """Argmin ½ yᵀKy + bᵀy over y with y_i ≥ 0 where not `free`; K positive definite.

    Mehrotra's predictor-corrector method on Ky + b = z, y_i z_i = μ → 0 (z = 0 where y is free), one factorisation a
    round; its cost does not depend on the data and degenerate cases need nothing special. Then one solve on the set it
    found, which makes the zeros exact, taken where it is no worse.
    """
    if linear.size == 0:
        return linear
    bounded, size = ~free, jnp.max(jnp.abs(linear))
    scale = jnp.where(size > 0, size, 1.0)
    b, count = linear / scale, jnp.maximum(jnp.sum(~free), 1)
    floor = jnp.finfo(linear.dtype).tiny ** 0.5

    def objective(y: Array) -> Array:
        return y @ (0.5 * matrix @ y + b)

    def improve(_: int, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        y, z = pair
        ratio, mean = jnp.where(free, 0.0, z / y), z @ y / count
        factor = jax.scipy.linalg.cho_factor(matrix + jnp.diag(ratio))

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
        centre = jnp.where(mean > 0, (reached / jnp.where(mean > 0, mean, 1.0)) ** 3, 0.0)
        dy, dz = direction(centre * mean - dy * dz)
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


def kkt_multipliers(
    gradient: Float[Array, " n"],
    jacobian: Float[Array, "m n"],
    rows: Float[Array, " m"],
    equality: Bool[Array, " m"],
    project_normal_cone: Callable[[Float[Array, " n"]], Float[Array, " n"]] | None,
    rounds: int = 12,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Multipliers λ (≥ 0 for inequalities) that make x as nearly stationary as possible, and the residual that is left.

    Minimises ‖∇F + Jᵀλ + ν‖² + Σ (λ_i min(c_i, 0))² over λ and ν in N_X(x): the second sum, over the inequalities, is
    the complementarity, so that a constraint far from active gets no multiplier and none appears or vanishes at a
    threshold. Each row is divided by the norm of its gradient first, which makes the answer independent of the rows'
    scales.

    Without a set that is one bounded quadratic problem. With one, ν is the projection of −(∇F + Jᵀλ) on the normal cone and
    what is left in λ is convex and, for polyhedral cones, piecewise quadratic: Newton's method on its pieces, each step
    cut to the best of a few lengths, so that no step goes up.
    """
    norms = jnp.linalg.norm(jacobian, axis=1)
    scale = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    unit = jacobian * scale[:, None]
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    damping = jnp.diag(slack**2 + rows.size * jnp.finfo(gradient.dtype).eps)

    if project_normal_cone is None:
        y = bounded_quadratic(unit @ unit.T + damping, unit @ gradient, equality)
        return y * scale, gradient + unit.T @ y

    def tangent_part(push: Array) -> Array:
        return push - project_normal_cone(push)

    def value(y: Array) -> Array:
        return jnp.sum(tangent_part(-(gradient + unit.T @ y)) ** 2) + y @ damping @ y

    def newton(_: int, y: Array) -> Array:
        push = -(gradient + unit.T @ y)
        left, change = jax.linearize(tangent_part, push)
        curvature = jax.vmap(change)(unit) @ unit.T
        hessian = 0.5 * (curvature + curvature.T) + damping
        slope = -unit @ left + damping @ y
        goal = bounded_quadratic(hessian, slope - hessian @ y, equality)
        steps = y + jnp.array([0.0, 0.01, 0.1, 0.3, 1.0], y.dtype)[:, None] * (goal - y)
        return steps[jnp.argmin(jax.vmap(value)(steps))]

    y = jax.lax.fori_loop(0, rounds, newton, jnp.zeros_like(rows))
    return y * scale, -tangent_part(-(gradient + unit.T @ y))
