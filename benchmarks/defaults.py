"""How far the default gets where nobody tunes: the share solved, per noise level and per method.

- gradients: the programs of `zoo.hs` with noise in the gradient, float64, 1000 steps: the default, and StochasticSQP with its
  published constants. That takes equations in all of R^n alone, so the default has a row for these programs too; and it
  draws one row a step where the default draws two, so it has a row with twice the steps.
- constraints: the same with noise in the constraints' values and Jacobians too, for methods that take that, with their own
  defaults, all with 1000 rows of each source.
- learning: `zoo.learning` on real data (from the folder in TIGHTROPE_DATA), float32: the default against the best of a grid
  for each of the other methods, all with as many rows. The grid is `TUNED`, times the constants that these methods estimate;
  its best is, of the answers that are certified feasible, the one with the least certified objective.
- infeasible: what runs on `zoo.infeasible`, and on `zoo.hs` without noise, are called; float64, 1000 steps.

A program is solved where, without noise, the largest violation is at most 1e-4·max(1, violation at x0) and the largest entry of
∇f + Jᵀλ, less what the normal cone of the set cancels, at most max(1e-2, 3σ)·max(1, ‖∇f(x0)‖∞). With noise in the constraints
the violation may be larger by three standard errors of a mean over the rows. `complementary` asks for |λ_i g_i| within the
second tolerance as well; `optimal` asks for the first tolerance and f within 1% of the published optimum. Judged is the
answer, which is chosen with the help of evaluation samples that are not counted; for `last`, the last iterate.

Run: python benchmarks/defaults.py [SECTION ...] [--levels 1e-4 ...] [--jobs 16] [--quick] [--out FILE]
The file's other rows are kept, so that a run can be split. With --quick nothing is written unless --out is given.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

import tightrope as tr
from tightrope.certificates.evaluation import complementarity, raw_violations, stationarity
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

DEFAULT = "AdaptivePenalty"
LEVELS = (1e-8, 1e-4, 1e-2, 1e-1)
STEPS = 1000
EPOCHS, RECORDS, LARGE = 20, 25, 10_000
"""Of learning problems: how often all rows may be drawn, records along a run, parameters too many for ExactPenalty."""

TUNED: dict[str, tuple[dict[str, str], dict[str, tuple[float, ...]]]] = {
    "GradientDescentAscent": ({}, {"step_size": (0.1, 0.3, 1, 3), "dual_step_size": (0.1, 1, 10)}),
    "LinearizedPenalty": ({}, {"step_size": (0.3, 1, 3, 10), "penalty": (0.1, 1, 10)}),
    "SwitchingSubgradient": ({"values": "sampled"}, {"step_size": (0.1, 0.3, 1, 3), "tolerance": (0.003, 0.03, 0.3)}),
    "ExactPenalty": (
        {"setting": "stochastic"},
        {"penalty": (0.1, 1, 10), "smoothness jacobian_smoothness": (0.1, 1, 10)},
    ),
}
"""Choices, and factors for two of the constants (or a pair of them): all combinations are tried."""

Row = dict[str, Any]


class Task(NamedTuple):
    """What a process does at once: one method on one problem."""

    section: str
    problem: str
    method: str
    seeds: tuple[int, ...]
    levels: tuple[float, ...] = ()
    steps: tuple[int, ...] = (STEPS,)
    epochs: int = EPOCHS


def method_of(task: Task) -> tr.methods.Method:
    return tr.methods.by_name(task.method)()


def equal_steps(problem: tr.Problem, x0: Any, methods: Any, seeds: tuple[int, ...], rows: int, pilot: int) -> int:
    """Steps that draw this many rows, by what the first ones draw; as many runs as will follow, to compile once."""
    found = tr.sweep(problem, x0, methods, steps=pilot, seeds=seeds, record=pilot)
    return max(1, rows * pilot // max(result.samples for result in found.results))


# ---- programs with noise -----------------------------------------------------------------------------------------------

SHARES = ("solved", "last", "complementary", "optimal")


def programs(quick: bool) -> list[str]:
    return list(tr.zoo.hs.available())[:: 50 if quick else 1]


def equations_alone(name: str) -> bool:
    problem = tr.zoo.hs.available()[name]()[0]
    return isinstance(problem.domain, tr.domains.Reals) and all(c.kind == "equals" for c in problem.constraints)


class Judge:
    """A program without noise, and what is asked of an answer to it at a level of noise."""

    def __init__(self, name: str):
        problem, x0, solution = tr.zoo.hs.available()[name]()
        parameters = Parameters(x0)
        oracle = oracle_for(problem, parameters)

        def measure(x: Any) -> Any:
            objective, gradient = oracle.value_and_grad(x, ())
            rows, jacobian = oracle.c(x, ()), oracle.jac(x, ())
            multipliers, residual = stationarity(oracle, x, gradient, rows, jacobian)
            violation = jnp.max(raw_violations(oracle, rows), initial=0.0)
            products = complementarity(oracle, rows, multipliers)
            return jnp.stack([objective, violation, products, jnp.max(jnp.abs(residual)), jnp.max(jnp.abs(gradient))])

        self.measure, self.best = jax.jit(measure), solution.objective
        _, violation, _, _, gradient = self.measure(x0).tolist()
        self.violation, self.gradient = max(1.0, violation), max(1.0, gradient)

    def __call__(self, x: Any, level: float, standard_error: float) -> dict[str, bool]:
        objective, violation, products, residual, _ = self.measure(x).tolist()
        tolerance = max(1e-2, 3.0 * math.sqrt(level)) * self.gradient
        feasible = violation <= 1e-4 * self.violation + 3.0 * standard_error
        solved = feasible and residual <= tolerance
        return {
            "solved": solved,
            "complementary": solved and products <= tolerance,
            "optimal": feasible and objective - self.best <= 0.01 * max(1.0, abs(self.best)),
        }


def noisy_tasks(section: str, options: argparse.Namespace) -> Iterator[Task]:
    others = {"gradients": ["StochasticSQP"], "constraints": ["GradientDescentAscent"]}[section]
    for method in [DEFAULT, *others]:
        steps = (STEPS, 2 * STEPS) if method == "StochasticSQP" else (STEPS,)
        for name in programs(options.quick):
            if method != "StochasticSQP" or equations_alone(name):
                yield Task(section, name, method, tuple(range(options.seeds)), tuple(options.levels), steps)


class Scaled(tr.Sampler):
    """A sampler's rows times a factor that compiled programs take as an argument: all levels share them."""

    def __init__(self, sampler: tr.Sampler):
        super().__init__(sampler.fn, sampler.batch_size)
        self.arrays = jnp.ones(())

    def batch(self, arrays: Any, sample: Any) -> Any:
        return jax.tree.map(lambda rows: arrays * rows, sample)


