"""The fingerprint of a run: equal for the same problem in another process, and different in the part that changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tightrope as tr
from tightrope.runs.fingerprint import fingerprint
from tightrope.runs.fitting import fit
from tightrope.runs.options import Record


@jax.custom_jvp
def clipped(v):
    return jnp.clip(v, -3.0, 3.0)


@clipped.defjvp
def _(primals, tangents):
    return clipped(*primals), tangents[0]


def drawn_by_numpy(key, n):
    shape = jax.ShapeDtypeStruct((n, 2), jnp.float32)
    return jax.pure_callback(
        lambda k: np.random.default_rng(np.asarray(k)).normal(size=(n, 2)).astype("float32"),
        shape,
        jax.random.key_data(key),
    )


def parts(target=1.0, row=0.5, momentum=0.9, batch_size=4, draw=drawn_by_numpy, spread=1.0):
    """The fingerprint of a problem with everything in it: a model, closures, callbacks, custom rules, optax, sets."""
    model = eqx.nn.MLP(2, "scalar", 4, 1, activation=jax.nn.gelu, key=jax.random.key(0))
    weights = {name: jnp.float32(len(name)) for name in {"a", "bc", "def"}}
    table = np.full((3, 2), row, np.float32)
    data = tr.Dataset({"x": np.arange(12.0).reshape(6, 2), "i": np.arange(6) % 3}, batch_size)
    noise = tr.Sampler(draw, 4)

    def objective(model, batch):
        score = clipped(jax.vmap(model)(batch["x"] + jnp.asarray(table)[batch["i"]]))
        return jnp.mean((score - target) ** 2) + sum(weights[name] for name in sorted(weights))

    def size(model, batch):
        return jnp.mean(jax.lax.map(model, batch) * spread)

    problem = tr.Problem(objective, tr.at_most(size, 1.0, data=noise), data=data)
    method = tr.methods.GradientDescentAscent(primal=optax.trace(momentum))
    return fingerprint(fit("solve", problem, model, method, 10), Record(5), seed=0)


def differs(**change):
    first, other = parts(), parts(**change)
    return [name for name in first if first[name] != other[name]]


def test_the_fingerprint_is_the_same_in_another_process():
    script = "import json, test_fingerprint; print(json.dumps(test_fingerprint.parts()))"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.path.dirname(__file__)}
    told = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout.splitlines()[-1]) == parts()


def test_two_builds_in_one_process_are_the_same():
    assert differs() == []


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"target": 5.0}, "the objective"),
        ({"row": 0.25}, "the objective"),
        ({"spread": 2.0}, "the constraint 'size'"),
        ({"momentum": 0.5}, "the method"),
        ({"batch_size": 3}, "the data of the objective"),
        ({"draw": lambda key, n: jax.random.normal(key, (n, 2))}, "the data of the constraint 'size'"),
        ({"draw": lambda key, n: 2.0 * drawn_by_numpy(key, n)}, "the data of the constraint 'size'"),
    ],
    ids=["number", "array", "constraint", "optimizer", "batch-size", "sampler", "callback"],
)
def test_a_change_shows_in_its_part_alone(change, part):
    assert differs(**change) == [part]


def test_the_rule_of_a_custom_derivative_is_part_of_a_function():
    def problem(factor):
        @jax.custom_jvp
        def square(x):
            return jnp.sum(x**2)

        square.defjvp(lambda primals, tangents: (square(*primals), factor * jnp.sum(primals[0] * tangents[0])))
        fitted = fit("solve", tr.Problem(lambda x: square(x)), jnp.ones(2), None, 10)
        return fingerprint(fitted, Record(5), seed=0)["the objective"]

    assert problem(2.0) == problem(2.0) != problem(1.0)
