"""Oracle counts equal counted real calls, and nothing is computed that is not used."""

from __future__ import annotations

from collections import Counter

import jax
import pytest

import tightrope as tr
from conftest import X0, loss, parity, points, started, unit_norm
from tightrope.methods.base import Method
from tightrope.testing.checks import counting

METHODS = [
    tr.methods.TruncatedMomentum(step_size=0.1, penalty=1.0, gradient_radius=5.0),
    tr.methods.TruncatedMomentum(step_size=0.1, penalty=1.0, gradient_radius=5.0, estimator="polyak"),
    tr.methods.SwitchingSubgradient(step_size=0.5, tolerance=0.05),
    tr.methods.SwitchingSubgradient(step_size=0.5, tolerance=0.05, rule="switching", values="exact"),
    tr.methods.GradientDescentAscent(step_size=0.1, dual_step_size=0.1),
]


def calls_of(problem: tr.Problem, method: Method, steps: int, seen: Counter[str] | None = None) -> dict[str, int]:
    """The calls that a run reports; `seen` has those of its steps alone."""
    run = started(problem, X0, method, steps=steps)
    jax.effects_barrier()
    (seen or {}).clear()
    while run.step < steps:
        run.advance(1)
    jax.effects_barrier()
    return run.calls[0]


def label(method: Method) -> str:
    return type(method).__name__ + "-" + str(getattr(method, "estimator", getattr(method, "values", "")))


@pytest.mark.by_default("SwitchingSubgradient-*", "TruncatedMomentum-polyak")
@pytest.mark.parametrize("method", METHODS, ids=label)
def test_counts_equal_real_calls_and_only_used_gradients_are_computed(method):
    calls: Counter[str] = Counter()
    data = tr.Dataset(points(), batch_size=16)
    stochastic = method.accepts.stochastic
    constraint = tr.at_most(
        counting(parity if stochastic else unit_norm, "constraint", calls),
        0.02 if stochastic else 0.1,
        data=data if stochastic else None,
        name="constraint",
    )
    problem = tr.Problem(counting(loss, "objective", calls), constraint, data=data)
    steps = 60
    counted = calls_of(problem, method, steps, calls)
    assert counted["objective_gradients"] == calls["objective derivative"] == calls["objective value"]
    assert counted["constraint_values"] == calls["constraint value"]
    assert counted["constraint_jacobians"] == calls["constraint derivative"]
    if isinstance(method, tr.methods.SwitchingSubgradient):
        assert 0 < counted["objective_gradients"] < steps  # both branches were taken, each step one of them
        assert counted["objective_gradients"] + counted["constraint_jacobians"] == steps


def test_samples_are_the_rows_that_were_drawn_and_used():
    data, other = tr.Dataset(points(), batch_size=16), tr.Dataset(points(seed=1), batch_size=8)
    problem = tr.Problem(loss, tr.at_most(parity, 0.02, data=other), data=data)
    joint = tr.solve(problem, X0, tr.methods.GradientDescentAscent(), steps=50)
    assert joint.samples == 50 * (16 + 8)
    switching = calls_of(problem, tr.methods.SwitchingSubgradient(value_batch_size=32), steps=50)
    objective = switching["objective_gradients"]
    assert switching["samples"] == 50 * 32 + objective * 16 + (50 - objective) * 8
    shared = tr.Problem(loss, tr.at_most(parity, 0.02, data=data), data=data)
    assert calls_of(shared, tr.methods.GradientDescentAscent(), steps=50)["samples"] == 50 * 16
    assert joint.history["samples"][-1] == joint.samples
    assert joint.history["epochs"][-1] == joint.samples / 400
