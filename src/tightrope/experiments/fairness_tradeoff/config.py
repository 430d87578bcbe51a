"""The numbers of the experiment, and why."""

from __future__ import annotations

import math

from ...methods import ConservativeSaddle

# ---------------------------------------------------------------------- from the paper (Appendix F)

POINTS = 4000
POSITIVE = ((2.0, 2.0), ((5.0, 1.0), (1.0, 5.0)))
NEGATIVE = ((-2.0, -2.0), ((10.0, 1.0), (1.0, 3.0)))
"""Means and covariances of the two classes."""
ANGLES = {"φ = π/4": math.pi / 4, "φ = π/8": math.pi / 8}

# ---------------------------------------------------------------------- ours, as the paper does not say

BOUNDS = (0.05, 0.1, 0.2, 0.4, 0.8, math.inf)
"""c; the classifier without a bound has a covariance of about 1.2."""
METHOD = ConservativeSaddle(step_size=0.15, tightening=1.0, regularization=0.01)
"""η0 and δ as the paper has them for Adult; v = v0/√T is then 0.002, a little part of the least c."""
STEPS, SEEDS, RECORDS = 200_000, 5, 100
BATCH = 1
"""A step sees one point, as in Algorithm 1."""
DATA_SEED = 0
"""The points are the same for every run."""

FULL = (POINTS, STEPS, SEEDS, RECORDS)
QUICK = (400, 2_000, 2, 20)


def label(bound: float) -> str:
    """How the classifier with this bound is called."""
    return "no bound" if math.isinf(bound) else f"c = {bound:g}"
