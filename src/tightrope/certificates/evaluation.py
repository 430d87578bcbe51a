"""Evaluation of a point of the original problem: objective, violations, stationarity and multipliers.

Evaluation draws its own samples. It is neither counted nor timed.
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

EVALUATION_EXAMPLES = 8192
"""The size of the evaluation sample; smaller data is used whole."""
RECORD_PRODUCTS, CERTIFICATE_PRODUCTS = 50, 500
"""Products from which multipliers are computed if the Jacobian is too large to form."""
GROSS_VIOLATION = 100.0
"""A violation above this multiple of the tolerance is worse than any objective."""


class Evaluation(NamedTuple):
    """Measurements at a point, on one sample; violations and multipliers have one entry per raw value."""

    objective: Any
    violations: Any
    stationarity: Any
    complementarity: Any
    multipliers: Any
    gradient_norm: Any


def examples_for_records(source: Source) -> int:
    """The number of examples of a source on which records are evaluated."""
    return min(source.size, EVALUATION_EXAMPLES) if isinstance(source, Dataset) else EVALUATION_EXAMPLES


def evaluation_data(oracle: Oracle) -> tuple[Oracle, Sample]:
    """Return the oracle with the examples of records as its data, and the sample of all of them.

    These are all examples of small data. Of larger data they are a fixed choice, the same for every seed, gathered here once.
    """
    rng = np.random.default_rng(0)

    def gather(source: Source, arrays: PyTree[Array]) -> PyTree[Array]:
        if not isinstance(source, Dataset) or source.size <= EVALUATION_EXAMPLES:
            return arrays
        return source.batch(arrays, np.sort(rng.choice(source.size, EVALUATION_EXAMPLES, replace=False)))

    def sample(source: Source) -> PyTree[Array]:
        if isinstance(source, Dataset):
            return Span(0, examples_for_records(source))
        return source.draw(jax.random.key(rng.integers(2**31)), examples_for_records(source))

    samples = tuple(sample(source) for source in oracle.sources)
    return replace(oracle, data=tuple(map(gather, oracle.sources, oracle.data))), samples


def raw_violations(oracle: Oracle, rows: Float[Array, " rows"]) -> Float[Array, " raw"]:
    """The distance of each raw value outside its bounds: |c| for equalities, max(g, 0) for inequalities."""
    size = jnp.where(oracle.equality, jnp.abs(rows), jnp.maximum(rows, 0.0))
    return jnp.zeros(oracle.rows.raw_size, size.dtype).at[np.array(oracle.rows.index, int)].max(size)


def evaluate(oracle: Oracle, x: Float[Array, " n"], sample: Sample, products: Int[Array, ""]) -> Evaluation:
    """Evaluate the point x of an oracle in native form.

    `products` is the most products with the Jacobian from which multipliers are computed if it is too large to form.
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
    """Return least-squares multipliers, and the part of ∇F + Jᵀλ that the normal cone of X cannot cancel."""
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
    """`stationarity` for a Jacobian that is not formed."""
    cone = None if isinstance(oracle.domain, Reals) else lambda v: oracle.project_normal_cone(x, v)
    return kkt_multipliers_by_products(gradient, jacobian, rows, jnp.asarray(oracle.equality), cone, products)


def largest_violation(violations: Float[np.ndarray, " raw"]) -> float:
    """The largest violation; 0 without constraints."""
    return float(np.max(violations, initial=0.0))


def merit(objective: Any, violations: Float[np.ndarray, " raw"], weights: Float[np.ndarray, " raw"]) -> float:
    """The exact penalty function F + 2 Σ weights · violation; ∞ if it is not finite.

    If the weights are at least the multipliers of a solution, that solution minimizes it in a convex problem.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(objective + 2.0 * weights @ violations)
    return value if math.isfinite(value) else math.inf


def rank_key(
    objective: Any, violations: Float[np.ndarray, " raw"], weights: Float[np.ndarray, " raw"], tolerance: float
) -> tuple[bool, float]:
    """The key that ranks points, less is better: whether the point is grossly infeasible or not finite, then its merit.

    The merit alone is not enough: far from a solution of a non-convex problem, no weights are known to be large enough.
    """
    value = merit(objective, violations, weights)
    acceptable = largest_violation(violations) <= GROSS_VIOLATION * tolerance and math.isfinite(value)
    return not acceptable, value


def choose_candidate(
    evaluations: list[Evaluation], weights: Float[np.ndarray, " raw"], tolerance: float, first_objective: float
) -> int:
    """Return the index of the best candidate.

    Among the candidates within a thousandth of the progress of the best rank, it is the most feasible (to the tolerance) and
    then the most stationary one.
    """
    ranks = [rank_key(e.objective, e.violations, weights, tolerance) for e in evaluations]
    gross, best = min(ranks)
    limit = best + 1e-3 * (abs(best) + abs(first_objective - best))
    as_good = [i for i, (one, value) in enumerate(ranks) if one == gross and value <= limit] or [0]

    def quality(i: int) -> tuple[float, float]:
        return max(largest_violation(evaluations[i].violations), tolerance), float(evaluations[i].stationarity)

    return min(as_good, key=quality)
