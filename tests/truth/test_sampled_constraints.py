"""The default with sampled constraints: its iterates neither drift into violation nor let penalties run away.

Every constraint here has a closed form, so that the last iterate is judged without another sample.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import tightrope as tr


def mean_of_positive_part(mean, deviation):
    """Of a normal variable."""
    return mean * norm.cdf(mean / deviation) + deviation * norm.pdf(mean / deviation)


def absolute_error(batch_size):
    """Close to a point, with the mean absolute error of a regression at most 0.9."""
    truth = jnp.array([-0.8, -1.3, -0.2, 0.4])

    def sample(key, n):
        normal = jax.random.normal(key, (n, 5))
        return normal[:, :4], normal[:, :4] @ truth + 0.5 * normal[:, 4]

    def error(x, batch):
        return jnp.mean(jnp.abs(batch[0] @ x - batch[1]))

    def excess(x):
        return jnp.sqrt((jnp.sum((x - truth) ** 2) + 0.25) * 2 / jnp.pi) - 0.9

    data = tr.Sampler(sample, batch_size=batch_size)
    problem = tr.Problem(lambda x: jnp.sum((x - 0.2) ** 2), tr.at_most(error, 0.9, data=data))
    return problem, jnp.zeros(4), excess, 0.68


def quantile(batch_size):
    """Small parameters, with the pinball loss of the 0.9-quantile at most 0.35."""
    truth = jnp.array([0.3, 0.7, -1.1])

    def sample(key, n):
        normal = jax.random.normal(key, (n, 4))
        return normal[:, :3], normal[:, :3] @ truth + 0.8 * normal[:, 3]

    def pinball(x, batch):
        residual = batch[1] - batch[0] @ x[:3] - x[3]
        return jnp.mean(jnp.maximum(0.9 * residual, -0.1 * residual))

    def excess(x):
        deviation = jnp.sqrt(jnp.sum((x[:3] - truth) ** 2) + 0.64)
        above, below = mean_of_positive_part(-x[3], deviation), mean_of_positive_part(x[3], deviation)
        return 0.9 * above + 0.1 * below - 0.35

    data = tr.Sampler(sample, batch_size=batch_size)
    problem = tr.Problem(lambda x: jnp.sum(x**2), tr.at_most(pinball, 0.35, data=data))
    return problem, jnp.zeros(4), excess, 0.48


def hinge_rates(batch_size):
    """The hinge loss of one class, with that of the other at most 0.25."""
    center = 0.9 * jnp.array([0.1, 0.8, -0.5, 0.3]) / jnp.linalg.norm(jnp.array([0.1, 0.8, -0.5, 0.3]))

    def sample(key, n):
        normal = jax.random.normal(key, (2, n, 4))
        return normal[0] + center, normal[1] - center

    def missed(x, batch):
        return jnp.mean(jnp.maximum(0.0, 1.0 - batch[0] @ x[:4] - x[4]))

    def false_alarms(x, batch):
        return jnp.mean(jnp.maximum(0.0, 1.0 + batch[1] @ x[:4] + x[4]))

    def excess(x):
        return mean_of_positive_part(1.0 - center @ x[:4] + x[4], jnp.linalg.norm(x[:4])) - 0.25

    data = tr.Sampler(sample, batch_size=batch_size)
    problem = tr.Problem(missed, tr.at_most(false_alarms, 0.25, data=data), data=data)
    return problem, jnp.full(5, 0.1), excess, 0.53


def portfolio(batch_size):
    """The mean return of a portfolio, with the CVaR of its losses at most 0.12; returns are normal."""
    rng = np.random.default_rng(3)
    mean = jnp.array(0.02 + 0.06 * rng.random(5), jnp.float32)
    factors = 0.12 * rng.normal(size=(5, 5)) / np.sqrt(5) + np.diag(0.05 + 0.1 * rng.random(5))
    factors = jnp.array(factors, jnp.float32)

    def sample(key, n):
        return mean + jax.random.normal(key, (n, 5)) @ factors.T

    def cvar(x, returns):
        return x["threshold"] + jnp.mean(jnp.maximum(-returns @ x["weights"] - x["threshold"], 0.0)) / 0.05

    def excess(x):
        loss, deviation = -mean @ x["weights"], jnp.linalg.norm(factors.T @ x["weights"])
        return x["threshold"] + mean_of_positive_part(loss - x["threshold"], deviation) / 0.05 - 0.12

    data = tr.Sampler(sample, batch_size=batch_size)
    problem = tr.Problem(
        lambda x, returns: -jnp.mean(returns @ x["weights"]),
        tr.at_most(cvar, 0.12, data=data),
        domain=tr.domains.Product({"weights": tr.domains.Simplex(), "threshold": tr.domains.Reals()}),
        data=data,
    )
    return problem, {"weights": jnp.full(5, 0.2), "threshold": jnp.array(0.0)}, excess, 0.215


def last_excesses(problem, x0, excess, steps, seeds):
    """The signed excess, h − bound, at the last iterate of each seed."""
    record = tr.Record(steps, metrics={"excess": lambda x, batch: excess(x)})
    runs = tr.sweep(problem, x0, "AdaptivePenalty", steps=steps, seeds=range(seeds), record=record).results
    return np.array([run.history["excess"][-1] for run in runs])


def standard_error(values):
    return values.std(ddof=1) / np.sqrt(len(values))


def test_iterates_do_not_drift_into_violation_at_kinks():
    """In small batches; the constraint's spread over examples is the unit."""
    problem, x0, excess, spread = absolute_error(32)
    excesses = last_excesses(problem, x0, excess, 1500, 32) / spread
    assert abs(excesses.mean()) < 3.0 * standard_error(excesses), excesses.mean()
    assert standard_error(excesses) < 4e-3


