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

Mapping = Callable[[Float[Array, " n"]], Float[Array, " n"]]
"""v ↦ r(v), the part of v that a set X cannot cancel at x.

This is v less its projection onto the normal cone N_X(x), or the gradient mapping r(v) = (P(x + tv) − x)/t for a t > 0.
"""


def kkt_multipliers(
    gradient: Float[Array, " n"],
    jacobian: Float[Array, "m n"],
    rows: Float[Array, " m"],
    equality: Bool[Array, " m"] | Bool[np.ndarray, " m"],
    mapping: Mapping | None,
    rounds: int = 12,
    only_equalities: bool = False,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Return multipliers λ (≥ 0 for inequalities) that make x as nearly stationary as possible, and the residual.

    They minimize 2⟨v, r⟩ − ‖r‖² + Σ (λ_i min(c_i, 0))², where v = −(∇F + Jᵀλ) and r = r(v). With the normal cone the first
    part is ‖r‖², the squared distance of v to N_X(x). The sum, over the inequalities, is the complementarity: a constraint far
    from active gets no multiplier, and no multiplier appears or vanishes at a threshold. Each row is divided by the norm of
    its gradient first, so the answer does not depend on the scales of the rows.

    Args:
        gradient: ∇F(x).
        jacobian: J(x).
        rows: c(x).
        equality: which rows are equalities.
        mapping: v ↦ r(v); None if X is the whole space.
        rounds: the number of Newton steps with a set.
        only_equalities: whether the caller knows that all rows are equalities; linear solves then suffice.
    """
    scale = reciprocal_or_zero(jnp.linalg.norm(jacobian, axis=1))
    unit = jacobian * scale[:, None]
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    if mapping is None:
        y, residual = _in_whole_space(gradient, unit, slack, jnp.asarray(equality), only_equalities)
    else:
        y, residual = _on_set(gradient, unit, slack, jnp.asarray(equality), mapping, rounds)
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
    mapping: Mapping,
    rounds: int,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Newton's method: the gradient of 2⟨v, r⟩ − ‖r‖² in v is 2r.

    The problem is convex and, for polyhedral sets, piecewise quadratic. Each step is a bounded quadratic problem, shortened
    to the best of a few lengths, so no step increases the objective; the method ends at a step of length 0. The ridge is in
    the matrix of the step and not in its slope.
    """
    ridge = _ridge(gradient, slack)

    def objective(y: Array) -> Array:
        push = -(gradient + unit.T @ y)
        return distance_sq(push, mapping(push)) + jnp.sum((slack * y) ** 2)

    def newton(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        y, _, count = carry
        rest, change = jax.linearize(mapping, -(gradient + unit.T @ y))
        curvature = jax.vmap(change)(unit) @ unit.T
        hessian = 0.5 * (curvature + curvature.T) + jnp.diag(slack**2 + ridge)
        slope = slack**2 * y - unit @ rest
        goal = bounded_quadratic(hessian, slope - hessian @ y, equality)
        steps = y + STEP_LENGTHS.astype(y.dtype)[:, None] * (goal - y)
        best = steps[jnp.argmin(jax.vmap(objective)(steps))]
        return best, jnp.any(best != y), count + 1

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        _, moved, count = carry
        return moved & (count < rounds)

    y = jax.lax.while_loop(unfinished, newton, (jnp.zeros_like(slack), jnp.bool_(True), jnp.int32(0)))[0]
    return y, -mapping(-(gradient + unit.T @ y))


def distance_sq(v: Float[Array, " n"], r: Float[Array, " n"]) -> Float[Array, ""]:
    """2⟨v, r⟩ − ‖r‖² for r = r(v): ‖r‖² with a normal cone."""
    return r @ r + 2.0 * (v - r) @ r


def _ridge(gradient: Float[Array, " n"], slack: Float[Array, " m"]) -> float:
    return float(slack.size * jnp.finfo(gradient.dtype).eps)
