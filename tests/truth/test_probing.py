"""Samplers and functions are looked at before they are believed."""

from __future__ import annotations

import itertools
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.problems.parameters import Parameters
from tightrope.problems.probing import check_start

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(200, 3)).astype("float32")
LABELS = (FEATURES[:, 0] + RNG.normal(size=200) > 0.0).astype("float32")
DATA = tr.Dataset({"x": FEATURES, "y": LABELS}, batch_size=64)


def refusal(call):
    """The message of the ValueError that a call raises; '' if it raises none."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


# ---------------------------------------------------------------------- samplers


def batches():
    rng = np.random.default_rng(0)
    while True:
        yield rng.normal(size=(8, 2)).astype("float32")


CHANGING, EQUAL, NUMPY = batches(), itertools.repeat(np.ones((8, 2), "float32")), np.random.default_rng(0)
SAMPLERS = {
    "an iterator": (lambda key, n: next(CHANGING), "changes from call to call"),
    "an iterator of equal batches": (lambda key, n: next(EQUAL), "does not use its key"),
    "NumPy's random numbers": (lambda key, n: NUMPY.normal(size=(n, 2)), "changes from call to call"),
    "a fixed key": (lambda key, n: jax.random.normal(jax.random.key(0), (n, 2)), "does not use its key"),
    "a constant": (lambda key, n: jnp.ones((n, 2)), "does not use its key"),
    "a fixed number of examples": (
        lambda key, n: jax.random.normal(key, (8, 2)),
        "must return arrays with 17 examples",
    ),
    "an even number of examples": (
        lambda key, n: jnp.concatenate([jax.random.normal(key, (n // 2, 2))] * 2),
        "must return arrays with 17 examples",
    ),
    "a callback without the key": (
        lambda key, n: jax.pure_callback(
            lambda: NUMPY.normal(size=(n, 2)).astype("float32"), jax.ShapeDtypeStruct((n, 2), jnp.float32)
        ),
        "pass jax.random.key_data(key) to a jax.pure_callback",
    ),
}


@pytest.mark.parametrize("what", SAMPLERS)
def test_a_sampler_that_is_no_function_of_its_key_is_refused(what):
    fn, words = SAMPLERS[what]
    message = refusal(lambda: tr.Sampler(fn, batch_size=8))
    assert words in message, message
    assert "examples" in message


def test_a_sampler_that_uses_its_key_is_taken():
    def with_constants(key, n):
        return {"z": jax.random.normal(key, (n, 2)), "weight": jnp.ones(n)}

    def with_a_callback(key, n):
        shape = jax.ShapeDtypeStruct((n,), jnp.float32)
        draw = lambda k: np.random.default_rng(np.asarray(k)).normal(size=n).astype("float32")
        return jax.pure_callback(draw, shape, jax.random.key_data(key), vmap_method="sequential")

    for fn in (with_constants, with_a_callback, jax.jit(with_constants, static_argnums=1)):
        assert len(jax.tree.leaves(tr.Sampler(fn, batch_size=8).draw(jax.random.key(0), 5))[0]) == 5


# ---------------------------------------------------------------------- functions that change


@pytest.mark.parametrize(
    "read",
    [NUMPY.normal, lambda: time.perf_counter() % 1e-3, itertools.count(1.0).__next__],
    ids=["random", "time", "counter"],
)
@pytest.mark.parametrize("jitted", [False, True], ids=["plain", "jitted"])
def test_a_function_that_tracing_would_freeze_is_refused(read, jitted):
    def drifting(x):
        return jnp.sum(x) * read()

    fn = jax.jit(drifting) if jitted else drifting
    problem = tr.Problem(lambda x: jnp.sum(x**2), tr.at_most(fn, 1.0, name="drifting"))
    message = refusal(lambda: tr.solve(problem, jnp.ones(2), "GradientDescentAscent", steps=1))
    assert "the constraint 'drifting' changes from call to call" in message, message
    assert "Sampler" in message


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize(
    "fn",
    [jnp.linalg.norm, lambda x: jnp.sum(jnp.sqrt(jnp.abs(x))), lambda x: jnp.where(x[0] > 0, jnp.log(x[0]), 0.0)],
    ids=["norm", "sqrt", "where"],
)
def test_a_gradient_that_is_not_finite_at_the_start_is_refused_and_the_function_named(fn):
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(fn, 1.0, name="size"))
    message = refusal(lambda: tr.solve(problem, jnp.zeros(2), "GradientDescentAscent", steps=1))
    assert "the gradient of the constraint 'size' is not finite at x0" in message, message
    assert "jnp.where" in message


# ---------------------------------------------------------------------- means


def score(w, batch):
    return jax.nn.sigmoid(batch["x"] @ w)


def loss(w, batch):
    return jnp.mean((score(w, batch) - batch["y"]) ** 2)


def precision(w, batch):
    return jnp.sum(batch["y"] * score(w, batch)) / jnp.sum(score(w, batch))


def recall(w, batch):
    return jnp.sum(batch["y"] * score(w, batch)) / (jnp.sum(batch["y"]) + 1e-6)


def normalized(w, batch):
    x = (batch["x"] - batch["x"].mean(0)) / (batch["x"].std(0) + 1e-3)
    return jnp.mean(jnp.tanh(x @ w) * batch["y"])


NOT_MEANS = {
    "precision": precision,
    "recall": recall,
    "sum": lambda w, batch: jnp.sum(batch["x"] @ w),
    "largest": lambda w, batch: jnp.max(batch["x"] @ w),
    "median": lambda w, batch: jnp.median(batch["x"] @ w),
    "quantile": lambda w, batch: jnp.quantile(score(w, batch), 0.9),
    "normalized": normalized,
    "variance": lambda w, batch: jnp.var(batch["x"] @ w),
    "precision and more": lambda w, batch: precision(w, batch) + 1e3 * jnp.sum(w**2),
}


def first_warning(constraints, x0, data=DATA, objective=loss):
    """The first warning of `solve`, which ends it; '' if there is none."""
    rows = [tr.at_most(fn, 1e9, data=data, name=name) for name, fn in constraints.items()]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            tr.solve(
                tr.Problem(objective, rows, data=data), jnp.asarray(x0, "float32"), "GradientDescentAscent", steps=1
            )
        except UserWarning as warning:
            return str(warning)
    return ""


@pytest.mark.parametrize("x0", [np.zeros(3), [0.01, -0.02, 0.01]], ids=["zero", "small"])
@pytest.mark.parametrize("name", NOT_MEANS)
def test_what_is_not_a_mean_over_the_batch_gets_a_warning(name, x0):
    message = first_warning({name: NOT_MEANS[name]}, x0)
    assert f"the constraint {name!r} is not a mean" in message, message
    assert "ratio_at_least" in message


def test_a_ratio_that_looks_like_a_mean_at_the_start_gets_a_warning_at_the_answer():
    """All scores are equal where x ≤ 1, which the run leaves."""

    def late(w, batch):
        scores = 1.0 + jax.nn.relu(w[0] - 1.0) * (batch["x"][:, 0] > 0.0)
        return jnp.sum(batch["y"] * scores) / jnp.sum(scores)

    problem = tr.Problem(lambda w: jnp.sum((w - 3.0) ** 2), tr.at_most(late, 2.0, data=DATA))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = tr.solve(problem, jnp.zeros(1), tr.methods.GradientDescentAscent(step_size=0.3), steps=100)
    assert answer.x[0] > 2.0
    assert any("'late' is not a mean" in str(w.message) for w in caught)


def test_no_mean_gets_a_warning_however_it_is_rounded():
    """8,192 examples in float32: large values, means near zero, cancellation within examples and between them."""
    x = RNG.normal(size=(8192, 3)).astype("float32")
    opposite = 1e4 * RNG.normal(size=8192).astype("float32")
    opposite[1::2] = -opposite[::2]
    arrays = {
        "x": x,
        "y": (x[:, 0] > 0.0).astype("float32"),
        "large": 1e6 * x,
        "offset": (1e6 + 0.01 * x[:, 0]).astype("float32"),
        "whole": (1e6 + RNG.integers(0, 9, 8192)).astype("float32"),
        "opposite": opposite,
    }
    means = {
        "square": lambda w, b: jnp.mean((b["large"] @ w - b["y"]) ** 2),
        "offset": lambda w, b: jnp.mean(b["offset"]) - 1e6 + 0.0 * w[0],
        "whole": lambda w, b: jnp.mean(b["whole"]) - 1e6 - 4.0 + 0.0 * w[0],
        "opposite": lambda w, b: jnp.mean(b["opposite"] * w[0] + b["opposite"] ** 3 * w[1]),
        "difference": lambda w, b: jnp.mean(b["offset"] * w[0]) - 1e6 * w[1],
        "ridge": lambda w, b: jnp.mean(b["x"] @ w) + 1e6 * jnp.sum(w**2),
        "centered": lambda w, b: jnp.mean((b["y"] - arrays["y"].mean()) * (b["x"] @ w)),
        "exponential": lambda w, b: jnp.mean(jnp.exp(5.0 * (b["x"] @ w))),
        "rate": lambda w, b: jnp.mean((b["x"] @ w > 0.0) * 1.0) + 0.0 * w[0],
        "excess": lambda w, b: w[0] + jnp.mean(jax.nn.relu(b["x"] @ w - w[0])) / 0.05,
        "in half precision": lambda w, b: jnp.mean(
            (b["x"].astype("bfloat16") @ w.astype("bfloat16")).astype("float32") ** 2
        ),
    }
    last = {"total": lambda w, b: jnp.sum(b["x"] @ w)}  # warnings come in this order: that of the sum is the first
    objective, data = lambda w, b: jnp.mean((b["x"] @ w) ** 2), tr.Dataset(arrays, batch_size=512)
    assert "the constraint 'total' is not a mean" in first_warning(means | last, [0.7, -1.3, 0.4], data, objective)


def test_a_mean_of_a_network_gets_no_warning_though_its_parameters_are_many():
    """The probe moves x: all uses of the moved point must be the same numbers, also those of late coordinates.

    Sines of large numbers were not, in fully optimized programs (XLA_FLAGS="" shows it).
    """
    rng = np.random.default_rng(0)
    sizes = rng.uniform(1, 30, 140)
    data = tr.Dataset({"x": (sizes * rng.normal(size=(512, 140))).astype("float32")}, batch_size=32)
    x0 = {
        "hidden": (rng.normal(size=(140, 32)) / 12).astype("float32"),
        "output": rng.normal(size=32).astype("float32") / 6,
        "shift": np.zeros(32, "float32"),
    }

    def loss(params, batch):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        hidden = jnp.tanh(batch["x"] @ params["hidden"] + params["shift"])
        return jnp.mean(jax.nn.softplus(hidden @ params["output"])) + 1e-3 * squares

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_start(tr.Problem(loss, data=data), Parameters(x0), (data.arrays,))
