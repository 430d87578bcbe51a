"""The numbers of the experiment and their reasons."""

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
"""η0 and δ as in the paper for Adult; v = v0/√T is 0.002, a small part of the smallest c."""
STEPS, SEEDS, RECORDS = 200_000, 5, 100
BATCH = 1
"""One point per step, as in Algorithm 1."""
DATA_SEED = 0
"""The points are the same for every run."""

FULL = (POINTS, STEPS, SEEDS, RECORDS)
QUICK = (400, 2_000, 2, 20)
"""Numbers of points, steps, seeds and records."""


def label(bound: float) -> str:
    """The label of the classifier with this bound."""
    return "no bound" if math.isinf(bound) else f"c = {bound:g}"
