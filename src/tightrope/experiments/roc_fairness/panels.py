"""The parts of a data set: its curves and the times per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...methods import Method
from ..base import Column, Entry, Part
from . import config
from .claims import SCORE, TIME, score
from .measure import InTurn

COLUMNS = (
    Column("excess", "violation / κ", log=True),
    Column("near_stationarity", "near-stationarity ‖x̂ − x‖", log=True),
    Column("microseconds", "time per step (µs)"),
)
"""Plotted columns besides the objective."""

Grids = Mapping[str, tuple[Method, ...]]


def curves_and_times(
    size: config.Size,
    arguments: Callable[[str], tuple[Any, ...]],
    grids: Callable[[str], Grids],
    notes: Mapping[str, str],
    functions: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]],
) -> list[Part]:
    """The parts with the curves of each data set, then those with the times per step.

    Args:
        size: size of the runs.
        arguments: data set ↦ the arguments of `functions`.
        grids: data set ↦ the settings of each method.
        notes: method ↦ the source of its settings.
        functions: the functions that return problem and x0, the metrics, and the metrics of final runs.
    """
    curves, times = [], []
    for label in size.data:
        make, metrics, final_metrics = (partial(function, *arguments(label)) for function in functions)
        settings = {name: grids(label)[name] for name in size.methods}
        entries = tuple(Entry(name, grid[: size.settings], notes[name]) for name, grid in settings.items())
        part = Part(
            label,
            make,
            entries,
            steps=size.steps,
            seeds=1,
            records=size.records,
            metrics=metrics,
            final_metrics=partial(final_metrics, records=size.near),
            score=score,
            score_text=SCORE,
            lanes=1,
        )
        curves.append(part)
        times.append(_times(label, size, make, settings))
    return [*curves, *times]


def _times(label: str, size: config.Size, make: Callable[[], Any], settings: Grids) -> Part:
    """The times per step, from alternating runs with a setting from the middle of each grid."""
    chosen = {name: grid[size.timed] for name, grid in settings.items()}
    turns = InTurn(make, chosen, config.TIMED_STEPS, size.turns)
    entries = tuple(Entry(name, (method,), "from the middle of its grid") for name, method in chosen.items())
    return Part(TIME + label, make, entries, steps=turns.steps, seeds=turns.rounds, measure=turns.of_entry)
