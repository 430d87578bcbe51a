"""Judging an answer: objective, violation and stationarity at a point, each with its interval, and a verdict.

Finite data of up to `FULL_PASS` rows is passed over in full: those numbers are exact for that data. Larger data and
samplers are estimated from fresh samples in `BATCHES` independent batches; the intervals are then those of the central
limit theorem for batch means (Student's t), divided over all quantities so that they hold jointly, and labelled asymptotic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .data import Dataset, Source
from .evaluation import Evaluation, complementarity, largest, raw_violations, stationarity
from .oracle import Oracle, Sample
from .parameters import Parameters
from .problem import Problem
from .programs import made_once, programs_for
from .reformulate import oracle_for
from .validate import check_functions, number

FULL_PASS = 2**20
"""Data with at most this many rows is passed over in full."""
BATCHES = 64
BATCH_ROWS = 1024


class Estimate(NamedTuple):
    """A number and an interval for it.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end.
        kind: 'exact', 'bound' (holds for any sample size) or 'asymptotic' (central limit theorem).

    Example:
        >>> import tightrope as tr
        >>> print(tr.Estimate(0.5, 0.4, 0.6, "asymptotic"))
        0.5  [0.4, 0.6]
    """

    value: float
    low: float
    high: float
    kind: Literal["exact", "bound", "asymptotic"]

    def __str__(self) -> str:
        return f"{self.value:.4g}" + ("" if self.kind == "exact" else f"  [{self.low:.4g}, {self.high:.4g}]")


class Certificate(NamedTuple):
    """What is known about a point; the intervals hold jointly at the confidence asked for.

    Attributes:
        objective: E objective(x).
        violation: for each constraint by name, how far it is outside its bounds.
        stationarity: distance of ∇F + Jᵀλ to −N_X(x), with least-squares multipliers, λ ≥ 0 for inequalities.
        complementarity: the largest |λ_i g_i| over the inequalities.
        multipliers: the multipliers of `stationarity`, by name.
        verdict: 'feasible', 'infeasible' or 'undecided' at `tolerance`.
        tolerance: the violation that counts as none.
        confidence: the probability with which all intervals hold.
        samples: rows used.
    """

    objective: Estimate
    violation: dict[str, Estimate]
    stationarity: Estimate
    complementarity: Estimate
    multipliers: dict[str, Any]
    verdict: Literal["feasible", "infeasible", "undecided"]
    tolerance: float
    confidence: float
    samples: int

    @property
    def largest_violation(self) -> Estimate:
        """The violation of the constraint that is violated most; zero where there is none."""
        return max(self.violation.values(), key=lambda e: e.value, default=Estimate(0.0, 0.0, 0.0, "exact"))

    def __str__(self) -> str:
        lines = [f"{self.verdict} at tolerance {self.tolerance:g}", f"  objective        {self.objective}"]
        lines += [f"  violation of {name}  {estimate}" for name, estimate in self.violation.items()]
        lines += [f"  stationarity     {self.stationarity}", f"  complementarity  {self.complementarity}"]
        return "\n".join(lines)


def certify(
    problem: Problem,
    x: PyTree[Any],
    *,
    data: Source | None = None,
    tolerance: float = 1e-3,
    confidence: float = 0.95,
    seed: int = 0,
) -> Certificate:
    """Judge a point: is it feasible, is it stationary, what is its objective, and how sure is that?

    Args:
        problem: what it claims to solve.
        x: the point, a pytree of parameters.
        data: judge it on these samples in place of the problem's own (a test set, say).
        tolerance: the largest violation that counts as feasible.
        confidence: the probability with which all intervals hold together.
        seed: seed of the fresh samples; change it to judge again on others.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(jnp.sum, 1.0, name="total"))
        >>> certificate = tr.certify(problem, jnp.array([0.5, 0.5]))
        >>> certificate.verdict, round(certificate.multipliers["total"], 3)
        ('feasible', -1.0)
    """
    tolerance = number("certify", "tolerance", tolerance, low=0.0, strict=False)
    confidence = number("certify", "confidence", confidence, low=0.0, high=1.0)
    if data is not None:
        problem = _on_data(problem, data)
    parameters = Parameters(x)
    sizes = check_functions(problem, parameters)
    oracle = oracle_for(problem, parameters, sizes)
    return certify_point(problem, oracle, parameters.start, tolerance, confidence, seed)


def _on_data(problem: Problem, data: Source) -> Problem:
    moved = [c if c.data is None else replace(c, data=data) for c in problem.constraints]
    return Problem(problem.objective, moved, domain=problem.domain, data=None if problem.data is None else data)


class Measured(NamedTuple):
    """Numbers with their half-widths (zero where all data was used); violations as (value, low, high) of each raw value."""

    objective: Any
    objective_reach: Any
    violations: Any
    stationarity: Any
    stationarity_reach: Any
    complementarity: Any
    complementarity_reach: Any
    multipliers: Any


def _measure(oracle: Oracle, x: Float[Array, " n"], keys: Array, width: Array) -> Measured:
    """All measurements at x, from a fresh batch for each key; intervals are `width` standard errors wide."""

    def at(sample: Sample) -> tuple[Array, Array, Array, Array]:
        value, gradient = oracle.value_and_grad(x, sample)
        return value, gradient, oracle.c(x, sample), oracle.jac(x, sample)

    (value, gradient, rows, jacobian), (value_error, _, row_errors, _) = _over_batches(oracle, at, keys)
    multipliers, residual = stationarity(oracle, x, gradient, rows, jacobian)

    def lagrangian_gradient(sample: Sample) -> Array:
        _, pullback = oracle.vjp(x, sample)
        return oracle.grad(x, sample) + pullback(multipliers)

    _, errors = _over_batches(oracle, lagrangian_gradient, keys)
    reach, size = width * row_errors, jnp.where(oracle.equality, jnp.abs(rows), rows)
    return Measured(
        value,
        width * value_error,
        jnp.stack([raw_violations(oracle, jnp.maximum(end, 0.0)) for end in (size, size - reach, size + reach)]),
        jnp.linalg.norm(residual),
        width * jnp.linalg.norm(errors),
        complementarity(oracle, rows, multipliers),
        jnp.max(jnp.abs(multipliers) * reach, initial=0.0),
        oracle.rows.to_raw(multipliers),
    )


def _measure_exactly(problem: Problem, oracle: Oracle, x: Float[Array, " n"]) -> Measured:
    """All measurements at x, from all data; by the program that evaluates records, so that nothing new is compiled."""
    points = np.stack([x, x])
    found = jax.device_get(programs_for(problem, oracle).evaluate(oracle.leaves(), points, oracle.everything()))
    e = Evaluation(*(column[0] for column in found))
    violations = np.stack([e.violations] * 3)
    return Measured(e.objective, 0.0, violations, e.stationarity, 0.0, e.complementarity, 0.0, e.multipliers)


def _over_batches(oracle: Oracle, fn: Callable[[Sample], Any], keys: Array) -> tuple[Any, Any]:
    """Mean of fn over fresh batches and its standard error, by Welford's rule: one batch in memory at a time."""

    def draw_and_measure(key: Array) -> Any:
        return fn(oracle.draw(key, BATCH_ROWS))

    def add(carry: tuple[Array, Any, Any], key: Array) -> tuple[Any, None]:
        count, mean, square = carry
        count = count + 1.0
        delta = jax.tree.map(jnp.subtract, draw_and_measure(key), mean)
        mean = jax.tree.map(lambda m, d: m + d / count, mean, delta)
        square = jax.tree.map(lambda s, d: s + d**2 * (count - 1.0) / count, square, delta)
        return (count, mean, square), None

    shapes = jax.eval_shape(draw_and_measure, keys[0])
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (_, mean, square), _ = jax.lax.scan(add, (jnp.float32(0.0), zero, zero), keys)
    return mean, jax.tree.map(lambda s: jnp.sqrt(s / (keys.size * (keys.size - 1))), square)