def with_noise(name: str, both: bool) -> tuple[tr.Problem, Any]:
    """A program with noise of variance 1 in the gradient, or everywhere, from `Scaled` samplers."""
    problem, x0, _ = tr.zoo.hs.available()[name](noise=1.0, constraint_noise=1.0 if both else 0.0)
    scaled = {id(source): Scaled(source) for source in problem.sources if isinstance(source, tr.Sampler)}
    constraints = [replace(c, data=scaled.get(id(c.data))) for c in problem.constraints]
    return tr.Problem(problem.objective, constraints, domain=problem.domain, data=scaled[id(problem.data)]), x0


def run_noisy(task: Task) -> Row:
    """How many of the seeds' answers are what is asked for, at each level after each number of steps."""
    both = task.section == "constraints"
    problem, x0 = with_noise(task.problem, both)
    method, judged = method_of(task), Judge(task.problem)

    def run(level: float, steps: int) -> Row:
        judge = partial(judged, level=level, standard_error=math.sqrt(level / STEPS) if both else 0.0)
        for source in problem.sources:
            source.arrays = jnp.sqrt(level)  # pyright: ignore[reportAttributeAccessIssue]
        if both:
            steps = equal_steps(problem, x0, method, task.seeds, steps * len(problem.sources), pilot=100)
        record = tr.Record(-(-steps // 100), metrics={"solved": lambda x, batch: judge(x)["solved"]})
        found = tr.sweep(problem, x0, method, steps=steps, seeds=task.seeds, record=record).results
        answers = [judge(result.x) | {"last": bool(result.history["solved"][-1])} for result in found]
        counts = {name: sum(answer[name] for answer in answers) for name in SHARES}
        return counts | {"statuses": [result.status for result in found], "samples": found[0].samples}

    return {"runs": [[run(level, steps) for steps in task.steps] for level in task.levels]}


def report_noisy(found: dict[Task, Row]) -> list[Row]:
    """A row for each level and method, and one for the default on the programs that StochasticSQP takes."""
    section = next(iter(found)).section
    print(f"\n{section}, share of (program, seed)".ljust(78), *(name.rjust(13) for name in SHARES))
    rows = []
    for method in dict.fromkeys(task.method for task in found):
        mine = {task: row for task, row in found.items() if task.method == method}
        *_, seeds, levels, several, _ = next(iter(mine))
        for (i, level), (j, steps) in product(enumerate(levels), enumerate(several)):
            runs = {task.problem: row["runs"][i][j] if "runs" in row else row for task, row in mine.items()}
            label = f"variance {level:.0e}, {method}" + (f", {steps} steps" if len(several) > 1 else "")
            rows.append(noisy_row(section, label, runs, len(seeds)))
            if section == "gradients" and method == DEFAULT:
                alone = {name: run for name, run in runs.items() if equations_alone(name)}
                rows += [noisy_row(section, f"{label}, equations alone", alone, len(seeds))] if alone else []
    return rows


def noisy_row(section: str, label: str, runs: dict[str, Row], seeds: int) -> Row:
    """The shares over all programs; a run that failed has solved nothing."""
    shares = {name: sum(run.get(name, 0) for run in runs.values()) / (seeds * len(runs)) for name in SHARES}
    missed = {name: seeds - run.get("solved", 0) for name, run in runs.items() if run.get("solved", 0) < seeds}
    called = [name for name, run in runs.items() if {"infeasible", "unbounded"} & set(run.get("statuses", ()))]
    print(f"  {label}, {len(runs)} programs".ljust(77), *(f"{share:13.3f}" for share in shares.values()))
    if called:
        print("    called infeasible or unbounded:", ", ".join(called))
    about = {"programs": len(runs), "seeds": seeds, "most samples": max(run.get("samples", 0) for run in runs.values())}
    errors = {name: run["error"] for name, run in runs.items() if "error" in run}
    return {"section": section, "case": label} | about | shares | {"missed": missed, "called": called, "errors": errors}


# ---- learning ----------------------------------------------------------------------------------------------------------


def learning_tasks(section: str, options: argparse.Namespace) -> Iterator[Task]:
    if not os.environ.get("TIGHTROPE_DATA"):
        print("learning: skipped, because TIGHTROPE_DATA does not name the folder of the data sets")
        return
    names = ["compas_equal_rates"] if options.quick else list(tr.zoo.learning.available())[::-1]  # the slowest first
    for name in names:
        for method in TUNED:
            yield Task(section, name, method, (0,), epochs=options.epochs)
        for seed in range(options.seeds):
            yield Task(section, name, DEFAULT, (seed,), epochs=options.epochs)


def run_learning(task: Task) -> Row:
    """The answers of the default or of another method's grid; why there is none where it does not take the problem."""
    problem, x0, solution = tr.zoo.learning.available()[task.problem]()
    sources = [source for source in problem.sources if isinstance(source, tr.Dataset)]
    passed = max(-(-source.size // source.batch_size) for source in sources)  # the default's time from pass to pass
    rows = task.epochs * sum(source.size for source in sources)
    size = sum(leaf.size for leaf in jax.tree.leaves(x0))
    try:
        if task.method == "ExactPenalty" and size > LARGE:
            raise ValueError(f"{size:,} parameters: a singular value decomposition in every step takes too long")
        methods = [method_of(task)] if task.method == DEFAULT else tuned(task, problem, x0)
    except ValueError as refusal:
        return {"refused": str(refusal)}
    steps = equal_steps(problem, x0, methods, task.seeds, rows, passed if task.method == DEFAULT else 100)
    found = tr.sweep(problem, x0, methods, steps=steps, seeds=task.seeds, record=-(-steps // RECORDS)).results
    known = {} if math.isnan(solution.objective) else {"known": solution.objective}
    return {"answers": [answer_of(result) for result in found], "rows": rows} | known


def tuned(task: Task, problem: tr.Problem, x0: Any) -> list[tr.methods.Method]:
    """The method with all pairs of its factors, times what it estimates on this problem."""
    choices, factors = TUNED[task.method]
    method = tr.methods.by_name(task.method)
    estimated = tr.sweep(problem, x0, method(**choices), steps=1, seeds=[0]).results[0].settings
    (first, some), (second, others) = factors.items()

    def scaled(a: float, b: float) -> dict[str, float]:
        return {name: a * estimated[name] for name in first.split()} | {n: b * estimated[n] for n in second.split()}

    return [method(**choices, **scaled(a, b)) for a in some for b in others]


def answer_of(result: tr.Result) -> Row:
    numbers = {name: getattr(result, name) for name in ("objective", "violation", "samples", "seconds", "status")}
    return numbers | {"feasible": result.certificate.verdict == "feasible", "settings": result.settings}


def report_learning(found: dict[Task, Row]) -> list[Row]:
    """A row for each problem and method: the default's answers, one a seed; of another's grid the best that is feasible."""
    rows = []
    for problem, method in dict.fromkeys((task.problem, task.method) for task in found):
        mine = [row for task, row in found.items() if (task.problem, task.method) == (problem, method)]
        about = {"section": "learning", "case": f"{problem}, {method}", "problem": problem, "method": method}
        about |= {name: mine[0][name] for name in ("rows", "known") if name in mine[0]}
        about |= {name: [row[name] for row in mine if name in row] for name in ("refused", "error")}
        answers = [answer for row in mine for answer in row.get("answers", [])]
        if method == DEFAULT:
            rows.append(about | {"answers": answers})
        else:
            feasible = sorted((a for a in answers if a["feasible"]), key=lambda a: a["objective"])
            rows.append(about | {"best": feasible[:1], "feasible": len(feasible), "tried": len(answers)})
    return rows


def compare_learning(rows: list[Row]) -> None:
    """Print what the default found beside the best of the grids, of this run or of the file."""
    print("\nlearning, certified objectives: the default's on each seed; the best of the grids")
    within = []
    for ours in (row for row in rows if row["section"] == "learning" and row["method"] == DEFAULT):
        problem, known = ours["problem"], ours.get("known", math.nan)
        grids = [row for row in rows if row["section"] == "learning" and row["problem"] == problem and row.get("best")]
        least, winner = min(((row["best"][0]["objective"], row["method"]) for row in grids), default=(math.inf, "none"))
        within += [a["feasible"] and a["objective"] <= least + 0.01 * abs(least) for a in ours["answers"]]
        within += [False] * len(ours["refused"] + ours["error"])
        found = ", ".join(f"{a['objective']:.5g}" + ("" if a["feasible"] else " (infeasible)") for a in ours["answers"])
        print(
            f"  {problem}: {found}; {least:.5g} by {winner}" + ("" if math.isnan(known) else f"; optimum {known:.5g}")
        )
    print(f"  feasible and within 1%: {sum(within)} of {len(within)} (problem, seed)")


# ---- infeasible and unbounded ------------------------------------------------------------------------------------------

COLLECTIONS: dict[str, Callable[[], dict[str, Callable[..., Any]]]] = {
    "infeasible": tr.zoo.infeasible.available,
    "unbounded": tr.zoo.infeasible.unbounded,
    "hs": tr.zoo.hs.available,
}


def infeasible_tasks(section: str, options: argparse.Namespace) -> Iterator[Task]:
    for collection, available in COLLECTIONS.items():
        names = programs(options.quick) if collection == "hs" else list(available())[:: 6 if options.quick else 1]
        for name in names:  # without noise every seed is the same
            seeds = 1 if collection == "hs" else options.seeds
            yield Task(section, f"{collection} {name}", DEFAULT, tuple(range(seeds)))


def run_infeasible(task: Task) -> Row:
    collection, name = task.problem.split()
    problem, x0, _ = COLLECTIONS[collection]()[name]()
    found = tr.sweep(problem, x0, method_of(task), steps=STEPS, seeds=task.seeds)
    return {"statuses": [result.status for result in found.results]}


def report_infeasible(found: dict[Task, Row]) -> list[Row]:
    """The problems of each collection that are called what they are, on every seed."""
    print("\ninfeasible, problems that are called what they are")
    rows = []
    for collection in dict.fromkeys(task.problem.split()[0] for task in found):
        fitting = {"budget", "converged"} if collection == "hs" else {collection}
        mine = {t.problem.split()[1]: row for t, row in found.items() if t.problem.startswith(collection)}
        called = {name: row.get("statuses", [row.get("error")]) for name, row in mine.items()}
        wrong = {name: statuses for name, statuses in called.items() if not set(statuses) <= fitting}
        print(f"  {collection}: {len(called) - len(wrong)} of {len(called)}" + (f"; not: {wrong}" if wrong else ""))
        rows.append({"section": "infeasible", "case": collection, "problems": len(called), "wrong": wrong})
    return rows


# ---- the run -----------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    tasks: Callable[[str, argparse.Namespace], Iterator[Task]]
    run: Callable[[Task], Row]
    report: Callable[[dict[Task, Row]], list[Row]]
    environment: dict[str, str]
    compare: Callable[[list[Row]], None] = lambda rows: None


SMALL = {"JAX_ENABLE_X64": "1", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""Float64; and as programs this small take longer to compile than to run, the compiler need not do its best."""

SECTIONS = {
    "gradients": Section(noisy_tasks, run_noisy, report_noisy, SMALL),
    "constraints": Section(noisy_tasks, run_noisy, report_noisy, SMALL),
    "learning": Section(
        learning_tasks, run_learning, report_learning, {"JAX_ENABLE_X64": "0", "XLA_FLAGS": ""}, compare_learning
    ),
    "infeasible": Section(infeasible_tasks, run_infeasible, report_infeasible, SMALL),
}


def take_core(cores: Any) -> None:
    """Keep this process to a core of its own."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})


def work(task: Task) -> tuple[Row, float]:
    """A task's row, and its seconds; an error is a row that has nothing else."""
    began = time.perf_counter()
    try:
        row = SECTIONS[task.section].run(task)
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    jax.clear_caches()
    return row, time.perf_counter() - began


def run_section(name: str, options: argparse.Namespace) -> list[Row]:
    """All tasks of a section, each process on a core of its own."""
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
    found: dict[Task, Row] = {}
    began = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, spawn, take_core, (cores,)) as pool:
        waiting = {pool.submit(work, task): task for task in reversed(tasks)}  # the large programs come last
        for done in as_completed(waiting):
            task = waiting[done]
            found[task], seconds = done.result()
            said = found[task].get("error", "")
            print(f"[{len(found)}/{len(tasks)}] {task.problem}, {task.method}: {seconds:.0f} s {said}", flush=True)
    rows = section.report({task: found[task] for task in tasks})
    print(f"  {name}: {(time.perf_counter() - began) / 60:.1f} minutes, {options.jobs} processes", flush=True)
    return rows


def beside(rows: list[Row], path: Path | None) -> list[Row]:
    """The rows, with the machine they come from, after those of the file that they do not replace."""
    machine = {"jax": jax.__version__, "numpy": np.__version__, "scipy": scipy.__version__}
    machine |= {"python": platform.python_version(), "processor": platform.machine()}
    new = {(row["section"], row["case"]) for row in rows}
    old = json.loads(path.read_text())["rows"] if path is not None and path.exists() else []
    kept = [row for row in old if (row["section"], row["case"]) not in new]
    return [*kept, *(row | {"machine": machine} for row in rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all of them otherwise")
    parser.add_argument("--levels", type=float, nargs="+", default=LEVELS, help="variances of the noise")
    parser.add_argument("--methods", nargs="+", help="these methods alone")
    parser.add_argument("--problems", nargs="+", help="these problems alone")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the learning problems")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--quick", action="store_true", help="a few problems, to see that it runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"sections are {', '.join(SECTIONS)}; got {', '.join(sorted(unknown))}")
    jax.config.update("jax_platforms", "cpu")
    out = options.out or (None if options.quick else Path(__file__).parent / "results" / "defaults.json")
    for name in options.sections or SECTIONS:
        rows = beside(run_section(name, options), out)
        SECTIONS[name].compare(rows)
        if out is not None:
            out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
