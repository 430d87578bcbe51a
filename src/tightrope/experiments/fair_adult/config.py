"""The numbers of the experiment and their reasons."""

from __future__ import annotations

from ...methods import ConservativeSaddle, DriftPlusPenalty, Method

# ---------------------------------------------------------------------- from the paper (Section IV-A)

BOUND = 0.05
"""c, the bound on the covariance of score and sex."""
TRAIN, VALIDATION = 28_350, 3_150
"""Numbers of examples; the others are for testing. The paper tunes on the validation set; here nothing is tuned."""
CHOSEN = 80.0
"""v0 of Figure 2."""
STEP_SIZE, REGULARIZATION = 0.15, 0.01
"""η0 and δ of CSOA."""
PROXIMAL, OBJECTIVE_WEIGHT = 2.5, 0.5
"""α/T and V/√T of G-OCO."""

# ---------------------------------------------------------------------- ours, as the paper does not say

TIGHTENINGS = (0.0, 20.0, 40.0, CHOSEN)
"""v0 of Figure 1; the paper names only 80."""
HORIZONS = (TRAIN, 100_000, 4_000_000)
"""T: one sample per training example, for which the claims are counted. Our extension: a longer one, and one with
v = v0/√T = 0.04 < c. For T < (v0/c)² = 2,560,000 no point meets the tightened constraints, and their multipliers drive the
covariance to 0."""
BATCH, SEEDS, RECORDS = 1, 5, 100
"""One example per step, as in Algorithm 1."""

QUICK_HORIZONS, QUICK_EXAMPLES, QUICK_SEEDS, QUICK_RECORDS = (500, 1_000), 2_000, 2, 20
QUICK_TIGHTENINGS = (0.0, CHOSEN)


def label(tightening: float) -> str:
    """The label of the curve of a v0."""
    return f"CSOA, v0={tightening:g}"


def methods(tightenings: tuple[float, ...]) -> dict[str, Method]:
    """The methods with the paper's settings, by label."""
    found: dict[str, Method] = {label(v): ConservativeSaddle(STEP_SIZE, v, REGULARIZATION) for v in tightenings}
    return found | {"G-OCO": DriftPlusPenalty(PROXIMAL, OBJECTIVE_WEIGHT)}
