"""Bounds that hold for any number of rows: means of functions whose values on single rows lie in a known range."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..oracles.oracle import Oracle, Term
from ..problems.problem import Problem, cached_on_problem
from .intervals import bounded_mean, place_bet
from .measurement import BATCH_ROWS, PILOT, Plan


def bounded_entries(
    problem: Problem, oracle: Oracle, x: Float[Array, " n"], plan: Plan, fresh: Array, risk: float, raw: np.ndarray
) -> tuple[Bool[np.ndarray, " raw"], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Which raw values have a `sample_range` and are sampled, their means and the ends of their intervals.

    From their functions on single rows, summed in double precision. `raw` are the means over batches.
    """
    terms = [
        term
        for term, c in zip(oracle.constraints, problem.constraints, strict=True)
        if c.sample_range is not None and plan.samples(term)
    ]
    entries = np.zeros(raw.size, bool)
    for term in terms:
        entries[oracle.slices()[term.name]] = True
    if not terms:
        return entries, (raw[entries], raw[entries], raw[entries])
    ranges = {c.name: c.sample_range for c in problem.constraints if c.sample_range is not None}
    low, high = _range_of(terms, ranges, float(jnp.finfo(x.dtype).eps))
    names = [term.name for term in terms for _ in range(term.size)]
    program = cached_on_problem(
        problem, ("rows", oracle.parameters.key, plan.exact), lambda: _row_program(oracle, terms)
    )
    leaves = oracle.leaves()

    def values(batch: int) -> Float[np.ndarray, "rows entries"]:
        found = np.asarray(program(leaves, x, jax.random.fold_in(fresh, np.uint32(batch))), float)
        wrong = ~((found >= low) & (found <= high))
        if wrong.any():
            row, entry = np.argwhere(wrong)[0]
            given = ", ".join(str(end) for end in ranges[names[entry]])
            raise ValueError(
                f"the constraint {names[entry]!r} is {found[row, entry]:g} on a single row of data, outside its "
                f"sample_range ({given})"
            )
        return found

    bet = place_bet(values(PILOT), low, high, plan.rows, risk)
    total, spread = np.zeros(low.size), np.zeros(low.size)
    for batch in range(plan.batches):
        found = values(batch)
        total += found.sum(axis=0)
        spread += ((found - bet.center) ** 2).sum(axis=0)
    mean, spread = total / plan.rows, spread / plan.rows
    for entry in np.flatnonzero(np.abs(mean - raw[entries]) > 1e-3 * (high - low)):
        raise ValueError(
            f"the constraint {names[entry]!r} is not a mean over the rows of its batch, as sample_range needs: "
            f"{mean[entry]:g} on single rows, {raw[entries][entry]:g} on batches of {BATCH_ROWS}"
        )
    return entries, (mean, *bounded_mean(mean, spread, plan.rows, bet, low, high, risk))


def _range_of(
    terms: list[Term], ranges: dict[str, tuple[np.ndarray, np.ndarray]], eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """The ranges of all entries of some functions, widened by what rounding may do to a value."""
    ends = []
    for term in terms:
        low, high = ranges[term.name]
        if not {low.size, high.size} <= {1, term.size}:
            raise ValueError(
                f"sample_range of the constraint {term.name!r} has {max(low.size, high.size)} entries, but its function "
                f"returns {term.size}"
            )
        rounding = 4.0 * eps * np.maximum(np.abs(low), np.abs(high))
        ends.append([np.broadcast_to(low - rounding, term.size), np.broadcast_to(high + rounding, term.size)])
    low, high = np.concatenate(ends, axis=1)
    return low, high


def _row_program(oracle: Oracle, terms: list[Term]) -> Any:
    """The values of some functions on each row of a fresh batch."""
    structure = jax.tree.structure(oracle)

    def values(leaves: list[Array], x: Float[Array, " n"], key: Array) -> Float[Array, "rows entries"]:
        whole = jax.tree.unflatten(structure, leaves)
        params, sample = whole.parameters.unravel(x), whole.draw(key, BATCH_ROWS)

        def rows_of(term: Term, number: int) -> Float[Array, "rows size"]:
            source, arrays = whole.sources[number], whole.data[number]

            def at(row: PyTree[Array]) -> Float[Array, " size"]:
                one = jax.tree.map(lambda a: a[None], row)
                return jnp.ravel(term.fn(params, source.batch(arrays, one)))

            return jax.vmap(at)(sample[number])

        return jnp.concatenate([rows_of(term, term.source) for term in terms if term.source is not None], axis=1)

    return jax.jit(values)
