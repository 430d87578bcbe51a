"""The rates of the theorems against the measured slopes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...methods import ConservativeSaddle
from ..base import Check
from ..entries import one_line
from . import config, problems
from .measure import slope

if TYPE_CHECKING:
    import pandas as pd


def check_claims(runs: dict[str, pd.DataFrame]) -> list[Check]:
    """Check the rates of every entry."""
    checkers = {"paper 1": _running_means, "paper 2": _worst_seed, "paper 5": _outputs}
    return [
        check
        for part, frame in runs.items()
        for name, entry in frame.groupby("entry", sort=False)
        for check in checkers[part](str(name), config.RATES[str(name)], entry)
    ]


def settings(steps: Any, seeds: int, method: str, size: int, batch: int, domain: str) -> str:
    """The settings of a measurement, in words."""
    return f"K = {steps}, {seeds} seeds, {method}, d = {size}, batch {batch}, X: {domain}"


def slope_check(claim: str, measured: float, rate: float, about: str) -> Check:
    """Check that a slope is at least as steep as the rate, up to the margin."""
    detail = f"slope over the last decade, rate −{rate:.4g}, holds up to −{rate - config.MARGIN:.4g}; {about}"
    return Check(claim, round(measured, 4), bool(measured <= -rate + config.MARGIN), detail)


def _settings_of(rate: config.Rate, frame: pd.DataFrame, steps: Any) -> str:
    described = problems.describe(rate.case())
    return settings(steps, len(set(frame["seed"])), one_line(rate.method), *described.values())


def _table(frame: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps, and a column with one row per seed."""
    table = frame.pivot(index="seed", columns="step", values=column)
    return table.columns.to_numpy(), table.to_numpy()


def _running_means(name: str, rate: config.Rate, frame: pd.DataFrame) -> Iterator[Check]:
    for what, column, wanted in (
        ("stationarity²", "mean_stationarity", rate.stationarity),
        ("violation²", "mean_violation", rate.violation),
    ):
        k, values = _table(frame, column)
        claim = f"{name}: mean over seeds of the running mean of {what}"
        yield slope_check(claim, slope(k, values.mean(axis=0)), wanted, _settings_of(rate, frame, f"{k[-1]:,}"))


def _worst_seed(name: str, rate: config.Rate, frame: pd.DataFrame) -> Iterator[Check]:
    k, violations = _table(frame, "last_violation")
    _, stationarity = _table(frame, "mean_stationarity")
    about = _settings_of(rate, frame, f"{k[-1]:,}")
    worst = f"{name}: violation² at x_k, worst of {len(violations)} seeds"
    yield slope_check(worst, slope(k, violations.max(axis=0)), rate.violation, about)
    mean = f"{name}: mean over seeds of the running mean of stationarity²"
    yield slope_check(mean, slope(k, stationarity.mean(axis=0)), rate.stationarity, about)


def _outputs(name: str, rate: config.Rate, frame: pd.DataFrame) -> Iterator[Check]:
    k, gaps = _table(frame, "gap")
    _, violations = _table(frame, "output_violation")
    about = _settings_of(rate, frame, ", ".join(f"{each:,}" for each in k))
    any_time = isinstance(rate.method, ConservativeSaddle) and not rate.method.uses_horizon
    claim = f"{name}: |F(x̄) − F*| on average over seeds" + ", divided by log K" * any_time
    measured = slope(k, np.abs(gaps.mean(axis=0)) / (np.log(k) if any_time else 1.0))
    yield slope_check(claim, measured, rate.stationarity, about)
    mean = violations.mean(axis=0)
    error = violations.std(axis=0, ddof=1) / np.sqrt(len(violations))
    yield Check(
        f"{name}: H(x̄) on average over seeds is at most 0, up to its confidence interval, at every horizon",
        [float(value) for value in mean],
        bool((mean - 1.96 * error <= 0).all()),
        f"95% intervals; {about}",
    )