def certify_point(
    problem: Problem, oracle: Oracle, x: Float[Array, " n"], tolerance: float, confidence: float, seed: int
) -> Certificate:
    """`certify` for a flat point of an oracle in native form."""
    exact = all(isinstance(source, Dataset) and source.size <= FULL_PASS for source in oracle.sources)
    if exact:
        m = _measure_exactly(problem, oracle, x)
    else:
        fresh = jax.random.fold_in(jax.random.key(seed), np.uint32(2**32 - 1))  # a stream that no step of a run uses
        program = made_once(problem, ("certify", oracle.parameters.key), lambda: _program(oracle))
        width = _student(1.0 - (1.0 - confidence) / (2 * (3 + len(oracle.rows.index))), BATCHES - 1)
        m = jax.device_get(program(oracle.leaves(), x, jax.random.split(fresh, BATCHES), width))
    violation = _violations(problem, oracle, m)
    return Certificate(
        objective=_estimate(m.objective, m.objective_reach),
        violation=violation,
        stationarity=_estimate(m.stationarity, m.stationarity_reach, 0.0),
        complementarity=_estimate(m.complementarity, m.complementarity_reach, 0.0),
        multipliers=by_constraint(problem, oracle, m.multipliers),
        verdict=_verdict(violation, tolerance),
        tolerance=tolerance,
        confidence=confidence,
        samples=sum(s.size if isinstance(s, Dataset) and exact else BATCHES * BATCH_ROWS for s in oracle.sources),
    )


def _estimate(value: Any, reach: Any, least: float = -np.inf) -> Estimate:
    value, reach = float(value), float(reach)
    return Estimate(value, max(value - reach, least), value + reach, "exact" if reach == 0.0 else "asymptotic")


def _program(oracle: Oracle) -> Any:
    structure = jax.tree.structure(oracle)
    return jax.jit(lambda leaves, *rest: _measure(jax.tree.unflatten(structure, leaves), *rest))


def _student(probability: float, freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def _violations(problem: Problem, oracle: Oracle, m: Measured) -> dict[str, Estimate]:
    """For each constraint the largest violation over its entries, with the largest lower and upper ends."""
    found = {}
    for constraint, entries in zip(problem.constraints, oracle.slices().values(), strict=True):
        value, low, high = (largest(end[entries]) for end in m.violations)
        found[constraint.name] = Estimate(value, low, high, "exact" if low == value == high else "asymptotic")
    return found


def by_constraint(problem: Problem, oracle: Oracle, multipliers: Float[np.ndarray, " raw"]) -> dict[str, Any]:
    """Raw multipliers by name: a number where the constraint is one number; `at_least` counts them for low − h ≤ 0."""
    named = {}
    for c, entries in zip(problem.constraints, oracle.slices().values(), strict=True):
        values = multipliers[entries] * (-1.0 if c.kind == "at_least" else 1.0)
        named[c.name] = float(values[0]) if values.size == 1 else values
    return named


def _verdict(violation: dict[str, Estimate], tolerance: float) -> Literal["feasible", "infeasible", "undecided"]:
    if all(estimate.high <= tolerance for estimate in violation.values()):
        return "feasible"
    return "infeasible" if any(estimate.low > tolerance for estimate in violation.values()) else "undecided"
