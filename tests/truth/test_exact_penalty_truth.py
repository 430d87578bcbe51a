"""ExactPenalty: what it calls converged is, its error falls with the horizon, and its steps cost no more than they need to."""

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr


def solve(problem, x0, **options):
    return tr.solve(problem, x0, tr.methods.ExactPenalty(), progress=False, **options)


def far_curve():
    """√(1 + x²) ≥ 50: x = √2499, λ = √(1 + x²) = 50."""
    constraint = tr.at_least(lambda x: jnp.sqrt(1.0 + x[0] ** 2), 50.0, name="far")
    return tr.Problem(lambda x: 0.5 * jnp.sum(x**2), constraint), jnp.array([1.0]), jnp.array([np.sqrt(2499.0)])


def large_sphere():
    """‖x‖² = 900 nearest to (1, 1, 1): x = 30/√3 (1, 1, 1)."""
    constraint = tr.equals(lambda x: x @ x, 900.0, name="sphere")
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), constraint)
    return problem, jnp.array([1.0, 0.0, 2.0]), jnp.full(3, 30.0 / np.sqrt(3.0))


@pytest.mark.parametrize("case", [far_curve, pytest.param(large_sphere, marks=pytest.mark.full)])
def test_a_deterministic_run_reaches_a_solution_far_away_and_then_says_converged(case):
    problem, x0, solution = case()
    result = solve(problem, x0, steps=5_000)
    assert jnp.linalg.norm(result.x - solution) < 1e-2 * jnp.linalg.norm(solution)
    assert result.status == "converged"
    assert result.success


SPHERE = tr.zoo.noisy_sphere()


@pytest.mark.full
def test_a_noisy_run_is_not_converged_before_its_certificate_is():
    problem, x0, _ = SPHERE
    result = solve(problem, x0, steps=101, stop=tr.Stop(violation=1e-3))
    assert result.status != "converged" or result.success


@pytest.mark.full
def test_the_violation_falls_with_the_horizon():
    """The iterates of one run on ‖x‖² = 1 with noise: root mean square violation up to 2,000 and up to 32,000 steps."""
    problem, x0, _ = SPHERE
    steps, violations = [], []

    def look(row):
        steps.append(row["step"])
        violations.append(float(row["x"] @ row["x"]) - 1.0)

    solve(problem, x0, steps=32_000, record=160, callback=look)
    steps, squares = np.array(steps), np.square(violations)
    early = np.sqrt(np.mean(squares[(steps > 500) & (steps <= 2_000)]))
    late = np.sqrt(np.mean(squares[steps > 8_000]))
    assert late < 0.5 * early


@pytest.mark.full
@pytest.mark.parametrize(("examples", "most"), [(20_000, 1_600), (2_000, 1_000)])
def test_a_step_takes_far_fewer_examples_than_there_are(examples, most):
    rng = np.random.default_rng(0)
    data = tr.Dataset(rng.normal(size=(examples, 3)).astype(np.float32) + 1.0, batch_size=64)
    constraint = tr.equals(lambda x, batch: jnp.mean((batch @ x) ** 2), 1.0, data=data, name="energy")
    problem = tr.Problem(lambda x, batch: jnp.mean(jnp.sum((x - batch) ** 2, 1)), constraint, data=data)
    result = solve(problem, jnp.array([1.0, 0.0, 0.0]), steps=400)
    assert result.samples / result.steps < most
    assert result.violation < 0.01
