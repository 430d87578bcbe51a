"""The claims of Section 6.1 of paper 4 about its Figures 1 and 2.

How each claim is measured was fixed before any run:

- A method is nearly feasible if its violation divided by κ, averaged over the last tenth of the records, is at most `NEARLY`.
- A method has the lowest value if no other nearly feasible method is lower at the last record, nor at more than half of all
  records. This is checked for the objective and for near-stationarity, on each data set.
- SSG static is not always better than IPP if a nearly feasible IPP method ends with a lower objective on some data set.
- About half: SSG's time per step is between a third and two thirds of IPP-ConEx's on every data set, by medians over
  alternating runs. The paper's claim covers both rules; the diminishing one is judged, the others are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..base import Check
from . import config

Runs = Mapping[str, pd.DataFrame]


def check_claims(runs: Runs) -> list[Check]:
    """Check every claim."""
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


TIME = "time per step, "
"""Prefix of the names of the parts that are timed."""


def split(runs: Runs) -> tuple[Runs, Runs]:
    """The frames with curves and those with times, by data set."""
    times = {name.removeprefix(TIME): frame for name, frame in runs.items() if name.startswith(TIME)}
    return {name: frame for name, frame in runs.items() if not name.startswith(TIME)}, times


def late_excess(run: pd.DataFrame) -> float:
    """The violation divided by κ, averaged over the last tenth of the records."""
    return float(np.mean(run["excess"].tail(max(len(run) // 10, 1))))


def score(run: pd.DataFrame) -> tuple[float, float]:
    """The excess over the bound for nearly feasible runs, then the final objective."""
    return max(late_excess(run) - config.NEARLY, 0.0), float(run["objective"].iloc[-1])


GRID_ENDS = (
    "Full run: SSG diminishing is lowest in the first few hundred steps, then IPP-ConEx overtakes it. The paper's grid is too "
    "narrow for these features: its largest E2 = 0.2 is chosen. Tried beyond it: with E2 = 2 SSG diminishing ends at 0.2145 on "
    "a9a and at 0.0413 on COMPAS, nearly feasible and below IPP-ConEx (whose c1 = 20 is also at the end of its grid). Also "
    "tried: x_ERM from 20,000 subgradient steps instead of the linear program; IPP-ConEx stays ahead."
)
HALF = "Full run: lowest at the end, but IPP-ConEx is lower at just over half of the records."
OSCILLATES = (
    "Full run: lowest up to step 2,000. Later SSG static, SSG diminishing and IPP-SSG oscillate around the same points with "
    "steps of similar size, 5e-4 to 7e-4, and differ by about 15%; (4) is solved to about 2% here."
)
WHY = {
    "a9a": {"objective": GRID_ENDS, "near_stationarity": GRID_ENDS},
    "bank": {"near_stationarity": OSCILLATES},
    "COMPAS": {"objective": GRID_ENDS, "near_stationarity": HALF},
}
"""By data set and column: what the full run shows if the claim does not hold, and what was tried."""
FASTER = (
    "Full run: below a third. With diminishing step sizes, nine in ten steps follow the loss and do not evaluate the costly R, "
    "the largest of 400 gaps; IPP-ConEx evaluates it in every step. SSG static and IPP-SSG are between 0.4 and 0.7."
)
SCORE = (
    f"the smallest final objective, as in the paper, among settings whose violation over the last tenth of the records is at "
    f"most {config.NEARLY} κ on average (our condition; if there are none, the setting closest to it)"
)


def ends(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """The final value of a column, by entry."""
    return {str(label): float(run[column].iloc[-1]) for label, run in frame.groupby("entry", sort=False)}


def excesses(frame: pd.DataFrame) -> dict[str, float]:
    """The late excess, by entry."""
    return {str(label): late_excess(run) for label, run in frame.groupby("entry", sort=False)}


def lowest(data: str, frame: pd.DataFrame, column: str) -> Check:
    """Check that SSG diminishing is lowest among the nearly feasible methods."""
    excess = excesses(frame)
    others = [label for label in excess if label != config.SSG and excess[label] <= config.NEARLY]
    table = frame.pivot(index="step", columns="entry", values=column).iloc[1:]
    low = table[config.SSG] <= table[others].min(axis=1).fillna(np.inf)
    return Check(
        f"{data}: SSG diminishing has the lowest {column.replace('_', '-')} at equal iterations",
        {"at the end": ends(frame, column), "share of records at which it is lowest": float(low.mean())},
        holds=bool(low.iloc[-1] and low.mean() >= 0.5),
        detail="Must be lowest at the last record and at half of the records or more, among the nearly feasible methods: "
        f"{', '.join([config.SSG, *others])}. {WHY[data].get(column, '')}".strip(),
    )


def feasible(data: str, frame: pd.DataFrame, label: str) -> Check:
    """Check that a method is nearly feasible."""
    excess = excesses(frame)
    return Check(
        f"{data}: {label} is nearly feasible",
        {"violation / κ, mean over the last tenth of the records": excess},
        holds=excess[label] <= config.NEARLY,
        detail=f"Nearly feasible: at most {config.NEARLY} κ.",
    )


def static_against_proximal(curves: Runs) -> Check:
    """Check that an IPP method ends lower than SSG static on some data set."""
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
    """Check the time per step of a method against that of IPP-ConEx."""
    ratios: dict[str, dict[str, float]] = {}
    for data, frame in times.items():
        lasts: Any = frame[frame["step"] == max(frame["step"])].groupby("entry", sort=False)
        ratios[data] = relative(dict(lasts["microseconds"].median()))
    return Check(
        f"{judged}: a step takes about half the time of one of IPP-ConEx",
        {
            "alternating runs": ratios,
            "in the curves, with the chosen settings": {
                data: relative(ends(frame, "seconds")) for data, frame in curves.items()
            },
        },
        holds=all(1 / 3 <= ratio[judged] <= 2 / 3 for ratio in ratios.values()),
        detail="Time per step divided by that of IPP-ConEx; must be between 1/3 and 2/3 on every data set. Medians over "
        f"alternating runs of all methods, one at a time, in one process. {why}",
    )


def relative(times: Mapping[str, float]) -> dict[str, float]:
    """Times divided by that of IPP-ConEx."""
    return {label: round(float(time / times[config.IPP_CONEX]), 3) for label, time in times.items()}
