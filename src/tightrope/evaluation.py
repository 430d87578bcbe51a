"""What is measured at a point: objective, violation, stationarity and multipliers, of the original problem.

Evaluation uses samples of its own. It is neither counted nor timed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .data import Dataset, Source
from .domains import Reals
from .oracle import Oracle, Sample
from .subproblems import kkt_multipliers

EVALUATION_ROWS = 8192
"""Rows of the evaluation sample; data with no more are used whole."""


class Evaluation(NamedTuple):
    """Measurements at a point, on one sample; violations and multipliers have one entry for each raw value."""

    objective: Any
    violations: Any
    stationarity: Any
    complementarity: Any
    multipliers: Any
    gradient_norm: Any


def evaluation_sample(oracle: Oracle) -> Sample:
    """The fixed sample that records are evaluated on: all rows where they are few, else a draw that no seed changes."""
    rng = np.random.default_rng(0)

    def sample(source: Source) -> Any:
        if not isinstance(source, Dataset):
            return source.draw(jax.random.key(rng.integers(2**31)), EVALUATION_ROWS)
        if source.size <= EVALUATION_ROWS:
            return np.arange(source.size)
        return np.sort(rng.choice(source.size, EVALUATION_ROWS, replace=False))

    return tuple(sample(source) for source in oracle.sources)


def raw_violations(oracle: Oracle, rows: Float[Array, " rows"]) -> Float[Array, " raw"]:
    """How far each raw value is outside its bounds: |c| for equalities, max(g, 0) for inequalities."""
    size = jnp.where(oracle.equality, jnp.abs(rows), jnp.maximum(rows, 0.0))
    return jnp.zeros(oracle.rows.raw_size, size.dtype).at[np.array(oracle.rows.index, int)].max(size)


def evaluate(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Evaluation:
    """Measure the point x of the original problem (an oracle in native form)."""
    objective, gradient = oracle.value_and_grad(x, sample)
    rows, jacobian = oracle.c(x, sample), oracle.jac(x, sample)
    multipliers, residual = stationarity(oracle, x, gradient, rows, jacobian)
    return Evaluation(
        objective,
        raw_violations(oracle, rows),
        jnp.linalg.norm(residual),
        complementarity(oracle, rows, multipliers),
        oracle.rows.to_raw(multipliers),
        jnp.linalg.norm(gradient),
    )


def complementarity(
    oracle: Oracle, rows: Float[Array, " rows"], multipliers: Float[Array, " rows"]
) -> Float[Array, ""]:
    """The largest |λ_i g_i| over the inequalities."""
    return jnp.max(jnp.where(oracle.equality, 0.0, jnp.abs(multipliers * rows)), initial=0.0)


def stationarity(
    oracle: Oracle, x: Float[Array, " n"], gradient: Float[Array, " n"], rows: Array, jacobian: Array
) -> tuple[Float[Array, " rows"], Float[Array, " n"]]:
    """Least-squares multipliers, and the part of ∇F + Jᵀλ that the normal cone of X cannot cancel."""
    cone = None if isinstance(oracle.domain, Reals) else lambda v: oracle.project_normal_cone(x, v)
    return kkt_multipliers(gradient, jacobian, rows, jnp.asarray(oracle.equality), cone)


def largest(violations: Float[np.ndarray, " raw"]) -> float:
    """The largest violation; 0 without constraints."""
    return float(np.max(violations, initial=0.0))


def merit(objective: Any, violations: Float[np.ndarray, " raw"], weights: Float[np.ndarray, " raw"]) -> float:
    """The exact penalty function F + 2 Σ weights · violation; ∞ where it is not finite.

    With weights as large as the multipliers of a solution, no other point of a convex problem has a smaller one.
    """
    value = float(objective + 2.0 * weights @ violations)
    return value if math.isfinite(value) else math.inf


def choose(
    evaluations: list[Evaluation], weights: Float[np.ndarray, " raw"], tolerance: float, first_objective: float
) -> int:
    """The candidate with the least merit; among those as good to a thousandth of the progress, the most feasible (to
    the tolerance) and then the most stationary.
    """
    merits = [merit(e.objective, e.violations, weights) for e in evaluations]
    best = min(merits)
    limit = best + 1e-3 * (abs(best) + abs(first_objective - best))
    as_good = [i for i, value in enumerate(merits) if value <= limit] or [0]

    def quality(i: int) -> tuple[float, float]:
        return max(largest(evaluations[i].violations), tolerance), float(evaluations[i].stationarity)

    return min(as_good, key=quality)
