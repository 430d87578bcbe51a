"""The runs of all classifiers at once, and the curves of each."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pandas as pd

from ...runs.options import Record
from ...runs.sweeping import sweep
from ..base import Entry
from . import config
from .problem import for_angle, make, measure, points


@cache
def joint_runs(sizes: tuple[int, int, int, int]) -> pd.DataFrame:
    """The records of all classifiers and seeds; parameters are in columns named "(angle, bound, index)"."""
    count, steps, seeds, records = sizes
    problem, x0 = make(count)
    thetas = {repr(at): lambda x, _, at=at: np.asarray(x)[at] for at in np.ndindex(x0.shape)}
    record = Record(-(-steps // records), thetas)
    runs = sweep(problem, x0, config.METHOD, steps=steps, seeds=seeds, record=record).results
    return pd.concat([run.history.to_pandas().assign(seed=run.seed) for run in runs], ignore_index=True)


def classifier_frame(angle: int, sizes: tuple[int, int, int, int], entry: Entry) -> pd.DataFrame:
    """The tidy frame of one classifier; `sizes` are the numbers of points, steps, seeds and records."""
    bound = [config.label(bound) for bound in config.BOUNDS].index(entry.label)
    frame: Any = joint_runs(sizes)
    names = {repr((angle, bound, j)): f"theta {j}" for j in range(3)}
    columns = frame[["seed", "step", "samples", "seconds", *names]].rename(columns=names)
    thetas = columns[[*names.values()]].to_numpy(np.float32)
    columns = columns.assign(**jax.device_get(measure(thetas, for_angle(points(sizes[0]), angle))))
    return columns.assign(excess=(columns["signed covariance"].abs() - config.BOUNDS[bound]).clip(lower=0.0))
