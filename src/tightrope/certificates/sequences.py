"""Confidence sequences: intervals for a mean that hold at every number of examples together, however often one looks.

Both kinds rest on Ville's inequality: a nonnegative supermartingale that begins at 1 ever exceeds 1/risk with probability at
most risk. Their sums over examples are all they keep.

`BoundedSequence`, for values in a known range, scaled to [0, 1]: the predictable plug-in empirical Bernstein sequence
(Theorem 2 of [1]). With guesses of the mean, m_i = (½ + Σ_{j≤i} X_j)/(i + 1), and of the variance, s_i = (¼ + Σ_{j≤i} (X_j −
m_j)²)/(i + 1), the bet on example i is b_i = min(½, √(2 log(2/risk)/(s_{i−1} i log(i + 1)))), a function of the examples before
it. Then exp(b_i(X_i − μ) − g(b_i)(X_i − m_{i−1})²) with g(b) = −log(1 − b) − b has mean at most 1, given those (see
`intervals`). So with probability 1 − risk, for all n,

    |Σ b_i X_i / Σ b_i − μ| < (log(2/risk) + Σ g(b_i)(X_i − m_{i−1})²) / Σ b_i

`NormalSequence`, for values of finite variance: an asymptotic sequence (Theorem 2.2 of [2]). Were values normal, of variance
σ², then (1 + nr)^{−½} exp(r S²/(2(1 + nr))) with S = Σ(X_i − μ)/σ would be a martingale, a mixture of exp(aS − na²/2) over
normal a of variance r (Robbins 1970). So with probability 1 − risk, for all n,

    |mean − μ| < σ √(2 (1 + nr)/(n² r) · log(√(1 + nr)/risk))

For other values σ is estimated, and sums are nearly normal only from some number of examples on: the sequence begins at
`FIRST_NORMAL`. It is narrowest at n = `NARROWEST`, where nr = u solves u = log((1 + u)/risk²).

[1] Waudby-Smith, Ramdas: Estimating means of bounded random variables by betting (2024).
[2] Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas: Time-uniform central limit theory and asymptotic confidence sequences (2024).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import lambertw

from .intervals import SUM_ROUNDING

FIRST_NORMAL = 100
"""The number of examples from which sums examples as normal."""
NARROWEST = 1000
"""The number of examples at which the asymptotic sequence is narrowest."""
LARGEST_BET = 0.5

Rows = Float[np.ndarray, " rows"]


class BoundedSequence(NamedTuple):
    """The sequence for values between `low` and `high`, one for each row.

    Example:
        >>> import numpy as np
        >>> start = BoundedSequence.start(np.zeros(1), np.ones(1), risk=0.05)
        >>> values = np.random.default_rng(0).uniform(size=(1000, 1))
        >>> first = start.after(values[:100])
        >>> then = first.after(values[100:])
        >>> bool(first.least <= then.least <= 0.5 <= then.greatest <= first.greatest)
        True
    """

    low: Rows
    high: Rows
    risk: float
    examples: int
    total: Rows
    """Σ X"""
    squares: Rows
    """Σ (X_i − m_i)²"""
    weight: Rows
    """Σ b"""
    weighted: Rows
    """Σ b X"""
    cost: Rows
    """Σ g(b_i)(X_i − m_{i−1})²"""
    least: Rows
    """The largest lower end so far."""
    greatest: Rows
    """The smallest upper end so far."""

    @classmethod
    def start(cls, low: Rows, high: Rows, risk: float) -> BoundedSequence:
        """The sequence before the first example; it misses with probability at most `risk`, for each row."""
        return cls(low, high, risk, 0, *np.zeros((5, low.size)), least=low, greatest=high)

    def after(self, values: Float[np.ndarray, "examples rows"]) -> BoundedSequence:
        """The sequence after more examples, in the order in which they came."""
        unit = (values - self.low) / (self.high - self.low)
        number = self.examples + np.arange(1, len(values) + 1)[:, None]
        total = _sums(self.total, unit)
        mean = (0.5 + total) / (number + 1)
        squares = _sums(self.squares, (unit - mean) ** 2)
        variance = (0.25 + squares) / (number + 1)
        mean_before = np.vstack([(0.5 + self.total) / (self.examples + 1), mean[:-1]])
        variance_before = np.vstack([(0.25 + self.squares) / (self.examples + 1), variance[:-1]])
        log = math.log(2.0 / self.risk)
        bet = np.minimum(np.sqrt(2.0 * log / (variance_before * number * np.log1p(number))), LARGEST_BET)
        weight, weighted = _sums(self.weight, bet), _sums(self.weighted, bet * unit)
        cost = _sums(self.cost, (-np.log1p(-bet) - bet) * (unit - mean_before) ** 2)
        center, width = self.low + (self.high - self.low) * weighted / weight, self.high - self.low
        reach = width * (log + cost) / weight + SUM_ROUNDING * np.maximum(np.abs(self.low), np.abs(self.high))
        return self._replace(
            examples=self.examples + len(values),
            total=total[-1],
            squares=squares[-1],
            weight=weight[-1],
            weighted=weighted[-1],
            cost=cost[-1],
            least=np.maximum(self.least, np.max(center - reach, axis=0)),
            greatest=np.minimum(self.greatest, np.min(center + reach, axis=0)),
        )

    @property
    def mean(self) -> Rows:
        """The mean so far."""
        return self.low + (self.high - self.low) * self.total / max(self.examples, 1)


class NormalSequence(NamedTuple):
    """The asymptotic sequence for values of finite variance, one for each row.

    Example:
        >>> import numpy as np
        >>> values = np.random.default_rng(0).normal(3.0, 1.0, size=(1000, 1))
        >>> after = NormalSequence.start(1, risk=0.05).after(values)
        >>> bool(after.least < 3.0 < after.greatest), bool(after.greatest - after.least < 0.25)
        (True, True)
    """

    risk: float
    examples: int
    origin: Rows
    """The first example, which is subtracted from all."""
    total: Rows
    squares: Rows
    least: Rows
    greatest: Rows

    @classmethod
    def start(cls, rows: int, risk: float) -> NormalSequence:
        """The sequence before the first example; it misses with probability about `risk`, for each row."""
        zero, infinite = np.zeros(rows), np.full(rows, np.inf)
        return cls(risk, 0, zero, zero, zero, -infinite, infinite)

    def after(self, values: Float[np.ndarray, "examples rows"]) -> NormalSequence:
        """The sequence after more examples, in the order in which they came."""
        origin = self.origin if self.examples else values[0]
        number = self.examples + np.arange(1, len(values) + 1)[:, None]
        total, squares = _sums(self.total, values - origin), _sums(self.squares, (values - origin) ** 2)
        ready = number[:, 0] >= FIRST_NORMAL
        least, greatest = self.least, self.greatest
        if ready.any():
            n, mean = number[ready], total[ready] / number[ready]
            deviation = np.sqrt(np.maximum(squares[ready] - n * mean**2, 0.0) / (n - 1))
            reach = deviation * normal_reach(n, self.risk)
            least = np.maximum(least, np.max(origin + mean - reach, axis=0))
            greatest = np.minimum(greatest, np.min(origin + mean + reach, axis=0))
        return self._replace(
            examples=self.examples + len(values),
            origin=origin,
            total=total[-1],
            squares=squares[-1],
            least=least,
            greatest=greatest,
        )

    @property
    def mean(self) -> Rows:
        """The mean so far."""
        return self.origin + self.total / max(self.examples, 1)


def normal_reach(examples: np.ndarray, risk: float) -> np.ndarray:
    """The half-width of the asymptotic sequence, in standard deviations."""
    rate = (-lambertw(-(risk**2) / math.e, -1).real - 1.0) / NARROWEST
    growth = 1.0 + examples * rate
    return np.sqrt(2.0 * growth / (examples**2 * rate) * np.log(np.sqrt(growth) / risk))


def _sums(before: Rows, more: Float[np.ndarray, "examples rows"]) -> Float[np.ndarray, "examples rows"]:
    """The running sums, from one on."""
    return np.cumsum(np.vstack([before, more]), axis=0)[1:]
