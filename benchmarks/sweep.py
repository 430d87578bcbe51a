"""A sweep against single calls: README's problem, 64 seeds as lanes, over one warm call of `tr.solve`.

Both are whole calls, with records and certificates. In each round a call of `tr.solve` and one of `tr.sweep` run in turn;
`cpu` is the ratio of their CPU times, and `wall` that of their times on a clock, which means little on a busy machine.
Compilation is not timed.

Run: python benchmarks/sweep.py [--lanes 64] [--rounds 7] [--methods …] [--out sweep.json]
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

STEPS = 2_000
METHODS = ("default", "GradientDescentAscent", "LinearizedPenalty")


def readme_problem() -> tr.Problem:
    """The problem of README."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, 2000)
    features = np.stack([rng.normal(size=2000) + group, rng.normal(size=2000), np.ones(2000)], axis=1)
    label = np.sign(features @ [1.0, 1.0, -0.5] + 0.5 * rng.normal(size=2000))

    def loss(w: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))

    def covariance(w: Any, batch: Any) -> Any:
        return jnp.mean(batch["s"] * (batch["x"] @ w))

    data = tr.Dataset({"x": features, "y": label, "s": group - group.mean()}, batch_size=64)
    constraint = tr.between(covariance, -0.05, 0.05, data=data)
    return tr.Problem(loss, constraint, domain=tr.domains.L2Ball(10.0), data=data)


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """CPU time and time on the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def compare(method: str, lanes: int, rounds: int) -> dict[str, Any]:
    """Alternating calls with one method."""
    problem, x0, chosen = readme_problem(), jnp.zeros(3), None if method == "default" else method
    single = lambda: tr.solve(problem, x0, chosen, steps=STEPS, progress=False)  # noqa: E731
    sweep = lambda: tr.sweep(problem, x0, chosen, steps=STEPS, seeds=lanes, progress=False)  # noqa: E731
    timed(single)
    timed(sweep)  # both compile
    found = np.array([(*timed(single), *timed(sweep)) for _ in range(rounds)])
    return {
        "method": method,
        "lanes": lanes,
        "cpu": (found[:, 2] / found[:, 0]).tolist(),
        "wall": (found[:, 3] / found[:, 1]).tolist(),
        "cpu_seconds": {"solve": found[:, 0].tolist(), "sweep": found[:, 2].tolist()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "sweep.json")
    options = parser.parse_args()
    rows = []
    for method in options.methods:
        rows.append(compare(method, options.lanes, options.rounds))
        print(rows[-1], flush=True)
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "jaxlib": version("jaxlib")}
    machine |= {"load": os.getloadavg()[0]}
    options.out.write_text(json.dumps({"machine": machine, "steps": STEPS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
