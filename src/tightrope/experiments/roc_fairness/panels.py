"""The two parts that a data set has: the curves, and the time of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...methods import Method
from ..base import Column, Entry, Part
from . import config
from .claims import SCORE, TIME, score
from .measure import InTurn

COLUMNS = (
    Column("excess", "violation / κ", log=True),
    Column("near_stationarity", "near-stationarity ‖x̂ − x‖", log=True),
    Column("microseconds", "time of a step (µs)"),
)
"""What is drawn beside the objective."""


def panels(
    label: str,
    size: config.Size,
    grids: Mapping[str, tuple[Method, ...]],
    notes: Mapping[str, str],
    make: Callable[[], Any],
    metrics: Callable[[], Mapping[str, Callable[..., Any]]],
    final_metrics: Callable[[], Mapping[str, Callable[..., Any]]],
) -> tuple[Part, Part]:
    """One run of each method with the best of its settings, as nothing is random; then runs in turn for the time of a step."""
    grids = {name: grids[name] for name in size.methods}
    curves = Part(
        label,
        make,
        tuple(Entry(name, grid[: size.settings], notes[name]) for name, grid in grids.items()),
        steps=size.steps,
        seeds=1,
        records=size.records,
        metrics=metrics,
        final_metrics=final_metrics,
        score=score,
        score_text=SCORE,
        lanes=1,
    )
    chosen = {name: grid[size.timed] for name, grid in grids.items()}
    turns = InTurn(make, chosen, config.TIMED, size.turns)
    entries = tuple(Entry(name, (method,), "from the middle of its grid") for name, method in chosen.items())
    return curves, Part(TIME + label, make, entries, steps=turns.steps, seeds=turns.rounds, measure=turns.of_entry)
