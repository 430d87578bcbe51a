"""The numbers of the experiment, and why."""

from __future__ import annotations

from ...methods import ConservativeSaddle, DriftPlusPenalty, Method

# ---------------------------------------------------------------------- from the paper (Section IV-A)

BOUND = 0.05
"""c, the most that the score's covariance with sex may be."""
TRAIN, VALIDATION = 28_350, 3_150
"""Rows; the others are for testing. The paper tunes on the validation rows; here nothing is tuned, and they are not used."""
CHOSEN = 80.0
"""v0 of Figure 2."""
STEP_SIZE, REGULARIZATION = 0.15, 0.01
"""η0 and δ of CSOA."""
PROXIMAL, OBJECTIVE_WEIGHT = 2.5, 0.5
"""α/T and V/√T of G-OCO."""

# ---------------------------------------------------------------------- ours, as the paper does not say

TIGHTENINGS = (0.0, 20.0, 40.0, CHOSEN)
"""v0 of Figure 1; the paper names only 80."""
HORIZONS = (TRAIN, 4_000_000)
"""T: one sample for each training row, and one at which v = v0/√T = 0.04 < c: for T < (v0/c)² = 2,560,000 no point meets the
tightened constraints, whose multipliers then drive the covariance to 0."""
BATCH, SEEDS, RECORDS = 1, 5, 100
"""A step sees one row, as in Algorithm 1."""

QUICK_HORIZONS, QUICK_ROWS, QUICK_SEEDS, QUICK_RECORDS = (500, 1_000), 2_000, 2, 20
QUICK_TIGHTENINGS = (0.0, CHOSEN)


def label(tightening: float) -> str:
    """How the curve of a v0 is called."""
    return f"CSOA, v0={tightening:g}"


def methods(tightenings: tuple[float, ...]) -> dict[str, Method]:
    """One setting each, the paper's."""
    found: dict[str, Method] = {label(v): ConservativeSaddle(STEP_SIZE, v, REGULARIZATION) for v in tightenings}
    return found | {"G-OCO": DriftPlusPenalty(PROXIMAL, OBJECTIVE_WEIGHT)}
