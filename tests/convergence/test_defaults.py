"""The default solves what it is given, with nothing tuned: in any units, noisy or not, and says where there is no answer.

In the full suite units are changed both ways and every infeasible problem of the zoo is tried; the classical programs at full
size are a benchmark (benchmarks/defaults.py).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import tightrope as tr


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def in_units(objective=1.0, circle=1.0, line=1.0, x=1.0):
    """A noisy problem with an equation and an inequality, both active, in other units; at x0 nothing is zero."""
    noise = tr.Sampler(lambda key, n: 0.1 * jax.random.normal(key, (n, 3)), batch_size=2)

    def height(z, batch):
        w = z / x
        return objective * (w[0] ** 2 + 3.0 * w[1] ** 2 + jnp.exp(0.3 * w[2]) + jnp.mean(batch, 0) @ w)

    constraints = [
        tr.equals(lambda z: circle * jnp.sum((z / x) ** 2), 4.0 * circle, name="circle"),
        tr.at_least(lambda z: line * jnp.sum(z / x), 2.5 * line, name="line"),
    ]
    return tr.Problem(height, constraints, data=noise), jnp.array([2.0, 1.0, 0.5]) * x


@pytest.fixture(scope="module")
def usual():
    with jax.enable_x64(True):
        return solved()


def solved(**units):
    problem, x0 = in_units(**units)
    return tr.solve(problem, x0, steps=150, seed=1)


@pytest.mark.by_default("x-10000.0")
@pytest.mark.parametrize("factor", [1e-4, 1e4])
@pytest.mark.parametrize("unit", ["objective", "circle", "line", "x"])
def test_units_do_not_matter(unit, factor, usual):
    other = solved(**{unit: factor})
    scale = factor if unit == "x" else 1.0
    np.testing.assert_allclose(other.x / scale, usual.x, rtol=1e-5)
    for name, multiplier in usual.multipliers.items():
        expected = multiplier * (factor if unit == "objective" else 1.0) / (factor if unit == name else 1.0)
        np.testing.assert_allclose(other.multipliers[name], expected, rtol=1e-2)


@pytest.mark.by_default("no_real_root")
@pytest.mark.parametrize("name", list(tr.zoo.infeasible.available()))
def test_what_has_no_feasible_point_is_called_infeasible(name):
    problem, x0, _ = tr.zoo.infeasible.available()[name]()
    result = tr.solve(problem, x0, steps=1000)
    assert result.status == "infeasible"
    assert result.certificate.verdict == "infeasible"
    assert "cannot be met" in result.message


@pytest.mark.full
def test_penalties_do_not_grow_where_no_step_leads_nearer_to_the_constraints():
    """eˣ + e⁻ˣ ≤ y ≤ 1; with penalties that grow for ever, steps are refused for ever and it is not seen to be infeasible."""
    above = tr.at_most(lambda x: jnp.exp(x[0]) + jnp.exp(-x[0]) - x[1], 0.0, name="above")
    below = tr.at_most(lambda x: x[1], 1.0, name="below")
    result = tr.solve(tr.Problem(lambda x: x[0] ** 2 + x[1], (above, below)), jnp.array([1.0, 0.0]), steps=300)
    assert result.status == "infeasible"
    assert max(result.multipliers.values()) < 1e4


@pytest.mark.full
def test_more_half_spaces_than_dimensions_without_a_common_point_are_called_infeasible():
    """Raised one by one, penalties moved the violation from row to row: 97 of 100 steps were refused."""
    normals = np.random.default_rng(0).normal(size=(30, 4))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    ones, least = np.ones((30, 1)), np.append(np.zeros(4), 1.0)
    worst = linprog(least, np.hstack([normals, -ones]), np.full(30, -0.5), bounds=(None, None)).fun
    assert worst > 0.4  # however x is chosen, some row is violated by this much
    problem = tr.Problem(lambda x: jnp.sum((x - 3.0) ** 2), tr.at_most(lambda x: jnp.asarray(normals) @ x, -0.5))
    result = tr.solve(problem, jnp.zeros(4), steps=100)
    assert result.status == "infeasible"
    assert result.violation >= worst


def test_constraints_a_million_away_are_met():
    """What was further away than max(1, ‖x‖) counted as out of reach: no penalty was raised, and the status was infeasible."""
    problem = tr.Problem(lambda x: jnp.sum(x**2), tr.at_least(lambda x: x[0] + jnp.sqrt(1.0 + x[1] ** 2), 1e6))
    result = tr.solve(problem, jnp.zeros(2), steps=300)
    assert result.status == "converged"
    assert result.certificate.verdict == "feasible"


@pytest.mark.by_default("exponentials")
@pytest.mark.parametrize(
    "rows",
    [lambda x: jnp.stack([x[0] - x[1], x[0] - x[1] + 1.0]), lambda x: jnp.exp(x[0]) + jnp.exp(-x[0])],
    ids=["two parallel planes", "exponentials"],
)
def test_what_cannot_hold_is_called_infeasible_though_the_objective_falls_for_ever(rows):
    """Before, x ran away in steps that doubled, until rounding or its own size hid that the violation is stationary."""
    result = tr.solve(tr.Problem(lambda x: x[0] + 2.0 * x[1], tr.equals(rows, 0.0)), jnp.array([1.0, 1.0]), steps=1000)
    assert result.status == "infeasible"
    assert 0.4 < result.violation < 2.1


@pytest.mark.full
def test_noise_that_hides_the_way_is_no_proof_that_there_is_none():
    """At x ≈ 100 the row's gradient is a hundredth of its noise: the run does not get there, but that is all it knows."""
    with jax.enable_x64(True):
        problem, x0, _ = tr.zoo.hs.available()["hs64"](noise=1e-2, constraint_noise=1e-2)
        result = tr.solve(problem, jnp.asarray(x0, float), steps=500, seed=1)
    assert result.status == "budget"


