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

    Primal-dual active set: fix at 0 the bounded entries that the last point and its gradient push there, solve for the
    rest, repeat. It ends at the solution when the set repeats, as it does within a few rounds but for degenerate cases;
    sweeps of coordinate descent, which never go up, close what is left then.
    """
    if linear.size == 0:
        return linear
    diagonal = jnp.diagonal(matrix)

    def solve_on_set(_: int, y: Array) -> Array:
        gradient = matrix @ y + linear
        fixed = ~free & (y * diagonal <= gradient)
        kept = jnp.where(fixed[:, None] | fixed[None, :], jnp.diag(jnp.where(fixed, diagonal, 0.0)), matrix)
        return jnp.linalg.solve(kept, jnp.where(fixed, 0.0, -linear))

    def sweep(_: int, y: Array) -> Array:
        def improve(i: int, y: Array) -> Array:
            best = y[i] - (matrix[i] @ y + linear[i]) / diagonal[i]
            return y.at[i].set(jnp.where(free[i], best, jnp.maximum(best, 0.0)))

        return jax.lax.fori_loop(0, y.size, improve, y)

    y = jax.lax.fori_loop(0, rounds, solve_on_set, jnp.zeros_like(linear))
    return jax.lax.fori_loop(0, 5, sweep, jnp.where(free, y, jnp.maximum(y, 0.0)))


def kkt_multipliers(
    gradient: Float[Array, " n"],
    jacobian: Float[Array, "m n"],
    rows: Float[Array, " m"],
    equality: Bool[Array, " m"],
    project_normal_cone: Callable[[Float[Array, " n"]], Float[Array, " n"]] | None,
    rounds: int = 30,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Multipliers λ (≥ 0 for inequalities) that make x as nearly stationary as possible, and the residual that is left.

    Minimises ‖∇F + Jᵀλ + ν‖² + Σ (λ_i min(c_i, 0))² over λ and ν in N_X(x): the second sum, over the inequalities, is the
    complementarity, so that a constraint far from active gets no multiplier and none appears or vanishes at a threshold.
    Each row is divided by the norm of its gradient first, which makes the answer independent of the rows' scales. With a
    set, λ and ν are found in turn (block descent on a convex function); without, one solve is exact.
    """
    norms = jnp.linalg.norm(jacobian, axis=1)
    scale = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    unit = jacobian * scale[:, None]
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    tiny = rows.size * jnp.finfo(gradient.dtype).eps
    matrix = unit @ unit.T + jnp.diag(slack**2 + tiny + (norms == 0))

    def multipliers(normal: Array) -> Array:
        return bounded_quadratic(matrix, unit @ (gradient + normal), equality)

    if project_normal_cone is None:
        y = multipliers(jnp.zeros_like(gradient))
        return y * scale, gradient + unit.T @ y

    def turn(_: int, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        y = multipliers(pair[1])
        return y, project_normal_cone(-(gradient + unit.T @ y))

    start = jnp.zeros_like(rows), project_normal_cone(-gradient)
    y, normal = jax.lax.fori_loop(0, rounds, turn, start)
    return y * scale, gradient + unit.T @ y + normal
