"""The overhead of the loop: `result.seconds` against a hand-written JAX loop of the same method on the same draws.

Both run in one process, alternating, on one core, and the ratio is that of the fastest runs; times are CPU times, which other
programs on the machine hardly change. The hand-written loop also draws in blocks (drawing key by key inside a step costs as
much as the gradient) and keeps only what the method needs; the bare oracle loop computes the same gradients and nothing else.

Run: python benchmarks/overhead.py [--out overhead.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from tightrope.runs.loop import BLOCK

PENALTY, STEP_SIZE, RADIUS = 1.0, 0.1, 10.0


def data_of(examples: int, features: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, features)).astype(np.float32) / np.sqrt(features)
    y = np.sign(x @ rng.normal(size=features) + 0.1 * rng.normal(size=examples)).astype(np.float32)
    return {"x": x, "y": y}


def loss(w: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))


def norm(w: Any) -> Any:
    return w @ w


def sphere_problem(data: tr.Dataset) -> tr.Problem:
    return tr.Problem(loss, tr.equals(norm, 1.0), data=data)


def draws(key: Any, first: Any, examples: int, batch: int) -> Any:
    """The same indices as the library's, from fold_in(seed, k), for a block of steps at once."""

    def one(k: Any) -> Any:
        keys = jax.random.split(jax.random.fold_in(key, k), 2)
        words = jax.random.bits(jax.random.split(keys[0], 1)[0], (batch,), "uint32")
        return (words % np.uint32(examples)).astype(jnp.int32), jax.random.uniform(keys[1])

    return jax.vmap(one)(first + jnp.arange(BLOCK))


def hand_written(arrays: dict[str, np.ndarray], batch: int, steps: int) -> Callable[[], Any]:
    """Truncated recursive momentum (θ unknown) with its sampled output, written out for f = loss and c = ‖w‖² − 1."""
    data = jax.tree.map(jnp.asarray, arrays)
    examples, features = arrays["x"].shape

    def gradient(w: Any, index: Any) -> Any:
        return jax.grad(loss)(w, jax.tree.map(lambda a: a[index], data))

    def truncate(v: Any) -> Any:
        size = jnp.linalg.norm(v)
        return v * jnp.where(size > RADIUS, RADIUS / size, 1.0)

    @jax.jit
    def run(w: Any, key: Any, steps: Any) -> Any:
        def one(carry: Any, block: Any, first: Any) -> Any:
            w, v, picked, picked_multiplier, k = carry
            index, uniform = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, k - first, keepdims=False), block)
            t = k.astype(w.dtype)
            root = jnp.sqrt(t)
            c, pullback = jax.vjp(lambda w: norm(w) - 1.0, w)
            new = w - STEP_SIZE / (root * jnp.log(t + 2.0)) * (v + pullback(PENALTY * root * c)[0])
            weight = jnp.minimum(1.0, 1.0 / root)
            v = truncate(gradient(new, index) + (1.0 - weight) * (v - gradient(w, index)))
            position = k - (steps + 1) // 2
            take = (position >= 1) & (uniform * position < 1.0)
            multiplier = PENALTY * jnp.sqrt(jnp.maximum(t - 1.0, 1.0)) * c
            return new, v, jnp.where(take, w, picked), jnp.where(take, multiplier, picked_multiplier), k + 1

        def block(carry: Any) -> Any:
            first = carry[4] // BLOCK * BLOCK
            drawn, end = draws(key, first, examples, batch), jnp.minimum(steps + 1, first + BLOCK)
            return jax.lax.while_loop(lambda c: c[4] < end, lambda c: one(c, drawn, first), carry)

        start = truncate(gradient(w, draws(key, 0, examples, batch)[0][0]))
        carry = w, start, w, jnp.zeros((), w.dtype), jnp.int32(1)
        return jax.lax.while_loop(lambda c: c[4] <= steps, block, carry)

    w0, key = jnp.full(features, 0.5 / np.sqrt(features), jnp.float32), jax.random.key(0)
    return lambda: run(w0, key, np.int32(steps))


def bare(arrays: dict[str, np.ndarray], batch: int, steps: int) -> Callable[[], Any]:
    """The oracle calls of such a step and nothing else: two gradients on one batch, a constraint value and its gradient."""
    data = jax.tree.map(jnp.asarray, arrays)
    examples, features = arrays["x"].shape

    @jax.jit
    def run(w: Any, key: Any, steps: Any) -> Any:
        index = draws(key, 0, examples, batch)[0]

        def one(k: Any, w: Any) -> Any:
            sample = jax.tree.map(lambda a: a[jax.lax.dynamic_index_in_dim(index, k % BLOCK, keepdims=False)], data)
            first = w - 1e-3 * (jax.grad(loss)(w, sample) + jax.grad(norm)(w))
            return first - 1e-3 * jax.grad(loss)(first, sample)

        return jax.lax.fori_loop(0, steps, one, w)

    w0, key = jnp.full(features, 0.5 / np.sqrt(features), jnp.float32), jax.random.key(0)
    return lambda: run(w0, key, np.int32(steps))


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def compare(examples: int, features: int, batch: int, steps: int, repeats: int, record: int | None) -> dict[str, Any]:
    """The ratio of the fastest of alternating runs."""
    arrays = data_of(examples, features)
    problem = sphere_problem(tr.Dataset(arrays, batch_size=batch))
    method = tr.methods.TruncatedMomentum(step_size=STEP_SIZE, penalty=PENALTY, gradient_radius=RADIUS)
    x0 = jnp.full(features, 0.5 / np.sqrt(features), jnp.float32)
    written, oracle = hand_written(arrays, batch, steps), bare(arrays, batch, steps)
    ours = lambda: tr.solve(problem, x0, method, steps=steps, record=record, progress=False)  # noqa: E731
    last, by_hand = ours(), jax.block_until_ready(written())
    agree = float(jnp.max(jnp.abs(by_hand[0] - np.asarray(last_iterate(problem, x0, method, steps)))))
    times: dict[str, list[float]] = {"tightrope": [], "hand-written": [], "bare oracle": []}
    for _ in range(repeats):
        times["tightrope"].append(ours().seconds)
        times["hand-written"].append(timed(written))
        times["bare oracle"].append(timed(oracle))
    best = {name: min(values) for name, values in times.items()}
    return {
        "features": features,
        "batch": batch,
        "steps": steps,
        "records": last.history.records,
        "microseconds per step": {name: 1e6 * value / steps for name, value in best.items()},
        "ratio to hand-written": best["tightrope"] / best["hand-written"],
        "ratio to bare oracle": best["tightrope"] / best["bare oracle"],
        "largest difference of last iterates": agree,
    }


def last_iterate(problem: tr.Problem, x0: Any, method: tr.methods.Method, steps: int) -> Any:
    seen = []
    tr.solve(problem, x0, method, steps=steps, record=steps, callback=lambda record: seen.append(record["x"]))
    return seen[-1]


def on_one_core() -> None:
    """Use one core; the clock of this process counts CPU time."""
    time.perf_counter = time.process_time
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> None:
    on_one_core()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "overhead.json")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    sizes = [(20_000, 100, 64, 20_000), (2_000, 10_000, 64, 500)]
    found = [compare(*size, options.repeats, record) for size in sizes for record in (None, size[3])]
    for row in found:
        print(json.dumps(row))
    machine = {"jax": jax.__version__, "jaxlib": version("jaxlib"), "processor": platform.machine()}
    machine |= {"device": str(jax.devices()[0]), "clock": "CPU time on one core"}
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine, "overhead": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
