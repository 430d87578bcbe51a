"""The measurements by name: the problem, the method with its constants, and the rates of its theorem."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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

STEPS, SEEDS = 100_000, 256
OUTPUT_SEEDS = 128
"""Paper 5: only means over seeds are claimed, and its runs are the longest."""
QUICK_STEPS, QUICK_SEEDS = 2_000, 16
QUICK = {"paper 1": "1a", "paper 2": "2a, θ unknown, box"}
"""Parts and entries of the quick version: methods that estimate their constants."""
HORIZONS = 5
"""Paper 5: number of horizons per method, over the last decade of steps."""
MARGIN = 0.05
"""A slope may exceed −rate by this much."""


class Rate(NamedTuple):
    """A problem, a method, the multipliers in its theorem, and the theorem's rates of both squared residuals."""

    case: Callable[[], problems.Case]
    method: Method
    multipliers: Callable[..., Any] | None
    stationarity: float
    violation: float


def growing(exponent: float) -> Callable[..., Any]:
    """The multipliers ρ_k c with ρ_k = penalty · k^exponent."""
    return lambda method, state, k, c: method.penalty * k**exponent * c


def with_dual(method: Any, state: Any, k: Any, c: Any) -> Any:
    """λ_k + ρ_k c; after step k the state holds λ_{k+1}, which differs from λ_k by O(1/(k log² k))."""
    return state.multipliers + method.penalty * k**0.2 * c


BALL, BOX = partial(problems.sphere, domains.L2Ball(3.0)), partial(problems.sphere, domains.Box(-1.5, 1.5))
FLAT = partial(problems.flat, 3)

# The rates hold asymptotically: once the penalty ρ_k‖J‖² is far above the objective's curvature, and the momentum's memory
# 1/α_k is longer than the 1/(η_k ρ_k ‖J‖²) steps in which x follows it. With the constants that methods estimate, the second
# takes about 72^2.5 = 44,000 steps. With these constants both hold in the last decade.
STOCHASTIC: dict[str, Any] = {"step_size": 0.02, "penalty": 5.0, "momentum": 2.0}
EXACT: dict[str, Any] = {"step_size": 0.02, "penalty": 5.0, "momentum": 1.0}
TRUNCATED: dict[str, Any] = EXACT | {"gradient_radius": 50.0}
LONGER: dict[str, Any] = TRUNCATED | {"step_size": 0.05, "penalty": 2.0}

AVERAGES = {
    "1a": Rate(problems.linear, LinearizedALM(), lambda method, state, k, c: state.multipliers, 2 / 3, 2 / 3),
    "1b": Rate(problems.noisy_sphere, LinearizedPenalty(**STOCHASTIC), growing(0.2), 0.4, 0.4),
    "1c": Rate(
        problems.noisy_sphere,
        LinearizedPenalty(**STOCHASTIC, dual=True, dual_step_size=0.3, dual_offset=0.0),
        with_dual,
        0.4,
        0.4,
    ),
    "1d, ball": Rate(BALL, LinearizedPenalty(**EXACT), growing(0.25), 0.5, 0.5),
    "1d, box": Rate(BOX, LinearizedPenalty(**EXACT), growing(0.25), 0.5, 0.5),
}
"""Paper 1: expected residuals at a uniformly random iterate, that is, running means."""

WORST_SEED = {
    "2a, θ=1 known, ball": Rate(
        BALL, TruncatedMomentum(**TRUNCATED, error_bound_exponent=1.0), growing(0.25), 0.5, 0.5
    ),
    "2a, θ unknown, box": Rate(BOX, TruncatedMomentum(), growing(0.5), 0.5, 0.5),
    "2b, θ=1 known, box": Rate(
        BOX, TruncatedMomentum(**TRUNCATED, error_bound_exponent=1.0, estimator="polyak"), growing(0.25), 0.5, 0.5
    ),
    "2b, θ unknown, ball": Rate(BALL, TruncatedMomentum(estimator="polyak"), growing(0.5), 0.5, 0.5),
    "2a, θ=5/3 known": Rate(FLAT, TruncatedMomentum(**LONGER, error_bound_exponent=5 / 3), growing(5 / 12), 0.5, 0.5),
    "2a, θ=5/3 unknown": Rate(FLAT, TruncatedMomentum(), growing(0.5), 0.5, 0.5),
}
"""Paper 2: ‖c‖² of the worst seed at every k, stationarity² on average."""

CONSERVATIVE = {
    "5a": Rate(problems.budget, ConservativeSaddle(), None, 0.5, 0.0),
    "5a, any time": Rate(problems.budget, ConservativeSaddle(horizon="any"), None, 0.5, 0.0),
    "5b": Rate(problems.budget, ConservativeFrankWolfe(), None, 0.25, 0.0),
}
"""Paper 5: the gap of the output (as `stationarity`), and no violation."""

RATES = AVERAGES | WORST_SEED | CONSERVATIVE
