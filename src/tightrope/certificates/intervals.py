"""Confidence intervals for means, and what follows from them; nothing here knows of problems.

Two kinds of interval. Student's t on batch means is the central limit theorem: right in the limit, for values of finite
variance. For values that are known to lie in a range there is a bound that holds for any number of rows, an empirical
Bernstein inequality in its betting form [1, 2]. With values scaled to [0, 1], a center m in [0, 1] and a bet b in (0, 1)
chosen before the rows are seen, exp(b(X − m) − g(b)(X − m)²) ≤ 1 + b(X − m) where g(b) = −log(1 − b) − b. So the product of
exp(b(X_i − μ) − g(b)(X_i − m)²) over n independent rows of mean μ has expectation at most 1, and is above 2/risk with
probability at most risk/2. The same for −X: with probability 1 − risk,

    |mean − μ| < (log(2/risk) + g(b) Σ (X_i − m)²) / (n b)

m and b come from a pilot sample. The best b makes that about √(2V log(2/risk)/n) + log(2/risk)/n for values of variance V.

[1] Fan, Grama, Liu: Exponential inequalities for martingales with applications (2015).
[2] Waudby-Smith, Ramdas: Estimating means of bounded random variables by betting (2024).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

ROUNDING = 1e-12
"""Relative error that sums of up to 1e9 float64 numbers are allowed."""


def student_width(risk: float, batches: int) -> float:
    """How many standard errors a mean of `batches` independent, nearly normal numbers strays with probability `risk`.

    Example:
        >>> round(student_width(0.05, 64), 3)
        1.998
    """
    return -float(stdtrit(batches - 1, risk / 2.0))


class Bet(NamedTuple):
    """What must be chosen before the rows are seen: a guess of the mean, and how much is bet on being off it."""

    center: Float[np.ndarray, " entries"]
    size: Float[np.ndarray, " entries"]


def place_bet(
    pilot: Float[np.ndarray, "rows entries"], low: np.ndarray, high: np.ndarray, rows: int, risk: float
) -> Bet:
    """The bet for `rows` independent rows between `low` and `high`, from a pilot sample that they do not contain.

    Mean and variance of the pilot, as if one more row had been seen at mid-range with the largest variance: a pilot of
    equal values does not show that there is no variance.
    """
    width, count = high - low, len(pilot)
    unit = (pilot - low) / width
    mean = (0.5 + unit.sum(axis=0)) / (count + 1)
    variance = (0.25 + ((unit - mean) ** 2).sum(axis=0)) / (count + 1)
    size = np.sqrt(2.0 * math.log(2.0 / risk) / (rows * variance))
    return Bet(low + width * mean, size / (1.0 + size))


def bounded_mean(
    mean: np.ndarray, spread: np.ndarray, rows: int, bet: Bet, low: np.ndarray, high: np.ndarray, risk: float
) -> tuple[Float[np.ndarray, " entries"], Float[np.ndarray, " entries"]]:
    """An interval that misses the expectation with probability at most `risk`, whatever the number of rows.

    Args:
        mean: the mean of `rows` independent rows between `low` and `high`.
        spread: the mean of their squared distances from `bet.center`.
        rows: how many.
        bet: chosen without looking at them.
        low: least possible value.
        high: greatest possible value.
        risk: the probability of a miss, for each entry.

    Example:
        >>> import numpy as np
        >>> values, low, high = np.random.default_rng(0).uniform(size=(11_000, 1)), np.zeros(1), np.ones(1)
        >>> bet = place_bet(values[:1000], low, high, rows=10_000, risk=0.05)
        >>> spread = np.mean((values[1000:] - bet.center) ** 2, axis=0)
        >>> ends = bounded_mean(values[1000:].mean(axis=0), spread, 10_000, bet, low, high, 0.05)
        >>> print([end.round(3).tolist() for end in ends])
        [[0.49], [0.506]]
    """
    width, cost = high - low, -np.log1p(-bet.size) - bet.size
    reach = width * (math.log(2.0 / risk) / rows + cost * spread / width**2) / bet.size
    reach = reach + ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return np.maximum(mean - reach, low), np.minimum(mean + reach, high)


def outside(low: Any, high: Any, least: Any, greatest: Any) -> tuple[np.ndarray, np.ndarray]:
    """How far a number that lies between `low` and `high` is outside [least, greatest]: at least, and at most.

    Example:
        >>> [float(end) for end in outside(0.25, 1.5, -1.0, 1.0)]
        [0.0, 0.5]
    """
    nearest = np.maximum(np.maximum(least - high, low - greatest), 0.0)
    farthest = np.maximum(np.maximum(least - low, high - greatest), 0.0)
    return nearest, farthest


def rows_to_decide(excess: np.ndarray, reach: np.ndarray, tolerance: float, rows: int) -> int | None:
    """About how many more rows would tell whether every excess is at most `tolerance`, or some excess is not.

    None where numbers that are not finite leave no way to tell.

    Intervals shrink with the root of the number of rows. Twice as many as would make an interval just touch the tolerance
    are asked for: its middle moves too.

    Args:
        excess: how far each number is beyond its bound, negative where it is within.
        reach: the half-widths of their intervals.
        tolerance: the excess that counts as none.
        rows: how many these come from.

    Example:
        >>> import numpy as np
        >>> rows_to_decide(np.array([0.0]), np.array([0.01]), 0.005, 1000)
        7000
    """
    gap = np.maximum(np.abs(excess - tolerance), 1e-6 * reach)
    needed = 2.0 * rows * (reach / np.where(gap == 0, 1.0, gap)) ** 2
    over = excess > tolerance
    more = float(needed[over].min() if over.any() else needed.max()) - rows
    return math.ceil(more) if math.isfinite(more) else None
