"""`plan`: forecast how many steps and samples an accuracy will take, from a short pilot run.

The residual is the larger of stationarity and violation, in their own units, at the iterates. Its level in the pilot is the
root mean square over the second half of the records. From there it is extrapolated as K^(−q), where q is the exponent of the
method's theorem, or for a method without one the measured decay: the slope of log residual over log steps, fitted to the pilot
after its first tenth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from ..arguments import number, seed_number
from ..methods.base import Method
from ..methods.rates import asked_by_theorem, proven_rate
from ..problems.problem import Problem
from ..tables import Table
from .fitting import Fitted, check_can_draw, check_no_streams, check_problem, fit
from .result import Result
from .run import first_point
from .solving import solve

PILOT_STEPS, PILOT_RECORDS = 1_000, 50
"""The length of the pilot run, and its records."""
LEAST_DECAY = 0.02
"""A measured exponent below this is no decay."""


@dataclass(frozen=True, repr=False)
class Plan:
    """A forecast by `plan`, good to an order of magnitude at best.

    Attributes:
        method: the method's name.
        accuracy: the accuracy that was asked for.
        steps: the steps until stationarity and violation are both at most that; inf: none in sight.
        samples: the examples that these steps draw.
        basis: what the forecast rests on.
        rate: the exponent q of K^(−q) that it was extrapolated with; NaN: it was not.
        bound: what the method's theorems ask for with their own constants: steps, samples and sizes of samples. This is a bound
            for the worst case, far above what is needed; empty for methods whose theorems give no such numbers.
        pilot: the result of the pilot run.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> tr.plan(problem, jnp.array([1.0, 0.0]), accuracy=1e-3).basis
        'reached in the pilot run'
    """

    method: str
    accuracy: float
    steps: float
    samples: float
    basis: str
    rate: float
    bound: dict[str, float]
    pilot: Result

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        rows = [
            ("method", self.method),
            ("accuracy", f"{self.accuracy:g} (stationarity and violation)"),
            ("steps", _about(self.steps)),
            ("samples", _about(self.samples)),
            ("basis", self.basis),
        ]
        if self.bound:
            rows.append(("worst case", ", ".join(f"{name} {_about(value)}" for name, value in self.bound.items())))
        note = "This is a forecast, good to an order of magnitude at best, and not a promise."
        return Table("Tightrope plan", rows, note=note)


def plan(
    problem: Problem,
    x0: PyTree[Any],
    *,
    accuracy: float,
    method: Method | type[Method] | str | None = None,
    seed: int = 0,
) -> Plan:
    """Forecast how many steps and samples an accuracy will take, from a pilot run of 1,000 steps.

    The forecast is good to an order of magnitude at best. For `LinearizedALM`, `LinearizedPenalty`, `TruncatedMomentum` and
    `ExactPenalty` the pilot is extrapolated by the rate that is proved, which is often slower than what is seen; for others,
    the default included, by the decay measured in the pilot, which may not last.

    Args:
        problem: what is to be solved.
        x0: the start.
        accuracy: the stationarity and the violation that are wanted, both in their own units.
        method: as in `solve`.
        seed: the random seed of the pilot.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> forecast = tr.plan(problem, jnp.array([1.0, 0.0]), accuracy=1e-3, method="ExactPenalty")
        >>> forecast.steps <= 1000
        True
    """
    check_problem("plan", problem)
    check_can_draw("plan", problem)
    check_no_streams("plan", problem)
    accuracy = number("plan", "accuracy", accuracy, low=0.0)
    seed = seed_number("plan", "seed", seed)
    fitted = fit("plan", problem, x0, method, PILOT_STEPS)
    pilot = solve(
        problem, x0, fitted.method, steps=PILOT_STEPS, seed=seed, record=PILOT_STEPS // PILOT_RECORDS, progress=False
    )
    steps, samples, basis, rate = forecast(fitted, pilot, accuracy)
    return Plan(fitted.name, accuracy, steps, samples, basis, rate, _bound(fitted, pilot, seed, accuracy), pilot)


def forecast(fitted: Fitted, pilot: Result, accuracy: float) -> tuple[float, float, str, float]:
    """The steps, the samples, what they rest on, and the exponent."""
    steps, samples, residuals = residuals_of(pilot, PILOT_STEPS)
    if not steps.size:
        return math.inf, math.inf, "the pilot run diverged at once", math.nan
    reached = first_reached(steps, residuals, accuracy)
    if reached is not None:
        return reached, float(np.interp(reached, steps, samples)), "reached in the pilot run", math.nan
    proven = proven_rate(fitted.method, fitted.oracle)
    if proven is not None:
        rate, growth = proven.exponent, proven.cost_growth
        basis = f"the pilot run and the proven rate K^(-{rate:.2g}) ({proven.theorem})"
    else:
        rate, growth = measured_decay(steps, residuals), 0.0
        basis = f"the pilot run and its measured decay K^(-{rate:.2g}), about which nothing is proved"
    needed = extrapolate(steps, residuals, accuracy, rate)
    per_step = samples[-1] / steps[-1] * max(1.0, needed / steps[-1]) ** growth
    return needed, needed * per_step if per_step else 0.0, basis, rate


def first_reached(
    steps: Float[np.ndarray, " records"], residuals: Float[np.ndarray, " records"], accuracy: float
) -> float | None:
    """The first record that meets the accuracy and from which on the root mean square does, up to the end; None: none does.

    At least a fifth of the records must lie after it, so that one lucky record is not enough.
    """
    counts = np.arange(len(residuals), 0, -1)
    levels = np.sqrt(np.cumsum(np.square(residuals)[::-1])[::-1] / counts)
    fine = np.flatnonzero((residuals <= accuracy) & (levels <= accuracy) & (counts >= 0.2 * len(residuals)))
    return float(steps[fine[0]]) if fine.size else None


def measured_decay(steps: Float[np.ndarray, " records"], residuals: Float[np.ndarray, " records"]) -> float:
    """The q of K^(−q) fitted to the records after the first tenth; 0 if there is no decay."""
    late = (steps > 0.1 * steps[-1]) & (residuals > 0)
    if late.sum() < 3:
        return 0.0
    return max(0.0, -float(np.polyfit(np.log(steps[late]), np.log(residuals[late]), 1)[0]))


def extrapolate(
    steps: Float[np.ndarray, " records"], residuals: Float[np.ndarray, " records"], accuracy: float, exponent: float
) -> float:
    """The steps at which the level of the second half, there taken at three quarters, has fallen to the accuracy."""
    late = steps > 0.5 * steps[-1]
    level = float(np.sqrt(np.mean(np.square(residuals[late]))))
    if exponent < LEAST_DECAY or not math.isfinite(level):
        return math.inf
    return float(0.75 * steps[-1] * max(level / accuracy, 1.0) ** (1.0 / exponent))


def residuals_of(result: Result, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps, the samples and the residuals of the records, without the start.

    A run of fewer than `steps` steps that converged would have stayed where it is: its last record is repeated.
    """
    history = result.history
    at, samples, violation, stationarity = (
        np.asarray(history[name], float)[1:] for name in ("step", "samples", "violation", "stationarity")
    )
    residuals = np.maximum(violation, stationarity)
    if result.status == "converged" and at.size and at[-1] < steps:
        more = np.arange(at[-1] + at[0], steps + 1.0, at[0])
        at, samples = np.append(at, more), np.append(samples, np.full_like(more, samples[-1]))
        residuals = np.append(residuals, np.full_like(more, residuals[-1]))
    return at, samples, residuals


def _bound(fitted: Fitted, pilot: Result, seed: int, accuracy: float) -> dict[str, float]:
    """What the method's theorems ask for, with the objective of the pilot's answer for the least one."""
    oracle = fitted.oracle
    x = oracle.with_slacks(first_point(fitted)[0], oracle.first())
    gap = max(float(pilot.history["objective"][0]) - pilot.objective, 0.0)
    multipliers = math.sqrt(sum(float(jnp.sum(jnp.asarray(m) ** 2)) for m in pilot.multipliers.values()))
    return asked_by_theorem(fitted.method, oracle, x, jax.random.key(seed), gap, multipliers, accuracy)


def _about(value: float) -> str:
    """A number to the precision of a forecast."""
    if not math.isfinite(value):
        return "none in sight"
    return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
