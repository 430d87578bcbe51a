"""Tightened constraints are met on average, queues' are not, on a convex problem whose optimum is known."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tightrope.experiments.rates import problems
from tightrope.experiments.rates.measure import at_horizons
from tightrope.methods import ConservativeFrankWolfe, ConservativeSaddle, DriftPlusPenalty

STEPS, SEEDS = 10_000, 32
CASE = problems.budget()._replace(
    start=problems.TARGET
)  # from the unconstrained minimizer: the constraint has to be learnt
METHODS = {
    "ConservativeSaddle": ConservativeSaddle(),
    "ConservativeSaddle any time": ConservativeSaddle(horizon="any"),
    "ConservativeFrankWolfe": ConservativeFrankWolfe(),
    "DriftPlusPenalty": DriftPlusPenalty(),
}


@cache
def averages(name):
    """H(x̄) and F(x̄) − F* of every seed. H is linear, so H(x̄) is the mean of H over the iterates: the average violation."""
    found = at_horizons(CASE, METHODS[name], [STEPS], SEEDS)
    return found["output_violation"].to_numpy(), found["gap"].to_numpy()


def interval(values):
    """Mean and half-width of its 95% confidence interval."""
    return values.mean(), 1.96 * values.std(ddof=1) / np.sqrt(len(values))


@pytest.mark.by_default("ConservativeSaddle", "ConservativeFrankWolfe")
@pytest.mark.parametrize("name", ["ConservativeSaddle", "ConservativeSaddle any time", "ConservativeFrankWolfe"])
def test_the_average_violation_is_at_most_zero_up_to_its_confidence_interval(name):
    mean, half_width = interval(averages(name)[0])
    assert mean - half_width <= 0.0


def test_that_of_drift_plus_penalty_is_not():
    mean, half_width = interval(averages("DriftPlusPenalty")[0])
    assert mean - half_width > 0.0


@pytest.mark.parametrize(("name", "rate"), [("ConservativeSaddle", 0.5), ("DriftPlusPenalty", 0.5)])
def test_both_come_to_the_optimum_at_the_rate_of_their_theorems(name, rate):
    """|F(x̄) − F*| ≤ M D K^(-1/2), with D the distance from the start to the solution and M the gradient's norm there."""
    target = problems.TARGET
    away = np.linalg.norm(target - (target.sum() - 1.0) / target.size - target)
    steepness = (1.0 + problems.SPREAD) * away
    assert abs(averages(name)[1].mean()) <= max(1.0, steepness * away) * STEPS**-rate
