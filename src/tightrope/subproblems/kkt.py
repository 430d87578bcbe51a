"""The multipliers of a point: those that make it as nearly stationary as possible."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .quadratic import bounded_quadratic

LENGTHS = np.append(0.0, np.logspace(-6, 0, 13))
"""Shares of a Newton step of which the best is taken."""
REFINED = 3
"""Rounds where one would do but for the ridge."""


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

    What the normal cone leaves of v = −(∇F + Jᵀλ) is v itself without a set; with one, convex in λ and, for polyhedral cones,
    piecewise linear. So this is Newton's method, each step a bounded quadratic problem, cut on a set to the best of a few
    lengths, so that no step goes up. The steps' matrix has a ridge, which the slope has not: what the ridge leaves along
    directions in which rows nearly depend on each other, the next round takes away. A ridge in both would be seen in
    float32 as a residual that is not there.
    """
    norms = jnp.linalg.norm(jacobian, axis=1)
    scale = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    unit = jacobian * scale[:, None]
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    ridge = rows.size * jnp.finfo(gradient.dtype).eps

    def left(push: Array) -> Array:
        return push if project_normal_cone is None else push - project_normal_cone(push)

    def value(y: Array) -> Array:
        return jnp.sum(left(-(gradient + unit.T @ y)) ** 2) + jnp.sum((slack * y) ** 2)

    def newton(_: int, y: Array) -> Array:
        push, change = jax.linearize(left, -(gradient + unit.T @ y))
        curvature = jax.vmap(change)(unit) @ unit.T
        hessian = 0.5 * (curvature + curvature.T) + jnp.diag(slack**2 + ridge)
        slope = slack**2 * y - unit @ push
        goal = bounded_quadratic(hessian, slope - hessian @ y, equality)
        if project_normal_cone is None:
            return goal
        steps = y + LENGTHS.astype(y.dtype)[:, None] * (goal - y)
        return steps[jnp.argmin(jax.vmap(value)(steps))]

    y = jax.lax.fori_loop(0, REFINED if project_normal_cone is None else rounds, newton, jnp.zeros_like(rows))
    return y * scale, -left(-(gradient + unit.T @ y))
