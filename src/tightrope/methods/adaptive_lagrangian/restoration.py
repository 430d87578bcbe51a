r"""The last step of a run: move x to where the rows are within their ranges, on all data, and then once downhill.

Restore: a round solves min ½ dᵀP⁻¹d subject to low ≤ h(x) + Jd ≤ high, so d = −P Jᵀy with y from an m×m problem
(`range_multipliers`, with penalties so large that they only matter where the linearized rows contradict each other), and sets
x ← P_X(x + d). It is Newton's method for the rows that are violated, and needs few rounds. A round that makes the largest
violation no smaller is undone, and the next step is a quarter as long.

Descend: noise leaves some rows inside their ranges although the objective pushes them out. One step of sequential quadratic
programming takes them to their ends: min ∇fᵀd + (1/2α) dᵀP⁻¹d subject to the same, so d = −αP(∇f + Jᵀy), restored in its
turn. It is taken if it lowers the objective and violates no row. Only for finite data: on another sample of endless data, rows
at their ends are outside half of the time.

The rows h are those of all data, or of a large fresh sample where data are endless. With many rows, J is that of a smaller
random sample: an error in J makes the convergence linear, not the answer wrong. With very many rows J is never formed.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...numerics.products import linearize, range_multipliers_by_products, row_squares
from ...numerics.ranges import RangePenalty, range_multipliers
from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample
from ...oracles.rows import Rows
from ...problems.data import Batches, Dataset, Span
from ..base import Info

ROUNDS = 10
TOLERANCE = 1e-6
"""Violations below this share of a row's scale are left: they are near rounding in float32."""
LARGE_PENALTY = 1e4
"""Penalties, in units of the multiplier that removes the largest violation with one row alone."""
FRESH_BATCHES = 64
"""Batches of endless data in the sample on which rows are restored."""
DENSE_ROWS, JACOBIAN_EXAMPLES = 64, 2**22
"""The most rows whose Jacobian is formed, and the most examples times rows that it is computed from."""
PRODUCT_EXAMPLES, PRODUCTS = 8192, 30
"""The examples of a Jacobian that is not formed, and the products with it in a round."""


class Restored(NamedTuple):
    """A point, its rows, the largest violation over its scale, the number of rounds, and the length of the next step."""

    x: Float[Array, " n"]
    value: Float[Array, " rows"]
    violation: Float[Array, ""]
    rounds: Int[Array, ""]
    length: Float[Array, ""]


def can_restore(oracle: Oracle) -> bool:
    """Whether there are rows, and data to evaluate them on: batches of the user's are not kept."""
    return oracle.rows.raw_size > 0 and not any(isinstance(source, Batches) for source in oracle.sources)


def restore(
    oracle: Oracle, x: Float[Array, " n"], metric: Float[Array, " n"], key: Array
) -> tuple[Float[Array, " n"], Info]:
    """Return x, moved within the metric until the rows are within their ranges, and the cost."""
    oracle = replace(oracle, training=False)
    sample, rows = restoration_sample(oracle, key), oracle.rows
    first = oracle.c(x, sample)
    scale = row_scales(first, rows)

    def largest(value: Float[Array, " rows"]) -> Float[Array, ""]:
        return jnp.max(rows.violation(value) / scale)

    def one(at: Restored) -> Restored:
        step = restoring_step(oracle, at.x, at.value, metric, sample, jax.random.fold_in(key, at.rounds))
        new = oracle.project(at.x + at.length * step)
        value = oracle.c(new, sample)
        violation = largest(value)
        better, rounds = violation < at.violation, at.rounds + 1
        moved = Restored(new, value, violation, rounds, jnp.minimum(2.0 * at.length, 1.0))
        stayed = at._replace(rounds=rounds, length=0.25 * at.length)
        return jax.tree.map(lambda a, b: jnp.where(better, a, b), moved, stayed)

    begin = Restored(x, first, largest(first), jnp.int32(0), jnp.ones((), x.dtype))
    last = jax.lax.while_loop(lambda at: (at.violation > TOLERANCE) & (at.rounds < ROUNDS), one, begin)
    part = jacobian_sample(oracle, sample, key)
    examples = [oracle.count_examples("constraints", each) for each in (sample, part)]
    cost = Info(
        constraint_values=1 + 2 * last.rounds,
        constraint_jacobians=last.rounds,
        samples=examples[0] + last.rounds * sum(examples),
    )
    return last.x, cost


def finish(
    oracle: Oracle, x: Float[Array, " n"], metric: Float[Array, " n"], rate: Float[Array, ""], key: Array
) -> tuple[Float[Array, " n"], Info]:
    """Return x, restored and then moved downhill where data are finite, and the cost; `rate` is α."""
    restored, cost = restore(oracle, x, metric, key)
    if not all(isinstance(source, Dataset) for source in oracle.sources):
        return restored, cost
    lower, more = descend(oracle, restored, metric, rate, key)
    return lower, Info(*map(operator.add, cost, more))  # pyright: ignore[reportArgumentType]


