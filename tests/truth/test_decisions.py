"""Records, stopping and the answer rest on all data, or on fresh samples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr


def many_rows(examples=30_000):
    """Logistic regression with a bound on the rate of positives, on more examples than a record's sample has."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(examples, 6)).astype(np.float32)
    labels = (features @ np.arange(6) + 2.0 * rng.normal(size=examples) > 1.0).astype(np.float32)
    data = tr.Dataset({"a": features, "y": labels}, batch_size=128)

    def loss(w, batch):
        score = batch["a"] @ w[:6] + w[6]
        return jnp.mean(jnp.logaddexp(0.0, score) - batch["y"] * score)

    def rate(w, batch):
        return jnp.mean(jax.nn.sigmoid(batch["a"] @ w[:6] + w[6]))

    return tr.Problem(loss, tr.at_most(rate, 0.25, data=data, name="rate"), data=data), jnp.zeros(7)


def test_the_history_ends_where_the_certificate_is_and_stop_fires():
    problem, x0 = many_rows()
    result = tr.solve(problem, x0, steps=3000, stop=tr.Stop())
    assert result.success
    assert result.status == "converged", result.message
    assert result.steps < 3000
    full = tr.solve(problem, x0, steps=2000)
    last = {name: column[-1] for name, column in full.history.items()}
    assert abs(last["objective"] - full.objective) <= 1e-4 * full.objective
    assert last["violation"] <= full.violation + 1e-4


def test_a_run_at_rounding_level_ends_by_itself():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
    result = tr.solve(problem, jnp.array([1.0, 0.0]), steps=20_000)
    assert result.status == "converged"
    assert result.steps < 2_000
    assert result.history["step"][-1] == result.steps
    again = tr.solve(problem, jnp.array([1.0, 0.0]), steps=20_000)
    assert again.steps == result.steps
    assert np.array_equal(again.x, result.x)


def test_an_answer_on_endless_data_is_not_the_luckiest_record():
    """E(x − ξ)² under Ex ≤ E noise: the mean excess of the answers over seeds is no more than three standard errors."""
    data = tr.Sampler(lambda key, n: jax.random.normal(key, (n,)), batch_size=64)
    bound = tr.at_most(lambda x, z: jnp.mean(x[0] + z), 0.0, data=data, name="mean")
    problem = tr.Problem(lambda x, z: jnp.mean((x[0] - 1.0 - z) ** 2), bound, data=data)
    results = tr.sweep(problem, jnp.zeros(1), "GradientDescentAscent", steps=2000, seeds=24).results
    excess = np.array([float(result.x[0]) for result in results])
    assert excess.mean() <= 3.0 * excess.std(ddof=1) / np.sqrt(len(excess)), excess


@pytest.mark.full
def test_an_average_that_gains_nothing_does_not_replace_an_iterate_at_a_bound():
    """The average is 2e-9 inside the bound that the solution is at, so its gradient is not cancelled there."""
    with jax.enable_x64(True):
        problem, x0, solution = tr.zoo.hs.available()["hs71"](noise=1e-8, constraint_noise=1e-8)
        result = tr.solve(problem, x0, "AdaptivePenalty", steps=500, seed=0)
    assert abs(result.objective - solution.objective) < 1e-3
    assert result.success
