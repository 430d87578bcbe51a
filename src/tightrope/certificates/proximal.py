"""How far a point of a non-smooth problem is from being stationary: the distance to the solution of a proximal problem.

At a kink a gradient says little: at the solution of min |x| it may be 1. Paper 4 (Huang, Lin) measures ‖x̂ − x‖ instead, with

    x̂ = argmin over y in X of  f(y) + ρ̂/2 ‖y − x‖²   subject to   g_i(y) + ρ̃_i/2 ‖y − x‖² ≤ 0                     (4)

where ρ̂ exceeds the modulus of weak convexity of f (the least ρ that makes f + ρ/2 ‖·‖² convex) and ρ̃_i that of g_i. By (6)
there, x̂ is stationary to about ρ̂ ‖x̂ − x‖, and x is that near to it.

- The moduli are the largest 2 (linearization at y − value at z) / ‖y − z‖² seen over pairs of points: a few around x, and all
  that the solution of (4) goes through; where these show more than was taken, (4) is solved anew. Then ρ̂ = 2ρ + M/D, with M
  the largest gradient of f near x and D = max(1, ‖x‖) or the diameter of X, and ρ̃_i = 2ρ_i, which is 0 for a convex g_i.
- Equations, for which a proximal term makes no sense, are linearized at x: exact for linear ones, as in Remark A.2.
- The constraints enter as the exact penalty Λ max(0, largest row), rows divided by their gradients and Λ raised until less
  than half of it is used; where that never happens (4) has no feasible point, and the distance is ∞.

The penalized problem is μ-strongly convex and is solved by cutting planes, in double precision. Whatever weights w the cuts
are given, the minimum over X of their weighted sum and μ/2 ‖y − x‖² is a lower bound D(w), taken at y(w), and with an upper
bound U from any point ‖y(w) − x̂‖ ≤ sqrt(2 (U − D(w))/μ). That is the error reported. In float32 the rounding of U alone
makes it some 1e-4 or 1e-3; the solution itself is nearer.

Data of up to `WHOLE` rows is used whole, and the interval is that error: it holds if the moduli were seen right, which is not
proved. Otherwise (4) is solved on `REPEATS` fresh samples, and the interval is asymptotic: Student's t on the mean of x̂ − x.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..domains import Reals
from ..oracles.oracle import Oracle, Sample
from ..problems.data import Dataset, Span
from ..problems.problem import Problem, cached_on_problem
from .intervals import student_width

WHOLE = 2**16
"""Data with at most this many rows is used whole."""
ROWS, REPEATS = 4096, 8
"""Rows of a sample where it is not, and how many samples."""
ROUNDS, ATTEMPTS, LARGEST = 100, 5, 1e6
"""Rounds of cuts, times that moduli are corrected, and the penalty in units of the objective's slope, at most."""
NUMBERS = 5e7
"""How many numbers the points that were looked at may take; fewer rounds are made where they would take more."""
MAX_ROUNDS = 20
"""Times that weights of cuts and normals of X are improved in turn, at most."""
ENOUGH = 1e-3
"""The error at which a solution will do, relative to ‖x̂ − x‖ and a tenth of D."""
ROUNDING = 4.0
"""In units of eps: how wrong a value of a function may be, relatively."""


class Near(NamedTuple):
    """The steps x̂ − x of all samples, how wrong they may be, and ρ̂."""

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
        """‖x̂ − x‖ and the ends of its interval, missed with probability `risk`; ∞ where (4) has no feasible point."""
        value, reach = float(np.linalg.norm(self.steps.mean(axis=0))), self.error
        if not np.isfinite(value):
            return np.inf, 0.0, np.inf
        if self.sampled:
            spread = float(np.linalg.norm(self.steps.std(axis=0, ddof=1))) / len(self.steps) ** 0.5
            reach += student_width(risk, len(self.steps)) * spread
        return value, max(value - reach, 0.0), value + reach


