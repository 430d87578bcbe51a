"""KKT multipliers: the multipliers that make a point as nearly stationary as possible."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .quadratic import bounded_quadratic
from .ranges import solve_active_rows
from .scaling import reciprocal_or_zero

STEP_LENGTHS = np.append(0.0, np.logspace(-6, 0, 13))
"""Fractions of a Newton step, of which the best is taken."""
REFINEMENTS = 3
"""Steps of iterative refinement, which remove the effect of the ridge."""

NormalCone = Callable[[Float[Array, " n"]], Float[Array, " n"]]
"""The projection onto the normal cone N_X(x)."""


def kkt_multipliers(
    gradient: Float[Array, " n"],
    jacobian: Float[Array, "m n"],
    rows: Float[Array, " m"],
    equality: Bool[Array, " m"] | Bool[np.ndarray, " m"],
    project_normal_cone: NormalCone | None,
    rounds: int = 12,
    only_equalities: bool = False,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Return multipliers λ (≥ 0 for inequalities) that make x as nearly stationary as possible, and the residual.

    They minimize ‖∇F + Jᵀλ + ν‖² + Σ (λ_i min(c_i, 0))² over λ and ν in N_X(x). The second sum, over the inequalities, is
    the complementarity: a constraint far from active gets no multiplier, and no multiplier appears or vanishes at a
    threshold. Each row is divided by the norm of its gradient first, so the answer does not depend on the scales of the rows.

    Args:
        gradient: ∇F(x).
        jacobian: J(x).
        rows: c(x).
        equality: which rows are equalities.
        project_normal_cone: the projection onto N_X(x); None if X is the whole space.
        rounds: the number of Newton steps with a set.
        only_equalities: whether the caller knows that all rows are equalities; linear solves then suffice.
    """
    scale = reciprocal_or_zero(jnp.linalg.norm(jacobian, axis=1))
    unit = jacobian * scale[:, None]
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    if project_normal_cone is None:
        y, residual = _in_whole_space(gradient, unit, slack, jnp.asarray(equality), only_equalities)
    else:
        y, residual = _on_set(gradient, unit, slack, jnp.asarray(equality), project_normal_cone, rounds)
    return y * scale, residual


def _in_whole_space(
    gradient: Float[Array, " n"],
    unit: Float[Array, "m n"],
    slack: Float[Array, " m"],
    equality: Bool[Array, " m"],
    only_equalities: bool,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """One bounded quadratic problem, then iterative refinement of the rows with a multiplier, kept where it helps.

    The quadratic problem has a ridge. Along directions in which rows are nearly dependent, the ridge leaves a residual that
    float32 would report although the point is stationary; the refinement removes it.
    """
    matrix = unit @ unit.T + jnp.diag(slack**2)
    y = jnp.zeros_like(slack)
    if not only_equalities:
        ridged = matrix + _ridge(gradient, slack) * jnp.eye(slack.size, dtype=matrix.dtype)
        y = bounded_quadratic(ridged, unit @ gradient, equality)

    def objective(y: Array) -> Array:
        return jnp.sum((gradient + unit.T @ y) ** 2) + jnp.sum((slack * y) ** 2)

    def refine(_: int, y: Array) -> Array:
        slope = unit @ (gradient + unit.T @ y) + slack**2 * y
        new = y - solve_active_rows(matrix, slope, equality | (y > 0))
        new = jnp.where(equality, new, jnp.maximum(new, 0.0))
        return jnp.where(objective(new) < objective(y), new, y)

    y = jax.lax.fori_loop(0, REFINEMENTS, refine, y)
    return y, gradient + unit.T @ y


def _on_set(
    gradient: Float[Array, " n"],
    unit: Float[Array, "m n"],
    slack: Float[Array, " m"],
    equality: Bool[Array, " m"],
    project_normal_cone: NormalCone,
    rounds: int,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Newton's method on the problem in λ alone: ν is the projection of −(∇F + Jᵀλ) onto the normal cone.

    That problem is convex and, for polyhedral cones, piecewise quadratic. Each step is a bounded quadratic problem, shortened
    to the best of a few lengths, so no step increases the objective. The ridge is in the matrix of the step and not in its
    slope.
    """
    ridge = _ridge(gradient, slack)

    def outside_cone(push: Array) -> Array:
        return push - project_normal_cone(push)

    def objective(y: Array) -> Array:
        return jnp.sum(outside_cone(-(gradient + unit.T @ y)) ** 2) + jnp.sum((slack * y) ** 2)

    def newton(_: int, y: Array) -> Array:
        push, change = jax.linearize(outside_cone, -(gradient + unit.T @ y))
        curvature = jax.vmap(change)(unit) @ unit.T
        hessian = 0.5 * (curvature + curvature.T) + jnp.diag(slack**2 + ridge)
        slope = slack**2 * y - unit @ push
        goal = bounded_quadratic(hessian, slope - hessian @ y, equality)
        steps = y + STEP_LENGTHS.astype(y.dtype)[:, None] * (goal - y)
        return steps[jnp.argmin(jax.vmap(objective)(steps))]

    y = jax.lax.fori_loop(0, rounds, newton, jnp.zeros_like(slack))
    return y, -outside_cone(-(gradient + unit.T @ y))


def _ridge(gradient: Float[Array, " n"], slack: Float[Array, " m"]) -> float:
    return float(slack.size * jnp.finfo(gradient.dtype).eps)
