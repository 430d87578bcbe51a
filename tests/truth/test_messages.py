"""Bad input gets a message that names the argument, what came, and what to write instead."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

README = Path(__file__).parents[2] / "README.md"
FEATURES = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
DATA = tr.Dataset({"x": FEATURES}, batch_size=16)
X0 = jnp.full(3, 0.5)


def loss(w, batch):
    return jnp.mean((batch["x"] @ w - 1.0) ** 2)


def solve(objective=loss, constraints=(), x0=X0, method="GradientDescentAscent"):
    return tr.solve(tr.Problem(objective, constraints, data=DATA), x0, method, steps=2)


def lines():
    yield np.ones(3)


MESSAGES = {
    # what came: (the call, the error, words of its message)
    "a constraint without a mean": (
        lambda: solve(constraints=tr.at_most(lambda w, b: b["x"] @ w, 1.0, data=DATA, name="margin")),
        ValueError,
        ["the constraint 'margin'", "(16,) for 16 examples", "(32,) for 32", "jnp.mean"],
    ),
    "a fixed batch size": (
        lambda: solve(lambda w, b: jnp.mean(b["x"] @ w + jnp.ones(16))),
        ValueError,
        ["the objective takes 16 examples but not 32", "any number of examples"],
    ),
    "bfloat16 parameters": (
        lambda: solve(x0=X0.astype(jnp.bfloat16)),
        TypeError,
        ["solve: x0", "bfloat16", "float32", "astype"],
    ),
    "a model in float16": (
        lambda: solve(x0=jax.tree.map(lambda a: a.astype("float16"), eqx.nn.Linear(3, 1, key=jax.random.key(0)))),
        TypeError,
        ["solve: x0.weight", "float16", "float32"],
    ),
    "an objective in bfloat16": (
        lambda: solve(lambda w, b: loss(w, b).astype(jnp.bfloat16)),
        TypeError,
        ["the objective", "bfloat16", "float32", "astype"],
    ),
    "text as data": (
        lambda: tr.Dataset({"x": FEATURES, "job": np.array(["cook", "nurse"] * 20)}, 4),
        TypeError,
        ["Dataset: arrays['job']", "<U5", "numbers", "np.unique"],
    ),
    "words as data": (lambda: tr.Dataset({"job": ["cook", "nurse"]}, 4), TypeError, ["arrays['job'][0]", "numbers"]),
    "objects as data": (lambda: tr.Dataset(np.array([None, 1.0]), 1), TypeError, ["Dataset: arrays", "object"]),
    "a generator as data": (
        lambda: tr.Dataset(lines(), 4),
        TypeError,
        ["Dataset: arrays", "generator", "np.stack", "tightrope.Batches"],
    ),
    "a list of problems for sweep": (
        lambda: tr.sweep([tr.Problem(loss, data=DATA)] * 2, X0, None, steps=2, seeds=1),
        TypeError,
        ["sweep: problem must be one", "a list of 2", "for each in problems"],
    ),
    "a list of problems for solve": (
        lambda: tr.solve([tr.Problem(loss, data=DATA)], X0, steps=2),
        TypeError,
        ["solve: problem must be one", "a list of 1", "for each in problems"],
    ),
    "a problem of the zoo with its start": (
        lambda: tr.solve((tr.Problem(loss, data=DATA), X0), X0, steps=2),
        TypeError,
        ["solve: problem", "a tuple of 2", "unpack"],
    ),
    "a method's name with a slip": (
        lambda: solve(method="ExactPenalti"),
        ValueError,
        ["'ExactPenalti'", "did you mean 'ExactPenalty'?"],
    ),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_a_message_says_what_came_and_what_to_write(what):
    call, kind, words = MESSAGES[what]
    raised = None
    try:
        call()
    except Exception as error:
        raised = error
    assert type(raised) is kind, raised
    assert all(word in str(raised) for word in words), str(raised)


def test_numbers_of_half_precision_may_be_data():
    data = tr.Dataset({"x": jnp.asarray(FEATURES, jnp.bfloat16)}, batch_size=16)
    assert tr.solve(tr.Problem(loss, data=data), X0, "GradientDescentAscent", steps=2).x.dtype == jnp.float32


def test_a_network_is_loaded_with_like_and_the_message_says_so(tmp_path):
    model = eqx.nn.MLP(1, "scalar", 4, 1, key=jax.random.key(0))
    result = tr.solve(tr.Problem(lambda model: model(jnp.ones(1)) ** 2), model, "GradientDescentAscent", steps=2)
    result.save(tmp_path / "answer.npz")
    with pytest.raises(ValueError, match="load: ") as raised:
        tr.load(tmp_path / "answer.npz")
    assert "this x is a model" in str(raised.value)
    assert "like=x0" in str(raised.value)
    assert isinstance(tr.load(tmp_path / "answer.npz", like=model).x, eqx.nn.MLP)
    assert 'tr.load("answer.npz", like=' in README.read_text(encoding="utf-8")


def compare(folder, method):
    """`tightrope compare` on the first problem of the README, in a file."""
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[1]
    (folder / "my_file.py").write_text(code.partition("result = ")[0])
    command = [sys.executable, "-c", "from tightrope.cli import app; app()", "compare", "my_file.py:problem"]
    command += ["--methods", method, "--steps", "20", "--seeds", "1"]
    environment = os.environ | {"COLUMNS": "160"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_compare_reads_the_problem_of_the_readme(tmp_path):
    """Seen by the reason why a method cannot take it."""
    answer = compare(tmp_path, "TruncatedMomentum")
    assert "it takes only deterministic constraints, but 'covariance' has data" in answer.stdout + answer.stderr


@pytest.mark.full
def test_compare_runs_on_the_problem_of_the_readme(tmp_path):
    answer = compare(tmp_path, "GradientDescentAscent")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "GradientDescentAscent" in answer.stdout
