"""The promise of a run with `holdout`: what examples that were kept aside show about its answer."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Promise(NamedTuple):
    """What examples that no step has seen show about the constraints at the answer, from one test.

    All upper bounds hold together with probability `confidence`, whether or not the test was passed.

    Attributes:
        confidence: the probability.
        kind: 'bound' if every constraint with data has a `sample_range` (the promise holds for any number of examples);
            'asymptotic' if one has none (it rests on the central limit theorem); 'exact' if no constraint has data.
        examples: the number of examples kept aside.
        violation: for each constraint by name an upper bound of its true violation: for a vector the largest of its entries,
            for an equality that of the distance to its target.
        low: for each constraint with data by name a lower bound of the true value, one number per entry; −∞ for `at_most`.
        high: an upper bound; ∞ for `at_least`.
        tightening: for each constraint with data by name how much its bounds were tightened, one number per entry.
        tolerance: the largest violation that passes, relative to the constraint's scale (`Stop.violation`).
        passed: whether every bound on a violation is within the tolerance.
        examples_needed: if the test was not passed, about how many examples in all would do; None if no number is known to.

    Example:
        >>> import tightrope as tr
        >>> print(tr.Promise(0.95, "bound", 300, {"rate": 0.003}, {}, {}, {}, 0.01, True))
        with 95% confidence the true violation is ≤ 0.003 (300 examples kept aside)
    """

    confidence: float
    kind: Literal["exact", "bound", "asymptotic"]
    examples: int
    violation: dict[str, float]
    low: dict[str, Any]
    high: dict[str, Any]
    tightening: dict[str, Any]
    tolerance: float
    passed: bool
    examples_needed: int | None = None

    def __str__(self) -> str:
        sure = f"with {100 * self.confidence:g}% confidence"
        aside = f"{self.examples:,} examples kept aside"
        if self.kind == "asymptotic":
            aside += "; asymptotic: give sample_range= for a bound that holds for any number"
        largest = max(self.violation, key=lambda name: self.violation[name], default=None)
        if largest is None:
            return f"nothing to promise: the problem has no constraints ({aside})"
        if self.passed:
            return f"{sure} the true violation is ≤ {self.violation[largest]:.3g} ({aside})"
        more = "no number of examples is known to be enough for this answer"
        if self.examples_needed is not None:
            more = f"about {_rounded(self.examples_needed):,} examples in all would be needed"
        most = f"the violation of {largest} may be up to {self.violation[largest]:.3g}"
        return f"no solution shown {sure}: {most}; {more} ({aside})"


def _rounded(count: int) -> int:
    """A count to two digits."""
    return int(float(f"{count:.2g}"))
