"""The default without tuning: the share of problems solved, by noise level and method.

- gradients: the programs of `zoo.hs` with noise in the gradient, float64, 1000 steps: the default, and StochasticSQP with its
  published constants. StochasticSQP accepts only equations with x in R^n, so there is a row of the default on these programs
  too. It draws one sample per step where the default draws two, so there is a row of it with twice the steps.
- constraints: the same with noise also in the constraints' values and Jacobians, for methods that accept this, with their own
  defaults, all with 1000 samples from each source.
- learning: `zoo.learning` on real data (from the folder in TIGHTROPE_DATA), float32: the default against the best of a grid
  for each of the other methods, all with the same number of samples. The grid is `TUNED` times the constants that these methods
  estimate; its best answer is the one with the smallest certified objective among those certified feasible.
- infeasible: the status that runs report on `zoo.infeasible`, and on `zoo.hs` without noise; float64, 1000 steps.

A program is solved if, without noise, the largest violation is at most 1e-4·max(1, violation at x0) and the largest entry of
∇f + Jᵀλ, minus the part that the set cancels near x, is at most max(1e-2, 3σ)·max(1, ‖∇f(x0)‖∞). That part is the
certificate's (docs/certificates.md, stationarity); rows of the file from before November 2026 have the normal cone of the exact
x. With noise in the constraints the violation may be larger by three standard errors of a mean over the samples.
`complementary` also requires |λ_i g_i| within the second tolerance; `optimal` requires the first tolerance and f within 1% of
the published optimum. These judge the answer, which is chosen with evaluation samples that are not counted; `last` judges the
last iterate.

Run: python benchmarks/defaults.py [SECTION ...] [--levels 1e-4 ...] [--jobs 16] [--tasks FILE] [--quick] [--out FILE]
Other rows of the file are kept, so that a run can be split. Each new row has a hash of the code that it comes from. With
--tasks every finished task is appended to a file, and the tasks in it are not run again: a run that was stopped goes on, on any
machine. With --quick nothing is written unless --out is given.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy

import tightrope as tr
from default_sections.learning_problems import compare_learning, learning_tasks, report_learning, run_learning
from default_sections.noisy_programs import noisy_tasks, report_noisy, run_noisy
from default_sections.tasks import DEFAULT, EPOCHS, Row, Task
from default_sections.unsolvable import infeasible_tasks, report_infeasible, run_infeasible
from tightrope.experiments.fingerprint import modules

LEVELS = (1e-8, 1e-4, 1e-2, 1e-1)


class Section(NamedTuple):
    """A section of the benchmark: its tasks, how to run and report them, and the environment of its processes."""

    tasks: Callable[[str, argparse.Namespace], Iterator[Task]]
    run: Callable[[Task], Row]
    report: Callable[[dict[Task, Row]], list[Row]]
    environment: dict[str, str]
    compare: Callable[[list[Row]], None] = lambda rows: None


SMALL = {"JAX_ENABLE_X64": "1", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""Float64, and little optimization: programs this small take longer to compile than to run."""

SECTIONS = {
    "gradients": Section(noisy_tasks, run_noisy, report_noisy, SMALL),
    "constraints": Section(noisy_tasks, run_noisy, report_noisy, SMALL),
    "learning": Section(
        learning_tasks, run_learning, report_learning, {"JAX_ENABLE_X64": "0", "XLA_FLAGS": ""}, compare_learning
    ),
    "infeasible": Section(infeasible_tasks, run_infeasible, report_infeasible, SMALL),
}


