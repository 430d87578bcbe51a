"""Judging an answer: objective, violation and stationarity at a point, each with its interval, and a verdict.

Each quantity is judged by its own sources. What has no data is exact, and so is what comes from a `Dataset` of at most
`FULL_PASS` rows, which is passed over in full. All else is estimated from fresh samples, in independent batches of
`BATCH_ROWS` rows: the intervals are those of the central limit theorem for batch means (Student's t), labeled asymptotic.
A constraint with a `sample_range` gets a bound that holds for any number of rows instead: its function is evaluated row by
row, on batches of one. The risk of a miss is divided evenly over all numbers that are estimated, so that all intervals
hold jointly.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..arguments import number, positive_int
from ..oracles.build import oracle_for
from ..oracles.oracle import Oracle
from ..oracles.rows import bounds
from ..problems.data import Dataset, Source
from ..problems.parameters import Parameters
from ..problems.problem import Problem, cached_on_problem
from .certificate import Certificate, Estimate, Kind, Verdict
from .evaluation import CERTIFICATE_PRODUCTS, Evaluation, largest
from .finite_sample import bounded_entries
from .intervals import outside, rows_to_decide, student_width
from .measurement import BATCH_ROWS, LEAST_BATCHES, NEAR, Measured, Plan, measuring
from .programs import programs_for
from .proximal import near_stationarity

FULL_PASS = 2**20
"""Data with at most this many rows is passed over in full."""
SAMPLES = 64 * BATCH_ROWS
"""Rows drawn from each source that is sampled, where nothing else is asked for."""
ROUNDING = 16.0
"""In units of eps: what summing a batch may do to a mean."""


def certify(
    problem: Problem,
    x: PyTree[Any],
    *,
    data: Source | None = None,
    tolerance: float = 1e-3,
    confidence: float = 0.95,
    seed: int = 0,
    samples: int | None = None,
) -> Certificate:
    """Judge a point: is it feasible, is it stationary, what is its objective, and how sure is that?

    Args:
        problem: what it claims to solve.
        x: the point, a pytree of parameters.
        data: judge it on these samples in place of the problem's own (a test set, say).
        tolerance: the largest violation that counts as feasible.
        confidence: the probability with which all intervals hold together.
        seed: seed of the fresh samples; change it to judge again on others.
        samples: how many rows to draw from each source that cannot be passed over in full, in batches of 1,024 and
            at least 16 of them; None: 65,536.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(jnp.sum, 1.0, name="total"))
        >>> certificate = tr.certify(problem, jnp.array([0.5, 0.5]))
        >>> certificate.verdict, round(certificate.multipliers["total"], 3)
        ('feasible', -1.0)
    """
    tolerance = number("certify", "tolerance", tolerance, low=0.0, closed="[")
    confidence = number("certify", "confidence", confidence, low=0.0, high=1.0)
    rows = SAMPLES if samples is None else positive_int("certify", "samples", samples)
    if data is not None:
        problem = on_data(problem, data)
    parameters = Parameters(x, owner="certify", argument="x")
    oracle = oracle_for(problem, parameters)
    return certify_point(problem, oracle, parameters.start, tolerance, confidence, seed, rows, strict=True)


def on_data(problem: Problem, data: Source) -> Problem:
    moved = [c if c.data is None else replace(c, data=data) for c in problem.constraints]
    own = None if problem.data is None else data
    return Problem(problem.objective, moved, domain=problem.domain, data=own, smooth=problem.smooth)


def certify_point(
    problem: Problem,
    oracle: Oracle,
    x: Float[Array, " n"],
    tolerance: float,
    confidence: float,
    seed: int,
    samples: int = SAMPLES,
    strict: bool = False,
    exact: Evaluation | None = None,
) -> Certificate:
    """`certify` for a flat point of an oracle in native form.

    `exact` is the point's evaluation on all data, where that is known and all data can be passed over. Values that leave their
    `sample_range` are an error if `strict`; else, at the end of a run whose answer must not be lost, they are a warning, and
    intervals of constraints are asymptotic.
    """
    fresh = jax.random.fold_in(jax.random.key(seed), np.uint32(2**32 - 1))  # a stream that no step of a run uses
    plan = Plan(tuple(map(passed_in_full, oracle.sources)), max(-(-samples // BATCH_ROWS), LEAST_BATCHES))
    near = None
    if not problem.smooth and problem.domain.can_project and not oracle.large_jacobian:
        near = near_stationarity(problem, oracle, x, jax.random.fold_in(fresh, np.uint32(NEAR)))
    risk = (1.0 - confidence) / max(plan.numbers(oracle) + (near is not None and near.sampled), 1)
    if all(plan.exact):
        found = _found_exactly(problem, exact or evaluate_exactly(problem, oracle, np.asarray(x)[None])[0])
    else:
        found = _found_by_sampling(problem, oracle, x, plan, fresh, risk, strict)
    violation = {
        c.name: _estimate(kind, *(largest(end[entries]) for end in found.violations))
        for c, kind, entries in zip(problem.constraints, found.kinds, oracle.slices().values(), strict=True)
    }
    verdict = _verdict(violation, tolerance)
    more = rows_to_decide(found.excess, found.reach, tolerance, plan.rows) if verdict == "undecided" else None
    return Certificate(
        objective=found.objective,
        violation=violation,
        stationarity=found.stationarity,
        complementarity=found.complementarity,
        multipliers=by_constraint(problem, oracle, found.multipliers),
        verdict=verdict,
        tolerance=tolerance,
        confidence=confidence,
        samples=sum(s.size if isinstance(s, Dataset) and passed_in_full(s) else plan.rows for s in oracle.sources),
        more_samples=more,
        near_stationarity=None if near is None else _estimate(near.kind, *near.interval(risk)),
        proximal_weight=None if near is None else near.weight,
    )


class Found(NamedTuple):
    """All numbers of a certificate; those of the constraints have one entry for each raw value."""

    objective: Estimate
    violations: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Values, lower and upper ends."""
    kinds: list[Kind]
    """One for each constraint."""
    excess: np.ndarray
    reach: np.ndarray
    """How far each raw value is beyond its bounds, negative within, and the half-width of its interval."""
    stationarity: Estimate
    complementarity: Estimate
    multipliers: np.ndarray


