"""The default constants of the papers' methods, what they report, and what they say about it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr


def far_target(dimension: int = 400, rows: int = 20, distance: float = 53.6):
    """Minimize ½‖x − t‖² (L_f = 1) on affine rows, from 0; the solution is 53.6 away."""
    rng = np.random.default_rng(0)
    a, t = rng.normal(size=(rows, dimension)) / np.sqrt(dimension), rng.normal(size=dimension)
    t *= distance / np.linalg.norm(t)
    b = a @ rng.normal(size=dimension)
    x = t - a.T @ np.linalg.solve(a @ a.T, a @ t - b)
    return tr.Problem(lambda x: 0.5 * jnp.sum((x - t) ** 2), tr.affine(a, b, name="rows")), jnp.zeros(dimension), x


@pytest.mark.parametrize(
    ("method", "left"),
    [(tr.methods.LinearizedALM(), 0.01), (tr.methods.TruncatedMomentum(), 0.5), (tr.methods.LinearizedPenalty(), 0.5)],
    ids=lambda value: type(value).__name__ if isinstance(value, tr.methods.Method) else "",
)
def test_a_solution_far_from_zero_is_reached_in_high_dimension(method, left):
    """L_f was taken as ‖∇f‖/max(1, ‖x0‖), 55 times too large: 35.8, 42.9 and 42.5 of 53.6 were left."""
    problem, x0, solution = far_target()
    result = tr.solve(problem, x0, method, steps=5_000, record=2_500)
    assert np.linalg.norm(result.x - solution) <= left


@pytest.mark.parametrize("curvature", [1e-3, 1.0, 1e3])
def test_the_estimated_smoothness_of_a_quadratic_is_its_curvature(curvature):
    matrix = np.diag([1.0, 0.3, 0.1, 0.01]) * curvature
    problem = tr.Problem(lambda x: 0.5 * (x - 7.0) @ jnp.asarray(matrix) @ (x - 7.0), tr.affine(np.ones((1, 4)), [1.0]))
    found = tr.solve(problem, jnp.zeros(4), tr.methods.LinearizedALM(), steps=1).constants["smoothness"]
    assert 0.9 * curvature <= found <= 1.01 * curvature


def test_a_start_where_the_objective_is_flat_does_not_make_the_first_step_explode():
    """x⁴ − x has curvature 0 at the start and 4.8 at the solution."""
    problem = tr.Problem(lambda x: jnp.sum(x**4 - x), tr.affine(np.array([[1.0, -1.0]]), [0.0]))
    result = tr.solve(problem, jnp.zeros(2), tr.methods.LinearizedALM(), steps=2_000)
    np.testing.assert_allclose(result.x, 0.25 ** (1 / 3), atol=1e-3)


def wall_far_away():
    """The start has a gradient of norm 8.7, the solution one of norm 95."""
    wall = tr.equals(lambda x: x[0], 100.0, name="wall")
    return tr.Problem(lambda x: 0.5 * jnp.sum((x - 5.0) ** 2), wall), jnp.zeros(3)


def test_the_truncation_radius_is_above_the_gradients_norm():
    """It was 29.9 where the gradient is 100: the stationarity was 0.77 instead of 0.05."""
    problem, x0 = wall_far_away()
    assert tr.solve(problem, x0, tr.methods.TruncatedMomentum(), steps=3_000).stationarity <= 0.1


def test_a_radius_that_truncates_is_named_in_the_result():
    problem, x0 = wall_far_away()
    result = tr.solve(problem, x0, tr.methods.TruncatedMomentum(None, None, 30.0), steps=500)
    assert "radius = 30 is below its norm" in result.message


def test_no_truncation_can_be_asked_for():
    try:
        tr.methods.TruncatedMomentum(None, None, np.inf)
        refused = False
    except ValueError:
        refused = True
    assert not refused


def test_multipliers_of_sampled_constraints_are_not_those_of_one_batch():
    """ρ c(x, ζ²) on one batch was −27.5 and 8.1 where the multiplier is 1."""
    problem, x0, _ = tr.zoo.noisy_sphere(spread=0.6, batch_size=1)
    for result in tr.sweep(problem, x0, tr.methods.LinearizedPenalty(), steps=300, seeds=32, record=300).results:
        assert abs(result.multipliers["sphere"] - result.certificate.multipliers["sphere"]) < 1.0


@pytest.mark.full
def test_dual_steps_do_not_make_the_violation_worse():
    """The sign of the first sample made 61% of all the movement of λ: 0.032 with dual steps, 0.015 without."""
    problem, x0, _ = tr.zoo.noisy_sphere()
    plain, dual = (
        np.mean([r.violation for r in tr.sweep(problem, x0, method, steps=4_000, seeds=8, record=4_000).results])
        for method in (tr.methods.LinearizedPenalty(), tr.methods.LinearizedPenalty(dual=True))
    )
    assert dual <= 1.2 * plain


def rows_in_two_units(scale: float = 100.0):
    """‖x‖² = 1, and the same plane in units a hundred times finer, with noise."""
    noise = tr.Sampler(lambda key, n: 0.01 * jax.random.normal(key, (n, 2)), batch_size=4)
    constraints = [
        tr.equals(lambda x, batch: x @ x + jnp.mean(batch[:, 0]), 1.0, data=noise, name="sphere"),
        tr.equals(lambda x, batch: scale * (x[0] - x[1] + jnp.mean(batch[:, 1])), 0.0, data=noise, name="plane"),
    ]
    return tr.Problem(lambda x: -x[2], constraints), jnp.array([0.02, -0.01, 0.01])


@pytest.mark.full
def test_the_first_phase_meets_rows_in_any_units_before_the_second_begins():
    """It ended after a tenth of the steps, at ‖x‖² − 1 = −0.9, since the steep row made its steps too short for that one."""
    problem, x0 = rows_in_two_units()
    result = tr.solve(problem, x0, tr.methods.TwoPhaseMomentum(), steps=2_000, record=100)
    assert np.min(result.history["sphere"][:6]) <= 0.1


@pytest.mark.parametrize("steps", [500, 5_000, pytest.param(20_000, marks=pytest.mark.full)])
def test_frank_wolfe_satisfies_its_constraints_on_average_at_the_rate_of_the_experiments(steps):
    """Its tightening was derived for the slower rate of the theory: H(x̄) was +0.0135 and +0.0108 at 500 and 5,000 steps."""
    problem = tr.Problem(
        lambda x: jnp.sum((x - jnp.array([0.8, 0.2, 0.0])) ** 2),
        tr.at_most(lambda x: x[0], 0.5, name="first"),
        domain=tr.domains.Simplex(),
    )
    row = tr.Record(steps // 500, metrics={"row": lambda x, _: x[0] - 0.5})
    method = tr.methods.ConservativeFrankWolfe(tightening_rate="experiment")
    result = tr.solve(problem, jnp.ones(3) / 3, method, steps=steps, record=row)
    assert np.mean(result.history["row"][:-1]) <= 0.0
