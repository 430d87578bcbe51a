"""Tasks of the benchmark: one method on one problem each."""

from __future__ import annotations

from typing import Any, NamedTuple

import tightrope as tr

DEFAULT = "AdaptivePenalty"
STEPS = 1000
EPOCHS = 20
"""Epochs of a learning problem."""

Row = dict[str, Any]
"""A row of the results."""


class Task(NamedTuple):
    """One method on one problem, run by one process."""

    section: str
    problem: str
    method: str
    seeds: tuple[int, ...]
    levels: tuple[float, ...] = ()
    steps: tuple[int, ...] = (STEPS,)
    epochs: int = EPOCHS


def method_of(task: Task) -> tr.methods.Method:
    return tr.methods.by_name(task.method)()


def steps_for(problem: tr.Problem, x0: Any, methods: Any, seeds: tuple[int, ...], samples: int, pilot: int) -> int:
    """The number of steps that draws this many samples, from `pilot` steps of the same sweep, which is compiled once."""
    found = tr.sweep(problem, x0, methods, steps=pilot, seeds=seeds, record=pilot)
    return max(1, samples * pilot // max(result.samples for result in found.results))
