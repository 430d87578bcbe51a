"""Section `infeasible`: the status that runs report on infeasible, unbounded and solvable problems."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import tightrope as tr

from .noisy_programs import programs
from .tasks import DEFAULT, STEPS, Row, Task, method_of

COLLECTIONS: dict[str, Callable[[], dict[str, Callable[..., Any]]]] = {
    "infeasible": tr.zoo.infeasible.available,
    "unbounded": tr.zoo.infeasible.unbounded,
    "hs": tr.zoo.hs.available,
}


def infeasible_tasks(section: str, options: argparse.Namespace) -> Iterator[Task]:
    for collection, available in COLLECTIONS.items():
        names = programs(options.quick) if collection == "hs" else list(available())[:: 6 if options.quick else 1]
        for name in names:
            seeds = 1 if collection == "hs" else options.seeds  # without noise all seeds are the same
            yield Task(section, f"{collection} {name}", DEFAULT, tuple(range(seeds)))


def run_infeasible(task: Task) -> Row:
    collection, name = task.problem.split()
    problem, x0, _ = COLLECTIONS[collection]()[name]()
    found = tr.sweep(problem, x0, method_of(task.method), steps=STEPS, seeds=task.seeds)
    return {"statuses": [result.status for result in found.results]}


def report_infeasible(found: dict[Task, Row]) -> list[Row]:
    """A row per collection: the number of problems, and those with a wrong status on some seed."""
    print("\ninfeasible, problems with the correct status")
    rows = []
    for collection in dict.fromkeys(task.problem.split()[0] for task in found):
        correct = {"budget", "converged"} if collection == "hs" else {collection}
        mine = {t.problem.split()[1]: row for t, row in found.items() if t.problem.startswith(collection)}
        reported = {name: row.get("statuses", [row.get("error")]) for name, row in mine.items()}
        wrong = {name: statuses for name, statuses in reported.items() if not set(statuses) <= correct}
        print(f"  {collection}: {len(reported) - len(wrong)} of {len(reported)}" + (f"; not: {wrong}" if wrong else ""))
        rows.append(
            {"section": "infeasible", "case": collection, "method": DEFAULT, "problems": len(reported), "wrong": wrong}
        )
    return rows
