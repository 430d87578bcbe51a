"""No verdict depends on units or on where a run started, and success means near the optimum."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

CIRCLE = (np.sqrt(2.0) - 1.0) ** 2  # min ‖x − 1‖² in the unit circle in two dimensions


def in_the_circle(objective=1.0, constraint=1.0, x=1.0):
    """The minimum of ‖x − 1‖² with x in the unit circle, every quantity multiplied by a number."""
    return tr.Problem(
        lambda y: objective * jnp.sum((y / x - 1.0) ** 2),
        tr.at_most(lambda y: constraint * jnp.sum((y / x) ** 2), constraint, name="circle"),
    )


FACTORS = [{"objective": 1e-6}, {"objective": 1e6}, {"constraint": 1e-6}, {"constraint": 1e6}, {"x": 1e-6}, {"x": 1e6}]


@pytest.mark.parametrize("factor", FACTORS, ids=str)
def test_a_verdict_does_not_change_when_a_quantity_is_multiplied(factor):
    """One point is a little outside the circle, one far; the answers are those of the problem without factors."""
    problem, size = in_the_circle(**factor), factor.get("x", 1.0)
    verdicts = [tr.certify(problem, size * jnp.array([r, 0.0])).verdict for r in (1.0004, 1.002)]
    assert verdicts == ["feasible", "infeasible"]


@pytest.mark.parametrize("factor", [FACTORS[0], pytest.param(FACTORS[5], marks=pytest.mark.full)], ids=str)
def test_success_means_near_the_optimum_in_every_unit(factor):
    problem, size = in_the_circle(**factor), factor.get("x", 1.0)
    result = tr.solve(problem, size * jnp.array([0.0, -0.5]), "GradientDescentAscent", steps=10)
    value = result.objective / factor.get("objective", 1.0)
    assert not result.success or value <= 1.05 * CIRCLE, f"success at {value:.3g}, the optimum is {CIRCLE:.3g}"


def test_a_distant_start_does_not_loosen_the_verdict():
    result = tr.solve(in_the_circle(), jnp.array([200.0, 10.0]), steps=4)
    violated = float(jnp.sum(result.x**2)) - 1.0
    assert violated < 2e-3 or result.certificate.verdict == "infeasible", f"{result.certificate} at {result.x}"


def test_success_of_a_problem_with_small_gradients_is_within_five_percent_of_the_optimum():
    """Sparse features make gradients small, so the first iterates look stationary in absolute numbers."""
    rng = np.random.default_rng(0)
    features = 0.1 * (rng.normal(size=(2000, 40)) * (rng.random((2000, 40)) < 0.1)).astype(np.float32)
    labels = np.sign(features @ rng.normal(size=40) * 100.0 + rng.normal(size=2000)).astype(np.float32)
    data = tr.Dataset({"a": features, "y": labels}, batch_size=100)

    def loss(w, batch):
        return jnp.mean(jnp.logaddexp(0.0, -batch["y"] * (batch["a"] @ w))) + 1e-7 * jnp.sum(w**2)

    problem = tr.Problem(loss, tr.at_most(lambda w: jnp.mean(w**2), 1e4, name="size"), data=data)
    early = tr.solve(problem, jnp.zeros(40), steps=30)
    late = tr.solve(problem, jnp.zeros(40), steps=6000)
    assert late.success, late.message
    assert not early.success or early.objective <= 1.05 * late.objective, (early.objective, late.objective)


def test_the_scale_of_a_constraint_is_printed_and_can_be_given():
    found = tr.certify(in_the_circle(constraint=5.0), jnp.array([1.002, 0.0]))
    assert "relative" in str(found)
    given = tr.equals(lambda y: jnp.sum(y**2), 1.0, name="circle", scale=10.0)
    assert tr.certify(tr.Problem(jnp.sum, given), jnp.array([1.002, 0.0])).verdict == "feasible"
