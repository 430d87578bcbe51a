"""The certificate of a point: estimates with intervals, and a verdict."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from ..tables import Table

Kind = Literal["exact", "bound", "asymptotic", "as streamed"]

Verdict = Literal["feasible", "infeasible", "undecided"]


class Estimate(NamedTuple):
    """A number and an interval for it.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end.
        kind: 'exact', 'bound' (holds for any sample size), 'asymptotic' (central limit theorem) or 'as streamed' (the value on
            the first examples of a `Stream`, which need not be independent, so the interval says nothing about others).

    Example:
        >>> import tightrope as tr
        >>> print(tr.Estimate(0.5, 0.4, 0.6, "asymptotic"))
        0.5  [0.4, 0.6] asymptotic
    """

    value: float
    low: float
    high: float
    kind: Kind

    def __str__(self) -> str:
        if self.kind == "as streamed":
            return f"{self.value:.4g}  as streamed"
        interval = "" if self.kind == "exact" else f"  [{self.low:.4g}, {self.high:.4g}] {self.kind}"
        return f"{self.value:.4g}{interval}"


class Certificate(NamedTuple):
    """Estimates of all quantities at a point; the intervals hold jointly with probability `confidence`.

    Attributes:
        objective: E objective(x).
        violation: for each constraint by name, the distance outside its bounds, of the entry with the largest one.
        stationarity: distance of ∇F + Jᵀλ to −N_X near x, with least-squares multipliers, λ ≥ 0 for inequalities.
        complementarity: the largest |λ_i g_i| over the inequalities.
        multipliers: the multipliers of `stationarity`, by name: a float for a constraint function that returns a scalar, an
            array for one that returns a vector, even of length 1.
        verdict: 'feasible', 'infeasible' or 'undecided' at `tolerance`.
        tolerance: the largest violation that counts as feasible, relative to the constraint's scale.
        confidence: the probability with which all intervals hold.
        samples: the number of examples used.
        more_samples: the approximate number of additional examples, from each source that is sampled, that would decide; None
            if no more are needed.
        near_stationarity: the distance from x to the solution of the proximal problem at x, for non-smooth problems. None for
            smooth problems, for sets that cannot project, for Jacobians too large to form, and if a number at x is not
            finite.
        proximal_weight: the weight ρ̂ of that problem's proximal term.
        scale: for each constraint by name the unit of its violation, a number or one per entry.
        relative_violation: for each constraint by name the largest violation of an entry over its scale.
        gap: an estimate of F(x) − F*, including what violations are worth: the duality gap of a quadratic model.
        objective_scale: the unit of the gap.
        gradient_scale: the unit of the stationarity.
    """

    objective: Estimate
    violation: dict[str, Estimate]
    stationarity: Estimate
    complementarity: Estimate
    multipliers: dict[str, Any]
    verdict: Verdict
    tolerance: float
    confidence: float
    samples: int
    more_samples: int | None = None
    near_stationarity: Estimate | None = None
    proximal_weight: float | None = None
    scale: dict[str, Any] = {}  # noqa: RUF012
    relative_violation: dict[str, Estimate] = {}  # noqa: RUF012
    gap: float = math.nan
    objective_scale: float = 1.0
    gradient_scale: float = 1.0

    @property
    def stationary_within(self) -> float:
        """An upper bound of the distance from stationarity; for non-smooth problems, that of a nearby point (paper 4)."""
        if self.near_stationarity is None or self.proximal_weight is None:
            return self.stationarity.high
        return self.near_stationarity.high * self.proximal_weight

    @property
    def largest_violation(self) -> Estimate:
        """The violation of the most violated constraint; zero without constraints."""
        return max(self.violation.values(), key=lambda e: e.value, default=Estimate(0.0, 0.0, 0.0, "exact"))

    @property
    def relative_stationarity(self) -> float:
        """`stationary_within` over the scale of the gradient."""
        return relative(self.stationary_within, self.gradient_scale)

    @property
    def relative_gap(self) -> float:
        """The estimated gap over the scale of the objective."""
        return relative(self.gap, self.objective_scale)

    @property
    def decision(self) -> str:
        """The verdict in words, with the number of samples that would decide it."""
        more = "" if self.more_samples is None else f"; about {_rounded(self.more_samples)} more samples would decide"
        streamed = any(estimate.kind == "as streamed" for estimate in self.violation.values())
        return f"{self.verdict} at tolerance {self.tolerance:.3g}{', as streamed' if streamed else ''}{more}"

    def __str__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        lines = {"objective": str(self.objective), "gap to optimum": gap_text(self)}
        lines |= {f"violation of {name}": violation_text(self, name) for name in self.violation}
        lines |= {"stationarity": stationarity_text(self), "complementarity": str(self.complementarity)}
        if self.near_stationarity is not None:
            lines["near-stationarity"] = f"{self.near_stationarity}  (proximal weight {self.proximal_weight:.3g})"
        return Table(self.decision, list(lines.items()))


def violation_text(certificate: Certificate, name: str) -> str:
    """A violation, its interval and its ratio to the scale."""
    ratio = certificate.relative_violation[name]
    return f"{certificate.violation[name]}   {_relative_text(ratio.value, ratio.high)}"


def stationarity_text(certificate: Certificate) -> str:
    """The stationarity, its interval and its ratio to the scale."""
    found, scale = certificate.stationarity, certificate.gradient_scale
    return f"{found}   {_relative_text(relative(found.value, scale), relative(found.high, scale))}"


def gap_text(certificate: Certificate) -> str:
    """The gap and its ratio to the scale."""
    return f"about {certificate.gap:.2g}   relative {certificate.relative_gap:.2g}"


def _relative_text(value: float, high: float) -> str:
    """A ratio to a scale, and its upper end, which is what tolerances are compared with."""
    return f"relative {value:.2g}" + (f", at most {high:.2g}" if high > value else "")


def relative(value: float, scale: float) -> float:
    """Return value / scale; 0 if the value is 0."""
    return value / scale if value else 0.0


def _rounded(count: int) -> str:
    """A count to two digits: 3,200,000, or 3.2e+09."""
    return f"{int(float(f'{count:.2g}')):,}" if count < 10**9 else f"{count:.2g}"
