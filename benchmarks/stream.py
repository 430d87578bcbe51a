"""The share of its time that a run waits for a stream, and what a step on a stream costs beside one on data in memory.

A network with one hidden layer is trained on batches of several sizes. The iterator gives slices of an array in memory: at once
(as fast as an iterator can be), and after a pause of twice what a step takes (too slow, for comparison). A run on a `Dataset`
of these examples is timed in turn with it; the ratio is that of the fastest runs. Waiting is measured where the loop asks for
batches.

Run: python benchmarks/stream.py [--out stream.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from tightrope.runs.feeding import Feed

FEATURES, HIDDEN = 256, 128
METHOD = tr.methods.GradientDescentAscent(step_size=1e-3, dual_step_size=1e-3)


def loss(params: Any, batch: Any) -> Any:
    hidden = jax.nn.relu(batch["x"] @ params["in"])
    return jnp.mean(jax.nn.softplus(-batch["y"] * (hidden @ params["out"])))


def mean_score(params: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.relu(batch["x"] @ params["in"]) @ params["out"])


def examples(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return {"x": x, "y": np.sign(x[:, 0]).astype(np.float32)}


def start() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    inner = jax.random.normal(keys[0], (FEATURES, HIDDEN)) / FEATURES**0.5
    return {"in": inner, "out": jax.random.normal(keys[1], (HIDDEN,)) / HIDDEN**0.5}


def slices(data: dict[str, np.ndarray], batch_size: int, pause: float) -> Iterator[dict[str, np.ndarray]]:
    """Batches of consecutive examples, each after a pause in seconds."""
    for first in range(0, len(data["y"]), batch_size):
        if pause:
            time.sleep(pause)
        yield {name: array[first : first + batch_size] for name, array in data.items()}


def problem_on(source: Any) -> tr.Problem:
    return tr.Problem(loss, tr.between(mean_score, -0.1, 0.1, data=source), data=source)


@contextmanager
def feeds() -> Iterator[list[Feed]]:
    """The feeds of the runs in this context: only they know how long a run waited."""
    found: list[Feed] = []
    close = Feed.close

    def note(feed: Feed) -> None:
        found.append(feed)
        close(feed)

    Feed.close = note  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield found
    finally:
        Feed.close = close


def timed(problem: tr.Problem, steps: int) -> tuple[float, float]:
    """The seconds of a run, and those that it waited."""
    with feeds() as used:
        result = tr.solve(problem, start(), METHOD, steps=steps, record=steps, progress=False)
    return result.seconds, sum(feed.waited for feed in used)


def measure(batch_size: int, steps: int, repeats: int) -> dict[str, float]:
    data = examples(batch_size * 64)
    memory = problem_on(tr.Dataset(data, batch_size))
    timed(memory, steps)
    in_memory = min(timed(memory, steps)[0] for _ in range(repeats)) / steps
    fast = problem_on(tr.Stream(lambda: slices(data, batch_size, 0.0)))
    slow = problem_on(tr.Stream(lambda: slices(data, batch_size, 2.0 * in_memory)))
    timed(fast, steps)
    runs = [(timed(fast, steps), timed(memory, steps)) for _ in range(repeats)]
    (streamed, waited), _ = min(runs)
    slowly, waited_slowly = timed(slow, max(steps // 10, 20))
    return {
        "batch_size": batch_size,
        "steps": steps,
        "microseconds_a_step_in_memory": 1e6 * min(seconds for _, (seconds, _) in runs) / steps,
        "microseconds_a_step_streamed": 1e6 * streamed / steps,
        "ratio": streamed / min(seconds for _, (seconds, _) in runs),
        "share_waited": waited / streamed,
        "largest_share_waited": max(w / s for (s, w), _ in runs),
        "share_waited_for_a_slow_iterator": waited_slowly / slowly,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "stream.json")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows = [measure(batch, steps, options.repeats) for batch, steps in ((64, 4000), (256, 2000), (1024, 1000))]
    for row in rows:
        print({name: round(value, 3) for name, value in row.items()}, flush=True)
    device = jax.devices()[0].device_kind
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {device}, load {os.getloadavg()[0]:.1f}"
    options.out.write_text(json.dumps({"machine": machine, "jax": jax.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