class Look(NamedTuple):
    """A point, as a step from x, and the values and derivatives of all functions there."""

    step: np.ndarray
    value: float
    gradient: np.ndarray
    rows: np.ndarray
    jacobian: np.ndarray


LookAt = Callable[[np.ndarray], Look | None]
"""What looks at a point, on a sample; None where a number there is not finite."""


def near_stationarity(problem: Problem, oracle: Oracle, x: Float[Array, " n"], key: Array) -> Near | None:
    """‖x̂ − x‖ at the flat point x of an oracle in native form, whose set can project; None where x has no finite values."""
    look_at, project = cached_on_problem(problem, ("near", oracle.parameters.key), lambda: _programs(oracle))
    leaves, center, eps = oracle.leaves(), np.asarray(x, float), float(jnp.finfo(x.dtype).eps)

    def looker(sample: Sample) -> LookAt:
        def look(step: np.ndarray) -> Look | None:
            y = np.asarray(center + step, x.dtype)
            value, *rest = (np.asarray(part, float) for part in jax.device_get(look_at(leaves, y, sample)))
            finite = np.isfinite(value) and all(np.isfinite(part).all() for part in rest)
            return Look(y - center, float(value), *rest) if finite else None

        return look

    def into(step: np.ndarray) -> np.ndarray:
        if isinstance(oracle.domain, Reals):
            return step
        return np.asarray(project(leaves, np.asarray(center + step, x.dtype)), float) - center

    looks, here = [looker(sample) for sample in _samples(oracle, key)], np.zeros(center.size)
    if any(look(here) is None for look in looks):
        return None
    length = float(min(oracle.diameter(), max(1.0, np.linalg.norm(center))))
    probes = _probes(looks[0], into, length, here)
    scales = Scales.seen(probes, oracle.equality, np.abs(oracle.rows.bound), length, ROUNDING * eps)
    bent, near = scales.bent(probes), Near(np.zeros((1, center.size)), np.inf, 0.0)
    for _ in range(ATTEMPTS):
        proximal = Proximal(into, scales, bent)
        solved = [proximal.solve(look, here) for look in looks]
        near = Near(np.stack([s.step for s in solved]), float(np.mean([s.error for s in solved])), proximal.weight)
        bent = WeakConvexity(*(np.max(found, axis=0) for found in zip(bent, *(s.bent for s in solved), strict=True)))
        if proximal.allows(bent):
            return near
    return near._replace(error=np.inf)


def _programs(oracle: Oracle) -> tuple[Any, Any]:
    """Values and derivatives of all functions at a point, and the projection on X."""
    structure = jax.tree.structure(oracle)

    def look(leaves: list[Array], y: Float[Array, " n"], sample: Sample) -> Any:
        return jax.tree.unflatten(structure, leaves).first_order(y, sample)

    return jax.jit(look), jax.jit(lambda leaves, y: jax.tree.unflatten(structure, leaves).project(y))


def _samples(oracle: Oracle, key: Array) -> list[Sample]:
    """All data where it is small, else fresh samples."""
    small = [isinstance(source, Dataset) and source.size <= WHOLE for source in oracle.sources]

    def sample(number: int) -> Sample:
        drawn = oracle.draw(jax.random.fold_in(key, number), ROWS)
        parts = zip(oracle.sources, small, drawn, strict=True)
        return tuple(Span(0, s.size) if isinstance(s, Dataset) and whole else part for s, whole, part in parts)

    return [sample(number) for number in range(1 if all(small) else REPEATS)]


def _probes(look: LookAt, into: Callable[[np.ndarray], np.ndarray], length: float, here: np.ndarray) -> list[Look]:
    """The point x itself and points around it: down the gradient and in three random directions, at three distances."""
    first = _finite(look, here)
    directions = [-first.gradient, *np.random.default_rng(0).normal(size=(3, here.size))]
    units = [d / norm for d in directions if (norm := np.linalg.norm(d)) > 0]
    found = [look(into(distance * length * unit)) for unit in units for distance in (0.01, 0.1, 1.0)]
    return [first, *(probe for probe in found if probe is not None)]


