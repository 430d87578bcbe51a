"""The claims of Section C of paper 4 about its Figures 3 and 4.

How each claim is measured was fixed before any run:

- Nearly feasible, and the time per step: as in `roc_fairness`.
- Speed: the iterations until a column has made `DECREASE` of the decrease that every method reaches, that is, from its first
  value to the largest of the methods' smallest values, interpolated between records. SSG is only a little faster if both IPP
  methods need between 1 and `LITTLE` times as many. This is checked for the objective and for near-stationarity, on each data
  set.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..base import Check
from ..roc_fairness.claims import Runs, about_half, ends, feasible, split
from . import config

SMALL_MOVES = (
    "Full run: SSG is several times as fast. A proximal problem takes 600 steps and moves x by about 0.02 or 0.03, the "
    "near-stationarity at the start: by (77), ρ̂ = max{ρ, 1} is 7 (a9a) and 10 (bank). Tried: 50,000 steps, as in the "
    "paper; SSG, IPP-SSG and IPP-ConEx end close together, at 0.873, 0.879, 0.874 (a9a) and 0.637, 0.653, 0.651 "
    "(bank), but IPP gets there later. Tried: ρ̂ = 2, still above a sharper bound on the curvature, 1.4; IPP-SSG and "
    "IPP-ConEx then end at 0.884 and 0.886 (a9a), 0.653 and 0.655 (bank) after 15,000 steps, closer to SSG."
)
TO_ZERO = (
    "Full run: all methods converge to x = 0, which is stationary, and no record violates the constraint. A start at x = 0, "
    "tried first, leaves nothing to gain. The paper states neither its start nor its features."
)
WHY = {"a9a": SMALL_MOVES, "bank": SMALL_MOVES, "COMPAS": TO_ZERO}
"""By data set: what the full run shows, and what was tried if the claim does not hold."""
TWO_THIRDS = (
    "Full run, on a machine shared with other work: closer to two thirds. R0 has one threshold and half as many examples as "
    "the loss, so the extra work of IPP-ConEx, on the constraint, is the cheaper part of a step."
)


def check_claims(runs: Runs) -> list[Check]:
    """Check every claim."""
    curves, times = split(runs)
    found = []
    for data, frame in curves.items():
        found += [faster(data, frame, "objective"), faster(data, frame, "near_stationarity")]
        found.append(feasible(data, frame, config.SSG))
    return [*found, about_half(times, curves, config.SSG, TWO_THIRDS)]


def iterations(frame: pd.DataFrame, column: str) -> dict[str, float]:
    """The iterations to most of the decrease that all methods reach, by entry; nan if there is no decrease."""
    least = frame.pivot(index="step", columns="entry", values=column).cummin()
    first, reached = float(least.iloc[0].max()), float(least.iloc[-1].max())
    level = first - config.DECREASE * (first - reached)
    if not reached < first:
        return {str(label): float("nan") for label in least}
    return {str(label): _crossing(least.index.to_numpy(float), least[label].to_numpy(float), level) for label in least}


def _crossing(steps: np.ndarray, values: np.ndarray, level: float) -> float:
    """The step at which nonincreasing values cross a level, interpolated."""
    i = int(np.argmax(values <= level))
    return float(np.interp(level, values[[i, i - 1]], steps[[i, i - 1]]))


def faster(data: str, frame: pd.DataFrame, column: str) -> Check:
    """Check how many times as many iterations the IPP methods need."""
    needed = iterations(frame, column)
    ratios = {label: count / needed[config.SSG] for label, count in needed.items() if label != config.SSG}
    name = column.replace("_", "-")
    return Check(
        f"{data}: SSG is only a little faster than the IPP methods ({name})",
        {"iterations": needed, "relative to SSG": ratios, f"{name} at the end": ends(frame, column)},
        holds=all(1.0 <= ratio <= config.LITTLE for ratio in ratios.values()),
        detail=f"Iterations to {config.DECREASE:.0%} of the decrease that all methods reach; IPP must need between 1 and "
        f"{config.LITTLE:g} times as many as SSG. {WHY[data]}",
    )
