"""The claims of Section 6.1 of paper 4 about its Figures 1 and 2.

How each claim is measured:

- A method is nearly feasible if its violation divided by κ, averaged over the last tenth of the records, is at most `NEARLY`.
- Speed: the iterations until a column has made `DECREASE` of the decrease that every method reaches, that is,
  from its first value to the largest of the methods' smallest values, interpolated between records. Only iterates with a
  violation of at most `NEARLY` κ count. SSG diminishing is faster if it needs fewer than each of the others. This is checked
  for the objective and for near-stationarity, on each data set. The measure is that of `demographic_parity`, taken over after
  the first runs. There no iterate violates its constraint by more; here a first version without this condition counted
  iterates of SSG diminishing from the first 50 steps, with violations of up to 7 κ.
- Ours, fixed before any run: SSG diminishing has the lowest value if no other nearly feasible method is lower at the last
  record, nor at more than half of all records.
- SSG static is not always better than IPP if a nearly feasible IPP method ends with a lower objective on some data set.
- About twice: IPP-ConEx takes between 1.5 and 3 times as long per step as each of the others on every data set, by medians
  over alternating runs.
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
        found += [fastest(data, frame, column) for column in COLUMNS]
        found.append(feasible(data, frame, config.SSG))
        found += [lowest(data, frame, column) for column in COLUMNS]
    if any(config.SSG_STATIC in set(frame["entry"]) for frame in curves.values()):
        found.append(static_against_proximal(curves))
    return [*found, about_twice(times, curves, (config.SSG_STATIC, config.SSG, config.IPP_SSG), CHEAP)]


COLUMNS = ("objective", "near_stationarity")
"""The columns that methods reduce."""
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


SLOWER: dict[str, dict[str, str]] = {
    "a9a": {
        "near_stationarity": "IPP-ConEx needs 327 iterations, SSG diminishing 397 (points every 100), the others four times as "
        "many. IPP-ConEx is not nearly feasible: its violation over the last tenth of the run is 0.18 κ."
    },
    "bank": {
        "near_stationarity": "SSG static and IPP-SSG need 2,642 and 2,834 iterations, SSG diminishing 3,363, IPP-ConEx 3,678. "
        "All end between 0.0016 and 0.0019 and oscillate; (4) is solved to about 2% here. The objective falls fastest."
    },
}
"""By data set and column: why SSG diminishing is not faster than the others in the full run."""
HIGHER: dict[str, dict[str, str]] = {
    "bank": {
        "objective": "It alternates with IPP-ConEx, which is lower by 0.04% at the last record.",
        "near_stationarity": "It is lowest at a fifth of the points; SSG static and IPP-SSG end lower.",
    },
    "COMPAS": {
        "objective": "IPP-ConEx is lower at most records after the first 1,000 steps, and by 1% at the last.",
        "near_stationarity": "It is lowest at the end, but IPP-ConEx is lower at just over half of the points.",
    },
}
"""By data set and column: why SSG diminishing is not lowest in the full run."""
CHEAP = (
    "It is about twice as slow as SSG static and IPP-SSG on a9a and bank, but three to four times as slow as SSG diminishing "
    "on bank and COMPAS, most of whose steps follow the loss and do not evaluate the costly R. On COMPAS, with 16 features, "
    "the other two take three quarters of its time."
)
"""Why IPP-ConEx is not about twice as slow as each of the others in the full run."""
SCORE = (
    f"the smallest final objective, as in the paper, among settings whose violation over the last tenth of the records is at "
    f"most {config.NEARLY} κ on average (our condition; if there are none, the setting closest to it)"
)


def ends(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """The last recorded value of a column, by entry."""
    return {str(label): float(run[column].dropna().iloc[-1]) for label, run in frame.groupby("entry", sort=False)}


def excesses(frame: pd.DataFrame) -> dict[str, float]:
    """The late excess, by entry."""
    return {str(label): late_excess(run) for label, run in frame.groupby("entry", sort=False)}


def nearly_feasible(frame: pd.DataFrame) -> list[str]:
    """The entries that are nearly feasible."""
    return [label for label, excess in excesses(frame).items() if excess <= config.NEARLY]


def iterations(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """The iterations to most of the decrease that all methods reach, by entry; nan if there is no decrease."""
    least = {str(label): smallest_so_far(run, column) for label, run in frame.groupby("entry", sort=False)}
    first, reached = max(run.iloc[0] for run in least.values()), max(run.iloc[-1] for run in least.values())
    level = first - config.DECREASE * (first - reached)
    if not reached < first:
        return dict.fromkeys(least, float("nan"))
    return {label: _crossing(run.index.to_numpy(float), run.to_numpy(float), level) for label, run in least.items()}


def smallest_so_far(run: pd.DataFrame, column: str) -> Any:
    """By step, the smallest value of a column so far at nearly feasible iterates; a low value far outside is no progress."""
    near = run[(run["excess"] <= config.NEARLY) & run[column].notna()]
    return near.set_index("step")[column].cummin()


def _crossing(steps: np.ndarray, values: np.ndarray, level: float) -> float:
    """The step at which nonincreasing values cross a level, interpolated."""
    i = int(np.argmax(values <= level))
    return float(np.interp(level, values[[i, i - 1]], steps[[i, i - 1]]))


def fastest(data: str, frame: pd.DataFrame, column: str) -> Check:
    """Check that SSG diminishing needs the fewest iterations."""
    needed = iterations(frame, column)
    return Check(
        f"{data}: SSG diminishing reduces the {named(column)} faster than the others",
        {"iterations": needed},
        holds=all(needed[config.SSG] < count for label, count in needed.items() if label != config.SSG),
        detail=f"Iterations to {config.DECREASE:.0%} of the decrease that all methods reach, at iterates with a violation "
        f"of at most {config.NEARLY} κ. A record every "
        f"{_spacing(frame, column)} steps.",
        why=SLOWER.get(data, {}).get(column, ""),
    )


def _spacing(frame: pd.DataFrame, column: str) -> int:
    """The first step after the start at which a column is recorded."""
    recorded: Any = frame["step"][frame[column].notna() & (frame["step"] > 0)]
    return int(recorded.min())


def named(column: str) -> str:
    """The column in words."""
    return column.replace("_", "-")


def lowest(data: str, frame: pd.DataFrame, column: str) -> Check:
    """Check that SSG diminishing is lowest among the nearly feasible methods."""
    others = [label for label in nearly_feasible(frame) if label != config.SSG]
    table = at_equal_iterations(frame, column)
    low = table[config.SSG] <= table[others].min(axis=1).fillna(np.inf)
    return Check(
        f"{data}: SSG diminishing has the lowest {named(column)} at equal iterations",
        {"at the end": ends(frame, column), "share of records at which it is lowest": float(low.mean())},
        holds=bool(low.iloc[-1] and low.mean() >= 0.5),
        detail="Must be lowest at the last record and at half of the records or more, among the nearly feasible methods: "
        f"{', '.join([config.SSG, *others])}.",
        basis="ours",
        why=HIGHER.get(data, {}).get(column, ""),
    )


def at_equal_iterations(frame: pd.DataFrame, column: str) -> Any:
    """A column by step and entry, after the start, at the records of SSG diminishing; others are interpolated."""
    table = frame.pivot(index="step", columns="entry", values=column)
    return table.interpolate(method="index")[table[config.SSG].notna()].iloc[1:]


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
        rivals = {config.IPP_SSG, config.IPP_CONEX} & set(nearly_feasible(frame))
        better += [data] * any(measured[data][label] < measured[data][config.SSG_STATIC] for label in rivals)
    return Check(
        "SSG static is not always better than the IPP methods",
        {"objective at the end": measured, "an IPP method ends lower on": better},
        holds=bool(better),
        detail="On some data set a nearly feasible IPP method ends with a lower objective.",
    )


def about_twice(times: Runs, curves: Runs, others: tuple[str, ...], why: str) -> Check:
    """Check the time per step of IPP-ConEx against that of the others."""
    ratios: dict[str, dict[str, float]] = {}
    for data, frame in times.items():
        lasts: Any = frame[frame["step"] == max(frame["step"])].groupby("entry", sort=False)
        ratios[data] = relative(dict(lasts["microseconds"].median()))
    judged = [ratio[label] for ratio in ratios.values() for label in others if label in ratio]
    return Check(
        "IPP-ConEx is about twice as time-consuming as the others",
        {
            "time per step over that of IPP-ConEx": ratios,
            "in the curves, with the chosen settings": {
                data: relative(ends(frame, "seconds")) for data, frame in curves.items()
            },
        },
        holds=all(1 / 3 <= ratio <= 2 / 3 for ratio in judged),
        detail="Time per step divided by that of IPP-ConEx; must be between 1/3 and 2/3 for every other method on every data "
        "set. Medians over alternating runs of all methods, one at a time, in one process, on a machine shared with other "
        "work.",
        why=why,
    )


def relative(times: Mapping[str, float]) -> dict[str, float]:
    """Times divided by that of IPP-ConEx."""
    return {label: round(float(time / times[config.IPP_CONEX]), 3) for label, time in times.items()}