def _finite(look: LookAt, step: np.ndarray) -> Look:
    """The first point, on the way back to x, where all numbers are finite, as they are at x."""
    while (found := look(step)) is None:
        step = np.where(np.abs(step) > 1e-30, 0.5 * step, 0.0)
    return found


class WeakConvexity(NamedTuple):
    """How far functions are from convex: moduli of weak convexity of the objective and of each row."""

    objective: Any
    rows: np.ndarray


class Scales(NamedTuple):
    """What the numbers near x are measured by.

    Attributes:
        length: how far x may be expected to move.
        slope: the largest gradient of the objective seen.
        row_slopes: the same for each row; 1 where there is none.
        rounding: how wrong a value of the objective may be.
        row_rounding: the same for each row.
        equality: which rows are equations.
    """

    length: float
    slope: float
    row_slopes: np.ndarray
    rounding: float
    row_rounding: np.ndarray
    equality: np.ndarray
    eps: float

    @classmethod
    def seen(cls, probes: list[Look], equality: np.ndarray, bound: np.ndarray, length: float, eps: float) -> Scales:
        """The scales of the functions at some points; a row is a difference of values as large as its bound."""
        slope = max(float(np.linalg.norm(probe.gradient)) for probe in probes) or 1.0
        row_slopes = np.max([np.linalg.norm(probe.jacobian, axis=1) for probe in probes], axis=0)
        row_slopes = np.where(row_slopes > 0, row_slopes, 1.0)
        row_sizes = np.abs(probes[0].rows) + bound + row_slopes * length
        size = abs(probes[0].value) + slope * length
        return cls(length, slope, row_slopes, eps * size, eps * row_sizes, equality, eps)

    def bent(self, looks: list[Look]) -> WeakConvexity:
        """The largest 2 (linearization at y − value at z) / ‖y − z‖² over pairs of points, beyond rounding."""
        steps = np.stack([look.step for look in looks])
        values = np.stack([np.append(look.value, look.rows) for look in looks])
        rounding, worst = 4.0 * np.append(self.rounding, self.row_rounding), np.zeros(values.shape[1])
        for look, own in zip(looks, values, strict=True):
            way = steps - look.step
            square = np.sum(way**2, axis=1)
            far = square > (1e-3 * self.length) ** 2
            above = own + way[far] @ np.vstack([look.gradient, look.jacobian]).T - values[far] - rounding
            worst = np.max([worst, *(2.0 * above / square[far, None])], axis=0)
        return WeakConvexity(worst[0], np.where(self.equality, 0.0, worst[1:]))


class Solved(NamedTuple):
    """The step x̂ − x (∞ where there is none), how wrong it may be, and how functions were seen to bend on the way."""

    step: np.ndarray
    error: float
    bent: WeakConvexity


class Cut(NamedTuple):
    """A linear function of the step, below the objective or below a row."""

    of_row: bool
    height: float
    slope: np.ndarray


