"""Constraint functions on given examples, one by one: what held-out data and monitors judge."""

from __future__ import annotations

import math
from copy import copy
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..oracles.oracle import Oracle, Term
from ..oracles.rows import bounds
from ..problems.compiling import Program
from ..problems.model_state import call
from ..problems.parameters import Parameters
from ..problems.problem import Problem, cached_on_problem
from .finite_sample import Bounded, bounded_by_range, on_examples
from .intervals import bounded_mean, place_bet, student_width
from .measurement import BATCH_EXAMPLES

Values = Float[np.ndarray, "examples entries"]


class SourceRows:
    """The values of all constraint functions on one source of data, entry by entry.

    Attributes:
        terms: the functions.
        names: for each entry the name of its constraint.
        least: the lower bounds; −∞ where there is none.
        greatest: the upper bounds.
        known: whether the values on single examples have a known range.
        low: the least possible value on a single example; −∞ if it is not known.
        high: the greatest.
    """

    def __init__(self, problem: Problem, oracle: Oracle, source: int):
        pairs = zip(oracle.constraints, problem.constraints, strict=True)
        self.terms, constraints = zip(*((term, c) for term, c in pairs if term.source == source), strict=True)
        self.names = [term.name for term in self.terms for _ in range(term.size)]
        self.least, self.greatest = bounds(constraints, [term.shape for term in self.terms])
        ranges = {c.name: c.sample_range for c in constraints if c.sample_range is not None}
        self.known = np.array([name in ranges for name in self.names])
        self.low, self.high = np.full(len(self.names), -np.inf), np.full(len(self.names), np.inf)
        self._bounded: Bounded | None = None
        if ranges:
            eps = float(jnp.finfo(oracle.parameters.dtype).eps)
            self._bounded = bounded_by_range([term for term in self.terms if term.name in ranges], ranges, eps)
            self.low[self.known], self.high[self.known] = self._bounded.low, self._bounded.high
        key = ("on examples", oracle.parameters.key, source)
        self._program = cached_on_problem(
            problem, key, lambda: Program(partial(_evaluate, self.terms, oracle.parameters))
        )

    @property
    def ends(self) -> int:
        """The number of finite bounds."""
        return int(np.isfinite(self.least).sum() + np.isfinite(self.greatest).sum())

    def by_name(self, values: Float[np.ndarray, " entries"]) -> dict[str, np.ndarray]:
        """One value per entry, by the name of the constraint."""
        places = np.cumsum([0, *(term.size for term in self.terms)])
        return {term.name: values[places[i] : places[i + 1]] for i, term in enumerate(self.terms)}

    def values(self, x: Float[Array, " n"], batch: PyTree[Array]) -> Values:
        """The values on every example of a batch."""
        return np.asarray(self._program(x, batch)[0], float)

    def checked_values(self, owner: str, x: Float[Array, " n"], batch: PyTree[Array]) -> Values:
        """The same; a ValueError if one is outside its range, or if a function is not the mean of its values."""
        found, whole = (np.asarray(a, float) for a in self._program(x, batch))
        self.check_ranges(found)
        first = found[:BATCH_EXAMPLES]
        allowed = 1e-3 * first.std(axis=0) + 1e-5 * np.abs(first).max(axis=0)
        for entry in np.flatnonzero(~(np.abs(first.mean(axis=0) - whole) <= allowed)):
            raise ValueError(
                f"{owner}: the constraint {self.names[entry]!r} is not a mean over the examples of its batch: it is "
                f"{whole[entry]:g} on {len(first)} examples, and {first[:, entry].mean():g} on average over each alone; "
                "examples can be counted on only for means"
            )
        return found

    def check_ranges(self, values: Values) -> None:
        """A ValueError if a value is outside its `sample_range`."""
        if self._bounded is not None:
            self._bounded.check(values[:, self.known])

    def interval(
        self, values: Values, pilot: Values, examples: int, risk: float
    ) -> tuple[Float[np.ndarray, " entries"], Float[np.ndarray, " entries"], Float[np.ndarray, " entries"]]:
        """The means, and an interval for each expectation of which either end misses with probability at most `risk`.

        Entries with a known range get a bound that holds for any number of examples, the others Student's t.

        Args:
            values: the values on examples, or on others that predict them.
            pilot: values on independent examples, for the choice of constants.
            examples: the number of examples.
            risk: the probability of a miss, for each end.
        """
        mean = values.mean(axis=0)
        reach = student_width(2.0 * risk, examples) * values.std(axis=0, ddof=1) / math.sqrt(examples)
        low, high, known = mean - reach, mean + reach, self.known
        if known.any():
            ends = self.low[known], self.high[known]
            bet = place_bet(pilot[:, known], *ends, examples, 2.0 * risk)
            spread = np.mean((values[:, known] - bet.center) ** 2, axis=0)
            low[known], high[known] = bounded_mean(mean[known], spread, examples, bet, *ends, 2.0 * risk)
        return mean, low, high

    def without_ranges(self) -> SourceRows:
        """The same rows as if no range were known."""
        rows = copy(self)
        rows.known, rows._bounded = np.zeros_like(self.known), None
        return rows


def source_rows(problem: Problem, oracle: Oracle) -> dict[int, SourceRows]:
    """The rows of each source of constraints, by its index."""
    places = dict.fromkeys(term.source for term in oracle.constraints if term.source is not None)
    return {place: SourceRows(problem, oracle, place) for place in places}


def _evaluate(
    terms: tuple[Term, ...], parameters: Parameters, x: Float[Array, " n"], batch: PyTree[Array]
) -> tuple[Float[Array, "examples entries"], Float[Array, " entries"]]:
    """The values on each example, and those on the first examples together."""
    params, first = parameters.unravel(x), jax.tree.map(lambda a: a[:BATCH_EXAMPLES], batch)
    single = [on_examples(term.fn, params, batch) for term in terms]
    together = [jnp.ravel(call(term.fn, params, first)[0]) for term in terms]
    return jnp.concatenate(single, axis=1), jnp.concatenate(together)
