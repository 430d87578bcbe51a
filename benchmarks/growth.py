"""How the time of a step grows: with examples, parameters, constraint rows and the batch; and with many half-spaces.

The problem is logistic loss on N examples in d dimensions, in batches of b, with one constraint function of m values: means of
m random linear functions of the parameters, each at most 0.01. Each setting differs from the first in one number. The runs
take turns: in each round every run goes on for at least `SECONDS`, and its time a step is that of the steps of this round,
after a first stretch that is not counted. `state` is the size of all that a run carries from step to step, in copies of the
parameters.

A step reads a batch of rows anywhere in the data, which takes longer where they are not in the processor's cache. A loop that
only reads batches says how much of the growth with N that is.

The half-spaces are 150 in ten dimensions, at random, with and without a common point; the objective is the squared distance
to a point. There a round is the first 300 steps from zero, because rows enter and leave the active set in these.

Everything runs on one core, and times are CPU times, which other programs on the machine hardly change.

Run: python benchmarks/growth.py [--rounds 7] [--out growth.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from tightrope.runs.fitting import fit
from tightrope.runs.run import Run, begin_run, start_run

METHODS = ("AdaptivePenalty", "GradientDescentAscent")
FIRST = {"examples": 10_000, "parameters": 100, "rows": 1, "batch": 64}
OTHERS = {
    "examples": (100_000, 1_000_000),
    "parameters": (10, 1_000),
    "rows": (10, 100),
    "batch": (16, 256, 1024),
}
SECONDS, HORIZON, READS = 0.05, 1_000_000_000, 20_000
HALF_SPACES, DIMENSIONS, STEPS = 150, 10, 300


def learning(examples: int, parameters: int, rows: int, batch: int) -> tuple[tr.Problem, Any]:
    """The problem with these numbers, and its start."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, parameters)).astype(np.float32) / np.float32(np.sqrt(parameters))
    y = np.sign(x @ rng.normal(size=parameters) + 0.1 * rng.normal(size=examples)).astype(np.float32)
    directions = jnp.asarray(rng.normal(size=(rows, parameters)) / np.sqrt(parameters), jnp.float32)
    data = tr.Dataset({"x": x, "y": y}, batch_size=batch)

    def loss(w: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))

    def scores(w: Any, batch: Any) -> Any:
        return directions @ w * jnp.mean(1.0 + 0.1 * batch["y"])

    problem = tr.Problem(loss, tr.at_most(scores, 0.01, data=data), data=data)
    return problem, jnp.zeros(parameters, jnp.float32)


def half_spaces(common_point: bool) -> tuple[tr.Problem, Any]:
    """Half-spaces with or without a common point, and the start."""
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(HALF_SPACES, DIMENSIONS))
    normals = jnp.asarray(normals / np.linalg.norm(normals, axis=1, keepdims=True), jnp.float32)
    bounds = np.abs(rng.normal(size=HALF_SPACES)) * (0.3 if common_point else -0.1)
    goal = jnp.asarray(2.0 * rng.normal(size=DIMENSIONS), jnp.float32)
    inside = tr.at_most(lambda x: normals @ x, bounds, name="half-spaces")
    return tr.Problem(lambda x: jnp.sum((x - goal) ** 2), inside), jnp.zeros(DIMENSIONS, jnp.float32)


def begun(problem: tr.Problem, start: Any, method: str, steps: int) -> Run:
    """A run before its first step."""
    fitted = fit("solve", problem, start, method, steps)
    begin_run(fitted, [0])
    return start_run(fitted, fitted.parameters.start, [0], steps)


def microseconds(run: Run, seconds: float) -> float:
    """Microseconds a step, over as many chunks as take this long."""
    steps, before = run.step, run.seconds
    while run.seconds - before < seconds and run.step < run.fitted.steps and not run.diverged:
        run.advance(1)
    return 1e6 * (run.seconds - before) / (run.step - steps)


def copies(run: Run) -> float:
    """The size of what a run carries from step to step, in copies of the parameters."""
    arrays = jax.tree.leaves((run.carry.run.state, run.carry.run.average))
    return sum(a.nbytes for a in arrays) / run.fitted.parameters.start.nbytes


def growth(rounds: int) -> list[dict[str, Any]]:
    """A step of every method in every setting."""
    settings = [FIRST, *(FIRST | {name: value} for name, values in OTHERS.items() for value in values)]
    found = []
    for method in METHODS:
        runs = [begun(*learning(**one), method, HORIZON) for one in settings]
        for run in runs:
            microseconds(run, SECONDS)
        times = [[microseconds(run, SECONDS) for run in runs] for _ in range(rounds)]
        for place, (one, run) in enumerate(zip(settings, runs, strict=True)):
            own, first = [each[place] for each in times], [each[0] for each in times]
            ratios = [a / b for a, b in zip(own, first, strict=True)]
            found.append({"method": method, **one, "microseconds": own, "ratios": ratios, "state": copies(run)})
            print(found[-1], flush=True)
    return found


@partial(jax.jit, static_argnums=2)
def read(rows: jax.Array, key: jax.Array, steps: int) -> jax.Array:
    """The sum of random batches of rows, one after the other."""

    def one(total: jax.Array, place: jax.Array) -> tuple[jax.Array, None]:
        return total + rows[place].sum(axis=0), None

    places = jax.random.randint(key, (steps, FIRST["batch"]), 0, len(rows))
    return jax.lax.scan(one, jnp.zeros(rows.shape[1]), places)[0]


def reading(rounds: int) -> list[dict[str, Any]]:
    """A loop that only reads batches, for each number of examples."""
    sizes = [FIRST["examples"], *OTHERS["examples"]]
    rows = [np.random.default_rng(0).normal(size=(size, FIRST["parameters"])).astype(np.float32) for size in sizes]

    def seconds(data: jax.Array, number: int) -> float:
        began = time.process_time()
        read(data, jax.random.key(number), READS).block_until_ready()
        return time.process_time() - began

    data = [jnp.asarray(a) for a in rows]
    times = [[seconds(a, number) for a in data] for number in range(rounds + 1)][1:]
    found = [
        {"examples": size, "microseconds": [1e6 * one[i] / READS for one in times]} for i, size in enumerate(sizes)
    ]
    print(found, flush=True)
    return found


def many_rows(rounds: int) -> list[dict[str, Any]]:
    """A step of the default with many inequality rows."""
    found = []
    for common_point in (True, False):
        problem, start = half_spaces(common_point)
        begun(problem, start, METHODS[0], STEPS)
        times = [microseconds(begun(problem, start, METHODS[0], STEPS), np.inf) for _ in range(rounds)]
        found.append({"common point": common_point, "microseconds": times})
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "growth.json")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    time.perf_counter = time.process_time
    found = {"half-spaces": many_rows(options.rounds), "reading": reading(options.rounds)}
    found["growth"] = growth(options.rounds)
    machine = {"processor": platform.machine(), "python": platform.python_version(), "jaxlib": version("jaxlib")}
    machine |= {"clock": "CPU time on one core", "load": os.getloadavg()[0]}
    options.out.write_text(json.dumps({"machine": machine} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
