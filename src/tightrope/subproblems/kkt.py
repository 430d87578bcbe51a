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
        steps = y + LENGTHS.astype(y.dtype)[:, None] * (goal - y)
        return steps[jnp.argmin(jax.vmap(value)(steps))]

    y = jax.lax.fori_loop(0, rounds, newton, jnp.zeros_like(rows))
    return y * scale, -tangent_part(-(gradient + unit.T @ y))
