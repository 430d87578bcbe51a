"""Evaluation of a point of the original problem: objective, violations, stationarity and multipliers.

Evaluation draws its own samples. It is neither counted nor timed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..domains import Reals
from ..numerics.kkt import Mapping, kkt_multipliers
from ..numerics.products import Linear, kkt_multipliers_by_products, linearize
from ..oracles.oracle import Oracle, Sample
from ..problems.data import Dataset, Given, Source, Span
from ..problems.splitting import SplitDataset
from .mapping import gradient_mapping, mapping_length
from .scales import sizes

EVALUATION_EXAMPLES = 8192
"""The size of the evaluation sample; smaller data is used whole."""
RECORD_PRODUCTS, CERTIFICATE_PRODUCTS = 50, 500
"""Products from which multipliers are computed if the Jacobian is too large to form."""


class Evaluation(NamedTuple):
    """Measurements at a point, on one sample; violations, multipliers and raw values have one entry per raw value.

    Those of many points have the axes of these points before all others.
    """

    objective: Any
    raw: Any
    violations: Any
    stationarity: Any
    complementarity: Any
    multipliers: Any
    gradient_norm: Any
    residual: Any
    """The part of ∇F + Jᵀλ that X cannot cancel near x (see `mapping`); its norm is the stationarity."""
    products: Any
    """The sum of |λ_i c_i| over all rows."""
    sizes: Any


def at_point(found: Any, *place: int) -> Any:
    """What was measured at one of many points: an entry along the first axes of every array."""
    return jax.tree.map(lambda a: a[place], found)


def examples_for_records(source: Source) -> int:
    """The number of examples of a source on which records are evaluated."""
    return min(source.size, EVALUATION_EXAMPLES) if isinstance(source, Dataset) else EVALUATION_EXAMPLES


def evaluation_data(oracle: Oracle, *seeds: int) -> tuple[Oracle, Sample]:
    """Return the oracle with the examples of records as its data, and the sample of all of them.

    These are all examples of small data. Of larger data they are a random choice, gathered here once. Those of data on the host
    are the sample itself.
    """
    rng = np.random.default_rng(seeds)

    def choice(source: Dataset) -> Int[np.ndarray, " examples"]:
        return np.sort(rng.choice(source.size, examples_for_records(source), replace=False))

    def gather(source: Source, arrays: PyTree[Array]) -> PyTree[Array]:
        if not isinstance(source, Dataset) or source.size <= EVALUATION_EXAMPLES or source.on_host is not None:
            return arrays
        return (source.subset if isinstance(source, SplitDataset) else source.batch)(arrays, choice(source))

    def sample(source: Source) -> PyTree[Array]:
        if isinstance(source, Dataset) and source.on_host is not None:
            return Given(source.batch((), choice(source)))
        if isinstance(source, Dataset):
            return Span(0, examples_for_records(source))
        return source.draw(jax.random.key(rng.integers(2**31)), examples_for_records(source))

    samples = tuple(sample(source) for source in oracle.sources)
    return replace(oracle, data=tuple(map(gather, oracle.sources, oracle.data))), samples


def raw_violations(oracle: Oracle, rows: Float[Array, " rows"]) -> Float[Array, " raw"]:
    """The distance of each raw value outside its bounds: |c| for equalities, max(g, 0) for inequalities."""
    size = jnp.where(oracle.equality, jnp.abs(rows), jnp.maximum(rows, 0.0))
    return jnp.zeros(oracle.rows.raw_size, size.dtype).at[np.array(oracle.rows.index, int)].max(size)


def evaluate(
    oracle: Oracle,
    x: Float[Array, " n"],
    shift: Float[Array, " 1+raw"],
    start: Float[Array, " n"],
    sample: Sample,
    products: Int[Array, ""],
) -> Evaluation:
    """Evaluate the point x of an oracle in native form.

    Args:
        oracle: the oracle.
        x: the point.
        shift: added to the objective and to the raw values.
        start: x0, for scales; x if there is none.
        sample: the sample.
        products: the most products with the Jacobian from which multipliers are computed if it is too large to form.
    """
    oracle, x, start = oracle.hold_state(x, start)
    if oracle.large_jacobian:
        objective, gradient = oracle.value_and_grad(x, sample)
        rows, jacobian = linearize(lambda y: oracle.c(y, sample), x)
    else:
        objective, gradient, rows, jacobian = oracle.first_order(x, sample)
    place = np.array(oracle.rows.index, int)
    rows = rows + oracle.rows.sign * shift[1:][place]
    if isinstance(jacobian, Linear):
        multipliers, residual = stationarity_by_products(oracle, x, start, gradient, rows, jacobian, products)
    else:
        multipliers, residual = stationarity(oracle, x, start, gradient, rows, jacobian)
    return Evaluation(
        objective=objective + shift[0],
        raw=jnp.zeros(oracle.rows.raw_size, x.dtype).at[place].set(oracle.rows.sign * rows + oracle.rows.bound),
        violations=raw_violations(oracle, rows),
        stationarity=jnp.linalg.norm(residual),
        complementarity=complementarity(oracle, rows, multipliers),
        multipliers=oracle.rows.to_raw(multipliers),
        gradient_norm=jnp.linalg.norm(gradient),
        residual=residual,
        products=jnp.sum(jnp.abs(multipliers * rows)),
        sizes=sizes(oracle, x, start, gradient, jacobian, multipliers),
    )


def complementarity(
    oracle: Oracle, rows: Float[Array, " rows"], multipliers: Float[Array, " rows"]
) -> Float[Array, ""]:
    """The largest |λ_i g_i| over the inequalities."""
    return jnp.max(jnp.where(oracle.equality, 0.0, jnp.abs(multipliers * rows)), initial=0.0)


def stationarity(
    oracle: Oracle,
    x: Float[Array, " n"],
    start: Float[Array, " n"],
    gradient: Float[Array, " n"],
    rows: Float[Array, " rows"],
    jacobian: Float[Array, "rows n"],
) -> tuple[Float[Array, " rows"], Float[Array, " n"]]:
    """Return least-squares multipliers, and the part of ∇F + Jᵀλ that X cannot cancel near x; `start` is x0."""
    mapping, equality = _mapping(oracle, x, start, gradient), oracle.equality
    return kkt_multipliers(gradient, jacobian, rows, equality, mapping, only_equalities=bool(equality.all()))


def stationarity_by_products(
    oracle: Oracle,
    x: Float[Array, " n"],
    start: Float[Array, " n"],
    gradient: Float[Array, " n"],
    rows: Float[Array, " rows"],
    jacobian: Linear,
    products: Int[Array, ""] | int,
) -> tuple[Float[Array, " rows"], Float[Array, " n"]]:
    """`stationarity` for a Jacobian that is not formed."""
    mapping = _mapping(oracle, x, start, gradient)
    return kkt_multipliers_by_products(gradient, jacobian, rows, jnp.asarray(oracle.equality), mapping, products)


def _mapping(
    oracle: Oracle, x: Float[Array, " n"], start: Float[Array, " n"], gradient: Float[Array, " n"]
) -> Mapping | None:
    if isinstance(oracle.domain, Reals):
        return None
    return gradient_mapping(oracle, x, mapping_length(x, start, jnp.linalg.norm(gradient)))


def largest_violation(violations: Float[np.ndarray, "... raw"]) -> Any:
    """The largest violation at a point, or at each of many; 0 without constraints."""
    return np.max(violations, axis=-1, initial=0.0)