def passed_in_full(source: Source) -> bool:
    """Whether a source is finite and of modest size."""
    return isinstance(source, Dataset) and source.size <= FULL_PASS


def _estimate(kind: Kind, value: Any, low: Any, high: Any) -> Estimate:
    return Estimate(float(value), float(low), float(high), kind)


def _exactly(value: Any) -> Estimate:
    return _estimate("exact", value, value, value)


def evaluate_exactly(problem: Problem, oracle: Oracle, points: Float[np.ndarray, "points n"]) -> list[Evaluation]:
    """Each point on all data; by the program that evaluates records, so that nothing new is compiled."""
    program = programs_for(problem, oracle).evaluate
    return program(oracle.leaves(), points, oracle.everything(), CERTIFICATE_PRODUCTS)


def _found_exactly(problem: Problem, e: Evaluation) -> Found:
    """All numbers from all data."""
    return Found(
        _exactly(e.objective),
        (e.violations,) * 3,
        ["exact"] * len(problem.constraints),
        e.violations,
        np.zeros_like(e.violations),
        _exactly(e.stationarity),
        _exactly(e.complementarity),
        e.multipliers,
    )


def _found_by_sampling(
    problem: Problem, oracle: Oracle, x: Float[Array, " n"], plan: Plan, fresh: Array, risk: float, strict: bool
) -> Found:
    """All numbers, some of them from samples."""
    program = cached_on_problem(
        problem, ("certify", oracle.parameters.key, plan.exact), lambda: measuring(oracle, plan.exact)
    )
    m = Measured(*jax.device_get(program(oracle.leaves(), x, fresh, np.int32(plan.batches))))
    width, eps = student_width(risk, plan.batches), float(jnp.finfo(x.dtype).eps)

    def around(value: Any, error: Any) -> tuple[Any, Any, Any]:
        """A value and the ends of its asymptotic interval."""
        reach = width * np.asarray(error, float) + ROUNDING * eps * np.abs(value)
        return np.asarray(value, float), value - reach, value + reach

    kinds: list[Kind] = ["asymptotic" if plan.samples(term) else "exact" for term in oracle.constraints]
    slices = oracle.slices().values()
    sampled = np.repeat([kind != "exact" for kind in kinds], [term.size for term in oracle.constraints])
    middle, low, high = (np.where(sampled, end, m.raw).astype(float) for end in around(m.raw, m.raw_errors))
    try:
        entries, ends = bounded_entries(problem, oracle, x, plan, fresh, risk, m.raw)
    except ValueError as error:
        if strict:
            raise
        warnings.warn(f"{error}; intervals of constraints are asymptotic instead", UserWarning, stacklevel=2)
    else:
        middle[entries], low[entries], high[entries] = ends
        kinds = ["bound" if entries[part].any() else kind for kind, part in zip(kinds, slices, strict=True)]

    within = bounds(problem.constraints, [term.shape for term in oracle.constraints])
    least, greatest = (np.asarray(end, x.dtype).astype(float) for end in within)
    nearest, farthest = outside(low, high, least, greatest)
    objective = _estimate("asymptotic", *around(m.objective, m.objective_error))
    return Found(
        objective if plan.samples(oracle.objective) else _exactly(m.objective),
        (outside(middle, middle, least, greatest)[0], nearest, farthest),
        kinds,
        np.maximum(least - middle, middle - greatest),
        (high - low) / 2.0,
        _stationarity(oracle, m, width, eps),
        _complementarity(oracle, m, around(m.products, m.product_errors)),
        np.asarray(oracle.rows.to_raw(jnp.asarray(m.multipliers))),
    )


