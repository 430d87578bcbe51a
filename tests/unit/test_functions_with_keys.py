"""Functions with an argument `key=None`: random in the steps, alike at all points of a sample, without a key in results."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(600, 6)).astype(np.float32)
Y = (X[:, 0] * X[:, 1] > 0).astype(np.float32)
DATA = tr.Dataset({"x": X, "y": Y}, batch_size=20)
START = {
    "hidden": jnp.asarray(RANDOM.normal(size=(6, 16)) / 2, jnp.float32),
    "output": jnp.asarray(RANDOM.normal(size=16) / 4, jnp.float32),
}


def score(params, batch, key):
    hidden = jnp.tanh(batch["x"] @ params["hidden"])
    if key is not None:
        hidden = 2.0 * hidden * jax.random.bernoulli(key, 0.5, hidden.shape)
    return hidden @ params["output"]


def loss(params, batch, key=None):
    return jnp.mean(jnp.logaddexp(0.0, score(params, batch, key)) - batch["y"] * score(params, batch, key))


def rate(params, batch, key=None):
    return jnp.mean(jax.nn.sigmoid(score(params, batch, key)))


def dropout_problem(data=DATA):
    return tr.Problem(loss, tr.at_most(rate, 0.4, data=data), data=data)


@pytest.mark.by_default("AdaptiveLagrangian")
@pytest.mark.parametrize("method", ["AdaptiveLagrangian", "GradientDescentAscent"])
def test_a_result_is_that_of_the_functions_without_a_key(method):
    result = tr.solve(dropout_problem(), START, method, steps=300)
    assert result.objective == pytest.approx(float(loss(result.x, DATA.arrays)), rel=1e-5)
    assert result.violation == pytest.approx(max(0.0, float(rate(result.x, DATA.arrays)) - 0.4), abs=1e-6)


def test_steps_are_random_and_the_same_for_the_same_seed():
    plain = tr.Problem(
        lambda params, batch: loss(params, batch), tr.at_most(lambda p, b: rate(p, b), 0.4, data=DATA), data=DATA
    )
    ends = [
        tr.solve(p, START, "AdaptiveLagrangian", steps=50).x["output"]
        for p in (dropout_problem(), dropout_problem(), plain)
    ]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.abs(ends[0] - ends[2]).max() > 1e-3


def noisy(x, batch, key=None):
    return jnp.mean(batch @ x) + (0.0 if key is None else jax.random.normal(key))


@pytest.mark.parametrize("source", [tr.Dataset(X, 4), tr.Sampler(lambda key, n: jax.random.normal(key, (n, 6)), 4)])
def test_points_that_share_a_sample_share_its_key_and_other_samples_have_others(source):
    oracle = replace(oracle_for(tr.Problem(noisy, data=source), Parameters(jnp.zeros(6), owner="test")), training=True)
    first, second = (oracle.draw(jax.random.key(seed)) for seed in (0, 1))
    zero, one = jnp.zeros(6), jnp.ones(6)
    batch = source.batch(source.arrays, first[0])
    assert oracle.f(one, first) - oracle.f(zero, first) == pytest.approx(float(jnp.mean(batch @ one)), abs=1e-5)
    assert oracle.f(zero, first) != oracle.f(zero, second)
    assert replace(oracle, training=False).f(zero, first) == 0.0


def test_a_checkpoint_of_another_dropout_is_refused(tmp_path):
    def other(params, batch, key=None):
        return loss(params, batch, None if key is None else jax.random.fold_in(key, 1))

    tr.solve(dropout_problem(), START, "GradientDescentAscent", steps=20, checkpoint=tmp_path)
    changed = tr.Problem(other, tr.at_most(rate, 0.4, data=DATA), data=DATA)
    with pytest.raises(ValueError, match="the objective"):
        tr.solve(changed, START, "GradientDescentAscent", steps=20, checkpoint=tmp_path)


def test_another_shape_with_a_key_is_an_error():
    def wrong(params, batch, key=None):
        return jnp.mean(batch["x"], axis=None if key is None else 0)

    with pytest.raises(
        ValueError, match=r"the objective returns an array of shape \(\) without a key and \(6,\) with one"
    ):
        tr.solve(tr.Problem(wrong, data=DATA), START, steps=10)


def test_an_argument_called_key_with_another_default_is_left_alone():
    def named(params, batch, key="y"):
        return jnp.mean((batch[key] - jnp.mean(params["output"])) ** 2)

    assert tr.solve(tr.Problem(named, data=DATA), START, "GradientDescentAscent", steps=20).steps == 20
