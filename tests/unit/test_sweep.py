"""Sweeps: order, grouping, the best, one program for a grid."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from conftest import X0, loss, points


def test_results_come_in_the_order_asked_for_whatever_shares_a_program():
    problem = tr.Problem(loss, data=tr.Dataset(points(), batch_size=16))
    methods = [
        tr.methods.GradientDescentAscent(step_size=0.1),
        tr.methods.TruncatedMomentum(),
        tr.methods.GradientDescentAscent(step_size=0.2),
    ]
    found = tr.sweep(problem, X0, methods, steps=20, seeds=[4, 2], record=20)
    frame = found.to_pandas()
    assert (
        frame["method"].tolist()
        == ["GradientDescentAscent"] * 2 + ["TruncatedMomentum"] * 2 + ["GradientDescentAscent"] * 2
    )
    assert frame["seed"].tolist() == [4, 2] * 3
    assert np.allclose(frame["step_size"][[0, 4]], [0.1, 0.2])
    assert found.best().objective == min(r.objective for r in found.results)


def test_a_grid_is_traced_once():
    traces = 0

    def objective(x):
        nonlocal traces
        traces += 1
        return jnp.sum((x - 1.0) ** 2)

    problem = tr.Problem(objective)
    grid = [tr.methods.GradientDescentAscent(step_size=s, dual_step_size=1.0) for s in (0.1, 0.2, 0.3)]
    tr.sweep(problem, X0, grid, steps=10, seeds=2)
    first, traces = traces, 0
    tr.sweep(
        problem,
        X0,
        [tr.methods.GradientDescentAscent(step_size=s, dual_step_size=2.0) for s in (1.0, 2.0, 3.0)],
        steps=30,
        seeds=2,
    )
    assert first > 1
    assert traces <= 1  # the check of the function itself


def test_the_best_is_feasible_where_any_run_is():
    problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(jnp.sum, 0.0, name="sum"))
    grid = [tr.methods.GradientDescentAscent(step_size=s, dual_step_size=d) for s, d in ((0.05, 1e-6), (0.05, 2.0))]
    found = tr.sweep(problem, jnp.zeros(2), grid, steps=2000, seeds=1)
    assert found.best().violation < 1e-2
    assert "2 runs" in repr(found)


def test_a_run_is_not_the_best_because_of_a_violation_that_is_worth_more_than_it_gains():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
    exact = tr.solve(problem, jnp.zeros(2), steps=100)
    above = exact.certificate.violation["budget"]._replace(value=1e-3)
    certificate = exact.certificate._replace(violation={"budget": above}, relative_violation={"budget": above})
    lower = replace(exact, certificate=certificate, objective=exact.objective - 0.9e-3)  # the multiplier is 1
    far = replace(lower, certificate=certificate._replace(relative_violation={"budget": above._replace(value=2e-3)}))
    unknown = replace(exact, objective=math.nan)
    assert tr.SweepResult([unknown, far, lower, exact]).best() is exact
    assert tr.SweepResult([far, replace(lower, objective=exact.objective - 1.1e-3)]).best().objective < exact.objective


def test_runs_with_different_seeds_are_judged_on_different_samples():
    """Shared samples would give all answers of a sweep the same error, which no spread over seeds shows."""
    source = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 4)), batch_size=4)
    problem = tr.Problem(lambda x, batch: jnp.mean((batch - x) ** 2), data=source)
    swept = tr.sweep(problem, X0, "GradientDescentAscent", steps=20, seeds=[4, 2], record=10).results
    alone = [tr.solve(problem, X0, "GradientDescentAscent", steps=20, seed=seed, record=10) for seed in (4, 2)]
    for one, other in zip(swept, alone, strict=True):
        assert np.allclose(one.history["objective"], other.history["objective"], rtol=1e-5)
        assert one.output == other.output
    assert swept[0].history["objective"][0] != swept[1].history["objective"][0]  # at x0, on two samples
