"""The rates experiment: closed forms against samples, running means against the iterates of `solve`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import tightrope as tr
from tightrope.experiments import base
from tightrope.experiments.rates import problems
from tightrope.experiments.rates.config import AVERAGES, RATES, WORST_SEED
from tightrope.experiments.rates.measure import curves, records, slope
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

SAMPLES = 40_000
CASES = {
    "linear": problems.linear,
    "noisy_sphere": problems.noisy_sphere,
    "sphere": lambda: problems.sphere(tr.domains.L2Ball(3.0)),
    "flat": lambda: problems.flat(3),
    "budget": problems.budget,
}


@pytest.mark.by_default("budget", "noisy_sphere")
@pytest.mark.parametrize("name", CASES)
def test_objective_gradient_and_constraints_are_the_expectations_of_their_samples(name):
    case = CASES[name]()
    parameters = Parameters(case.start)
    oracle = oracle_for(case.problem, parameters)
    x = parameters.start + 0.1
    sample = oracle.draw(jax.random.key(1), SAMPLES)
    standard_error = 3.0 * (1.0 + np.linalg.norm(x - problems.TARGET)) / np.sqrt(SAMPLES)
    exact = jax.grad(case.objective)(x)
    np.testing.assert_allclose(oracle.grad(x, sample), exact, atol=4 * standard_error)
    np.testing.assert_allclose(oracle.c(x, sample), case.constraint(x), atol=4 * standard_error)
    assert np.linalg.norm(exact) > 20 * standard_error  # large enough for the comparison to mean something


def test_the_optimum_of_the_budget_problem_is_a_kkt_point_inside_the_box():
    case, target = problems.budget(), problems.TARGET
    x = jnp.asarray(target - (target.sum() - 1.0) / target.size)
    gradient = np.asarray(jax.grad(case.objective)(x))
    np.testing.assert_allclose(gradient, gradient[0], rtol=1e-4)  # λ(1, …, 1)
    assert gradient[0] < 0
    np.testing.assert_allclose(case.constraint(x), 0.0, atol=1e-5)
    np.testing.assert_allclose(case.objective(x), case.optimum, rtol=1e-5)
    assert bool(case.problem.domain.contains(x))


def test_curves_are_running_means_over_the_iterates_that_solve_visits():
    make, method, multipliers, *_ = WORST_SEED["2a, θ=1 known, ball"]
    case = make()
    steps, seen = 40, []
    tr.solve(
        case.problem, case.start, method, steps=steps, seed=1, record=1, callback=lambda row: seen.append(row["x"])
    )
    violations = np.array([float(jnp.sum(case.constraint(x) ** 2)) for x in seen[1:]])
    residuals = []
    for k, x in enumerate(seen[1:], start=1):
        c, pullback = jax.vjp(case.constraint, x)
        slope_there = jax.grad(case.objective)(x) + pullback(multipliers(method, None, k, c))[0]
        residuals.append(float(case.problem.domain.normal_cone_distance(x, slope_there)) ** 2)
    found = curves(case, method, multipliers, steps, seeds=2)
    np.testing.assert_allclose(found.violation[1], [violations[:k].mean() for k in found.k], rtol=1e-3)
    np.testing.assert_allclose(found.last_violation[1], violations[found.k - 1], rtol=1e-3)
    assert (found.samples == 1).all()
    np.testing.assert_allclose(found.stationarity[1], [np.mean(residuals[:k]) for k in found.k], rtol=1e-3)


def test_the_slope_is_that_of_the_last_decade_alone():
    k = records(100_000)
    assert k[0] == 100
    assert k[-1] == 100_000
    late = k >= 10_000
    values = np.where(late, 3.0 * k**-0.4, 7.0)
    assert slope(k, values) == pytest.approx(-0.4)


def test_every_rate_of_papers_one_and_two_is_among_the_measurements():
    names = " ".join([*AVERAGES, *WORST_SEED])
    assert all(variant in names for variant in ("1a", "1b", "1c", "1d", "2a", "2b"))


def test_every_measurement_is_among_the_committed_claims():
    claims = [check["claim"] for check in base.committed()["rates"][1]["checks"]]
    assert all(sum(claim.startswith(f"{name}: ") for claim in claims) == 2 for name in RATES)
    assert len(claims) == 2 * len(RATES)


def curve(exponent, seeds=4, **columns):
    """A frame whose columns fall as k^exponent, the last seed's ten times as high."""
    k = records(10_000)
    values = np.concatenate([(10.0 if seed == seeds - 1 else 1.0) * k**exponent for seed in range(seeds)])
    about = {"entry": columns.pop("entry"), "seed": np.repeat(np.arange(seeds), len(k)), "step": np.tile(k, seeds)}
    names = ("mean_stationarity", "mean_violation", "last_violation", "gap")
    return pd.DataFrame(about | dict.fromkeys(names, values) | {"output_violation": -values})


@pytest.mark.parametrize(("exponent", "holds"), [(-0.6, False), (-0.63, True), (-0.8, True)])
def test_a_slope_holds_up_to_the_margin(exponent, holds):
    checks = base.available()["rates"].claims({"paper 1": curve(exponent, entry="1a")})
    assert [check.holds for check in checks] == [holds] * 2
    assert checks[0].measured == pytest.approx(exponent, abs=1e-4)
    assert "10,000, 4 seeds, LinearizedALM()" in checks[0].detail


def test_paper_two_is_judged_by_the_worst_seed():
    frame = curve(-0.6, entry="2a, θ unknown, box")
    worst = frame["seed"] == 3
    frame.loc[worst, "last_violation"] = 1.0
    judged = base.available()["rates"].claims({"paper 2": frame})
    assert [check.holds for check in judged] == [False, True]


def test_paper_five_may_not_violate():
    frame = curve(-0.6, entry="5a")
    judge = base.available()["rates"].claims
    assert [check.holds for check in judge({"paper 5": frame})] == [True, True]
    assert [check.holds for check in judge({"paper 5": frame.assign(output_violation=0.01)})] == [True, False]
