"""Checks of `mesh=` on eight virtual devices, for test_mesh.py, which runs this file in a process of its own."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import tightrope as tr
from tightrope.oracles.build import oracle_for
from tightrope.problems import compiling, partition
from tightrope.problems.data import Span, key_of
from tightrope.problems.parameters import Parameters
from tightrope.problems.partition import checksums, is_split, on_host, pad_split, partition_over
from tightrope.problems.splitting import on_mesh
from tightrope.runs.fitting import fit
from tightrope.runs.run import start_run

SIMPLE = tr.methods.GradientDescentAscent(step_size=0.1, dual_step_size=0.1)
"""A method that compiles fast."""
METHODS = ("AdaptivePenalty", "AdaptiveLagrangian", "LinearizedPenalty")
TEXTS: dict[str, str] = {}
"""The compiled programs, by name."""
partition.LONG = 16  # so that small networks are split


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


def network(size=3003, batch_size=64, sampled=False, hidden=8):
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
    first, second = (0.3 * rng.normal(size=size).astype("float32") for size in ((10, hidden), hidden))
    start = {"in": first, "out": second}
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


def placed():
    """How arrays are split over several numbers of devices, and their checksums; the last one has another number."""
    rng = np.random.default_rng(0)
    arrays = {
        "vector": rng.normal(size=99),
        "rows": rng.normal(size=(3, 99)),
        "short": np.ones(15),
        "counts": np.arange(99),
    }
    arrays = {name: jnp.asarray(array, array.dtype.kind + "4") for name, array in arrays.items()}
    other = arrays | {"rows": arrays["rows"][:, ::-1]}
    found = {}
    for count in (1, 2, 3, 8):
        over = partition_over("solve", on_devices(count), PartitionSpec("data"))
        lie = jax.jit(partial(pad_split, over))(arrays)
        split = {name: array for name, array in lie.items() if is_split(array)}
        changed = {"rows": jax.jit(partial(pad_split, over))(other)["rows"]}
        found[count] = {
            "parts": {name: split[name].padded.addressable_shards[-1].data.shape for name in split},
            "same": jax.tree.all(jax.tree.map(np.array_equal, on_host(lie), arrays)),
            "checksums": checksums(split),
            "of another": checksums(changed)["rows"],
        }
    return found


def carried(method, spec, **axes):
    """The shapes of the arrays that a run carries that are as long as x, and of the part of each that one device has."""
    problem, start = network(hidden=9)
    mesh = on_devices(8, **axes)
    fitted = fit("solve", on_mesh("solve", problem, mesh), start, method, 50)
    fitted = replace(fitted, oracle=replace(fitted.oracle, partition=partition_over("solve", mesh, spec)))
    run = start_run(fitted, fitted.parameters.start, [0], 10)
    run.advance(1)
    state = run.carry.run.state, run.carry.run.average
    long = [a for a in jax.tree.leaves(state, is_leaf=is_split) if 99 in a.shape]
    return [[a.shape, a.padded.addressable_shards[0].data.shape if is_split(a) else None] for a in long]


def split_agreement(method):
    """The results of one method on one device, and with parameters split over two and eight."""
    problem, start = network(hidden=9)
    both = {"mesh": on_devices(8, data=4, model=2)}
    options = [
        {},
        {"mesh": on_devices(2), "spec": PartitionSpec("data")},
        {"mesh": on_devices(8), "spec": PartitionSpec("data")},
        both | {"spec": PartitionSpec("model")},
        both | {"spec": PartitionSpec(("data", "model"))},
    ]
    return [solved(problem, start, method, **each) for each in options]


def split_checkpoints():
    """A run whose parameters lie on eight devices, resumed where they lie on three, on one, and are not split."""
    problem, start = network(hidden=9)
    with tempfile.TemporaryDirectory() as folder:
        over_eight = {"mesh": on_devices(8), "spec": PartitionSpec("data"), "checkpoint": folder}
        solved(problem, start, SIMPLE, steps=20, **over_eight)
        over_three = {"mesh": on_devices(6, data=2, model=3), "spec": PartitionSpec("model"), "checkpoint": folder}
        solved(problem, start, SIMPLE, steps=30, **over_three)
        over_one = {"mesh": on_devices(1), "spec": PartitionSpec("data"), "checkpoint": folder}
        resumed = solved(problem, start, SIMPLE, steps=50, **over_one)
        try:
            solved(problem, start, SIMPLE, mesh=on_devices(8), checkpoint=folder)
        except ValueError as error:
            return {"resumed": resumed, "whole": solved(problem, start, SIMPLE), "without a spec": str(error)}


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
        "spec alone": partial(tr.solve, problem, start, spec=PartitionSpec("data"), steps=1),
        "not a spec": partial(tr.solve, problem, start, mesh=on_devices(4), spec="data", steps=1),
        "two entries": partial(tr.solve, problem, start, mesh=on_devices(4), spec=PartitionSpec("data", None), steps=1),
        "no axis": partial(tr.solve, problem, start, mesh=on_devices(4), spec=PartitionSpec(None), steps=1),
        "unknown axis": partial(tr.solve, problem, start, mesh=on_devices(4), spec=PartitionSpec("model"), steps=1),
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
        found = {"layout": layout(5003, Path(folder)), "refused": refused(), "placed": placed()}
    keep_texts()
    found["agreement"] = agreement(SIMPLE, (8,))
    return found | {"texts": TEXTS}


def full_checks():
    problem, start = network()
    two_axes = solved(problem, start, SIMPLE, mesh=on_devices(8, data=4, model=2))
    with tempfile.TemporaryDirectory() as folder:
        solved(problem, start, SIMPLE, steps=20, mesh=on_devices(8), checkpoint=folder)
        resumed = solved(problem, start, SIMPLE, mesh=on_devices(2), checkpoint=folder)
    with tempfile.TemporaryDirectory() as folder:
        few = layout(5, Path(folder))
    return {
        "agreement": {method: agreement(method, (1, 2, 8)) for method in METHODS},
        "sampled": agreement(SIMPLE, (8,), sampled=True),
        "large batch": agreement(SIMPLE, (8,), batch_size=24 * 1024, size=30_000),
        "two axes": two_axes,
        "few examples": few,
        "resumed": resumed,
    }


def split_checks():
    lagrangian = "AdaptiveLagrangian"
    return {
        "agreement": {method: split_agreement(method) for method in (*METHODS, "GradientDescentAscent")},
        "carried": carried(lagrangian, PartitionSpec("model"), data=4, model=2),
        "carried by all": carried(lagrangian, PartitionSpec(("data", "model")), data=4, model=2),
        "carried rows": carried("AdaptivePenalty", PartitionSpec("data"), data=8),
        "checkpoints": split_checkpoints(),
    }


if __name__ == "__main__":
    print(json.dumps({"default": default_checks, "full": full_checks, "split": split_checks}[sys.argv[1]]()))
