"""A certificate's numbers are right, its intervals hold, its verdict follows from them."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import fair_problem, loss, parity, points

certify_module = sys.modules["tightrope.certify"]  # the function of that name hides it


def test_finite_data_gives_exact_numbers_of_the_whole_data():
    problem, w = fair_problem(), jnp.array([0.5, -0.2, 0.1, 1.0])
    certificate = tr.certify(problem, w)
    arrays = {name: np.asarray(a, np.float32) for name, a in points().items()}
    assert certificate.objective.kind == "exact"
    assert certificate.objective.value == pytest.approx(float(loss(w, arrays)), rel=1e-5)
    outside = max(abs(float(parity(w, arrays))) - 0.05, 0.0)
    assert certificate.violation["parity"].value == pytest.approx(outside, abs=1e-6)
    assert certificate.samples == 400


def test_other_data_can_be_asked_for():
    other = tr.Dataset(points(seed=9), batch_size=8)
    arrays = {name: np.asarray(a, np.float32) for name, a in points(seed=9).items()}
    w = jnp.array([0.5, -0.2, 0.1, 1.0])
    assert tr.certify(fair_problem(), w, data=other).objective.value == pytest.approx(float(loss(w, arrays)), rel=1e-5)


NOISE = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 2)), batch_size=16)


def noisy_distance(x, batch):
    return 0.5 * jnp.mean(jnp.sum((x - 1.0 - batch) ** 2, axis=1))


def noisy_sum(x, batch):
    return jnp.mean(jnp.sum(x + batch, axis=1))


def noisy_problem():
    return tr.Problem(noisy_distance, tr.at_most(noisy_sum, 1.0, data=NOISE, name="sum"), data=NOISE)


def test_fresh_samples_give_intervals_that_hold_the_truth_jointly():
    """At x = (½, ½): F = ¼ + 1, the constraint holds with equality, the multiplier is ½ and x is stationary."""
    problem, x, held = noisy_problem(), jnp.array([0.5, 0.5]), []
    for seed in range(60):
        c = tr.certify(problem, x, seed=seed, confidence=0.9)
        covered = c.objective.low <= 1.25 <= c.objective.high
        held.append(covered and c.violation["sum"].low == 0.0 and c.stationarity.low <= 1e-6)
        assert c.objective.kind == "asymptotic"
        assert c.multipliers["sum"] == pytest.approx(0.5, abs=0.05)
    assert np.mean(held) >= 0.9


def test_different_seeds_judge_on_different_samples_and_the_same_on_the_same():
    problem, x = noisy_problem(), jnp.zeros(2)
    first, again, other = (tr.certify(problem, x, seed=s).objective.value for s in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("x", "verdict"), [((0.0, 0.0), "feasible"), ((1.0, 1.0), "infeasible"), ((0.5, 0.5), "undecided")]
)
def test_the_verdict_follows_from_the_intervals(x, verdict):
    certificate = tr.certify(noisy_problem(), jnp.array(x), tolerance=1e-4)
    assert certificate.verdict == verdict
    e = certificate.violation["sum"]
    assert {"feasible": e.high <= 1e-4, "infeasible": e.low > 1e-4, "undecided": e.low <= 1e-4 < e.high}[verdict]


def test_data_too_large_for_a_full_pass_is_sampled(monkeypatch):
    monkeypatch.setattr(certify_module, "FULL_PASS", 100)
    source = tr.Dataset(points(), batch_size=16)
    problem = tr.Problem(loss, data=source)
    w = jnp.array([0.5, -0.2, 0.1, 1.0])
    estimate = tr.certify(problem, w).objective
    assert estimate.kind == "asymptotic"
    exact = float(loss(w, {name: np.asarray(a, np.float32) for name, a in points().items()}))
    assert estimate.low <= exact <= estimate.high


def test_stationarity_with_a_set_is_the_distance_to_its_normal_cone():
    """Min Σx on the unit ball at −(1, …)/√n: stationary; the same point turned is not."""
    problem = tr.Problem(jnp.sum, domain=tr.domains.L2Ball(1.0))
    minimiser = -jnp.ones(4) / 2.0
    assert tr.certify(problem, minimiser).stationarity.value < 1e-5
    turned = jnp.array([-1.0, 0.0, 0.0, 0.0])
    assert tr.certify(problem, turned).stationarity.value == pytest.approx(np.sqrt(3.0), rel=1e-4)
    assert tr.certify(problem, jnp.zeros(4)).stationarity.value == pytest.approx(2.0, rel=1e-5)


def test_stationarity_uses_constraints_and_set_together():
    """Min −x₀ − 2x₁, x ∈ [0, 1]², x₀ + x₁ ≤ 1: x = (0, 1), μ = 1 … 2, the box takes the rest."""
    problem = tr.Problem(
        lambda x: -x[0] - 2.0 * x[1], tr.at_most(jnp.sum, 1.0, name="sum"), domain=tr.domains.Box(0.0, 1.0)
    )
    certificate = tr.certify(problem, jnp.array([0.0, 1.0]))
    assert certificate.stationarity.value < 1e-4
    assert 1.0 - 1e-3 <= certificate.multipliers["sum"] <= 2.0 + 1e-3
    assert tr.certify(problem, jnp.array([1.0, 0.0])).stationarity.value > 0.3


def test_an_inactive_constraint_gets_no_multiplier():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1e3, name="far"))
    certificate = tr.certify(problem, jnp.zeros(2))
    assert certificate.multipliers["far"] == pytest.approx(0.0, abs=1e-4)
    assert certificate.stationarity.value == pytest.approx(np.sqrt(8.0), rel=1e-4)
    assert certificate.complementarity.value < 1e-2
