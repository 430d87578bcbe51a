"""Near-stationarity: the distance from a point of a non-smooth problem to the solution of a proximal problem around it.

At a kink the gradient carries little information: at the solution of min |x| it may be 1. Paper 4 (Huang, Lin) measures
‖x̂ − x‖ instead, with

    x̂ = argmin over y in X of  f(y) + ρ̂/2 ‖y − x‖²   subject to   g_i(y) + ρ̃_i/2 ‖y − x‖² ≤ 0                     (4)

where ρ̂ exceeds the modulus of weak convexity of f (the least ρ that makes f + ρ/2 ‖·‖² convex) and ρ̃_i that of g_i. By (6)
there, x̂ is stationary to about ρ̂ ‖x̂ − x‖, and x is that close to it.

- The moduli are estimated by the largest 2 (linearization at y − value at z) / ‖y − z‖² over pairs of points: a few around x,
  and all points that the solution of (4) visits. If these show more weak convexity than was assumed, (4) is solved again.
  Then ρ̂ = 2ρ + M/D, with M the largest gradient of f near x and D = max(1, ‖x‖) or the diameter of X, and ρ̃_i = 2ρ_i, which
  is 0 for a convex g_i.
- Equations, for which a proximal term makes no sense, are linearized at x: exact for linear ones, as in Remark A.2.
- The constraints enter as the exact penalty Λ max(0, largest row), with rows divided by the norms of their gradients. Λ is
  raised until less than half of it is used. If that never happens, (4) has no feasible point and the distance is ∞.

The penalized problem is μ-strongly convex and is solved by cutting planes, in double precision. For any weights w of the
cuts, the minimum over X of their weighted sum and μ/2 ‖y − x‖² is a lower bound D(w), attained at y(w). With an upper bound U
from any point, ‖y(w) − x̂‖ ≤ sqrt(2 (U − D(w))/μ). That is the error reported. In float32 the rounding of U alone makes it
some 1e-4 or 1e-3; the solution itself is closer.

Data of up to `MAX_WHOLE_DATA` examples is used whole, and the interval is that error: it holds if the moduli are right,
which is not proved. Otherwise (4) is solved on `SAMPLE_COUNT` fresh samples, and the interval is asymptotic: Student's t on the
mean of x̂ − x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..domains import Reals
from ..numerics.simplex_quadratic import simplex_quadratic
from ..oracles.oracle import Oracle, Sample
from ..problems.compiling import Program
from ..problems.data import Dataset, Span
from ..problems.problem import Problem, cached_on_problem
from .intervals import student_width

MAX_WHOLE_DATA = 2**16
"""Data of at most this many examples is used whole."""
SAMPLE_EXAMPLES, SAMPLE_COUNT = 4096, 8
"""The size and the number of the samples of larger data."""
MAX_CUT_ROUNDS = 100
"""Rounds of cutting planes, at most."""
MAX_MODULUS_ROUNDS = 5
"""How often (4) is solved with corrected moduli, at most."""
MAX_PENALTY = 1e6
"""The largest penalty, in units of the objective's slope."""
MAX_BUNDLE_NUMBERS = 5e7
"""The most numbers that the linearizations of all rounds may take; problems with more get fewer rounds."""
MAX_ALTERNATIONS = 20
"""How often the weights of the cuts and the normal of X are improved in turn, at most."""
RELATIVE_ERROR = 1e-3
"""The error at which the solution stops, relative to ‖x̂ − x‖ plus a tenth of D."""
VALUE_ROUNDING = 4.0
"""The relative error of a function's value, in units of eps."""

Project = Callable[[np.ndarray], np.ndarray]
"""The projection of a step from x onto X − x."""


class ProximalSteps(NamedTuple):
    """The steps x̂ − x of all samples, their error, and ρ̂."""

    steps: Float[np.ndarray, "samples n"]
    error: float
    weight: float

    @property
    def sampled(self) -> bool:
        """Whether the data was too large to be used whole."""
        return len(self.steps) > 1

    @property
    def kind(self) -> Literal["bound", "asymptotic"]:
        """The kind of the interval."""
        return "asymptotic" if self.sampled else "bound"

    def interval(self, risk: float) -> tuple[float, float, float]:
        """‖x̂ − x‖ and the ends of its interval, missed with probability `risk`; ∞ if (4) has no feasible point."""
        value, reach = float(np.linalg.norm(self.steps.mean(axis=0))), self.error
        if not np.isfinite(value):
            return np.inf, 0.0, np.inf
        if self.sampled:
            spread = float(np.linalg.norm(self.steps.std(axis=0, ddof=1))) / len(self.steps) ** 0.5
            reach += student_width(risk, len(self.steps)) * spread
        return value, max(value - reach, 0.0), value + reach