def _stationarity(oracle: Oracle, m: Measured, width: float, eps: float) -> Estimate:
    """The distance, and an interval that holds at 0 too; see the top of `measurement`."""
    errors = m.raw_errors[np.array(oracle.rows.index, int)]
    active = ~oracle.equality & (m.rows <= width * errors)
    length = width * np.hypot(m.gradient_error, np.linalg.norm((m.multipliers * errors)[active]))
    near_zero = length + width * m.shift_error
    far_from_it = width * m.distance_error + length**2 / max(m.stationarity, np.finfo(float).tiny)
    reach = min(near_zero, far_from_it) + ROUNDING * eps * m.gradient_norm
    return _estimate("asymptotic", m.stationarity, max(m.stationarity - reach, 0.0), m.stationarity + reach)


def _complementarity(oracle: Oracle, m: Measured, ends: tuple[Any, Any, Any]) -> Estimate:
    if oracle.equality.all():
        return _exactly(0.0)
    return _estimate("asymptotic", *(largest(end[~oracle.equality]) for end in ends))


def by_constraint(problem: Problem, oracle: Oracle, multipliers: Float[np.ndarray, " raw"]) -> dict[str, Any]:
    """Raw multipliers by name: a number where the constraint is one number; `at_least` counts them for low − h ≤ 0."""
    named = {}
    for c, entries in zip(problem.constraints, oracle.slices().values(), strict=True):
        values = multipliers[entries] * (-1.0 if c.kind == "at_least" else 1.0)
        named[c.name] = float(values[0]) if values.size == 1 else values
    return named


def _verdict(violation: dict[str, Estimate], tolerance: float) -> Verdict:
    if all(estimate.high <= tolerance for estimate in violation.values()):
        return "feasible"
    return "infeasible" if any(estimate.low > tolerance for estimate in violation.values()) else "undecided"
