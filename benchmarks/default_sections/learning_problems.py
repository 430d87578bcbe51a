"""Section `learning`: the default against tuned methods on `zoo.learning`."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from typing import Any

import jax

import tightrope as tr

from .tasks import DEFAULT, Row, Task, method_of, steps_for

RECORDS = 25
MAX_PARAMETERS = 10_000
"""ExactPenalty is skipped on problems with more parameters."""

TUNED: dict[str, tuple[dict[str, str], dict[str, tuple[float, ...]]]] = {
    "GradientDescentAscent": ({}, {"step_size": (0.1, 0.3, 1, 3), "dual_step_size": (0.1, 1, 10)}),
    "LinearizedPenalty": ({}, {"step_size": (0.3, 1, 3, 10), "penalty": (0.1, 1, 10)}),
    "SwitchingSubgradient": ({"values": "sampled"}, {"step_size": (0.1, 0.3, 1, 3), "tolerance": (0.003, 0.03, 0.3)}),
    "ExactPenalty": (
        {"setting": "stochastic"},
        {"penalty": (0.1, 1, 10), "smoothness jacobian_smoothness": (0.1, 1, 10)},
    ),
}
"""Fixed options, and factors for two of the estimated constants (or a pair of them); all combinations are tried."""


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
    """The answers of the default or of another method's grid; the reason if the method does not accept the problem."""
    problem, x0, solution = tr.zoo.learning.available()[task.problem]()
    sources = [source for source in problem.sources if isinstance(source, tr.Dataset)]
    epoch = max(-(-source.size // source.batch_size) for source in sources)  # steps between full passes of the default
    samples = task.epochs * sum(source.size for source in sources)
    size = sum(leaf.size for leaf in jax.tree.leaves(x0))
    try:
        if task.method == "ExactPenalty" and size > MAX_PARAMETERS:
            raise ValueError(f"{size:,} parameters: a singular value decomposition in every step takes too long")
        methods = [method_of(task.method)] if task.method == DEFAULT else tuned(task, problem, x0)
    except ValueError as refusal:
        return {"refused": str(refusal)}
    steps = steps_for(problem, x0, methods, task.seeds, samples, epoch if task.method == DEFAULT else 100)
    found = tr.sweep(problem, x0, methods, steps=steps, seeds=task.seeds, record=-(-steps // RECORDS)).results
    known = {} if math.isnan(solution.objective) else {"known": solution.objective}
    return {"answers": [answer_of(result) for result in found], "samples": samples} | known


def tuned(task: Task, problem: tr.Problem, x0: Any) -> list[tr.methods.Method]:
    """The method with all pairs of its factors, times its estimates on this problem."""
    choices, factors = TUNED[task.method]
    method = tr.methods.by_name(task.method)
    estimated = tr.sweep(problem, x0, method(**choices), steps=1, seeds=[0]).results[0].settings
    (first, some), (second, others) = factors.items()

    def scaled(a: float, b: float) -> dict[str, float]:
        return {name: a * estimated[name] for name in first.split()} | {n: b * estimated[n] for n in second.split()}

    return [method(**choices, **scaled(a, b)) for a in some for b in others]


def answer_of(result: tr.Result) -> Row:
    numbers = {
        name: getattr(result, name) for name in ("objective", "violation", "samples", "seconds", "status", "method")
    }
    return numbers | {"feasible": result.certificate.verdict == "feasible", "settings": result.settings}


def report_learning(found: dict[Task, Row]) -> list[Row]:
    """A row per problem and method: the default's answers, one per seed, or the best feasible answer of a grid."""
    rows = []
    for problem, method in dict.fromkeys((task.problem, task.method) for task in found):
        mine = [row for task, row in found.items() if (task.problem, task.method) == (problem, method)]
        about = {"section": "learning", "case": f"{problem}, {method}", "problem": problem, "method": method}
        about |= {name: mine[0][name] for name in ("samples", "known") if name in mine[0]}
        about |= {name: [row[name] for row in mine if name in row] for name in ("refused", "error")}
        answers = [answer for row in mine for answer in row.get("answers", [])]
        if method == DEFAULT:
            rows.append(about | {"answers": answers})
        else:
            feasible = sorted((a for a in answers if a["feasible"]), key=lambda a: a["objective"])
            rows.append(about | {"best": feasible[:1], "feasible": len(feasible), "tried": len(answers)})
    return rows


def compare_learning(rows: list[Row]) -> None:
    """Print the default's answers next to the best of the grids, from this run or from the file."""
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