class Linearization(NamedTuple):
    """The values and derivatives of all functions at a point, given as a step from x."""

    step: np.ndarray
    value: float
    gradient: np.ndarray
    rows: np.ndarray
    jacobian: np.ndarray


Linearize = Callable[[np.ndarray], Linearization | None]
"""The linearization at a step from x, on some sample; None if a number there is not finite."""


def near_stationarity(problem: Problem, oracle: Oracle, x: Float[Array, " n"], key: Array) -> ProximalSteps | None:
    """Return x̂ − x at the flat point x of an oracle in native form, whose set can project; None if a value is not finite."""
    oracle, x = oracle.hold_state(x)
    first_order, project = cached_on_problem(problem, ("near", oracle.parameters.key), lambda: _programs(oracle))
    leaves, center, eps = oracle.leaves(), np.asarray(x, float), float(jnp.finfo(x.dtype).eps)

    def linearize_on(sample: Sample) -> Linearize:
        def linearize(step: np.ndarray) -> Linearization | None:
            y = np.asarray(center + step, x.dtype)
            value, *rest = (np.asarray(part, float) for part in jax.device_get(first_order(leaves, y, sample)))
            finite = np.isfinite(value) and all(np.isfinite(part).all() for part in rest)
            return Linearization(y - center, float(value), *rest) if finite else None

        return linearize

    def project_step(step: np.ndarray) -> np.ndarray:
        if isinstance(oracle.domain, Reals):
            return step
        return np.asarray(project(leaves, np.asarray(center + step, x.dtype)), float) - center

    on_samples, start = [linearize_on(sample) for sample in _samples(oracle, key)], np.zeros(center.size)
    if any(linearize(start) is None for linearize in on_samples):
        return None
    length = float(min(oracle.diameter(), max(1.0, np.linalg.norm(center))))
    points = _points_around(on_samples[0], project_step, length, start)
    scales = Scales.of(points, oracle.equality, np.abs(oracle.rows.bound), length, VALUE_ROUNDING * eps)
    moduli, result = scales.weak_convexity(points), ProximalSteps(np.zeros((1, center.size)), np.inf, 0.0)
    for _ in range(MAX_MODULUS_ROUNDS):
        proximal = ProximalProblem.from_moduli(project_step, scales, moduli)
        solved = [proximal.solve(linearize, start) for linearize in on_samples]
        steps, error = np.stack([s.step for s in solved]), float(np.mean([s.error for s in solved]))
        result = ProximalSteps(steps, error, proximal.weight)
        moduli = WeakConvexity(*(np.max(m, axis=0) for m in zip(moduli, *(s.moduli for s in solved), strict=True)))
        if proximal.allows(moduli):
            return result
    return result._replace(error=np.inf)


def _programs(oracle: Oracle) -> tuple[Any, Any]:
    """Compiled programs: values and derivatives of all functions at a point, and the projection onto X."""
    structure = jax.tree.structure(oracle)

    def first_order(leaves: list[Array], y: Float[Array, " n"], sample: Sample) -> Any:
        return jax.tree.unflatten(structure, leaves).first_order(y, sample)

    return Program(first_order), Program(lambda leaves, y: jax.tree.unflatten(structure, leaves).project(y))


def _samples(oracle: Oracle, key: Array) -> list[Sample]:
    """All data if it is small, else fresh samples."""
    small = [isinstance(source, Dataset) and source.size <= MAX_WHOLE_DATA for source in oracle.sources]

    def sample(number: int) -> Sample:
        drawn = oracle.draw(jax.random.fold_in(key, number), SAMPLE_EXAMPLES)
        parts = zip(oracle.sources, small, drawn, strict=True)
        return tuple(Span(0, s.size) if isinstance(s, Dataset) and whole else part for s, whole, part in parts)

    return [sample(number) for number in range(1 if all(small) else SAMPLE_COUNT)]


def _points_around(linearize: Linearize, project: Project, length: float, start: np.ndarray) -> list[Linearization]:
    """X itself and points around it: down the gradient and in three random directions, at three distances."""
    first = _finite(linearize, start)
    directions = [-first.gradient, *np.random.default_rng(0).normal(size=(3, start.size))]
    units = [d / norm for d in directions if (norm := np.linalg.norm(d)) > 0]
    found = [linearize(project(distance * length * unit)) for unit in units for distance in (0.01, 0.1, 1.0)]
    return [first, *(point for point in found if point is not None)]


def _finite(linearize: Linearize, step: np.ndarray) -> Linearization:
    """The linearization at the step, or at the first half, quarter, … of it where all numbers are finite, as they are at x."""
    while (found := linearize(step)) is None:
        step = np.where(np.abs(step) > 1e-30, 0.5 * step, 0.0)
    return found


