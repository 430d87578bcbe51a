"""A Dataset of a memory map stays on disk: the same draws and means as in memory, and no copy of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.oracles.build import oracle_for
from tightrope.problems.data import batch_shape
from tightrope.problems.parameters import Parameters
from tightrope.runs.fingerprint import _examples

ROWS = np.random.default_rng(0).normal(size=(5000, 3)).astype("float32")


def on_disk(folder, rows=ROWS):
    rows.tofile(folder / "rows")
    return np.memmap(folder / "rows", dtype=rows.dtype, mode="r", shape=rows.shape)


def objective(w, batch):
    return jnp.mean(jnp.sum((w - batch["x"]) ** 2, axis=1) * batch["weight"])


@pytest.fixture
def both(tmp_path):
    """The same data in memory and on disk; one array of the latter is in memory."""
    weight = np.linspace(0.5, 1.0, 5000)
    return [tr.Dataset({"x": x, "weight": weight}, batch_size=8) for x in (ROWS, on_disk(tmp_path))]


def test_a_memory_map_is_neither_copied_nor_searched(both):
    memory, disk = both
    assert isinstance(disk.on_host["x"], np.memmap)
    assert jax.tree.leaves(disk.arrays) == []
    assert disk.size == memory.size
    assert batch_shape(disk) == batch_shape(memory)


@pytest.mark.parametrize("wrap", [jax.jit, lambda fn: fn], ids=["compiled", "eager"])
def test_draws_are_the_examples_that_would_be_drawn_in_memory(both, wrap):
    memory, disk = both
    keys = jax.random.split(jax.random.key(0), 4)
    expected = jax.vmap(lambda key: memory.batch(memory.arrays, memory.draw(key, 8)))(keys)
    drawn = wrap(jax.vmap(partial(disk.draw, examples=8)))(keys)
    jax.tree.map(np.testing.assert_array_equal, drawn.examples, expected)
    assert drawn.examples["weight"].dtype == expected["weight"].dtype


def test_passes_in_pieces_agree_with_passes_in_memory(both):
    x = Parameters(jnp.ones(3))

    def passed(data):
        constraint = tr.at_most(lambda w, batch: jnp.mean(batch["x"] @ w), 0.0, data=data)
        oracle = oracle_for(tr.Problem(objective, constraint, data=data), x)
        return jax.jit(lambda: oracle.first_order(x.start, oracle.everything()))()

    memory, disk = map(passed, both)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), disk, memory)


def test_checkpoints_know_the_examples_on_disk(tmp_path):
    def mark(rows):
        return _examples(tr.Dataset(on_disk(tmp_path, rows), batch_size=8))

    assert mark(ROWS) == _examples(tr.Dataset(ROWS, batch_size=8))
    assert mark(ROWS) != mark(np.where(np.arange(5000)[:, None] == 7, 0.0, ROWS).astype("float32"))


VIEWS = {
    "whole": lambda x: x,
    "later rows": lambda x: x[4000:][100:],
    "columns": lambda x: x[:, :2],
    "every third row, backwards": lambda x: x[::-3],
    "another order": lambda x: x.reshape(3, 5000).T,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_memory_map_travels_as_its_place_in_the_file(tmp_path, view):
    with (tmp_path / "rows").open("wb") as file:
        file.write(bytes(5000) + ROWS.tobytes())
    mapped = view(np.memmap(tmp_path / "rows", dtype="float32", mode="r", offset=5000, shape=ROWS.shape))
    data = tr.Dataset({"x": mapped, "weight": np.ones(len(mapped), "int8")}, batch_size=8)
    for _ in range(2):  # from there to a third process too
        sent = pickle.dumps(data)
        assert len(sent) < 10_000
        data = pickle.loads(sent)
        assert isinstance(data.on_host["x"], np.memmap)
        assert np.array_equal(data.on_host["x"], view(ROWS))


def test_numbers_that_are_in_no_file_travel_themselves(tmp_path):
    on_disk(tmp_path)
    private = np.memmap(tmp_path / "rows", dtype="float32", mode="c", shape=ROWS.shape)
    private[0] = 7.0
    there = pickle.loads(pickle.dumps(tr.Dataset(private, batch_size=8)))
    assert np.array_equal(there.on_host, private)


def test_a_file_of_another_size_is_refused_where_the_map_is_opened(tmp_path):
    sent = pickle.dumps(tr.Dataset(on_disk(tmp_path), batch_size=8))
    on_disk(tmp_path, ROWS[:10])
    with pytest.raises(ValueError, match=r"rows has 120 bytes here; expected 60,000"):
        pickle.loads(sent)


@pytest.mark.full
@pytest.mark.parametrize("method", ["GradientDescentAscent", "AdaptivePenalty"])
def test_runs_agree_with_those_in_memory(both, method):
    def solved(data):
        near = tr.at_most(lambda w, batch: jnp.mean(batch["x"] @ w), -0.1, data=data, name="near")
        problem = tr.Problem(objective, near, data=data)
        return tr.solve(problem, jnp.ones(3), method, steps=200, record=100)

    memory, disk = map(solved, both)
    np.testing.assert_allclose(disk.x, memory.x, atol=1e-4)
    assert disk.certificate.objective.kind == "exact"
    assert disk.objective == pytest.approx(memory.objective, abs=1e-4)


@pytest.mark.full
def test_data_of_ten_times_the_memory_are_solved_certified_and_passed_over(tmp_path):
    script = """
        import resource, sys
        import jax, jax.numpy as jnp, numpy as np
        jax.devices()
        used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
        room = 800 * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
        import tightrope as tr
        from tightrope.oracles.build import oracle_for
        from tightrope.problems.parameters import Parameters

        examples, features = 4_200_000, 500  # 8.4 GB
        x = np.memmap(sys.argv[1], dtype="float32", mode="r", shape=(examples, features))
        assert x.nbytes > 10 * room
        try:
            np.array(x[: examples // 4])
        except MemoryError:
            print("cannot be copied")

        def objective(w, batch):
            return jnp.mean((batch @ w - 1.0) ** 2)

        problem = tr.Problem(objective, tr.at_least(jnp.sum, 1.0, name="total"), data=tr.Dataset(x, batch_size=16))
        result = tr.solve(problem, jnp.zeros(features), "GradientDescentAscent", steps=200, record=200)
        print(result.status, result.steps, result.certificate.objective.kind)
        oracle = oracle_for(problem, Parameters(result.x))
        print(float(jax.jit(lambda w: oracle.f(w, oracle.everything()))(result.x)))
    """
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(4_200_000 * 500 * 4)
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    copied, solved, value = done.stdout.split("\n")[:3]
    assert copied == "cannot be copied"
    assert solved == "budget 200 asymptotic"
    assert float(value) == pytest.approx(1.0, rel=1e-4)  # the examples are zero
