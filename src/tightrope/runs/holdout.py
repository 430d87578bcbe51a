"""`solve` with `holdout`: examples are kept aside, constraints tightened, and the answer is tested once on those examples.

Each end low ≤ E h(x) or E h(x) ≤ high of a constraint with data is tested with risk δ/m, for m ends in all (Bonferroni). The
test passes where the mean over the n_h examples kept aside plus a half-width w is at most `high`. To pass it, the run on the
other n_t examples solves

    minimize F(x)  subject to  low + t ≤ h(x) ≤ high − t,    t = w + z σ √(1/n_h + 1/n_t)

w is predicted for n_h examples with the spread of the training examples at the solution of a first run, by the formula of the
test itself; the second term allows for the difference between the means of the two parts, σ being the standard deviation, and z
the normal quantile at `MISS`/m. Nothing is read of the examples kept aside before the test. Paper 5 tightens its constraints
for the same reason, by an amount that depends on the number of steps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from scipy.special import ndtri

from ..arguments import number
from ..certificates.examples import SourceRows, Values, source_rows
from ..certificates.intervals import violation_interval
from ..certificates.promise import Promise
from ..oracles.build import oracle_for
from ..problems.constraints import Constraint
from ..problems.data import Dataset, Source, examples_in
from ..problems.parameters import Parameters
from ..problems.problem import Problem, variant
from .fitting import Fitted
from .result import Result

MISS = 0.1
"""The chance that a point within the tightened constraints fails the test, by the approximations of the prediction."""
MOST_OF_A_RANGE = 0.45
"""The largest part of `between`'s range that is cut off at either end: what is left must not be empty."""
ENDED = ("interrupted", "diverged", "unbounded")
"""How a first run may end so that its answer is tested as it is."""


class Split:
    """The examples of every data set in two parts, at random; those of data sets of one size in the same way.

    Attributes:
        kept: the data of each source of the training part, by the id of the whole.
        aside: the examples kept aside, by the place of their source.
    """

    def __init__(self, problem: Problem, share: float, seed: int):
        self.kept: dict[int, Source] = {}
        self.aside: dict[int, PyTree[Any]] = {}
        for place, source in enumerate(problem.sources):
            self.kept[id(source)] = source
            if isinstance(source, Dataset):
                training, aside = split_rows(source.size, share, seed)
                self.kept[id(source)] = Dataset(_rows(source, training), source.batch_size)
                self.aside[place] = _rows(source, aside)

    def training(self, problem: Problem, tightened: list[Constraint] | None = None) -> Problem:
        """The problem on the training part; it shares compiled programs with every other one of its size."""
        constraints = [
            c if c.data is None else replace(c, data=self.kept[id(c.data)])
            for c in (problem.constraints if tightened is None else tightened)
        ]
        data = None if problem.data is None else self.kept[id(problem.data)]
        sizes = tuple(source.size for source in self.kept.values() if isinstance(source, Dataset))
        return variant(problem, constraints, data, ("training", *sizes))


