"""What `mesh=` moves between devices in a step, read from the compiled loop, and what a step takes on virtual devices.

A network with one hidden layer and one constraint is trained on data that are split over 1, 2 and 8 virtual devices of one
CPU. The compiled loop is searched for collectives. Each belongs to every step, to a branch of a step that is taken now and then
(a full pass, say), or to a block of steps, whose batches are fetched at once. Bytes are those of the whole array that is
reduced, gathered or exchanged. Virtual devices share the cores of one CPU, so the times show overhead only.

Run: XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/scaling.py [--out scaling.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from tightrope.problems import compiling
from tightrope.problems.splitting import on_mesh
from tightrope.runs.fitting import Fitted, fit
from tightrope.runs.loop import block_length
from tightrope.runs.run import begin_run, start_run

METHODS = ("LinearizedPenalty", "AdaptiveLagrangian", "AdaptivePenalty")
SIZES = {"small": (32, 32), "large": (256, 512)}
"""Features and hidden units."""
EXAMPLES, BATCH = 20_000, 256
BYTES = {"pred": 1, "u8": 1, "s32": 4, "u32": 4, "f32": 4}
COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def score(params: Any, batch: Any) -> Any:
    return jax.nn.relu(batch["x"] @ params["in"]) @ params["out"]


def loss(params: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-batch["y"] * score(params, batch)))


def rate(params: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.sigmoid(score(params, batch)))


def problem_of(features: int, hidden: int) -> tuple[tr.Problem, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, features)).astype(np.float32)
    data = tr.Dataset({"x": x, "y": np.sign(x[:, 0])}, BATCH)
    start = {"in": 0.1 * rng.normal(size=(features, hidden)), "out": 0.1 * rng.normal(size=hidden)}
    problem = tr.Problem(loss, tr.at_most(rate, 0.4, data=data, name="rate"), data=data)
    return problem, {name: array.astype(np.float32) for name, array in start.items()}


def where(line: str) -> str:
    """Whether a collective belongs to every step, to a branch or an inner loop of a step, to a block, or to a chunk."""
    path = re.search(r'op_name="([^"]*)"', line)
    _, step, inside = (path.group(1) if path else "").partition("_counted_step")
    if step:
        return "now and then" if "/cond/" in inside or "while/body" in inside else "every step"
    return "block" if path and "while/body" in path.group(1) else "chunk"


def collectives(text: str, devices: int) -> dict[str, dict[str, Any]]:
    """The number and the bytes of the collectives of a compiled loop, by where they are and what they do."""
    number: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        if found := COLLECTIVE.search(line):
            shapes, kind = found.groups()
            key = where(line), kind
            whole = devices if kind in ("reduce-scatter", "all-to-all", "collective-permute") else 1
            number[key] += 1
            for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
                size[key] += whole * BYTES[dtype] * int(np.prod([int(dim) for dim in dims.split(",") if dim]))
    found = {}
    for place, kind in sorted(number):
        found.setdefault(place, {})[kind] = {"count": number[place, kind], "bytes": size[place, kind]}
    return found


def fitted_on(method: str, size: str, devices: int, steps: int) -> Fitted:
    problem, start = problem_of(*SIZES[size])
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    return fit("solve", on_mesh("solve", problem, mesh), start, method, steps)


def moved(method: str, size: str, devices: int) -> dict[str, Any]:
    """The collectives of the compiled loop; no other program of the run is compiled."""
    fitted, texts, compiled = fitted_on(method, size, devices, 1), [], compiling._compile

    def loop_only(lowered: Any, effort: Any) -> None:
        if "@jit_run_steps" in lowered.as_text()[:200]:
            texts.append(compiled(lowered, effort).as_text())

    compiling._compile = loop_only
    begin_run(fitted, [0])
    while not texts:
        time.sleep(0.1)
    compiling._compile = compiled
    return {
        "method": method,
        "size": size,
        "devices": devices,
        "parameters": fitted.parameters.size,
        "batch_bytes": BATCH * 4 * (SIZES[size][0] + 1),
        "steps_in_a_block": block_length(fitted.oracle, fitted.method.roles(fitted.oracle), 1),
        "collectives": collectives(texts[0], devices),
    }


def timed(method: str, size: str, devices: int, steps: int) -> dict[str, Any]:
    fitted = fitted_on(method, size, devices, steps)
    begin_run(fitted, [0])
    run = start_run(fitted, fitted.parameters.start, [0], steps)
    before = run.seconds
    while run.step < steps and not run.diverged:
        run.advance(1)
    seconds = (run.seconds - before) / run.step
    return {"method": method, "size": size, "devices": devices, "microseconds_a_step": 1e6 * seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "scaling.json")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    found: dict[str, list[Any]] = {"collectives": [], "times": []}
    for size in SIZES:
        for method in METHODS:
            found["collectives"].append(moved(method, size, 8))
            print(found["collectives"][-1], flush=True)
    compiling._cache._found.clear()  # holds programs that were not compiled
    for devices in (1, 2, 8):
        found["times"].append(timed("AdaptiveLagrangian", "small", devices, options.steps))
        print(found["times"][-1], flush=True)
    device = jax.devices()[0].device_kind
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {device}, load {os.getloadavg()[0]:.1f}"
    options.out.write_text(json.dumps({"machine": machine, "jax": jax.__version__} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