def take_core(cores: Any) -> None:
    """Restrict this process to a core of its own."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})


def work(task: Task) -> tuple[Row, float]:
    """The row of a task and its time; an error gives a row with nothing else."""
    began = time.perf_counter()
    try:
        row = SECTIONS[task.section].run(task)
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    jax.clear_caches()
    return row, time.perf_counter() - began


@cache
def code_hash(method: str) -> str:
    """A short hash of the code that runs a method, without comments and docstrings, as it is when a run starts."""
    names = ["AdaptivePenalty", "AdaptiveLagrangian"] if method == DEFAULT else [method]
    code = modules("tightrope.runs.sweeping", *(tr.methods.by_name(name).__module__ for name in names))
    return hashlib.sha256("\n".join(text for _, text in sorted(code.items())).encode()).hexdigest()[:12]


class Journal:
    """The finished tasks, kept in a file of JSON lines; a line counts if it comes from the present code.

    Attributes:
        file: the file; None: they are not kept.
    """

    def __init__(self, file: Path | None):
        self.file = file
        lines = file.read_text().splitlines() if file is not None and file.exists() else []
        self._found: dict[str, Row] = {entry["key"]: entry["row"] for entry in map(json.loads, lines)}

    @staticmethod
    def key(task: Task) -> str:
        return json.dumps([*task, code_hash(task.method)])

    def row(self, task: Task) -> Row | None:
        return self._found.get(self.key(task))

    def add(self, task: Task, row: Row) -> None:
        if self.file is not None:
            with self.file.open("a") as lines:
                lines.write(json.dumps({"key": self.key(task), "row": row}) + "\n")


def run_section(name: str, options: argparse.Namespace) -> list[Row]:
    """Run all tasks of a section, with each process on a core of its own."""
    section, spawn = SECTIONS[name], multiprocessing.get_context("spawn")
    tasks = [
        task
        for task in section.tasks(name, options)
        if task.method in (options.methods or [task.method]) and task.problem in (options.problems or [task.problem])
    ]
    if not tasks:
        return []
    os.environ.update(
        {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | section.environment
    )
    available, cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0], spawn.Queue()
    for i in range(options.jobs):
        cores.put(available[i % len(available)])
    journal = Journal(options.tasks)
    found: dict[Task, Row] = {task: row for task in tasks if (row := journal.row(task)) is not None}
    began = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, spawn, take_core, (cores,)) as pool:
        left = [task for task in reversed(tasks) if task not in found]  # the large programs, listed last, start first
        waiting = {pool.submit(work, task): task for task in left}
        for done in as_completed(waiting):
            task = waiting[done]
            found[task], seconds = done.result()
            journal.add(task, found[task])
            error = found[task].get("error", "")
            print(f"[{len(found)}/{len(tasks)}] {task.problem}, {task.method}: {seconds:.0f} s {error}", flush=True)
    rows = section.report({task: found[task] for task in tasks})
    print(f"  {name}: {(time.perf_counter() - began) / 60:.1f} minutes, {options.jobs} processes", flush=True)
    return rows


def merged(rows: list[Row], path: Path | None) -> list[Row]:
    """The rows of the file that are not replaced, then the new rows with a description of the machine."""
    machine = {"jax": jax.__version__, "numpy": np.__version__, "scipy": scipy.__version__}
    machine |= {"python": platform.python_version(), "processor": platform.machine()}
    new = {(row["section"], row["case"]) for row in rows}
    old = json.loads(path.read_text())["rows"] if path is not None and path.exists() else []
    kept = [row for row in old if (row["section"], row["case"]) not in new]
    return [*kept, *(row | {"code": code_hash(row["method"]), "machine": machine} for row in rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"any of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS, help="variances of the noise")
    parser.add_argument("--methods", nargs="+", help="only these methods")
    parser.add_argument("--problems", nargs="+", help="only these problems")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of the learning problems")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--tasks", type=Path, help="a file of finished tasks, which are not run again")
    parser.add_argument("--quick", action="store_true", help="a few problems, as a smoke test")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"sections are {', '.join(SECTIONS)}; got {', '.join(sorted(unknown))}")
    jax.config.update("jax_platforms", "cpu")
    out = options.out or (None if options.quick else Path(__file__).parent / "results" / "defaults.json")
    for name in options.sections or SECTIONS:
        rows = merged(run_section(name, options), out)
        SECTIONS[name].compare(rows)
        if out is not None:
            out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
