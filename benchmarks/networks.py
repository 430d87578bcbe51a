"""Networks: AdaptiveLagrangian against Adam descent-ascent over a grid, and the time of a step against plain Adam.

- answers: for each problem and number of epochs, certified objective and violation of AdaptiveLagrangian (three seeds) and of
  GradientDescentAscent over 3×3 settings (learning rates 1e-3, 3e-3, 1e-2; dual rates 3e-3, 3e-2, 3e-1; the same seeds). The
  best of the grid is the setting with the least mean objective among those certified feasible for every seed.
- rivals: AdaptiveLagrangian, the best setting of that grid and AdaptivePenalty on as many samples, each seed on its own, in
  turn: answers, and the median seconds of the loop, the restoration with it. Where no setting is feasible, the one with the
  least violation runs. networks_torch.py has Cooper.
- steps: the time of a step of AdaptiveLagrangian over that of a hand-written Adam loop on the objective alone, on the same
  batches, in alternation; a network with about 1e7 parameters and 10 constraint functions.

Problems marked `chosen` are those that constants of the method were chosen on. Needs the data sets (TIGHTROPE_DATA).

Run: python benchmarks/networks.py [answers] [rivals] [steps] [table] [--problems NAME ...] [--epochs 2 6 20] [--out FILE]
Other rows of the file are kept; `table` prints them for docs/adaptive-lagrangian.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from default_sections.tasks import steps_for
from network_problems import BATCH, PROBLEMS, dense
from tightrope.experiments.fingerprint import modules

SEEDS, GROUPS = (0, 1, 2), 10_000
RATES, DUAL_RATES = (1e-3, 3e-3, 1e-2), (3e-3, 3e-2, 3e-1)


@cache
def version_of_method() -> str:
    """A short hash of the code of AdaptiveLagrangian, without comments and docstrings, as it is when a run starts."""
    package = tr.methods.AdaptiveLagrangian.__module__.rpartition(".")[0]
    code = {name: text for name, text in modules(f"{package}.method").items() if name.startswith(package)}
    return hashlib.sha256("\n".join(text for _, text in sorted(code.items())).encode()).hexdigest()[:12]


def row_of(results: list[tr.Result]) -> dict[str, Any]:
    """The mean objective, the largest violation, and whether all are certified feasible."""
    return {
        "objective": float(np.mean([r.objective for r in results])),
        "objectives": [float(r.objective) for r in results],
        "violation": float(max(r.violation for r in results)),
        "feasible": all(r.certificate.verdict == "feasible" for r in results),
        "samples": results[0].samples,
    }


def grid_rows(problem: tr.Problem, start: Any, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of GradientDescentAscent with each setting of the grid."""
    grid = [
        tr.methods.GradientDescentAscent(step_size=rate, dual_step_size=dual, decay=0.0)
        for rate, dual in product(RATES, DUAL_RATES)
    ]
    found = tr.sweep(problem, start, grid, seeds=SEEDS, **options).results
    return [row_of(found[i : i + len(SEEDS)]) for i in range(0, len(found), len(SEEDS))]


