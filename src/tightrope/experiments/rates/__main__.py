"""Runs the measurements and writes `checks.json`: each claim with the measured number and whether it holds."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ... import domains
from ...methods import (
    ConservativeFrankWolfe,
    ConservativeSaddle,
    LinearizedALM,
    LinearizedPenalty,
    Method,
    TruncatedMomentum,
)
from . import problems
from .measure import curves, outputs, slope

MARGIN = 0.05
"""A slope may exceed −rate by this much."""


def growing(exponent: float, shift: int = 0) -> Callable[..., Any]:
    """The multipliers ρ_{k + shift} c with ρ_k = penalty · k^exponent."""
    return lambda method, state, k, c: method.penalty * (k + shift) ** exponent * c


def with_dual(method: Any, state: Any, k: Any, c: Any) -> Any:
    """λ_k + ρ_k c; after step k the state holds λ_{k+1}, which differs from λ_k by O(1/(k log² k))."""
    return state.multipliers + method.penalty * k**0.2 * c


BALL, BOX = domains.L2Ball(3.0), domains.Box(-1.5, 1.5)

# The theorems speak of large k: the penalty ρ_k‖J‖² far above the objective's curvature, and the momentum's memory 1/α_k
# longer than the 1/(η_k ρ_k ‖J‖²) steps in which x follows it. With the constants that methods estimate for themselves the
# second comes only after some 72^2.5 = 44,000 steps. These are such that both hold in the last decade.
STOCHASTIC: dict[str, Any] = {"step_size": 0.02, "penalty": 5.0, "momentum": 2.0}
EXACT: dict[str, Any] = {"step_size": 0.02, "penalty": 5.0, "momentum": 1.0}
TRUNCATED: dict[str, Any] = EXACT | {"radius": 50.0}
FLAT: dict[str, Any] = TRUNCATED | {"step_size": 0.05, "penalty": 2.0}

AVERAGES: dict[str, tuple[problems.Case, Method, Callable[..., Any], float, float]] = {
    # name: problem, method, multipliers, rate of stationarity², rate of ‖c‖²
    "1a": (problems.linear(), LinearizedALM(), lambda method, state, k, c: state.multipliers, 2 / 3, 2 / 3),
    "1b": (problems.noisy_sphere(), LinearizedPenalty(**STOCHASTIC), growing(0.2), 0.4, 0.4),
    "1c": (
        problems.noisy_sphere(),
        LinearizedPenalty(**STOCHASTIC, dual=True, dual_step_size=0.3),
        with_dual,
        0.4,
        0.4,
    ),
    "1d, ball": (problems.sphere(BALL), LinearizedPenalty(**EXACT), growing(0.25), 0.5, 0.5),
    "1d, box": (problems.sphere(BOX), LinearizedPenalty(**EXACT), growing(0.25), 0.5, 0.5),
}
"""Paper 1: expected values at a uniformly random iterate, that is, running means."""

CERTAIN: dict[str, tuple[problems.Case, Method, Callable[..., Any], float]] = {
    # name: problem, method, multipliers, rate of both
    "2a, θ=1 known, ball": (
        problems.sphere(BALL),
        TruncatedMomentum(**TRUNCATED, error_bound=1.0),
        growing(0.25),
        0.5,
    ),
    "2a, θ unknown, box": (problems.sphere(BOX), TruncatedMomentum(), growing(0.5), 0.5),
    "2b, θ=1 known, box": (
        problems.sphere(BOX),
        TruncatedMomentum(**TRUNCATED, error_bound=1.0, estimator="polyak"),
        growing(0.25),
        0.5,
    ),
    "2b, θ unknown, ball": (problems.sphere(BALL), TruncatedMomentum(estimator="polyak"), growing(0.5), 0.5),
    "2a, θ=5/3 known": (problems.flat(3), TruncatedMomentum(**FLAT, error_bound=5 / 3), growing(5 / 12), 0.5),
    "2a, θ=5/3 unknown": (problems.flat(3), TruncatedMomentum(), growing(0.5), 0.5),
}
"""Paper 2: ‖c‖² in the worst seed at every k, stationarity² on average."""


def check(claim: str, measured: float, rate: float, **settings: Any) -> dict[str, Any]:
    """A claim, its number, and whether it holds."""
    holds = bool(measured <= -rate + MARGIN)
    print(f"{'holds' if holds else 'FAILS'}  {claim}: slope {measured:.3f}, wanted ≤ {-rate + MARGIN:.3f}", flush=True)
    return {"claim": claim, "measured": round(measured, 4), "rate": -rate, "holds": holds} | settings


def running_means(steps: int, seeds: int) -> list[dict[str, Any]]:
    """Paper 1."""
    found = []
    for name, (case, method, multipliers, stationarity, violation) in AVERAGES.items():
        c = curves(case, method, multipliers, steps, seeds)
        settings = {"K": steps, "seeds": seeds, "method": repr(method)} | problems.describe(case)
        for what, values, rate in (
            ("stationarity²", c.stationarity, stationarity),
            ("violation²", c.violation, violation),
        ):
            claim = f"{name}: mean over seeds of the running mean of {what}"
            found.append(check(claim, slope(c.k, values.mean(axis=0)), rate, **settings))
    return found


def certainty(steps: int, seeds: int) -> list[dict[str, Any]]:
    """Paper 2."""
    found = []
    for name, (case, method, multipliers, rate) in CERTAIN.items():
        c = curves(case, method, multipliers, steps, seeds)
        settings = {"K": steps, "seeds": seeds, "method": repr(method)} | problems.describe(case)
        worst = slope(c.k, c.last_violation.max(axis=0))
        found.append(check(f"{name}: violation² at x_k, worst of {seeds} seeds", worst, rate, **settings))
        mean = slope(c.k, c.stationarity.mean(axis=0))
        found.append(check(f"{name}: mean over seeds of the running mean of stationarity²", mean, rate, **settings))
    return found


def conservative(steps: int, seeds: int) -> list[dict[str, Any]]:
    """Paper 5: the gap against the horizon, and no violation of the mean output."""
    found, case = [], problems.budget()
    horizons = [int(t) for t in np.geomspace(steps / 10, steps, 5)]
    for name, method, rate in (
        ("5a", ConservativeSaddle(), 0.5),
        ("5a, any time", ConservativeSaddle(horizon="any"), 0.5),
        ("5b", ConservativeFrankWolfe(), 0.25),
    ):
        gaps, violations = outputs(case, method, horizons, seeds)
        settings = {"K": horizons, "seeds": seeds, "method": repr(method)} | problems.describe(case)
        logs = np.log(horizons) if isinstance(method, ConservativeSaddle) and not method.uses_horizon else 1.0
        measured = slope(np.array(horizons), np.abs(gaps.mean(axis=1)) / logs)
        divided = "" if isinstance(logs, float) else ", divided by log K"
        found.append(check(f"{name}: |F(x̄) − F*| on average over seeds{divided}", measured, rate, **settings))
        mean = violations.mean(axis=1)
        error = violations.std(axis=1, ddof=1) / np.sqrt(seeds)
        holds = bool((mean - 1.96 * error <= 0).all())
        print(f"{'holds' if holds else 'FAILS'}  {name}: violation {mean} ± {1.96 * error}", flush=True)
        claim = f"{name}: H(x̄) on average over seeds is at most 0, up to its confidence interval, at every horizon"
        found.append({"claim": claim, "measured": [float(v) for v in mean], "holds": holds} | settings)
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m tightrope.experiments.rates", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="K, the number of steps")
    parser.add_argument("--seeds", type=int, default=256, help="runs side by side")
    parser.add_argument("--out", type=Path, default=Path("checks.json"), help="where to write the checks")
    options = parser.parse_args()
    began = time.perf_counter()
    checks = [one for part in (running_means, certainty, conservative) for one in part(options.steps, options.seeds)]
    report = {"jax": jax.__version__, "seconds": round(time.perf_counter() - began), "checks": checks}
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"{sum(c['holds'] for c in checks)} of {len(checks)} claims hold; written to {options.out}")


if __name__ == "__main__":
    main()
