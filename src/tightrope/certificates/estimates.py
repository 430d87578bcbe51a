"""The estimates of a certificate: from all data, which are exact, or from fresh samples, with their intervals."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..oracles.oracle import Oracle
from ..oracles.rows import bounds
from ..problems.problem import Problem, cached_on_problem
from .certificate import Estimate, Kind
from .evaluation import Evaluation, largest_violation
from .finite_sample import bounded_entries
from .intervals import student_width, violation_interval
from .measurement import Measurements, Plan, measurement_program
from .scales import Sizes

MEAN_ROUNDING = 16.0
"""The relative rounding error of a mean over a batch, in units of eps."""


class Estimates(NamedTuple):
    """All numbers of a certificate; those of the constraints have one entry per raw value.

    Attributes:
        objective: the objective.
        violations: values, lower ends and upper ends.
        kinds: the kind of interval of each constraint.
        excess: the distance of each raw value beyond its bounds, negative if it is within.
        reach: the half-width of its interval.
        stationarity: the stationarity.
        complementarity: the complementarity.
        multipliers: the multipliers.
        residual: the vector whose norm is the stationarity.
        gradient_norm: ‖∇F‖.
        products: the sum of |λ_i c_i| over all rows.
        sizes: the sizes from which scales are computed.
    """

    objective: Estimate
    violations: tuple[np.ndarray, np.ndarray, np.ndarray]
    kinds: list[Kind]
    excess: np.ndarray
    reach: np.ndarray
    stationarity: Estimate
    complementarity: Estimate
    multipliers: np.ndarray
    residual: np.ndarray
    gradient_norm: np.ndarray
    products: float
    sizes: Sizes


def as_estimate(kind: Kind, value: Any, low: Any, high: Any) -> Estimate:
    """The estimate with these numbers as floats."""
    return Estimate(float(value), float(low), float(high), kind)


def _exact(value: Any) -> Estimate:
    return as_estimate("exact", value, value, value)


def from_all_data(problem: Problem, e: Evaluation) -> Estimates:
    """The estimates from an evaluation on all data."""
    return Estimates(
        objective=_exact(e.objective),
        violations=(e.violations,) * 3,
        kinds=["exact"] * len(problem.constraints),
        excess=e.violations,
        reach=np.zeros_like(e.violations),
        stationarity=_exact(e.stationarity),
        complementarity=_exact(e.complementarity),
        multipliers=e.multipliers,
        residual=e.residual,
        gradient_norm=e.gradient_norm,
        products=float(e.products),
        sizes=e.sizes,
    )


def from_samples(
    problem: Problem,
    oracle: Oracle,
    points: tuple[Float[Array, " n"], Float[Array, " n"]],
    plan: Plan,
    chance: tuple[Array, float],
    strict: bool,
) -> Estimates:
    """The estimates at the first of `points` (the second is x0); `chance` is a key, and the risk of each interval."""
    (x, start), (key, risk) = points, chance
    program = cached_on_problem(
        problem, ("certify", oracle.parameters.key, plan.exact), lambda: measurement_program(oracle, plan.exact)
    )
    m = Measurements(*jax.device_get(program(oracle.leaves(), x, start, key, np.int32(plan.batches))))
    width, eps = student_width(risk, plan.batches), float(jnp.finfo(x.dtype).eps)

    def around(value: Any, error: Any) -> tuple[Any, Any, Any]:
        """A value and the ends of its asymptotic interval."""
        reach = width * np.asarray(error, float) + MEAN_ROUNDING * eps * np.abs(value)
        return np.asarray(value, float), value - reach, value + reach

    kinds: list[Kind] = ["asymptotic" if plan.is_sampled(term) else "exact" for term in oracle.constraints]
    sampled = np.repeat([kind != "exact" for kind in kinds], [term.size for term in oracle.constraints])
    middle, low, high = (np.where(sampled, end, m.raw).astype(float) for end in around(m.raw, m.raw_errors))
    try:
        entries, ends = bounded_entries(problem, oracle, x, plan, key, risk, m.raw)
    except ValueError as error:
        if strict:
            raise
        warnings.warn(f"{error}; intervals of constraints are asymptotic instead", UserWarning, stacklevel=2)
    else:
        middle[entries], low[entries], high[entries] = ends
        slices = oracle.slices().values()
        kinds = ["bound" if entries[part].any() else kind for kind, part in zip(kinds, slices, strict=True)]

    limits = bounds(problem.constraints, [term.shape for term in oracle.constraints])
    least, greatest = (np.asarray(end, x.dtype).astype(float) for end in limits)
    nearest, farthest = violation_interval(low, high, least, greatest)
    objective = as_estimate("asymptotic", *around(m.objective, m.objective_error))
    return Estimates(
        objective=objective if plan.is_sampled(oracle.objective) else _exact(m.objective),
        violations=(violation_interval(middle, middle, least, greatest)[0], nearest, farthest),
        kinds=kinds,
        excess=np.maximum(least - middle, middle - greatest),
        reach=(high - low) / 2.0,
        stationarity=_stationarity(oracle, m, width, eps),
        complementarity=_complementarity(oracle, around(m.products, m.product_errors)),
        multipliers=np.asarray(oracle.rows.to_raw(jnp.asarray(m.multipliers))),
        residual=m.residual,
        gradient_norm=m.gradient_norm,
        products=float(np.sum(np.abs(m.multipliers * m.rows))),
        sizes=m.sizes,
    )


def _stationarity(oracle: Oracle, m: Measurements, width: float, eps: float) -> Estimate:
    """The distance, and an interval that also holds at 0; see the top of `measurement`."""
    errors = m.raw_errors[np.array(oracle.rows.index, int)]
    active = ~oracle.equality & (m.rows <= width * errors)
    length = width * np.hypot(m.gradient_error, np.linalg.norm((m.multipliers * errors)[active]))
    near_zero = length + width * m.shift_error
    far_from_zero = width * m.distance_error + length**2 / max(m.stationarity, np.finfo(float).tiny)
    reach = min(near_zero, far_from_zero) + MEAN_ROUNDING * eps * m.gradient_norm
    return as_estimate("asymptotic", m.stationarity, max(m.stationarity - reach, 0.0), m.stationarity + reach)


def _complementarity(oracle: Oracle, ends: tuple[Any, Any, Any]) -> Estimate:
    if oracle.equality.all():
        return _exact(0.0)
    return as_estimate("asymptotic", *(largest_violation(end[~oracle.equality]) for end in ends))
