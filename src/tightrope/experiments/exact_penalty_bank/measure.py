"""Sensitivity: the runs of several settings of a method."""

from __future__ import annotations

import pandas as pd

from ...methods import Method
from ...runs.options import Record
from ...runs.result import Result
from ...runs.solving import solve
from ...runs.sweeping import sweep
from ..base import Entry
from . import config
from .problem import make, metrics


def neighbors(name: str, count: int | None, samples: int, seeds: int, entry: Entry) -> pd.DataFrame:
    """The runs of every setting of an entry, with a column `setting`; `seed` numbers all runs."""
    problem, x0 = make(name, count)

    def runs(method: Method, steps: int, record: Record) -> list[Result]:
        if seeds == 1:  # the quick version: its comparison has compiled this program
            return [solve(problem, x0, method, steps=steps, record=record, progress=False)]
        return sweep(problem, x0, method, steps=steps, seeds=seeds, record=record).results

    pilot = samples // 3  # one example each for gradient, values and Jacobian; restarts take more, phases may take less
    steps = round(samples * pilot / runs(entry.grid[0], pilot, Record(pilot))[0].samples)
    record = Record(-(-steps // config.FEW_RECORDS), metrics(name, count))
    found = []
    for setting, method in enumerate(entry.grid):
        for run in runs(method, steps, record):
            numbers = {"seed": setting * seeds + run.seed, "setting": setting, "status": run.status}
            found.append(run.history.to_pandas().assign(**numbers))
    return pd.concat(found, ignore_index=True)