def split_rows(size: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the training part and those kept aside, a function of these three numbers alone."""
    aside = round(share * size)
    if aside < 2 or size - aside < 2:
        raise ValueError(
            f"solve: holdout={share:g} of {size} examples keeps {aside} aside and trains on {size - aside}; "
            "expected at least 2 of each"
        )
    shuffled = np.random.default_rng((seed, size)).permutation(size)
    return np.sort(shuffled[aside:]), np.sort(shuffled[:aside])


def _rows(source: Dataset, rows: np.ndarray) -> PyTree[np.ndarray]:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], source.arrays)


def check_holdout(problem: Problem, holdout: Any, confidence: Any) -> tuple[float, float]:
    """The two numbers; an error unless examples can be kept aside for every constraint with data."""
    share = number("solve", "holdout", holdout, low=0.0, high=1.0)
    for c in problem.constraints:
        if c.data is not None and not isinstance(c.data, Dataset):
            raise ValueError(
                f"solve: holdout keeps examples of a tightrope.Dataset aside, but the data of the constraint {c.name!r} are a "
                f"{type(c.data).__name__}, which has no finite number of them; leave holdout out: of a Sampler, the "
                "certificate draws fresh examples; for a Stream, keep a part aside and pass it to tightrope.certify"
            )
        if c._auxiliary is not None and c._auxiliary.trained:
            raise ValueError(
                f"solve: holdout tests constraints on means, but {c.name!r} is a conditional value at risk; leave holdout out, "
                "keep a part of the data aside yourself, and pass it to tightrope.certify(problem, x, data=…)"
            )
    on_disk = [source for source in problem.sources if isinstance(source, Dataset) and source.on_host is not None]
    if on_disk:
        raise ValueError(
            f"solve: holdout copies the two parts of the data into memory, but {on_disk[0]} is a memory map; split the file "
            "yourself, and pass the part kept aside to tightrope.certify(problem, x, data=…)"
        )
    return share, number("solve", "confidence", confidence, low=0.0, high=1.0)


def solve_with_promise(
    run: Callable[..., Result],
    fitted: Fitted,
    numbers: tuple[float, float],
    seed: int,
    options: tuple[dict[str, Any], dict[str, Any]],
) -> Result:
    """The result on the training part, with constraints tightened, and with its promise.

    Args:
        run: `solve` without `holdout`, as a function of a problem.
        fitted: the problem with all data.
        numbers: the share of the examples to keep aside, and the confidence.
        seed: the random seed.
        options: what is passed to the first run alone, and to the second alone.
    """
    (share, confidence), (first_options, second_options) = numbers, options
    problem, split = fitted.problem, Split(fitted.problem, share, seed)
    training = split.training(problem)
    test = _Test(training, fitted.parameters, split.aside, confidence)
    test.check_at_start()
    result = run(training, **first_options)
    amounts = {}
    if result.status not in ENDED:
        amounts = test.tightening(result.x)
        tightened = split.training(problem, [_tightened(c, amounts.get(c.name)) for c in problem.constraints])
        result = run(tightened, warm_start=result, **second_options)
    promise = test.promise(result, amounts)
    said = f"the answer was found on {1 - share:.0%} of the examples, with tightened constraints"
    if not promise.passed:
        said += ", and the others do not show that it is feasible: see holdout"
    message = f"{result.message.removesuffix('.')}; {said}."
    return replace(result, success=result.success and promise.passed, message=message, holdout=promise)


def _tightened(constraint: Constraint, amount: np.ndarray | None) -> Constraint:
    """The constraint with its bounds moved inward."""
    if amount is None:
        return constraint
    move = amount.reshape(()) if amount.size == 1 else amount
    return replace(constraint, low=constraint.low + move, high=constraint.high - move)


@dataclass(frozen=True)
class _Part:
    """What the test of the constraints on one source is made of."""

    rows: SourceRows
    training: PyTree[Array]
    aside: PyTree[Array]

    @property
    def kept(self) -> int:
        """The number of training examples."""
        return examples_in(self.training)

    @property
    def examples(self) -> int:
        """The number of examples kept aside."""
        return examples_in(self.aside)


class _Test:
    """The test of the constraints at an answer, and its prediction from the training part."""

    def __init__(self, training: Problem, parameters: Parameters, aside: dict[int, PyTree[Any]], confidence: float):
        oracle = oracle_for(training, parameters)
        self._parameters, self._confidence = parameters, confidence
        self._aside = sum(map(examples_in, aside.values()))
        self._parts = [
            _Part(rows, training.sources[place].arrays, jax.tree.map(jnp.asarray, aside[place]))
            for place, rows in source_rows(training, oracle).items()
        ]
        self._ends = sum(part.rows.ends for part in self._parts)

    def check_at_start(self) -> None:
        """A ValueError unless every function at x0 is a mean of values in its range."""
        for part in self._parts:
            part.rows.checked_values("solve", self._parameters.start, part.training)

    @property
    def _risk(self) -> float:
        return (1.0 - self._confidence) / self._ends

    def tightening(self, x: PyTree[Any]) -> dict[str, np.ndarray]:
        """How much to tighten the bounds of each constraint, from the training part at x."""
        amounts = {}
        for part in self._parts:
            values = part.rows.values(self._parameters.ravel(x), part.training)
            rows = _trusted(part.rows, values)
            widest = np.where(rows.least < rows.greatest, MOST_OF_A_RANGE * (rows.greatest - rows.least), 0.0)
            amounts |= rows.by_name(np.minimum(self._amount(rows, values, part), widest))
        return amounts

    def _amount(self, rows: SourceRows, values: Values, part: _Part) -> Float[np.ndarray, " entries"]:
        mean, low, high = rows.interval(values, values, part.examples, self._risk)
        apart = -ndtri(MISS / self._ends) * math.sqrt(1.0 / part.examples + 1.0 / part.kept)
        return np.maximum(mean - low, high - mean) + apart * values.std(axis=0, ddof=1)

    def promise(self, result: Result, amounts: dict[str, np.ndarray]) -> Promise:
        """The test at the answer."""
        x, certificate = self._parameters.ravel(result.x), result.certificate
        violation = {name: estimate.high for name, estimate in certificate.violation.items()}
        passed = {name: e.high <= certificate.tolerance for name, e in certificate.relative_violation.items()}
        low, high, needed, kinds = {}, {}, [], []
        for part in self._parts:
            held, pilot = (part.rows.values(x, examples) for examples in (part.aside, part.training))
            rows = _trusted(part.rows, held, pilot)
            _, least, greatest = rows.interval(held, pilot, part.examples, self._risk)
            least = np.where(np.isfinite(rows.least) & np.isfinite(least), least, -np.inf)
            greatest = np.where(np.isfinite(rows.greatest) & np.isfinite(greatest), greatest, np.inf)
            _, outside = violation_interval(least, greatest, rows.least, rows.greatest)
            units = rows.by_name(outside)
            allowed = certificate.tolerance * np.concatenate(
                [np.broadcast_to(certificate.scale[name], entries.shape) for name, entries in units.items()]
            )
            for name, entries in rows.by_name(outside <= allowed).items():
                violation[name], passed[name] = float(units[name].max()), bool(entries.all())
            low, high = low | rows.by_name(least), high | rows.by_name(greatest)
            kinds.append(rows.known.all())
            failed = ~(outside <= allowed)
            if failed.any():
                needed.append(self._examples_needed(rows, part, (held, pilot), allowed, failed))
        kind = "exact" if not kinds else "bound" if all(kinds) else "asymptotic"
        return Promise(
            self._confidence,
            kind,
            self._aside,
            violation,
            low,
            high,
            amounts,
            certificate.tolerance,
            all(passed.values()),
            math.ceil(max(needed)) if needed and math.isfinite(max(needed)) else None,
        )

    def _examples_needed(
        self, rows: SourceRows, part: _Part, values: tuple[Values, Values], allowed: np.ndarray, failed: np.ndarray
    ) -> float:
        """About how many examples in all would show what failed; ∞ if no number is known to.

        The amount by which bounds are tightened shrinks with the square root of the number of examples. It must become
        smaller than the slack, which is estimated from both parts, and was smaller than the half-width of the test. The slack
        of an equality is its tolerance.
        """
        held, pilot = values
        total = part.examples + part.kept
        mean, low, high = rows.interval(held, pilot, part.examples, self._risk)
        both = (held.sum(axis=0) + pilot.sum(axis=0)) / total
        distance = np.where(rows.least == rows.greatest, 0.0, np.minimum(both - rows.least, rows.greatest - both))
        slack = distance + allowed
        slack = np.minimum(slack, np.maximum(mean - low, high - mean))[failed]
        if not (slack > 0).all():
            return math.inf
        return total * float(np.max(self._amount(rows, pilot, part)[failed] / slack)) ** 2


def _trusted(rows: SourceRows, *values: Values) -> SourceRows:
    """The rows; without ranges, and with a warning, if a value is outside its own."""
    try:
        for found in values:
            rows.check_ranges(found)
    except ValueError as error:
        warnings.warn(f"{error}; the promise is asymptotic instead", UserWarning, stacklevel=5)
        return rows.without_ranges()
    return rows
