"""Confidence intervals for means.

There are two kinds of interval. Student's t on batch means rests on the central limit theorem: it is right in the limit, for
values of finite variance. For values in a known range there is a bound that holds for any number of examples, an empirical
Bernstein inequality in its betting form [1, 2]. Scale the values to [0, 1], and choose a center m in [0, 1] and a bet b in
(0, 1) before the examples are drawn. Then exp(b(X − m) − g(b)(X − m)²) ≤ 1 + b(X − m) where g(b) = −log(1 − b) − b. So the
product of exp(b(X_i − μ) − g(b)(X_i − m)²) over n independent examples of mean μ has expectation at most 1, and exceeds 2/risk
with probability at most risk/2. The same holds for −X: with probability 1 − risk,

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

SUM_ROUNDING = 1e-12
"""The relative rounding error allowed for sums of up to 1e9 float64 numbers."""


def student_width(risk: float, batches: int) -> float:
    """The half-width of a two-sided Student interval with probability `risk` of a miss, in standard errors.

    Args:
        risk: the probability of a miss.
        batches: the number of independent, nearly normal numbers in the mean.

    Example:
        >>> round(student_width(0.05, 64), 3)
        1.998
    """
    return -float(stdtrit(batches - 1, risk / 2.0))


class Bet(NamedTuple):
    """The constants of a bound, chosen before the examples are drawn: a guess of the mean, and the size of the bet."""

    center: Float[np.ndarray, " entries"]
    size: Float[np.ndarray, " entries"]


def place_bet(
    pilot: Float[np.ndarray, "examples entries"], low: np.ndarray, high: np.ndarray, examples: int, risk: float
) -> Bet:
    """Choose the bet for independent examples with values between `low` and `high`, from a pilot sample without them.

    The mean and the variance are those of the pilot plus one example at mid-range with the largest variance: a pilot of equal
    values does not prove that the variance is zero.
    """
    width, count = high - low, len(pilot)
    unit = (pilot - low) / width
    mean = (0.5 + unit.sum(axis=0)) / (count + 1)
    variance = (0.25 + ((unit - mean) ** 2).sum(axis=0)) / (count + 1)
    size = np.sqrt(2.0 * math.log(2.0 / risk) / (examples * variance))
    return Bet(low + width * mean, size / (1.0 + size))


def bounded_mean(
    mean: np.ndarray, spread: np.ndarray, examples: int, bet: Bet, low: np.ndarray, high: np.ndarray, risk: float
) -> tuple[Float[np.ndarray, " entries"], Float[np.ndarray, " entries"]]:
    """Return an interval that misses the expectation with probability at most `risk`, for any number of examples.

    Args:
        mean: the mean over independent examples with values between `low` and `high`.
        spread: the mean of their squared distances from `bet.center`.
        examples: their number.
        bet: chosen independently of them.
        low: least possible value.
        high: greatest possible value.
        risk: the probability of a miss, for each entry.

    Example:
        >>> import numpy as np
        >>> values, low, high = np.random.default_rng(0).uniform(size=(11_000, 1)), np.zeros(1), np.ones(1)
        >>> bet = place_bet(values[:1000], low, high, examples=10_000, risk=0.05)
        >>> spread = np.mean((values[1000:] - bet.center) ** 2, axis=0)
        >>> ends = bounded_mean(values[1000:].mean(axis=0), spread, 10_000, bet, low, high, 0.05)
        >>> print([end.round(3).tolist() for end in ends])
        [[0.49], [0.506]]
    """
    width, cost = high - low, -np.log1p(-bet.size) - bet.size
    reach = width * (math.log(2.0 / risk) / examples + cost * spread / width**2) / bet.size
    reach = reach + SUM_ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return np.maximum(mean - reach, low), np.minimum(mean + reach, high)


def violation_interval(low: Any, high: Any, least: Any, greatest: Any) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest distance outside [least, greatest] of a number between `low` and `high`; ends may be infinite.

    Example:
        >>> [float(end) for end in violation_interval(0.25, 1.5, -1.0, 1.0)]
        [0.0, 0.5]
    """
    below, above = np.isfinite(least), np.isfinite(greatest)
    with np.errstate(invalid="ignore"):  # ∞ − ∞ where there is no bound
        nearest = np.maximum(np.where(below, least - high, 0.0), np.where(above, low - greatest, 0.0))
        farthest = np.maximum(np.where(below, least - low, 0.0), np.where(above, high - greatest, 0.0))
    return np.maximum(nearest, 0.0), np.maximum(farthest, 0.0)


def examples_to_decide(excess: np.ndarray, reach: np.ndarray, tolerance: float, examples: int) -> int | None:
    """Estimate how many more examples would show that every excess is at most `tolerance`, or that one is not.

    Intervals shrink with the square root of the number of examples. The estimate is twice the number that would make an
    interval just touch the tolerance, because its center moves too. It is None if a number is not finite.

    Args:
        excess: the distance of each number beyond its bound, negative if it is within.
        reach: the half-widths of their intervals.
        tolerance: the largest excess that counts as none.
        examples: the number of examples so far.

    Example:
        >>> import numpy as np
        >>> examples_to_decide(np.array([0.0]), np.array([0.01]), 0.005, 1000)
        7000
    """
    gap = np.maximum(np.abs(excess - tolerance), 1e-6 * reach)
    needed = 2.0 * examples * (reach / np.where(gap == 0, 1.0, gap)) ** 2
    over = excess > tolerance
    more = float(needed[over].min() if over.any() else needed.max()) - examples
    return math.ceil(more) if math.isfinite(more) else None
