"""Tasks of the benchmark: one method on one problem each."""

from __future__ import annotations

from typing import Any, NamedTuple

import tightrope as tr

DEFAULT = "default"
"""What `method=None` chooses; a task's method otherwise is a name."""
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


def method_of(name: str) -> tr.methods.Method | None:
    return None if name == DEFAULT else tr.methods.by_name(name)()


def steps_for(problem: tr.Problem, x0: Any, methods: Any, seeds: tuple[int, ...], samples: int, pilot: int) -> int:
    """The number of steps that draws this many samples, by what the first `pilot` of twice as many draw.

    What a method draws once, in its last step, does not count.
    """
    found = tr.sweep(problem, x0, methods, steps=2 * pilot, seeds=seeds, record=pilot)
    return max(1, samples * pilot // max(result.history["samples"][1] for result in found.results))