@pytest.mark.by_default("noisy_fall")
@pytest.mark.parametrize("name", ["noisy_fall", "fall_in_orthant"])
def test_what_falls_without_end_is_called_unbounded(name):
    problem, x0, _ = tr.zoo.infeasible.unbounded()[name]()
    result = tr.solve(problem, x0, steps=1000)
    assert result.status == "unbounded"
    assert "unbounded below" in result.message


@pytest.mark.by_default("hs56")
@pytest.mark.parametrize("name", ["hs56", "hs71", "hs74", "maratos"])
def test_classical_programs_are_solved_from_noisy_gradients(name):
    """Feasible to 1e-4, relative to the start, and within 1% of the published optimum from gradients with noise of variance
    0.01, on four seeds.
    """
    problem, x0, solution = tr.zoo.hs.available()[name](noise=1e-2)
    for result in tr.sweep(problem, x0, tr.methods.AdaptivePenalty(), steps=1000, seeds=4).results:
        assert result.status == "budget"
        assert result.violation <= 1e-4 * max(1.0, result.history["violation"][0])
        assert result.objective == pytest.approx(solution.objective, rel=1e-2)


def test_penalties_that_a_bad_start_has_raised_fall_again():
    """Where the rows nearly depend on each other penalties grew to 1e5 times the multipliers, and steps to crawl."""
    problem, x0, solution = tr.zoo.hs.available()["s335"]()
    result = tr.solve(problem, x0, steps=1000)
    assert result.success
    assert result.objective == pytest.approx(solution.objective, rel=1e-6)


def test_finite_data_are_solved_to_the_optimum_of_all_rows():
    """N = 20,000, d = 100, batch 64, ten epochs: f − f* ≤ 1e-4 f* at a violation of at most 1e-4."""
    problem, x0, _ = tr.zoo.learning.finite_logistic()
    result = tr.solve(problem, x0, steps=624, record=624)
    assert result.samples <= 10 * 20_000
    assert result.violation <= 1e-4
    assert result.objective <= 0.5141647 * (1 + 1e-4)
    assert result.stationarity <= 1e-3