def descend(
    oracle: Oracle, x: Float[Array, " n"], metric: Float[Array, " n"], rate: Float[Array, ""], key: Array
) -> tuple[Float[Array, " n"], Info]:
    """Return a point with a lower objective whose rows are no more violated, or x if it is not found; and the cost."""
    oracle = replace(oracle, training=False)
    sample, rows = restoration_sample(oracle, key), oracle.rows
    (objective, gradient), value = oracle.value_and_grad(x, sample), oracle.c(x, sample)
    step = restoring_step(oracle, x, value, rate * metric, sample, key, gradient)
    new, cost = restore(oracle, oracle.project(x + step), metric, key)
    scale = row_scales(value, rows)
    before, after = (jnp.max(rows.violation(h) / scale) for h in (value, oracle.c(new, sample)))
    lower, _ = oracle.value_and_grad(new, sample)  # counted with a gradient, which the compiler leaves out
    better = (lower < objective) & (after <= jnp.maximum(before, TOLERANCE))
    examples = oracle.count_examples("both", sample)
    part = oracle.count_examples("constraints", jacobian_sample(oracle, sample, key))
    more = Info(2, 3, 1, 2 * examples + part)
    return jnp.where(better, new, x), Info(*map(operator.add, cost, more))  # pyright: ignore[reportArgumentType]


def row_scales(value: Float[Array, " rows"], rows: Rows) -> Float[Array, " rows"]:
    """The largest of each row's value and finite bounds, in size."""
    ends = [jnp.where(jnp.isfinite(end), jnp.abs(end), 0.0) for end in (rows.low, rows.high)]
    return positive_or_one(jnp.maximum(jnp.abs(value), jnp.maximum(*ends)))


def restoration_sample(oracle: Oracle, key: Array) -> Sample:
    """All data, and a large sample of endless data."""
    keys = jax.random.split(key, max(len(oracle.sources), 1))
    return tuple(
        Span(0, source.size) if isinstance(source, Dataset) else source.draw(keys[i], FRESH_BATCHES * source.batch_size)
        for i, source in enumerate(oracle.sources)
    )


def restoring_step(
    oracle: Oracle,
    x: Float[Array, " n"],
    value: Float[Array, " rows"],
    metric: Float[Array, " n"],
    sample: Sample,
    key: Array,
    gradient: Float[Array, " n"] | None = None,
) -> Float[Array, " n"]:
    """The step with the least gᵀd + ½ dᵀP⁻¹d that takes the linearized rows to their ranges; the shortest one without g."""
    part = jacobian_sample(oracle, sample, key)
    free = jnp.zeros_like(x) if gradient is None else -metric * gradient
    if _by_products(oracle):
        _, jacobian = linearize(lambda point: oracle.c(point, part), x)
        root = jnp.sqrt(metric)
        size = jnp.sqrt(row_squares(jacobian._replace(push=lambda z: jacobian.push(root * z)), x, key))
        after_free = value + jacobian.push(free)
        ranges = _ranges(oracle, after_free, size**2)
        multipliers, _ = range_multipliers_by_products(
            lambda y: jacobian.push(metric * jacobian.pull(y)),
            after_free,
            ranges,
            jnp.zeros_like(value),
            size,
            tolerance=TOLERANCE,
            products=PRODUCTS,
        )
        return free - metric * jacobian.pull(multipliers)
    _, jacobian = oracle.rows_and_jacobian(x, part)
    gram, after_free = (jacobian * metric) @ jacobian.T, value + jacobian @ free
    ranges = _ranges(oracle, after_free, jnp.diag(gram))
    return free - metric * (range_multipliers(gram, after_free, ranges, jnp.zeros_like(value)) @ jacobian)


def jacobian_sample(oracle: Oracle, sample: Sample, key: Array) -> Sample:
    """The sample, with a random part of each data set that has too many examples for J."""
    examples = PRODUCT_EXAMPLES if _by_products(oracle) else JACOBIAN_EXAMPLES // oracle.rows.raw_size
    keys = jax.random.split(key, max(len(sample), 1))
    return tuple(
        source.draw(keys[i], examples) if isinstance(source, Dataset) and source.size > examples else entry
        for i, (source, entry) in enumerate(zip(oracle.sources, sample, strict=True))
    )


def _by_products(oracle: Oracle) -> bool:
    return oracle.large_jacobian or oracle.rows.raw_size > DENSE_ROWS


def _ranges(oracle: Oracle, value: Float[Array, " rows"], square: Float[Array, " rows"]) -> RangePenalty:
    """The ranges of the rows, with large penalties; `square` are the rows' squared norms in the metric."""
    rows, norm = oracle.rows, jnp.sqrt(positive_or_one(square))
    farthest = jnp.max(rows.violation(value) / norm)
    return RangePenalty(rows.low, rows.high, LARGE_PENALTY * farthest / norm)