class Proximal:
    """Problem (4), on any sample."""

    def __init__(self, into: Callable[[np.ndarray], np.ndarray], scales: Scales, bent: WeakConvexity):
        self.into, self.scales = into, scales
        least = scales.slope / scales.length
        self.weight = float(2.0 * bent.objective + least)
        self.allowed = WeakConvexity(float(1.5 * bent.objective + 0.1 * least), 2.0 * bent.rows)
        self.strong = self.weight - self.allowed.objective

    def allows(self, bent: WeakConvexity) -> bool:
        """Whether functions that bend so are convex with their proximal terms; rows to a hundredth of their slopes."""
        beyond = (bent.rows - self.allowed.rows) * self.scales.length <= 0.01 * self.scales.row_slopes
        return bool(bent.objective <= self.allowed.objective and beyond.all())

    def solve(self, look: LookAt, start: np.ndarray) -> Solved:
        """From the step 0: look at the minimizer of the model, cut there, and again until the gap is closed."""
        scales = self.scales
        first = _finite(look, start)
        looks, normal, penalty = [first], np.zeros_like(first.step), 2.0 * scales.slope
        fixed, cuts = [Cut(True, 0.0, normal), *self._equations(first)], self._cuts(first, ~scales.equality)
        best, error = normal, np.inf
        for _ in range(int(np.clip(NUMBERS / (first.jacobian.size + 2 * start.size), 5, ROUNDS))):
            weights, step, normal, lower = self._minimize(fixed + cuts, penalty, normal)
            beyond = max(cut.height + cut.slope @ step for cut in fixed + cuts if cut.of_row)
            if beyond > 1e-6 * scales.length and penalty < LARGEST * scales.slope:
                penalty *= 4.0
                continue
            gap = max(min(self._value(seen, first, penalty) for seen in looks) - lower, 0.0)
            rounding = scales.rounding + penalty * np.max(scales.row_rounding / scales.row_slopes, initial=0.0)
            rounding += scales.eps * np.linalg.norm(normal) * scales.length
            now = float(np.sqrt(2.0 * (gap + rounding) / self.strong))
            if now < error:
                best, error = step, now
            if gap <= rounding or error <= ENOUGH * (np.linalg.norm(best) + 0.1 * scales.length):
                break
            looks.append(_finite(look, step))
            used = [cut for cut, weight in zip(cuts, weights[len(fixed) :], strict=True) if weight > 1e-7]
            cuts = used + self._cuts(looks[-1], self._worst(looks[-1]))
        if min(self._violation(seen, first) for seen in looks) > 1e-4 * scales.length:
            best = np.full_like(best, np.inf)
        return Solved(best, error, scales.bent(looks))

    def _rows(self, look: Look) -> np.ndarray:
        """The rows with their proximal terms, divided by their slopes."""
        return (look.rows + 0.5 * self.allowed.rows * (look.step @ look.step)) / self.scales.row_slopes

    def _worst(self, look: Look) -> np.ndarray:
        """The inequalities that are violated, or else the one that is nearest to it."""
        rows = np.where(self.scales.equality, -np.inf, self._rows(look))
        return ((rows > 0) | (rows == np.max(rows, initial=-np.inf))) & ~self.scales.equality

    def _cuts(self, look: Look, which: np.ndarray) -> list[Cut]:
        """Tangents of the objective and of some rows, made convex, at a point."""
        step, half, values = look.step, 0.5 * float(look.step @ look.step), self._rows(look)
        slope = look.gradient + self.allowed.objective * step
        found = [Cut(False, look.value + self.allowed.objective * half - float(slope @ step), slope)]
        for i in np.flatnonzero(which):
            slope = (look.jacobian[i] + self.allowed.rows[i] * step) / self.scales.row_slopes[i]
            found.append(Cut(True, float(values[i] - slope @ step), slope))
        return found

    def _equations(self, first: Look) -> list[Cut]:
        """The linearized equations, from both sides."""
        signed = [
            (sign / self.scales.row_slopes[i], i) for i in np.flatnonzero(self.scales.equality) for sign in (1, -1)
        ]
        return [Cut(True, factor * first.rows[i], factor * first.jacobian[i]) for factor, i in signed]

    def _violation(self, look: Look, first: Look) -> float:
        """The largest row of (4), divided by its slope; 0 where none is positive."""
        linear = np.abs(first.rows + first.jacobian @ look.step) / self.scales.row_slopes
        return float(np.max(np.where(self.scales.equality, linear, self._rows(look)), initial=0.0))

    def _value(self, look: Look, first: Look, penalty: float) -> float:
        """The objective of (4) and the penalty."""
        square = float(look.step @ look.step)
        return look.value + 0.5 * self.weight * square + penalty * self._violation(look, first)

    def _minimize(
        self, cuts: list[Cut], penalty: float, normal: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """The weights of the cuts, the minimizer of the model, the normal of X there, and the lower bound.

        Without X the best weights solve one quadratic program. With it they and the normal are improved in turn.
        """
        of_row = np.array([cut.of_row for cut in cuts])
        factor = np.where(of_row, penalty, 1.0)
        heights = factor * np.array([cut.height for cut in cuts])
        slopes = factor[:, None] * np.stack([cut.slope for cut in cuts])
        gram = slopes @ slopes.T / self.strong

        def improve(normal: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            weights = simplex_quadratic(gram, heights - slopes @ normal / self.strong, of_row)
            free = -(weights @ slopes) / self.strong
            step = self.into(free)
            return weights, step, self.strong * (free - step)

        before, (weights, step, normal) = normal, improve(normal)
        for _ in range(MAX_ROUNDS):
            if np.linalg.norm(normal - before) <= 1e-6 * np.linalg.norm(normal):
                break
            before, (weights, step, normal) = normal, improve(normal)
        lower = weights @ (heights + slopes @ step) + 0.5 * self.strong * (step @ step)
        return weights, step, normal, float(lower)


def simplex_quadratic(matrix: np.ndarray, linear: np.ndarray, second: np.ndarray, rounds: int = 60) -> np.ndarray:
    """Argmin ½ wᵀKw − bᵀw over w ≥ 0 whose entries in `second` add up to 1, and whose others do too.

    Mehrotra's predictor-corrector method on Kw − b + Gᵀy = z, Gw = 1, w z = 0; of all rounds that with the least residual.
    """
    groups = np.stack([~second, second]).astype(float)
    size = max(np.abs(matrix).max(), np.ptp(linear[second]), np.ptp(linear[~second])) or 1.0
    K, b = matrix / size, (linear - groups.T @ [linear[~second].max(), linear[second].max()]) / size
    w, z, y = groups.T @ (1.0 / groups.sum(axis=1)), np.ones(linear.size), np.zeros(2)
    best, least = w, np.inf
    for _ in range(rounds):
        dual, primal, mean = K @ w - b + groups.T @ y - z, groups @ w - 1.0, w @ z / w.size
        residual = max(mean, np.abs(dual).max(), np.abs(primal).max())
        if residual < least:
            best, least = w, residual
        if not residual > 1e-11:
            break
        inverse = np.linalg.inv(K + np.diag(z / w + 1e-13))
        newton = partial(_newton, w, z, dual, primal, groups, inverse, np.linalg.inv(groups @ inverse @ groups.T))
        dw, dz, _ = newton(np.zeros_like(w))
        reached = (w + _longest(w, dw) * dw) @ (z + _longest(z, dz) * dz) / w.size
        dw, dz, dy = newton((reached / mean) ** 3 * mean - dw * dz)
        step = min(_longest(w, dw), _longest(z, dz))
        w, z, y = w + step * dw, z + step * dz, y + step * dy
    return best / (groups.T @ (groups @ best))


def _newton(
    w: np.ndarray,
    z: np.ndarray,
    dual: np.ndarray,
    primal: np.ndarray,
    groups: np.ndarray,
    inverse: np.ndarray,
    outer: np.ndarray,
    target: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The step of w, z and y towards w z = target."""
    push = target / w - z - dual
    dy = outer @ (groups @ inverse @ push + primal)
    dw = inverse @ (push - groups.T @ dy)
    return dw, target / w - z - z / w * dw, dy


def _longest(value: np.ndarray, change: np.ndarray) -> float:
    """The longest step, at most 1, that keeps a vector positive."""
    return min(1.0, 0.995 * float(np.min(-value[change < 0] / change[change < 0], initial=np.inf)))