class WeakConvexity(NamedTuple):
    """Moduli of weak convexity of the objective and of each row."""

    objective: Any
    rows: np.ndarray


class Scales(NamedTuple):
    """Units of the numbers near x.

    Attributes:
        length: the expected distance between x and x̂.
        slope: the largest norm of the objective's gradient.
        row_slopes: the same for each row; 1 where it is zero.
        rounding: the error of a value of the objective.
        row_rounding: the same for each row.
        equality: which rows are equalities.
        eps: the relative error of a value.
    """

    length: float
    slope: float
    row_slopes: np.ndarray
    rounding: float
    row_rounding: np.ndarray
    equality: np.ndarray
    eps: float

    @classmethod
    def of(
        cls, points: list[Linearization], equality: np.ndarray, bound: np.ndarray, length: float, eps: float
    ) -> Scales:
        """The scales of the functions at some points; a row is a difference of values as large as its bound."""
        slope = max(float(np.linalg.norm(point.gradient)) for point in points) or 1.0
        row_slopes = np.max([np.linalg.norm(point.jacobian, axis=1) for point in points], axis=0)
        row_slopes = np.where(row_slopes > 0, row_slopes, 1.0)
        row_sizes = np.abs(points[0].rows) + bound + row_slopes * length
        size = abs(points[0].value) + slope * length
        return cls(length, slope, row_slopes, eps * size, eps * row_sizes, equality, eps)

    def weak_convexity(self, points: list[Linearization]) -> WeakConvexity:
        """The largest 2 (linearization at y − value at z) / ‖y − z‖² over pairs of points, beyond rounding."""
        steps = np.stack([point.step for point in points])
        values = np.stack([np.append(point.value, point.rows) for point in points])
        rounding, worst = 4.0 * np.append(self.rounding, self.row_rounding), np.zeros(values.shape[1])
        for point, own in zip(points, values, strict=True):
            difference = steps - point.step
            square = np.sum(difference**2, axis=1)
            apart = square > (1e-3 * self.length) ** 2
            slopes = np.vstack([point.gradient, point.jacobian])
            above = own + difference[apart] @ slopes.T - values[apart] - rounding
            worst = np.max([worst, *(2.0 * above / square[apart, None])], axis=0)
        return WeakConvexity(worst[0], np.where(self.equality, 0.0, worst[1:]))


class ProximalSolution(NamedTuple):
    """The step x̂ − x (∞ if there is none), its error, and the moduli of weak convexity at the points it visited."""

    step: np.ndarray
    error: float
    moduli: WeakConvexity


class Cut(NamedTuple):
    """A cutting plane: a linear function of the step, below the objective or below a row."""

    of_row: bool
    height: float
    slope: np.ndarray


