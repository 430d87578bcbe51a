"""A checkpoint is resumed only by the run that it holds, the run says so, and little is lost if it is killed."""

from __future__ import annotations

import logging
import time

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

POINTS = np.random.default_rng(0).normal(size=(40, 2)).astype("float32")
X0 = jnp.zeros(2)


def problem(target=1.0, slope=1.0, bound=1.0, points=POINTS, radius=9.0):
    data = tr.Dataset(points, batch_size=4)
    pull = jnp.full(2, target)

    def distance(x, batch):
        return jnp.mean(jnp.sum((x - pull - batch) ** 2, axis=1))

    def budget(x):
        return slope * jnp.sum(x)

    return tr.Problem(distance, tr.at_most(budget, bound), data=data, domain=tr.domains.L2Ball(radius))


METHOD = tr.methods.GradientDescentAscent(step_size=0.1)


def solve(folder, x0=X0, steps=20, seed=0, record=10, **change):
    return tr.solve(problem(**change), x0, METHOD, steps=steps, seed=seed, record=record, checkpoint=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    solve(path)
    return path


@pytest.mark.parametrize(
    ("change", "named", "others"),
    [
        ({"target": 5.0}, ["the objective"], ["budget", "data", "domain"]),
        ({"slope": 2.0}, ["the constraint 'budget'"], ["objective", "bounds", "data"]),
        ({"bound": 2.0}, ["the bounds of the constraint 'budget'"], ["objective"]),
        ({"points": np.where(np.arange(40)[:, None] == 3, 0.0, POINTS)}, ["the data of the objective"], ["domain"]),
        ({"radius": 8.0}, ["the domain"], ["objective", "budget"]),
        ({"x0": X0 + 0.1}, ["x0"], ["objective", "budget"]),
        ({"seed": 1}, ["the seed"], ["objective", "x0"]),
        ({"record": 5}, ["steps between records", "saved with record=10"], ["objective", "seed"]),
    ],
    ids=["objective", "constraint", "bound", "one-example", "domain", "x0", "seed", "record"],
)
def test_a_run_that_changed_is_refused_and_the_message_says_what_changed(folder, change, named, others):
    message = ""
    try:
        solve(folder, **change)
    except ValueError as error:
        message = str(error).partition("differs in")[2]
    assert all(name in message for name in named), message
    assert not any(name in message for name in others), message


def test_a_resumed_run_says_where_it_began(tmp_path, caplog):
    one, options = problem(), {"record": 10, "checkpoint": tmp_path / "run"}
    first = tr.solve(one, X0, METHOD, steps=20, **options)
    assert "resumed" not in first.message
    with caplog.at_level(logging.INFO, logger="tightrope"):
        longer = tr.solve(one, X0, METHOD, steps=1_200, **options)
    assert f"resumed at step 20 from {tmp_path / 'run'}" in longer.message
    assert any("resumed at step 20" in record.getMessage() for record in caplog.records)
    assert "resumed at step 1,200" in tr.solve(one, X0, METHOD, steps=1_200, **options).message


def test_a_run_is_on_disk_within_seconds_of_its_start(tmp_path):
    saved = []

    def look(row):
        time.sleep(0.3)
        saved.append(len([entry for entry in (tmp_path / "run").iterdir() if entry.name.isdigit()]))
        return row["step"] >= 100

    tr.solve(problem(), X0, METHOD, steps=1_000, record=10, callback=look, checkpoint=tmp_path / "run")
    assert saved[-1] >= 1
