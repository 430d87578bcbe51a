"""Bounds that hold for any number of examples: means of functions with a known range on single examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ..oracles.oracle import Oracle, Term
from ..problems.compiling import Program
from ..problems.model_state import call
from ..problems.problem import Problem, cached_on_problem
from .intervals import bounded_mean, place_bet
from .measurement import BATCH_EXAMPLES, PILOT_BATCH, Plan

Ranges = dict[str, tuple[np.ndarray, np.ndarray]]


class Bounded(NamedTuple):
    """The entries of all functions with a `sample_range`: the constraint of each, and its range, widened by rounding."""

    names: list[str]
    low: Float[np.ndarray, " entries"]
    high: Float[np.ndarray, " entries"]
    ranges: Ranges
    """As the user gave them, by constraint."""

    def check(self, found: Float[np.ndarray, "examples entries"]) -> None:
        """A ValueError if a value on a single example is outside its range."""
        wrong = ~((found >= self.low) & (found <= self.high))
        if wrong.any():
            example, entry = np.argwhere(wrong)[0]
            name, given = self.names[entry], ", ".join(str(end) for end in self.ranges[self.names[entry]])
            raise ValueError(
                f"the constraint {name!r} is {found[example, entry]:g} on a single example, outside its sample_range ({given})"
            )

    def check_means(self, single: Float[np.ndarray, " entries"], batches: Float[np.ndarray, " entries"]) -> None:
        """A ValueError if a function on batches is not the mean of its values on single examples."""
        for entry in np.flatnonzero(np.abs(single - batches) > 1e-3 * (self.high - self.low)):
            raise ValueError(
                f"the constraint {self.names[entry]!r} is not a mean over the examples of its batch, as sample_range needs: "
                f"{single[entry]:g} on single examples, {batches[entry]:g} on batches of {BATCH_EXAMPLES}"
            )


def bounded_entries(
    problem: Problem, oracle: Oracle, x: Float[Array, " n"], plan: Plan, key: Array, risk: float, raw: np.ndarray
) -> tuple[Bool[np.ndarray, " raw"], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return which raw values are sampled and have a `sample_range`, and their means and the ends of their intervals.

    Their functions are evaluated on single examples, and summed in double precision. `raw` are the means over batches.
    """
    terms = [
        term
        for term, c in zip(oracle.constraints, problem.constraints, strict=True)
        if c.sample_range is not None and plan.is_sampled(term)
    ]
    entries = np.zeros(raw.size, bool)
    for term in terms:
        entries[oracle.slices()[term.name]] = True
    if not terms:
        return entries, (raw[entries], raw[entries], raw[entries])
    ranges = {c.name: c.sample_range for c in problem.constraints if c.sample_range is not None}
    bounded = bounded_by_range(terms, ranges, float(jnp.finfo(x.dtype).eps))
    program = cached_on_problem(
        problem, ("examples", oracle.parameters.key, plan.exact), lambda: _example_program(oracle, terms)
    )
    leaves = oracle.leaves()

    def values(batch: int) -> Float[np.ndarray, "examples entries"]:
        found = np.asarray(program(leaves, x, jax.random.fold_in(key, np.uint32(batch))), float)
        bounded.check(found)
        return found

    low, high = bounded.low, bounded.high
    bet = place_bet(values(PILOT_BATCH), low, high, plan.examples, risk)
    total, spread = np.zeros(low.size), np.zeros(low.size)
    for batch in range(plan.batches):
        found = values(batch)
        total += found.sum(axis=0)
        spread += ((found - bet.center) ** 2).sum(axis=0)
    mean, spread = total / plan.examples, spread / plan.examples
    bounded.check_means(mean, raw[entries])
    return entries, (mean, *bounded_mean(mean, spread, plan.examples, bet, low, high, risk))


def on_examples(fn: Callable[..., Any], params: PyTree[Any], batch: PyTree[Array]) -> Float[Array, "examples size"]:
    """The values of a function on batches of one example each, for every example of a batch, 1,024 at a time."""

    def at(example: PyTree[Array]) -> Float[Array, " size"]:
        one = jax.tree.map(lambda a: a[None], example)
        return jnp.ravel(call(fn, params, one)[0])

    return jax.lax.map(at, batch, batch_size=BATCH_EXAMPLES)


def bounded_by_range(terms: list[Term], ranges: Ranges, eps: float) -> Bounded:
    """The entries of functions that all have a `sample_range`."""
    ends = []
    for term in terms:
        low, high = ranges[term.name]
        rounding = 4.0 * eps * np.maximum(np.abs(low), np.abs(high))
        ends.append([np.broadcast_to(low - rounding, term.size), np.broadcast_to(high + rounding, term.size)])
    low, high = np.concatenate(ends, axis=1)
    return Bounded([term.name for term in terms for _ in range(term.size)], low, high, ranges)


def _example_program(oracle: Oracle, terms: list[Term]) -> Any:
    """The compiled program for the values of some functions on each example of a fresh batch."""
    structure = jax.tree.structure(oracle)

    def values(leaves: list[Array], x: Float[Array, " n"], key: Array) -> Float[Array, "examples entries"]:
        whole = jax.tree.unflatten(structure, leaves)
        params, sample = whole.parameters.unravel(x), whole.draw(key, BATCH_EXAMPLES)

        parts = [
            on_examples(term.fn, params, whole.sources[term.source].batch(whole.data[term.source], sample[term.source]))
            for term in terms
            if term.source is not None
        ]
        return jnp.concatenate(parts, axis=1)

    return Program(values)
