"""Whether a trial is accepted: actual over predicted reduction of the penalty function, as in a trust-region method.

The damping σ takes the place of a radius, as in the method of Levenberg and Marquardt. The first-order term vᵀd is the same in
both reductions, so its noise does not decide.

References:
    A. R. Conn, N. I. M. Gould and P. L. Toint. Trust-Region Methods, SIAM 2000, Chapter 6.
    J. Nocedal and S. J. Wright. Numerical Optimization, 2nd edition, Springer 2006, Sections 4.1 and 10.3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.scaling import positive_or_one
from ...oracles.rows import Rows
from .constants import (
    GOOD_RATIO,
    GOOD_STEP_FACTOR,
    MAX_DAMPING,
    MAX_GROWTH,
    MIN_GROWTH,
    MIN_RATIO,
    POOR_RATIO,
    POOR_STEP_FACTOR,
    REDUCTION_ROUNDING,
    SIGNIFICANT_SQ,
)
from .model import PenaltyModel, Trial
from .tuning import Tuning


class End(NamedTuple):
    """One end of a trial: the state there, and what the sample says of the estimates.

    The estimates take a share of the `sampled` ones, the gains; `variances` are those of the sampled ones.
    """

    state: Any
    gains: tuple[Array, ...]
    sampled: tuple[Array, ...]
    variances: tuple[Array, ...]


class Outcome(NamedTuple):
    """Measurements of a trial step d, on the step's sample at both ends."""

    actual: Float[Array, ""]
    """Reduction of the penalty function."""
    finite: Bool[Array, ""]
    """Whether values and derivatives at the trial point are finite."""
    step: Float[Array, " n"]
    step_sq: Float[Array, ""]
    gradient_sq: Float[Array, ""]
    row_norm: Float[Array, " rows"]
    lagrangian_change: Float[Array, " n"]
    """Change of the gradient of the Lagrangian."""
    violated: Bool[Array, ""]
    """Whether the violation at x is more than noise explains."""
    moved: End
    """The trial point."""
    stayed: End
    """The last point, with what the trial says about the noise."""


class Acceptance(NamedTuple):
    """Whether a trial is accepted, and the damping after it."""

    accepted: Bool[Array, ""]
    damping: Float[Array, ""]


def accept_or_reject(model: PenaltyModel, trial: Trial, outcome: Outcome, tuning: Tuning) -> Acceptance:
    """Return whether the trial is accepted, and the damping after it."""
    return accept_step(
        outcome.actual,
        trial.predicted,
        reduction_rounding(model, trial, outcome),
        outcome.step_sq,
        tuning.damping,
        tuning.memory.curvature,
        outcome.finite,
    )


def accept_step(
    actual: Float[Array, ""],
    predicted: Float[Array, ""],
    rounding: Float[Array, ""],
    step_sq: Float[Array, ""],
    damping: Float[Array, ""],
    curvature: Float[Array, ""],
    finite: Bool[Array, ""],
) -> Acceptance:
    """Accept a step if its actual reduction is more than a tenth of the predicted one, both up to rounding.

    σ falls after a good step and grows after a poor one. After a rejected step it grows to the value with which the model would
    have predicted the actual reduction, within limits.

    Args:
        actual: actual reduction.
        predicted: predicted reduction.
        rounding: what rounding may do to either.
        step_sq: ‖d‖².
        damping: σ.
        curvature: δ, the unit of σ.
        finite: whether everything at the trial point is finite; if not, it is rejected.
    """
    ratio = jnp.where(finite & (predicted > -rounding), (actual + rounding) / (predicted + rounding), -1.0)
    needed = jnp.where(finite, 2.0 * (predicted - actual) / positive_or_one(step_sq), jnp.inf)
    after_poor = jnp.where(ratio < POOR_RATIO, POOR_STEP_FACTOR * damping, damping)
    after_accepted = jnp.where(ratio > GOOD_RATIO, GOOD_STEP_FACTOR * damping, after_poor)
    after_rejected = jnp.clip(needed, MIN_GROWTH * damping, MAX_GROWTH * jnp.maximum(damping, curvature))
    accepted = ratio > MIN_RATIO
    damping = jnp.where(accepted, after_accepted, jnp.minimum(after_rejected, MAX_DAMPING * curvature))
    return Acceptance(accepted, damping)


def actual_reduction(
    penalty: Float[Array, " rows"],
    before: Float[Array, " rows"],
    after: Float[Array, " rows"],
    rows: Rows,
    slope: Float[Array, ""],
    curving: Float[Array, ""],
) -> Float[Array, ""]:
    """Return the reduction of the penalty function over a step d, to second order in the objective.

    Args:
        penalty: ρ.
        before: rows at x.
        after: rows at the trial point.
        rows: their ranges.
        slope: vᵀd.
        curving: dᵀ(∇f(x⁺, ξ) − ∇f(x, ξ)); negative curvature does not count as a reduction.
    """
    reduction = penalty @ (rows.violation(before) - rows.violation(after)) - slope
    return reduction - jnp.maximum(0.5 * curving, 0.0)


def beyond_noise(value: Float[Array, " rows"], rows: Rows, variance: Float[Array, ""]) -> Bool[Array, ""]:
    """Return whether the violation is more than three standard deviations of the rows."""
    return jnp.sum(rows.violation(value) ** 2) > SIGNIFICANT_SQ * variance


def reduction_rounding(model: PenaltyModel, trial: Trial, outcome: Outcome) -> Float[Array, ""]:
    """Return how much rounding may change a reduction."""
    size = jnp.linalg.norm(model.x)
    rows = trial.penalty @ (jnp.abs(model.value) + outcome.row_norm * size)
    objective = jnp.sqrt(outcome.gradient_sq) * (size + jnp.sqrt(outcome.step_sq))
    return REDUCTION_ROUNDING * jnp.finfo(size.dtype).eps * (objective + rows)
