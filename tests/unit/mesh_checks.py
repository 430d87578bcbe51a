"""Checks of `mesh=` on eight virtual devices, for test_mesh.py, which runs this file in a process of its own."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from tightrope.oracles.build import oracle_for
from tightrope.problems import compiling
from tightrope.problems.data import Span, key_of
from tightrope.problems.parameters import Parameters
from tightrope.problems.splitting import on_mesh

SIMPLE = tr.methods.GradientDescentAscent(step_size=0.1, dual_step_size=0.1)
"""A method that compiles fast."""
TEXTS: dict[str, str] = {}
"""The compiled programs, by name."""


def on_devices(count, **axes):
    shape, names = (tuple(axes.values()), tuple(axes)) if axes else ((count,), ("data",))
    return jax.make_mesh(shape, names, devices=jax.devices()[:count])


def rows_of(size):
    rng = np.random.default_rng(size)
    return {
        "x": rng.normal(size=(size, 3)).astype("float32"),
        "image": rng.integers(0, 255, (size, 2, 2)).astype("uint8"),
        "group": rng.random(size) < 0.5,
        "number": np.arange(size),
    }


def mean(w, batch):
    return jnp.mean(jnp.tanh(batch["x"] @ w) * (1.0 + batch["group"]) + batch["image"].mean((1, 2)) / 255.0)


def layout(size, folder):
    """How far a data set on eight devices is from the same one on one device; one of its arrays is a memory map."""
    rows = rows_of(size)
    rows["x"].tofile(folder / "rows")
    on_disk = rows | {"x": np.memmap(folder / "rows", dtype="float32", mode="r", shape=(size, 3))}
    whole = tr.Problem(mean, data=tr.Dataset(rows, batch_size=8))
    split = on_mesh("solve", tr.Problem(mean, data=tr.Dataset(on_disk, batch_size=8)), on_devices(8))
    (source,), indices = split.sources, np.random.default_rng(1).integers(0, size, (2, 24))
    fetched = [jax.jit(source.batch)(source.arrays, places) for places in (indices[0], indices[1][:5])]
    expected = [jax.tree.map(lambda a, places=places: a[places], rows) for places in (indices[0], indices[1][:5])]
    few = source.subset(source.arrays, np.arange(0, size, 2))
    parts = Span(0, len(range(0, size, 2)) // 8 * 8), Span(len(range(0, size, 2)) // 8 * 8, len(range(0, size, 2)) % 8)
    numbers = [np.ravel(source.batch(few, part)["number"]) for part in parts if part.length]
    parameters = Parameters(jnp.linspace(-0.5, 0.5, 3))

    def passed(problem):
        oracle = oracle_for(problem, parameters)
        return jax.jit(lambda leaves: at(jax.tree.unflatten(jax.tree.structure(oracle), leaves)))(oracle.leaves())

    def at(oracle):
        return oracle.value_and_grad(parameters.start, oracle.everything())

    one, many = passed(whole), passed(split)
    key, drawn = jax.random.key(3), oracle_for(split, parameters).draw(jax.random.key(3))[0]
    indices_on_one = whole.data.draw(jax.random.split(key, 1)[0], 8)
    return {
        "fetched": jax.tree.all(jax.tree.map(np.array_equal, fetched, expected)),
        "types": jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype, fetched[0], whole.data.arrays)),
        "subset": sorted(map(int, np.concatenate(numbers))) == list(range(0, size, 2)),
        "pass": float(max(np.max(np.abs(a - b)) for a, b in zip(one, many, strict=True))),
        "rows on each device": [shard.data.shape[0] for shard in source.arrays["x"].addressable_shards],
        "same draws": bool(np.array_equal(drawn.indices, indices_on_one)),
        "same key": bool(jax.random.key_data(key_of(drawn))[1] == jax.random.key_data(key_of(indices_on_one))[1]),
    }


def network(size=3003, batch_size=64, sampled=False):
    """A fair classifier with one hidden layer, on data or on samples of them; the problem and its start."""
    rng = np.random.default_rng(0)
    x, normal = rng.normal(size=(size, 10)).astype("float32"), rng.normal(size=10).astype("float32")
    examples = {"x": x, "y": (x @ normal > 0).astype("float32"), "group": x[:, 0] > 0}

    def draw(key, n):
        x = jax.random.normal(key, (n, 10))
        return {"x": x, "y": (x @ normal > 0).astype("float32"), "group": x[:, 0] > 0}

    def score(params, batch):
        return jnp.tanh(batch["x"] @ params["in"]) @ params["out"]

    def loss(params, batch):
        return jnp.mean(jnp.logaddexp(0.0, score(params, batch)) - batch["y"] * score(params, batch))

    def gap(params, batch):
        return jnp.mean(jax.nn.sigmoid(score(params, batch)) * jnp.where(batch["group"], 2.0, -2.0))

    data = tr.Sampler(draw, batch_size) if sampled else tr.Dataset(examples, batch_size)
    start = {"in": 0.3 * rng.normal(size=(10, 8)).astype("float32"), "out": 0.3 * rng.normal(size=8).astype("float32")}
    return tr.Problem(loss, tr.between(gap, -0.05, 0.05, data=data), data=data), start


def solved(problem, start, method, steps=50, **options):
    result = tr.solve(problem, start, method, steps=steps, record=10, progress=False, **options)
    return {
        "x": [float(number) for leaf in jax.tree.leaves(result.x) for number in np.ravel(leaf)],
        "objective": result.objective,
        "violation": result.violation,
        "samples": result.samples,
    }


def agreement(method, counts, **options):
    """The results of one method on one device without a mesh, and on meshes of several sizes."""
    problem, start = network(**options)
    meshes = [None] + [on_devices(count) for count in counts]
    return [solved(problem, start, method, mesh=mesh) for mesh in meshes]


def refused():
    """The messages of what cannot be split."""
    problem, start = network(size=64, batch_size=12)
    stream = tr.Stream(lambda: iter([{"x": np.ones((8, 3))}]))
    on_stream = tr.Problem(lambda w, b: jnp.mean(b["x"] @ w), data=stream)
    found = {}
    for name, call in {
        "not a mesh": partial(tr.solve, problem, start, mesh=8, steps=1),
        "indivisible": partial(tr.solve, problem, start, mesh=on_devices(8), steps=1),
        "stream": partial(tr.solve, on_stream, jnp.ones(3), mesh=on_devices(8), steps=1),
        "no data": partial(tr.solve, tr.Problem(lambda w: w @ w), jnp.ones(3), mesh=on_devices(8), steps=1),
    }.items():
        try:
            call()
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def keep_texts():
    """Keep the text of every program that is compiled from here on."""
    compiled = compiling._compile

    def kept(lowered, effort):
        executable = compiled(lowered, effort)
        text = executable.as_text()
        TEXTS[text.split()[1].strip(",")] = text
        return executable

    compiling._compile = kept


def default_checks():
    with tempfile.TemporaryDirectory() as folder:
        found = {"layout": layout(5003, Path(folder)), "refused": refused()}
    keep_texts()
    found["agreement"] = agreement(SIMPLE, (8,))
    return found | {"texts": TEXTS}


def full_checks():
    methods = ("AdaptivePenalty", "AdaptiveLagrangian", "LinearizedPenalty")
    problem, start = network()
    two_axes = solved(problem, start, SIMPLE, mesh=on_devices(8, data=4, model=2))
    with tempfile.TemporaryDirectory() as folder:
        solved(problem, start, SIMPLE, steps=20, mesh=on_devices(8), checkpoint=folder)
        resumed = solved(problem, start, SIMPLE, mesh=on_devices(2), checkpoint=folder)
    with tempfile.TemporaryDirectory() as folder:
        few = layout(5, Path(folder))
    return {
        "agreement": {method: agreement(method, (1, 2, 8)) for method in methods},
        "sampled": agreement(SIMPLE, (8,), sampled=True),
        "large batch": agreement(SIMPLE, (8,), batch_size=24 * 1024, size=30_000),
        "two axes": two_axes,
        "few examples": few,
        "resumed": resumed,
    }


if __name__ == "__main__":
    print(json.dumps({"default": default_checks, "full": full_checks}[sys.argv[1]]()))
