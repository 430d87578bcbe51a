"""A certificate of constraints that may be looked at after every batch of new examples, for models in use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..arguments import check_type, number
from ..oracles.build import oracle_for
from ..problems.data import batch_shape, examples_in
from ..problems.model_state import call
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from ..tables import Table
from .certificate import Estimate, Kind, Verdict
from .examples import SourceRows, source_rows
from .intervals import violation_interval
from .sequences import BoundedSequence, NormalSequence


class MonitorReport(NamedTuple):
    """What the examples so far show; all intervals of all reports of a monitor hold together with probability `confidence`.

    Attributes:
        verdict: 'feasible' if every violation is at most the tolerance at the upper end of its interval, 'infeasible' if one is
            above it at the lower end, 'undecided' otherwise, or if a mean has changed.
        violation: for each constraint by name its violation, of the entry with the largest one. Intervals of kind 'bound' hold
            at any number of examples, those of kind 'asymptotic' from 100 examples on, by the central limit theorem.
        mean: for each constraint by name the mean over all examples, one number per entry.
        low: the lower ends of the intervals for the expectations.
        high: the upper ends.
        changed: the constraints whose intervals at different times have no point in common: their expectation is not the same
            for all examples.
        examples: the number of examples so far.
        tolerance: the largest violation that counts as feasible.
        confidence: the probability.

    Example:
        >>> import tightrope as tr
        >>> violation = {"rate": tr.Estimate(0.0, 0.0, 0.02, "bound")}
        >>> print(tr.MonitorReport("undecided", violation, {}, {}, {}, (), 500, 0.0, 0.95))
        undecided after 500 examples, at tolerance 0, with 95% confidence at all times together
          violation of rate  0  [0, 0.02] bound
    """

    verdict: Verdict
    violation: dict[str, Estimate]
    mean: dict[str, np.ndarray]
    low: dict[str, np.ndarray]
    high: dict[str, np.ndarray]
    changed: tuple[str, ...]
    examples: int
    tolerance: float
    confidence: float

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        sure = f"with {100 * self.confidence:g}% confidence at all times together"
        title = f"{self.verdict} after {self.examples:,} examples, at tolerance {self.tolerance:.3g}, {sure}"
        names = " and ".join(self.changed)
        note = f"the expectation of {names} has changed since the first example: begin a new Monitor" if names else ""
        rows = [(f"violation of {name}", str(estimate)) for name, estimate in self.violation.items()]
        return Table(title, rows, note=note)


class Monitor:
    """Watch the constraints at a point on new examples, and decide at any moment whether it is feasible.

    A certificate may be looked at once: whoever looks after every batch, until it says what they hope for, is wrong far more
    often than promised. The intervals of a monitor hold at all times together (a confidence sequence). The risk is divided
    evenly over the values of all constraints with data. A constraint with a `sample_range` gets an empirical Bernstein
    sequence, which holds for any number of examples; the others get an asymptotic one. `tightrope/certificates/sequences.py`
    has the inequalities. Only sums are kept, not the examples.

    The examples must be independent of x and of each other, and from one population: a report says if their mean has changed.

    Args:
        problem: the problem; of its data only the shapes are used, so they may be `Batches`.
        x: the point, a pytree of parameters.
        tolerance: the largest violation that counts as feasible, in units of the constraint's `scale`, or of its own if it has
            none. An equality with data is never shown to hold exactly: give it a tolerance.
        confidence: the probability with which all intervals hold at all times.

    Attributes:
        report: what the examples so far show.

    Example:
        >>> import jax.numpy as jnp, numpy as np, tightrope as tr
        >>> new = tr.Batches(like=np.zeros(10, "float32"))
        >>> rate = tr.at_most(lambda x, batch: jnp.mean(x * batch), 0.5, data=new, name="rate", sample_range=(0, 1))
        >>> monitor = tr.Monitor(tr.Problem(lambda x: x**2, rate), jnp.array(1.0))
        >>> coins = np.random.default_rng(0).random(3000) < 0.4
        >>> for batch in np.split(coins.astype("float32"), 3):
        ...     report = monitor.update(batch)
        >>> report.verdict, report.examples
        ('feasible', 3000)
    """

    def __init__(self, problem: Problem, x: PyTree[Any], *, tolerance: float = 0.0, confidence: float = 0.95):
        check_type("Monitor", "problem", problem, Problem, "a tightrope.Problem")
        self._tolerance = number("Monitor", "tolerance", tolerance, low=0.0, closed="[")
        self._confidence = number("Monitor", "confidence", confidence, low=0.0, high=1.0)
        parameters = Parameters(x, owner="Monitor", argument="x")
        rows = source_rows(problem, oracle_for(problem, parameters))
        if not rows:
            raise ValueError(
                "Monitor: no constraint of the problem has data, so there is nothing to watch; use certify"
            )
        risk = (1.0 - self._confidence) / sum(len(part.names) for part in rows.values())
        self._x = parameters.start
        self._sources = {
            part.terms[0].name: _Source.start(part, risk, batch_shape(problem.sources[place]))
            for place, part in rows.items()
        }
        self._units = {c.name: 1.0 if c.scale is None else c.scale for c in problem.constraints}
        self._order = [c.name for c in problem.constraints]
        self._exact = {}
        for c in problem.constraints:
            if c.data is None:
                value = np.ravel(np.asarray(call(c.fn, x)[0], float))
                size = float(violation_interval(value, value, c.low.ravel(), c.high.ravel())[0].max())
                self._exact[c.name] = Estimate(size, size, size, "exact")
        self.report = self._reported()

    def update(self, batch: PyTree[Any]) -> MonitorReport:
        """Take new examples into account, which no earlier batch had.

        Args:
            batch: a batch of any number of examples, like those of the problem's data; if constraints have different data, a
                dict of batches by the name of the first constraint that uses them. Programs are compiled for a few sizes, each
                a power of two.

        Returns:
            What all examples so far show. A batch that is refused with an error leaves the monitor as it was.
        """
        batches = {next(iter(self._sources)): batch}
        if len(self._sources) > 1:
            if not isinstance(batch, Mapping) or not batch or not set(batch) <= set(self._sources):
                got = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
                names = ", ".join(self._sources)
                raise ValueError(f"Monitor.update: batch must be a dict with a batch for some of {names}, got {got}")
            batches = batch
        after = {name: self._sources[name].after(self._x, one) for name, one in batches.items()}
        self._sources |= after
        self.report = self._reported()
        return self.report

    def _reported(self) -> MonitorReport:
        mean, low, high, violation, relative = {}, {}, {}, dict(self._exact), {}
        for name, estimate in self._exact.items():
            unit = float(np.min(self._units[name]))
            relative[name] = estimate.low / unit, estimate.high / unit
        changed: list[str] = []
        for source in self._sources.values():
            rows, (middle, least, greatest) = source.rows, source.interval
            nearest, farthest = violation_interval(least, greatest, rows.least, rows.greatest)
            value, _ = violation_interval(middle, middle, rows.least, rows.greatest)
            ends = zip(*(rows.by_name(a).values() for a in (value, nearest, farthest)), strict=True)
            for term, of_entries in zip(rows.terms, ends, strict=True):
                unit, name = self._units[term.name], term.name
                kind: Kind = "bound" if rows.by_name(rows.known)[name].all() else "asymptotic"
                violation[name] = Estimate(*(float(end.max()) for end in of_entries), kind=kind)
                relative[name] = float((of_entries[1] / unit).max()), float((of_entries[2] / unit).max())
            mean, low, high = (a | rows.by_name(b) for a, b in ((mean, middle), (low, least), (high, greatest)))
            changed += [name for name, empty in rows.by_name(least > greatest).items() if empty.any()]
        feasible = all(end <= self._tolerance for _, end in relative.values())
        infeasible = any(end > self._tolerance for end, _ in relative.values())
        verdict: Verdict = "undecided"
        if not changed and (feasible or infeasible):
            verdict = "feasible" if feasible else "infeasible"
        return MonitorReport(
            verdict,
            {name: violation[name] for name in self._order},
            mean,
            low,
            high,
            tuple(changed),
            sum(source.examples for source in self._sources.values()),
            self._tolerance,
            self._confidence,
        )


class _Source(NamedTuple):
    """The constraints on one source: one sequence for the entries with a known range, one for the others."""

    rows: SourceRows
    shapes: PyTree[Any]
    bounded: BoundedSequence
    normal: NormalSequence
    examples: int = 0

    @classmethod
    def start(cls, rows: SourceRows, risk: float, shapes: PyTree[Any]) -> _Source:
        """Before the first example; `shapes` are those of a batch."""
        known = rows.known
        bounded = BoundedSequence.start(rows.low[known], rows.high[known], risk)
        return cls(rows, shapes, bounded, NormalSequence.start(int((~known).sum()), risk))

    def after(self, x: Float[Array, " n"], batch: PyTree[Any]) -> _Source:
        """After more examples."""
        batch = _checked(batch, self.shapes)
        examples = examples_in(batch)
        padding = 2 ** math.ceil(math.log2(examples)) - examples
        padded = jax.tree.map(lambda a: np.concatenate([a, np.repeat(a[-1:], padding, axis=0)]), batch)
        values = self.rows.checked_values("Monitor.update", x, padded)[:examples]
        if not np.isfinite(values).all():
            raise ValueError(
                "Monitor.update: a constraint is not finite on an example of batch; expected finite numbers"
            )
        known = self.rows.known
        return self._replace(
            bounded=self.bounded.after(values[:, known]),
            normal=self.normal.after(values[:, ~known]),
            examples=self.examples + examples,
        )

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The means and the ends of the intervals, entry by entry."""
        columns = np.zeros((3, self.rows.known.size))
        for where, one in ((self.rows.known, self.bounded), (~self.rows.known, self.normal)):
            columns[:, where] = one.mean, one.least, one.greatest
        mean, low, high = columns
        return mean, low, high


def _checked(batch: PyTree[Any], shapes: PyTree[Any]) -> PyTree[np.ndarray]:
    """The batch as arrays of the right dtypes; an error unless its examples look like those of the problem's data."""
    found, expected = jax.tree.structure(batch), jax.tree.structure(shapes)
    if found != expected:
        raise ValueError(f"Monitor.update: batch must have the structure {expected}, got {found}")
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        raise ValueError(
            f"Monitor.update: the arrays of batch must share a first axis with at least one example, got {sorted(lengths)}"
        )

    def checked(path: Any, leaf: Any, like: jax.ShapeDtypeStruct) -> np.ndarray:
        array, where = np.asarray(leaf), f"Monitor.update: batch{jax.tree_util.keystr(path)}"
        if array.shape[1:] != like.shape[1:] or not np.can_cast(array.dtype, like.dtype, "same_kind"):
            raise ValueError(
                f"{where} has examples {array.dtype}{list(array.shape[1:])}; expected {like.dtype}{list(like.shape[1:])}"
            )
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ValueError(f"{where} contains NaN or infinity; expected finite numbers")
        return array.astype(like.dtype)

    return jax.tree_util.tree_map_with_path(checked, batch, shapes)