def answers(name: str, epochs: float, grid: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A row of answers; `grid` are those of GradientDescentAscent where they are known."""
    make, chosen = PROBLEMS[name]
    (problem, start), version = make(), version_of_method()
    source = problem.sources[0]
    assert isinstance(source, tr.Dataset)
    steps = int(epochs * source.size / BATCH)
    options: dict[str, Any] = {"steps": steps, "record": max(steps // 5, 1)}
    began = time.perf_counter()
    ours = row_of([tr.solve(problem, start, "AdaptiveLagrangian", seed=seed, **options) for seed in SEEDS])
    took = time.perf_counter() - began
    rows = grid or grid_rows(problem, start, options)
    feasible = [row for row in rows if row["feasible"]]
    best = min(feasible, key=lambda row: row["objective"]) if feasible else None
    over = ours["objective"] / best["objective"] - 1.0 if best else None
    print(f"{name}, {epochs:g} epochs: {ours['objective']:.4f}, feasible: {ours['feasible']}, "
          f"violation {ours['violation']:.1e}; grid: {best['objective'] if best else math.nan:.4f} "
          f"({len(feasible)} of 9 feasible), {took:.0f} s", flush=True)  # fmt: skip
    return {"section": "answers", "case": name, "epochs": epochs, "steps": steps, "chosen": chosen, "ours": ours,
            "version of the method": version, "grid": rows, "best of the grid": best, "over the grid": over}  # fmt: skip


def best_setting(grid: list[dict[str, Any]]) -> tr.methods.Method:
    """GradientDescentAscent with the setting of the grid that is best, or least violated if none is feasible."""

    def rank(i: int) -> tuple[bool, float]:
        return not grid[i]["feasible"], grid[i]["objective" if grid[i]["feasible"] else "violation"]

    rate, dual = list(product(RATES, DUAL_RATES))[min(range(len(grid)), key=rank)]
    return tr.methods.GradientDescentAscent(step_size=rate, dual_step_size=dual, decay=0.0)


def rivals(name: str, epochs: float) -> dict[str, Any]:
    """A row of answers and times; the grid must be among the results."""
    (problem, start), version = PROBLEMS[name][0](), version_of_method()
    source, grid = problem.sources[0], known(name, epochs)
    assert isinstance(source, tr.Dataset), name
    if grid is None:
        raise ValueError(f"{name}, {epochs:g} epochs: run `answers` first")
    samples, epoch = int(epochs * source.size), -(-source.size // BATCH)
    penalty = tr.methods.AdaptivePenalty()
    methods = {
        "AdaptiveLagrangian": (tr.methods.AdaptiveLagrangian(), samples // BATCH),
        "GradientDescentAscent": (best_setting(grid), samples // BATCH),
        "AdaptivePenalty": (penalty, steps_for(problem, start, penalty, SEEDS[:1], samples, epoch)),
    }
    results: dict[str, list[tr.Result]] = {each: [] for each in methods}
    for seed in (SEEDS[0], *SEEDS):  # the first time compiles
        for each, (method, steps) in methods.items():
            results[each].append(tr.solve(problem, start, method, steps=steps, seed=seed, record=max(steps // 5, 1)))
    rows = {
        each: row_of(found[1:]) | {"seconds": float(np.median([result.seconds for result in found[1:]]))}
        for each, found in results.items()
    }
    for each, row in rows.items():
        print(f"{name}, {epochs:g} epochs, {each}: {row['objective']:.4f}, feasible: {row['feasible']}, "
              f"violation {row['violation']:.1e}, {row['samples']:,} samples, {row['seconds']:.2f} s", flush=True)  # fmt: skip
    return {"section": "rivals", "case": name, "epochs": epochs, "version of the method": version, "methods": rows}


def network_of(sizes: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    """The cross-entropy of each example, from a network of rectified units with these sizes."""

    def losses(params: Any, examples: Any) -> Any:
        hidden = examples["x"]
        for i in range(len(sizes) - 2):
            hidden = jax.nn.relu(hidden @ params[f"w{i}"] + params[f"b{i}"])
        logits = hidden @ params[f"w{len(sizes) - 2}"] + params[f"b{len(sizes) - 2}"]
        return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, examples["y"][:, None], axis=1)[:, 0]

    return losses


def ten_functions(losses: Callable[[Any, Any], Any], data: tr.Batches) -> list[Any]:
    """A bound on the loss of each of ten classes, as ten functions."""

    def of_class(label: int) -> Callable[[Any, Any], Any]:
        return lambda params, examples: jnp.mean((examples["y"] == label) * losses(params, examples)) * 10.0

    return [tr.at_most(of_class(i), 0.1, data=data, name=f"class {i}") for i in range(10)]


def many_values(losses: Callable[[Any, Any], Any], data: tr.Batches) -> list[Any]:
    """A bound on the loss of each of 10,000 groups of examples, as one function."""

    def of_groups(params: Any, examples: Any) -> Any:
        values = losses(params, examples)
        return jax.ops.segment_sum(values, examples["group"], GROUPS) * (GROUPS / len(values))

    return [tr.at_most(of_groups, 0.1, data=data)]


def copies_of(step: Any, state: Any, examples: Any, numbers: int) -> float:
    """The memory of a compiled step, its donated state and all it needs on the way, in copies of the parameters."""
    compiled = jax.jit(step, donate_argnums=0).lower(state, examples).compile()
    found: Any = compiled.memory_analysis()
    size = (
        found.argument_size_in_bytes + found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    )
    return (size - sum(leaf.nbytes for leaf in jax.tree.leaves(examples))) / (4.0 * numbers)


def step_times(
    constraints: Callable[..., list[Any]],
    sizes: tuple[int, ...] = (1024, 2688, 2688, 10),
    batch: int = 256,
    repeats: int = 7,
) -> dict[str, Any]:
    """Microseconds per step, medians of alternating runs, and memory."""
    random, examples = np.random.default_rng(0), 8192
    arrays = {
        "x": jnp.asarray(random.normal(size=(examples, sizes[0])), jnp.float32),
        "y": jnp.asarray(random.integers(0, sizes[-1], examples), jnp.int32),
        "group": jnp.asarray(random.integers(0, GROUPS, examples), jnp.int32),
    }
    start, losses, count = dense(random, *sizes), network_of(sizes), 96

    def loss(params: Any, drawn: Any) -> Any:
        return jnp.mean(losses(params, drawn))

    first = jax.tree.map(lambda a: a[:batch], arrays)
    data = tr.Batches(like=first)
    problem = tr.Problem(loss, constraints(losses, data), data=data)
    stepper = tr.Stepper(problem, start, "AdaptiveLagrangian", steps=10_000)
    drawn = jnp.asarray(random.integers(0, examples, (count, batch)), jnp.int32)

    def adam_step(carry: Any, index: Any) -> tuple[Any, None]:
        params, mean, square, k = carry
        gradient = jax.grad(loss)(params, jax.tree.map(lambda a: a[index], arrays))
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, gradient)
        params = jax.tree.map(
            lambda p, m, v: p - 1e-3 * m / (1 - 0.9**k) / (jnp.sqrt(v / (1 - 0.999**k)) + 1e-8), params, mean, square
        )
        return (params, mean, square, k + 1.0), None

    def our_step(state: Any, index: Any) -> tuple[Any, None]:
        return stepper.step(state, jax.tree.map(lambda a: a[index], arrays))[0], None

    zeros = jax.tree.map(jnp.zeros_like, start)
    ours = jax.jit(lambda state: jax.lax.scan(our_step, state, drawn)[0])
    later = ours(stepper.init(first, seed=0))  # the first steps measure more
    runs: dict[str, tuple[Any, Any]] = {
        "adam": (jax.jit(lambda carry: jax.lax.scan(adam_step, carry, drawn)[0]), (start, zeros, zeros, 1.0)),
        "ours": (ours, later),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, (run, at) in runs.items():
            began = time.perf_counter()
            jax.block_until_ready(run(at))
            if repeat:
                times[name].append(1e6 * (time.perf_counter() - began) / count)
    ratios = [one / other for one, other in zip(times["ours"], times["adam"], strict=True)]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(start))
    kind = constraints.__name__.replace("_", " ")
    row = {
        "section": "steps",
        "case": f"{parameters:,} parameters, {kind}, batch {batch}, {jax.default_backend()}",
        "adam": float(np.median(times["adam"])),
        "ours": float(np.median(times["ours"])),
        "ratio": float(np.median(ratios)),
        "least and largest ratio": [min(ratios), max(ratios)],
        "copies of the parameters": copies_of(lambda *a: stepper.step(*a)[0], later, first, parameters),
    }
    print(row, flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of docs/adaptive-lagrangian.md that show the answers; † marks those of another version of the method."""

    def shown(row: dict[str, Any]) -> str:
        ours, best = row["ours"], row["best of the grid"]
        mark = " \\*" if row["chosen"] else ""
        mark += "" if row.get("version of the method") == version_of_method() else " †"
        grid = f"{best['objective']:.4f}" if best else "none feasible"
        verdict = "feasible" if ours["feasible"] else f"violation {ours['violation']:.0e}"
        return f"| {row['case']}{mark} | {row['epochs']:g} | {ours['objective']:.4f} | {verdict} | {grid} |"

    answered = [row for row in rows if row["section"] == "answers"]
    ordered = sorted(answered, key=lambda row: (list(PROBLEMS).index(row["case"]), row["epochs"]))
    return [
        "| problem | epochs | objective | certificates | best of the grid |",
        "|---|---|---|---|---|",
        *map(shown, ordered),
    ]


def known(name: str, epochs: float) -> list[dict[str, Any]] | None:
    """The rows of the grid among the committed results."""
    rows = json.loads((Path(__file__).parent / "results" / "networks.json").read_text())["rows"]
    this = "answers", name, epochs
    return next((row["grid"] for row in rows if (row["section"], row["case"], row.get("epochs")) == this), None)


def write(row: dict[str, Any], out: Path) -> None:
    """Add a row to the file, in place of the one of the same case."""
    device = jax.devices()[0].device_kind
    row |= {"machine": {"jax": jax.__version__, "python": platform.python_version(), "device": device}}
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    same = ("section", "case", "epochs")
    kept = [old for old in rows if any(old.get(name) != row.get(name) for name in same)]
    out.write_text(json.dumps({"rows": [*kept, row]}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["steps", "answers"])
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--epochs", type=float, nargs="+", default=[2.0, 6.0, 20.0])
    parser.add_argument("--small", action="store_true", help="a network of 25,000 parameters for the time of a step")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "networks.json")
    parser.add_argument("--keep-grid", action="store_true", help="do not run the grid where the results have it")
    options = parser.parse_args()
    if "table" in options.sections:
        print("\n".join(table(json.loads(options.out.read_text())["rows"])))
    if "steps" in options.sections:
        for constraints in (ten_functions, many_values):
            sizes = {"sizes": (784, 32, 10), "batch": 64} if options.small else {}
            write(step_times(constraints, **sizes), options.out)
    if "rivals" in options.sections:
        for name, epochs in product(options.problems, options.epochs):
            write(rivals(name, epochs), options.out)
    if "answers" in options.sections:
        for name in options.problems:
            for epochs in options.epochs:
                write(answers(name, epochs, known(name, epochs) if options.keep_grid else None), options.out)


if __name__ == "__main__":
    main()
