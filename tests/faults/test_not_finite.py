"""Functions that return NaN or Inf from some step on: the run ends, and keeps the last good iterate."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

GOOD_STEPS = 22
POINTS = np.random.default_rng(0).normal(1.0, 1.0, size=(64, 12, 2)).astype("float32")
FAULTS: dict[str, float] = {}
"""What is wrong with the batches after the good steps."""


def batches(first):
    for number in range(first, 64):
        numbers = {"weight": 1.0, "slope": 1.0, "shift": 0.0} | (FAULTS if number >= GOOD_STEPS else {})
        yield {"x": POINTS[number]} | {name: np.full(12, value, "float32") for name, value in numbers.items()}


def distance(x, batch):
    return jnp.mean(batch["weight"] * jnp.sum((x - batch["x"]) ** 2, axis=1))


def budget(x, batch):
    return jnp.mean(batch["slope"] * jnp.sum(x) + batch["shift"])


STREAM = tr.Stream(batches)
PROBLEM = tr.Problem(distance, tr.at_most(budget, 1.0, data=STREAM), domain=tr.domains.L2Ball(9.0), data=STREAM)
METHODS = (
    "AdaptiveLagrangian",
    "AdaptivePenalty",
    "ConservativeFrankWolfe",
    "ConservativeSaddle",
    "ConstraintExtrapolation",
    "CooperativeApproximation",
    "DriftPlusPenalty",
    "GradientDescentAscent",
    "InexactALM",
    "LinearizedPenalty",
    "MatrixFreePenalty",
    "ProximalPoint",
    "SmoothedLagrangian",
    "SwitchingSubgradient",
    "TwoPhaseMomentum",
)


@pytest.mark.by_default("AdaptivePenalty", "AdaptiveLagrangian", "SwitchingSubgradient")
@pytest.mark.parametrize("method", METHODS)
def test_functions_that_are_not_finite_any_more_end_the_run_with_the_last_good_iterate(method, monkeypatch):
    monkeypatch.setattr("tightrope.runs.streamed.EVALUATION_EXAMPLES", 120)
    for part, value in {"weight": np.nan, "slope": np.inf, "shift": np.nan}.items():
        with monkeypatch.context() as fault:
            fault.setitem(FAULTS, part, value)
            result = tr.solve(PROBLEM, jnp.zeros(2), method, steps=60, record=10)
        assert result.status == "diverged", part
        assert result.steps >= GOOD_STEPS, part
        assert np.isfinite(result.x).all(), part
        assert f"step {result.steps + 1} gave numbers that are not finite" in result.message
