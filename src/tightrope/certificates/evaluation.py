"""What is measured at a point: objective, violation, stationarity and multipliers, of the original problem.

Evaluation uses samples of its own. It is neither counted nor timed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..domains import Reals
from ..numerics.kkt import kkt_multipliers
from ..numerics.products import Linear, kkt_multipliers_by_products, linearize
from ..oracles.oracle import Oracle, Sample
from ..problems.data import Dataset, Source, Span

EVALUATION_ROWS = 8192
"""Rows of the evaluation sample; data with no more are used whole."""


RECORD_PRODUCTS, CERTIFICATE_PRODUCTS = 50, 500
"""Products with a Jacobian too large to be formed from which multipliers are found."""


class Evaluation(NamedTuple):
    """Measurements at a point, on one sample; violations and multipliers have one entry for each raw value."""

    objective: Any
    violations: Any
    stationarity: Any
    complementarity: Any
    multipliers: Any
    gradient_norm: Any


def rows_for_records(source: Source) -> int:
    """How many rows of a source records are evaluated on."""
    return min(source.size, EVALUATION_ROWS) if isinstance(source, Dataset) else EVALUATION_ROWS


def evaluation_data(oracle: Oracle) -> tuple[Oracle, Sample]:
    """The oracle with the rows that records are evaluated on for its data, and all of them as a sample.

    All rows where they are few, else some that no seed changes: gathered once, here.
    """
    rng = np.random.default_rng(0)

    def rows(source: Source, arrays: PyTree[Array]) -> PyTree[Array]:
        if not isinstance(source, Dataset) or source.size <= EVALUATION_ROWS:
            return arrays
        return source.batch(arrays, np.sort(rng.choice(source.size, EVALUATION_ROWS, replace=False)))

    def sample(source: Source) -> PyTree[Array]:
        if isinstance(source, Dataset):
            return Span(0, rows_for_records(source))
        return source.draw(jax.random.key(rng.integers(2**31)), rows_for_records(source))

    samples = tuple(sample(source) for source in oracle.sources)
    return replace(oracle, data=tuple(map(rows, oracle.sources, oracle.data))), samples


def raw_violations(oracle: Oracle, rows: Float[Array, " rows"]) -> Float[Array, " raw"]:
    """How far each raw value is outside its bounds: |c| for equalities, max(g, 0) for inequalities."""
    size = jnp.where(oracle.equality, jnp.abs(rows), jnp.maximum(rows, 0.0))
    return jnp.zeros(oracle.rows.raw_size, size.dtype).at[np.array(oracle.rows.index, int)].max(size)


def evaluate(oracle: Oracle, x: Float[Array, " n"], sample: Sample, products: Int[Array, ""]) -> Evaluation:
    """Measure the point x of the original problem (an oracle in native form).

    Multipliers come from at most so many products with the Jacobian where that is too large to be formed.
    """
    if oracle.large_jacobian:
        objective, gradient = oracle.value_and_grad(x, sample)
        rows, jacobian = linearize(lambda y: oracle.c(y, sample), x)
        multipliers, residual = stationarity_by_products(oracle, x, gradient, rows, jacobian, products)
    else:
        objective, gradient, rows, jacobian = oracle.first_order(x, sample)
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
    equality = oracle.equality
    return kkt_multipliers(gradient, jacobian, rows, equality, cone, only_equalities=bool(equality.all()))


def stationarity_by_products(
    oracle: Oracle,
    x: Float[Array, " n"],
    gradient: Float[Array, " n"],
    rows: Float[Array, " rows"],
    jacobian: Linear,
    products: Int[Array, ""] | int,
) -> tuple[Float[Array, " rows"], Float[Array, " n"]]:
    """`stationarity` of a Jacobian that is not formed."""
    cone = None if isinstance(oracle.domain, Reals) else lambda v: oracle.project_normal_cone(x, v)
    return kkt_multipliers_by_products(gradient, jacobian, rows, jnp.asarray(oracle.equality), cone, products)


def largest(violations: Float[np.ndarray, " raw"]) -> float:
    """The largest violation; 0 without constraints."""
    return float(np.max(violations, initial=0.0))


def merit(objective: Any, violations: Float[np.ndarray, " raw"], weights: Float[np.ndarray, " raw"]) -> float:
    """The exact penalty function F + 2 Σ weights · violation; ∞ where it is not finite.

    With weights as large as the multipliers of a solution, no other point of a convex problem has a smaller one.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(objective + 2.0 * weights @ violations)
    return value if math.isfinite(value) else math.inf


GROSS = 100.0
"""A violation of so many times the tolerance is worse than any objective."""


def rank_key(
    objective: Any, violations: Float[np.ndarray, " raw"], weights: Float[np.ndarray, " raw"], tolerance: float
) -> tuple[bool, float]:
    """What points are compared by: whether one is grossly infeasible, or not finite, then its merit.

    The merit alone is not enough: far from a solution of a problem that is not convex no weights are known to be large enough.
    """
    value = merit(objective, violations, weights)
    return not (largest(violations) <= GROSS * tolerance and math.isfinite(value)), value


def choose(
    evaluations: list[Evaluation], weights: Float[np.ndarray, " raw"], tolerance: float, first_objective: float
) -> int:
    """The candidate with the best standing; among those as good to a thousandth of the progress, the most feasible (to the
    tolerance) and then the most stationary.
    """
    standings = [rank_key(e.objective, e.violations, weights, tolerance) for e in evaluations]
    gross, best = min(standings)
    limit = best + 1e-3 * (abs(best) + abs(first_objective - best))
    as_good = [i for i, (one, value) in enumerate(standings) if one == gross and value <= limit] or [0]

    def quality(i: int) -> tuple[float, float]:
        return max(largest(evaluations[i].violations), tolerance), float(evaluations[i].stationarity)

    return min(as_good, key=quality)
