"""What `mesh=` and `spec=` move between devices in a step, what a device must hold, and what a step takes on virtual devices.

A network with one hidden layer and one constraint is trained on data that are split over 1, 2 and 8 virtual devices of one
CPU. The compiled loop is searched for collectives. Each belongs to every step, to a branch of a step that is taken now and then
(a full pass, say), or to a block of steps, whose batches are fetched at once. Bytes are those of the whole array that is
reduced, gathered or exchanged. The memory of a device is what the compiler says of the loop. Virtual devices share the cores of
one CPU, so the times show overhead only.

Run: XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/scaling.py [collectives memory times]
     Parts that are not named stay as they are in the file of results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import tightrope as tr
from tightrope.problems import compiling
from tightrope.problems.partition import partition_over
from tightrope.problems.splitting import on_mesh
from tightrope.runs.fitting import Fitted, fit
from tightrope.runs.loop import block_length
from tightrope.runs.run import begin_run, start_run

METHODS = ("LinearizedPenalty", "AdaptiveLagrangian", "AdaptivePenalty")
SIZES = {"small": (32, 32, 20_000), "large": (256, 512, 20_000), "million": (1024, 1024, 2048)}
"""Features, hidden units and examples."""
BATCH = 256
BYTES = {"pred": 1, "u8": 1, "s32": 4, "u32": 4, "f32": 4}
COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


def score(params: Any, batch: Any) -> Any:
    return jax.nn.relu(batch["x"] @ params["in"]) @ params["out"]


def loss(params: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-batch["y"] * score(params, batch)))


def rate(params: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.sigmoid(score(params, batch)))


def problem_of(features: int, hidden: int, examples: int) -> tuple[tr.Problem, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(examples, features)).astype(np.float32)
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


def fitted_on(method: str, size: str, devices: int, steps: int, spec: PartitionSpec | None = None) -> Fitted:
    problem, start = problem_of(*SIZES[size])
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    fitted = fit("solve", on_mesh("solve", problem, mesh), start, method, steps)
    return replace(fitted, oracle=replace(fitted.oracle, partition=partition_over("solve", mesh, spec)))


def compiled_loop(fitted: Fitted) -> Any:
    """The compiled loop; no other program of the run is compiled."""
    loops, compiled = [], compiling._compile

    def loop_only(lowered: Any, effort: Any) -> None:
        if "@jit_run_steps" in lowered.as_text()[:200]:
            loops.append(compiled(lowered, effort))

    compiling._compile = loop_only
    begin_run(fitted, [0])
    while not loops:
        time.sleep(0.1)
    compiling._compile = compiled
    return loops[0]


def moved(method: str, size: str, devices: int, spec: str | None) -> dict[str, Any]:
    """The collectives of the compiled loop."""
    fitted = fitted_on(method, size, devices, 1, None if spec is None else PartitionSpec(spec))
    return {
        "method": method,
        "size": size,
        "devices": devices,
        "spec": spec,
        "parameters": fitted.parameters.size,
        "batch_bytes": BATCH * 4 * (SIZES[size][0] + 1),
        "steps_in_a_block": block_length(fitted.oracle, fitted.method.roles(fitted.oracle), 1),
        "collectives": collectives(compiled_loop(fitted).as_text(), devices),
    }


def memory(method: str, size: str, devices: int, spec: str | None) -> dict[str, Any]:
    """The bytes that the compiled loop takes of each device: for the data, the state before and after it, and on the way."""
    fitted = fitted_on(method, size, devices, 1, None if spec is None else PartitionSpec(spec))
    found, data = compiled_loop(fitted).memory_analysis(), jax.tree.leaves(fitted.oracle.data)
    held = sum(array.addressable_shards[0].data.nbytes for array in data)
    return {
        "method": method,
        "parameters": fitted.parameters.size,
        "devices": devices,
        "spec": spec,
        "data_bytes": held,
        "state_bytes": found.argument_size_in_bytes - held,
        "result_bytes": found.output_size_in_bytes,
        "temporary_bytes": found.temp_size_in_bytes,
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
    parser.add_argument("parts", nargs="*", default=["collectives", "memory", "times"])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "scaling.json")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    found["jax"] = jax.__version__
    methods = [(method, size) for size in ("small", "large") for method in METHODS]
    parts: tuple[Any, ...] = (
        ("collectives", moved, [(*each, 8, spec) for each in methods for spec in (None, "data")]),
        ("memory", memory, [("AdaptiveLagrangian", "million", 8, spec) for spec in (None, "data")]),
        ("times", timed, [("AdaptiveLagrangian", "small", devices, options.steps) for devices in (1, 2, 8)]),
    )
    for part, measure, cases in parts:
        if part not in options.parts:
            continue
        compiling._cache._found.clear()  # holds programs that were not compiled
        found[part] = []
        for case in cases:
            found[part].append(measure(*case))
            print(found[part][-1], flush=True)
        if part == "times":
            cores, load = os.cpu_count(), os.getloadavg()[0]
            found["machine"] = f"{platform.machine()}, {cores} cores, {jax.devices()[0].device_kind}, load {load:.1f}"
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