class ProximalProblem(NamedTuple):
    """Problem (4), on any sample.

    Attributes:
        project: the projection of a step onto X − x.
        scales: units of all numbers.
        weight: ρ̂.
        moduli: the moduli of weak convexity that are allowed for; those of the rows are the ρ̃.
    """

    project: Project
    scales: Scales
    weight: float
    moduli: WeakConvexity

    @classmethod
    def from_moduli(cls, project: Project, scales: Scales, moduli: WeakConvexity) -> ProximalProblem:
        """The problem for functions with these moduli, with room for larger ones."""
        least = scales.slope / scales.length
        allowed = WeakConvexity(float(1.5 * moduli.objective + 0.1 * least), 2.0 * moduli.rows)
        return cls(project, scales, float(2.0 * moduli.objective + least), allowed)

    @property
    def strong_convexity(self) -> float:
        """The modulus μ of the penalized problem."""
        return self.weight - self.moduli.objective

    def allows(self, moduli: WeakConvexity) -> bool:
        """Whether functions with these moduli are convex with their proximal terms; rows to a hundredth of their slopes."""
        beyond = (moduli.rows - self.moduli.rows) * self.scales.length <= 0.01 * self.scales.row_slopes
        return bool(moduli.objective <= self.moduli.objective and beyond.all())

    def solve(self, linearize: Linearize, start: np.ndarray) -> ProximalSolution:
        """Cutting planes from the step 0: minimize the model, add the cuts at its minimizer, until the gap is closed."""
        scales = self.scales
        first = _finite(linearize, start)
        bundle, normal, penalty = [first], np.zeros_like(first.step), 2.0 * scales.slope
        fixed, cuts = [Cut(True, 0.0, normal), *self._equation_cuts(first)], self._cuts(first, ~scales.equality)
        best, error = normal, np.inf
        for _ in range(int(np.clip(MAX_BUNDLE_NUMBERS / (first.jacobian.size + 2 * start.size), 5, MAX_CUT_ROUNDS))):
            weights, step, normal, lower = self._minimize(fixed + cuts, penalty, normal)
            beyond = max(cut.height + cut.slope @ step for cut in fixed + cuts if cut.of_row)
            if beyond > 1e-6 * scales.length and penalty < MAX_PENALTY * scales.slope:
                penalty *= 4.0
                continue
            gap = max(min(self._value(point, first, penalty) for point in bundle) - lower, 0.0)
            rounding = scales.rounding + penalty * np.max(scales.row_rounding / scales.row_slopes, initial=0.0)
            rounding += scales.eps * np.linalg.norm(normal) * scales.length
            now = float(np.sqrt(2.0 * (gap + rounding) / self.strong_convexity))
            if now < error:
                best, error = step, now
            if gap <= rounding or error <= RELATIVE_ERROR * (np.linalg.norm(best) + 0.1 * scales.length):
                break
            bundle.append(_finite(linearize, step))
            used = [cut for cut, weight in zip(cuts, weights[len(fixed) :], strict=True) if weight > 1e-7]
            cuts = used + self._cuts(bundle[-1], self._most_violated(bundle[-1]))
        if min(self._violation(point, first) for point in bundle) > 1e-4 * scales.length:
            best = np.full_like(best, np.inf)
        return ProximalSolution(best, error, scales.weak_convexity(bundle))

    def _rows(self, point: Linearization) -> np.ndarray:
        """The rows with their proximal terms, divided by their slopes."""
        return (point.rows + 0.5 * self.moduli.rows * (point.step @ point.step)) / self.scales.row_slopes

    def _most_violated(self, point: Linearization) -> np.ndarray:
        """The violated inequalities; if there are none, the inequality closest to violation."""
        rows = np.where(self.scales.equality, -np.inf, self._rows(point))
        return ((rows > 0) | (rows == np.max(rows, initial=-np.inf))) & ~self.scales.equality

    def _cuts(self, point: Linearization, which: np.ndarray) -> list[Cut]:
        """Tangents at a point of the convexified objective and of some convexified rows."""
        step, half, values = point.step, 0.5 * float(point.step @ point.step), self._rows(point)
        slope = point.gradient + self.moduli.objective * step
        found = [Cut(False, point.value + self.moduli.objective * half - float(slope @ step), slope)]
        for i in np.flatnonzero(which):
            slope = (point.jacobian[i] + self.moduli.rows[i] * step) / self.scales.row_slopes[i]
            found.append(Cut(True, float(values[i] - slope @ step), slope))
        return found

    def _equation_cuts(self, first: Linearization) -> list[Cut]:
        """The linearized equations, each as two inequalities."""
        signed = [
            (sign / self.scales.row_slopes[i], i) for i in np.flatnonzero(self.scales.equality) for sign in (1, -1)
        ]
        return [Cut(True, factor * first.rows[i], factor * first.jacobian[i]) for factor, i in signed]

    def _violation(self, point: Linearization, first: Linearization) -> float:
        """The largest row of (4), divided by its slope; 0 if none is positive."""
        linear = np.abs(first.rows + first.jacobian @ point.step) / self.scales.row_slopes
        return float(np.max(np.where(self.scales.equality, linear, self._rows(point)), initial=0.0))

    def _value(self, point: Linearization, first: Linearization, penalty: float) -> float:
        """The objective of (4) plus the penalty."""
        square = float(point.step @ point.step)
        return point.value + 0.5 * self.weight * square + penalty * self._violation(point, first)

    def _minimize(
        self, cuts: list[Cut], penalty: float, normal: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Return the weights of the cuts, the minimizer of the model, the normal of X there, and the lower bound.

        Without X the best weights solve one quadratic program. With it, the weights and the normal are improved in turn.
        """
        of_row, strong = np.array([cut.of_row for cut in cuts]), self.strong_convexity
        factor = np.where(of_row, penalty, 1.0)
        heights = factor * np.array([cut.height for cut in cuts])
        slopes = factor[:, None] * np.stack([cut.slope for cut in cuts])
        gram = slopes @ slopes.T / strong

        def improve(normal: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            weights = simplex_quadratic(gram, heights - slopes @ normal / strong, of_row)
            free = -(weights @ slopes) / strong
            step = self.project(free)
            return weights, step, strong * (free - step)

        before, (weights, step, normal) = normal, improve(normal)
        for _ in range(MAX_ALTERNATIONS):
            if np.linalg.norm(normal - before) <= 1e-6 * np.linalg.norm(normal):
                break
            before, (weights, step, normal) = normal, improve(normal)
        lower = weights @ (heights + slopes @ step) + 0.5 * strong * (step @ step)
        return weights, step, normal, float(lower)
