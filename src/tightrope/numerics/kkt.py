"""The multipliers of a point: those that make it as nearly stationary as possible."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .quadratic import bounded_quadratic
from .ranges import held_multipliers

LENGTHS = np.append(0.0, np.logspace(-6, 0, 13))
"""Shares of a Newton step of which the best is taken."""
REFINED = 3
"""Linear solves where one would do but for the ridge."""


def kkt_multipliers(
    gradient: Float[Array, " n"],
    jacobian: Float[Array, "m n"],
    rows: Float[Array, " m"],
    equality: Bool[Array, " m"] | Bool[np.ndarray, " m"],
    project_normal_cone: Callable[[Float[Array, " n"]], Float[Array, " n"]] | None,
    rounds: int = 12,
    equations_alone: bool = False,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Multipliers λ (≥ 0 for inequalities) that make x as nearly stationary as possible, and the residual that is left.

    Minimizes ‖∇F + Jᵀλ + ν‖² + Σ (λ_i min(c_i, 0))² over λ and ν in N_X(x): the second sum, over the inequalities, is
    the complementarity, so that a constraint far from active gets no multiplier and none appears or vanishes at a
    threshold. Each row is divided by the norm of its gradient first, which makes the answer independent of the rows'
    scales.

    Without a set that is one bounded quadratic problem, and then a few linear solves for the rows with a multiplier, taken
    where they help: the first answer is that of a problem with a ridge, and what the ridge leaves along directions in which
    rows nearly depend on each other would be seen in float32 as a residual that is not there. Where the caller knows that there
    are equations alone, these solves do all.

    With a set, ν is the projection of −(∇F + Jᵀλ) on the normal cone and what is left in λ is convex and, for polyhedral
    cones, piecewise quadratic: Newton's method on its pieces, each step a bounded quadratic problem and cut to the best of
    a few lengths, so that no step goes up. Here the ridge is in the step's matrix and not in the slope.
    """
    norms = jnp.linalg.norm(jacobian, axis=1)
    scale = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    unit = jacobian * scale[:, None]
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    ridge = rows.size * jnp.finfo(gradient.dtype).eps

    if project_normal_cone is None:
        matrix = unit @ unit.T + jnp.diag(slack**2)
        ridged = matrix + ridge * jnp.eye(rows.size, dtype=matrix.dtype)
        y = jnp.zeros_like(rows)
        if not equations_alone:
            y = bounded_quadratic(ridged, unit @ gradient, jnp.asarray(equality))

        def off(y: Array) -> Array:
            return jnp.sum((gradient + unit.T @ y) ** 2) + jnp.sum((slack * y) ** 2)

        def refine(_: int, y: Array) -> Array:
            slope = unit @ (gradient + unit.T @ y) + slack**2 * y
            new = y - held_multipliers(matrix, slope, jnp.asarray(equality) | (y > 0))
            new = jnp.where(equality, new, jnp.maximum(new, 0.0))
            return jnp.where(off(new) < off(y), new, y)

        y = jax.lax.fori_loop(0, REFINED, refine, y)
        return y * scale, gradient + unit.T @ y

    def left(push: Array) -> Array:
        return push - project_normal_cone(push)

    def value(y: Array) -> Array:
        return jnp.sum(left(-(gradient + unit.T @ y)) ** 2) + jnp.sum((slack * y) ** 2)

    def newton(_: int, y: Array) -> Array:
        push, change = jax.linearize(left, -(gradient + unit.T @ y))
        curvature = jax.vmap(change)(unit) @ unit.T
        hessian = 0.5 * (curvature + curvature.T) + jnp.diag(slack**2 + ridge)
        slope = slack**2 * y - unit @ push
        goal = bounded_quadratic(hessian, slope - hessian @ y, jnp.asarray(equality))
        steps = y + LENGTHS.astype(y.dtype)[:, None] * (goal - y)
        return steps[jnp.argmin(jax.vmap(value)(steps))]

    y = jax.lax.fori_loop(0, rounds, newton, jnp.zeros_like(rows))
    return y * scale, -left(-(gradient + unit.T @ y))