@pytest.mark.full
@pytest.mark.parametrize("batch_size", [32, 256, 4096])
@pytest.mark.parametrize("make", [absolute_error, quantile, hinge_rates, portfolio])
def test_over_50_seeds_the_mean_excess_is_within_its_error(make, batch_size):
    problem, x0, excess, spread = make(batch_size)
    steps = {32: 16_000, 256: 4_000, 4096: 1_000}[batch_size]
    excesses = last_excesses(problem, x0, excess, steps, 50) / spread
    assert excesses.mean() < 2.0 * standard_error(excesses)
    assert standard_error(excesses) < 5e-4


def competing_rates():
    """A small network whose recall and false alarms exclude each other; their gradients are nearly parallel."""
    rng = np.random.default_rng(0)
    positive, direction = rng.random(2000) < 0.2, rng.normal(size=10)
    x = rng.normal(size=(2000, 10)) + np.outer(positive, direction / np.linalg.norm(direction))
    arrays = {"x": x, "sign": np.where(positive, 1, -1), "in": positive / positive.mean()}
    arrays["out"] = ~positive / (1 - positive.mean())
    data = tr.Dataset({name: array.astype(np.float32) for name, array in arrays.items()}, batch_size=16)

    def score(p, batch):
        return jnp.tanh(batch["x"] @ p["hidden"] + p["bias"]) @ p["out"] + p["shift"]

    def loss(p, batch):
        return jnp.mean(jax.nn.softplus(-batch["sign"] * score(p, batch)))

    def recall(p, batch):
        return jnp.mean(batch["in"] * jax.nn.sigmoid(score(p, batch)))

    def alarms(p, batch):
        return jnp.mean(batch["out"] * jax.nn.sigmoid(score(p, batch)))

    keys = jax.random.split(jax.random.key(0), 2)
    hidden, out = jax.random.normal(keys[0], (10, 32)) / np.sqrt(10), jax.random.normal(keys[1], (32,)) / np.sqrt(32)
    constraints = [tr.at_least(recall, 0.9, data=data), tr.at_most(alarms, 0.1, data=data)]
    x0 = {"hidden": hidden, "bias": jnp.zeros(32), "out": out, "shift": jnp.zeros(())}
    return tr.Problem(loss, constraints, data=data), x0


@pytest.mark.full
def test_penalties_of_rows_that_compete_do_not_run_away():
    problem, x0 = competing_rates()
    result = tr.solve(problem, x0, "AdaptivePenalty", steps=1300, seed=3, record=650)
    assert max(abs(y) for y in result.multipliers.values()) < 1e3


@pytest.mark.full
def test_errors_of_the_jacobian_alone_do_not_stop_the_steps():
    """Program hs74 with errors of the Jacobian that the values do not have: where these judged steps, it ended 3% away."""
    with jax.enable_x64(True):
        problem, x0, solution = tr.zoo.hs.available()["hs74"](noise=1e-4, constraint_noise=1e-4)
        result = tr.solve(problem, x0, "AdaptivePenalty", steps=500)
    assert result.certificate.verdict == "feasible"
    assert np.linalg.norm(result.x - solution.x) < 0.01 * np.linalg.norm(solution.x)


@pytest.mark.full
def test_values_teach_the_jacobian_where_its_own_errors_are_larger_than_it():
    """Program hs64: at its solution the gradient of the row is 0.01 long, and a sample's entries have errors of 0.1."""
    with jax.enable_x64(True):
        problem, x0, solution = tr.zoo.hs.available()["hs64"](noise=0.1, constraint_noise=0.1)
        result = tr.solve(problem, x0, "AdaptivePenalty", steps=500)
    assert result.violation < 0.02
    assert abs(result.objective - solution.objective) < 0.02 * solution.objective
