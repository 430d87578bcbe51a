"""The choice of an answer among candidates: the iterates and averages that a run has at hand.

On all data, candidates are compared by an exact penalty function. On samples, a comparison has an error, and the best of many
candidates is partly the luckiest. So there, the candidate that the method's theorem covers is kept unless another one is
better beyond the error of their difference, measured on fresh samples that no candidate was chosen on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..oracles.oracle import Oracle
from ..oracles.rows import bounds
from ..problems.problem import Problem
from .evaluation import Evaluation, largest_violation
from .scales import ConstraintScales

GROSS_VIOLATION = 0.5
"""A violation above this share of its constraint's scale is worse than any objective."""
AS_GOOD_SHARE, FEASIBLE_SHARE = 1e-3, 0.05
"""The share of the progress by which a candidate may be worse: any one, and a feasible one where the others are not."""
SIGNIFICANT = 4.0
"""Standard errors of a difference that count as one; with 8 samples the chance of an error is about 0.5%."""


def merit(objective: Any, violations: Float[np.ndarray, "... raw"], weights: Float[np.ndarray, "... raw"]) -> Any:
    """The exact penalty function F + 2 Σ weights · violation; ∞ if it is not finite.

    If the weights are at least the multipliers of a solution, that solution minimizes it in a convex problem.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        value = objective + 2.0 * np.sum(weights * violations, axis=-1)
    return np.where(np.isfinite(value), value, np.inf)


class Candidate(NamedTuple):
    """What a point is ranked by, or each of many points; `scales` are those of its violations."""

    objective: Any
    violations: Float[np.ndarray, "... raw"]
    scales: Float[np.ndarray, "... raw"]
    stationarity: Any

    @classmethod
    def of(cls, scales: ConstraintScales, found: Evaluation) -> Candidate:
        """Return the candidate with these measurements."""
        objective, stationarity = np.asarray(found.objective, float), np.asarray(found.stationarity, float)
        return cls(objective, found.violations, scales.at(found.sizes), stationarity)

    @property
    def relative(self) -> Any:
        """The largest violation over its scale."""
        return largest_violation(self.violations / self.scales)


def rank_key(
    candidate: Candidate, weights: Float[np.ndarray, "... raw"], gross: Float[np.ndarray, "... raw"]
) -> tuple[Any, Any]:
    """The key that ranks points, less is better: whether a violation is gross or not finite, then the merit.

    The merit alone is not enough: far from a solution of a non-convex problem, no weights are known to be large enough.
    """
    value = merit(candidate.objective, candidate.violations, weights)
    acceptable = np.all(candidate.violations <= gross, axis=-1) & np.isfinite(value)
    return ~acceptable, value


def ranks_before(one: tuple[Any, Any], other: tuple[Any, Any]) -> Any:
    """Whether the first key is less, for each of many points."""
    return (one[0] < other[0]) | ((one[0] == other[0]) & (one[1] < other[1]))


def gross_violations(candidates: list[Candidate]) -> Float[np.ndarray, " raw"]:
    """Return the violations that no objective makes up for, in units of the largest scales of all candidates."""
    return GROSS_VIOLATION * np.max([candidate.scales for candidate in candidates], axis=0)


def choose_candidate(
    candidates: list[Candidate], weights: Float[np.ndarray, " raw"], tolerance: float, first_objective: float
) -> int:
    """Return the index of the best candidate.

    Among the candidates within a thousandth of the progress of the best rank, it is the most feasible (to the tolerance) and
    then the most stationary one. If none of these is feasible, a feasible one within a twentieth of the progress is better:
    far from a solution the weights may be too small.
    """
    gross = gross_violations(candidates)
    ranks = [rank_key(candidate, weights, gross) for candidate in candidates]
    worst, best = min(ranks)

    def within(share: float) -> list[int]:
        limit = best + share * (abs(best) + abs(first_objective - best))
        return [i for i, (one, value) in enumerate(ranks) if one == worst and value <= limit]

    def quality(i: int) -> tuple[float, float]:
        return max(candidates[i].relative, tolerance), candidates[i].stationarity

    feasible = [i for i in within(FEASIBLE_SHARE) if candidates[i].relative <= tolerance]
    as_good = within(AS_GOOD_SHARE) or [0]
    if feasible and not set(feasible) & set(as_good):
        return min(feasible, key=lambda i: ranks[i])
    return min(as_good, key=quality)


def choose_by_samples(
    problem: Problem,
    oracle: Oracle,
    samples: list[list[Evaluation]],
    weights: Float[np.ndarray, " raw"],
) -> int:
    """Return the index of the answer among candidates that are known from samples; the first is kept when in doubt.

    Args:
        problem: the problem.
        oracle: its oracle, in native form.
        samples: for every fresh sample the evaluations of all candidates on it.
        weights: multipliers that weigh violations against the objective.
    """
    objective = np.array([[e.objective for e in sample] for sample in samples], float)
    raw = np.array([[e.raw for e in sample] for sample in samples], float)
    low, high = bounds(problem.constraints, [term.shape for term in oracle.constraints])
    mean = raw.mean(axis=0)
    excess = np.maximum(mean - high, 0.0) - np.maximum(low - mean, 0.0)
    merits = objective.mean(axis=0) + 2.0 * np.abs(excess) @ weights
    each = objective + 2.0 * np.sum(weights * np.sign(excess) * raw, axis=2)  # to first order: on the side of the mean
    scales = ConstraintScales.of(problem, oracle)
    largest = gross_violations([Candidate.of(scales, e) for e in samples[0]])
    gross = ~(np.all(np.abs(excess) <= largest, axis=1) & np.isfinite(merits))
    chosen = 0
    for other in range(1, len(merits)):
        error = np.std(each[:, other] - each[:, chosen], ddof=1) / np.sqrt(len(samples))
        better = merits[other] < merits[chosen] - SIGNIFICANT * error
        if gross[chosen] > gross[other] or (gross[chosen] == gross[other] and better):
            chosen = other
    return chosen
