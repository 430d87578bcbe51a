"""What Section 6.1 of paper 4 says about its Figures 1 and 2, measured.

How each claim is measured was written down before any run:

- A method is nearly feasible if its violation over κ, averaged over the last tenth of the records, is at most `NEARLY`.
- A method has the lowest value if at the last record, and at half of all records or more, no other nearly feasible method's
  value is lower. This is said of the objective and of near-stationarity, on each data set.
- SSG static is not always better than IPP if on some data set a nearly feasible IPP method ends with a lower objective.
- About half: SSG's time of a step is between a third and two thirds of IPP-ConEx's, on every data set; the medians of runs of
  each method in turn. The paper speaks of both rules; the diminishing one is judged, the others are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..base import Check
from . import config

Runs = Mapping[str, pd.DataFrame]


def claims(runs: Runs) -> list[Check]:
    """The checks."""
    curves, times = split(runs)
    found = []
    for data, frame in curves.items():
        found += [
            lowest(data, frame, "objective"),
            lowest(data, frame, "near_stationarity"),
            feasible(data, frame, config.SSG),
        ]
    if any(config.SSG_STATIC in set(frame["entry"]) for frame in curves.values()):
        found.append(static_against_proximal(curves))
    return [*found, about_half(times, curves, config.SSG, FASTER)]


TIME = "time of a step, "
"""How the names of the parts that are timed begin."""


def split(runs: Runs) -> tuple[Runs, Runs]:
    """The frames with curves and those with times, by data set."""
    times = {name.removeprefix(TIME): frame for name, frame in runs.items() if name.startswith(TIME)}
    return {name: frame for name, frame in runs.items() if not name.startswith(TIME)}, times


def late_excess(run: pd.DataFrame) -> float:
    """The violation over κ, averaged over the last tenth of the records."""
    return float(np.mean(run["excess"].tail(max(len(run) // 10, 1))))


def score(run: pd.DataFrame) -> tuple[float, float]:
    """How far a run is from nearly feasible, then its last objective."""
    return max(late_excess(run) - config.NEARLY, 0.0), float(run["objective"].iloc[-1])


GRID_ENDS = (
    "Full run: SSG diminishing is lowest in the first few hundred steps, then IPP-ConEx passes it. The paper's grid ends too "
    "early for these features: E2 = 0.2, its largest, is chosen. Tried beyond it: with E2 = 2 SSG diminishing ends at 0.2145 "
    "on a9a and at 0.0413 on COMPAS, nearly feasible and below IPP-ConEx (whose c1 = 20 is an end of its grid, too). Tried as "
    "well: x_ERM from 20,000 subgradient steps in place of the linear program; IPP-ConEx stays ahead."
)
HALF = "Full run: lowest at the end, but IPP-ConEx is lower at just over half of the records."
OSCILLATES = (
    "Full run: lowest up to step 2,000. Later SSG static, SSG diminishing and IPP-SSG oscillate around the same points with "
    "steps of like size, 5e-4 to 7e-4, and differ by some 15%; (4) is solved to some 2% here."
)
WHY = {
    "a9a": {"objective": GRID_ENDS, "near_stationarity": GRID_ENDS},
    "bank": {"near_stationarity": OSCILLATES},
    "COMPAS": {"objective": GRID_ENDS, "near_stationarity": HALF},
}
"""By data set and column what the full run shows where the claim does not hold, and what was tried."""
FASTER = (
    "Full run: below a third. With diminishing steps nine in ten go along the loss, and the costly R, the largest of 400 gaps, "
    "is then not looked at; IPP-ConEx looks at it in every step. SSG static and IPP-SSG are between 0.4 and 0.7."
)
SCORE = (
    f"the smallest objective at the end, as in the paper, among settings whose violation over the last tenth of the records is "
    f"{config.NEARLY} κ on average or less (ours; else the one nearest to that)"
)


def ends(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """By entry the last value of a column."""
    return {str(label): float(run[column].iloc[-1]) for label, run in frame.groupby("entry", sort=False)}


def excesses(frame: pd.DataFrame) -> dict[str, float]:
    """By entry the late excess."""
    return {str(label): late_excess(run) for label, run in frame.groupby("entry", sort=False)}


def lowest(data: str, frame: pd.DataFrame, column: str) -> Check:
    """SSG diminishing against the others that are nearly feasible."""
    excess = excesses(frame)
    others = [label for label in excess if label != config.SSG and excess[label] <= config.NEARLY]
    table = frame.pivot(index="step", columns="entry", values=column).iloc[1:]
    low = table[config.SSG] <= table[others].min(axis=1).fillna(np.inf)
    return Check(
        f"{data}: SSG diminishing has the lowest {column.replace('_', '-')} at equal iterations",
        {"at the end": ends(frame, column), "share of records at which it is lowest": float(low.mean())},
        holds=bool(low.iloc[-1] and low.mean() >= 0.5),
        detail="Lowest at the last record and at half of the records or more, among the nearly feasible: "
        f"{', '.join([config.SSG, *others])}. {WHY[data].get(column, '')}".strip(),
    )


def feasible(data: str, frame: pd.DataFrame, label: str) -> Check:
    """Whether a method is nearly feasible."""
    excess = excesses(frame)
    return Check(
        f"{data}: {label} is nearly feasible",
        {"violation / κ, mean over the last tenth of the records": excess},
        holds=excess[label] <= config.NEARLY,
        detail=f"Nearly feasible: at most {config.NEARLY} κ.",
    )


def static_against_proximal(curves: Runs) -> Check:
    """Whether an IPP method ends lower than SSG static somewhere."""
    measured = {data: ends(frame, "objective") for data, frame in curves.items()}
    better = []
    for data, frame in curves.items():
        excess = excesses(frame)
        lower = [e for e in (config.IPP_SSG, config.IPP_CONEX) if measured[data][e] < measured[data][config.SSG_STATIC]]
        better += [data] * any(excess[label] <= config.NEARLY for label in lower)
    return Check(
        "SSG static is not always better than the IPP methods",
        {"objective at the end": measured, "an IPP method ends lower on": better},
        holds=bool(better),
        detail="On some data set a nearly feasible IPP method ends with a lower objective.",
    )


def about_half(times: Runs, curves: Runs, judged: str, why: str) -> Check:
    """SSG's time of a step over that of IPP-ConEx."""
    ratios: dict[str, dict[str, float]] = {}
    for data, frame in times.items():
        lasts: Any = frame[frame["step"] == max(frame["step"])].groupby("entry", sort=False)
        ratios[data] = over(dict(lasts["microseconds"].median()))
    return Check(
        f"{judged}: a step takes about half the time of one of IPP-ConEx",
        {
            "in turn": ratios,
            "in the curves, with the chosen settings": {
                data: over(ends(frame, "seconds")) for data, frame in curves.items()
            },
        },
        holds=all(1 / 3 <= ratio[judged] <= 2 / 3 for ratio in ratios.values()),
        detail="Time of a step over that of IPP-ConEx, between 1/3 and 2/3 on every data set: medians of runs of all methods "
        f"in turn, one at a time, in one process. {why}",
    )


def over(times: Mapping[str, float]) -> dict[str, float]:
    """Times over that of IPP-ConEx."""
    return {label: round(float(time / times[config.IPP_CONEX]), 3) for label, time in times.items()}
