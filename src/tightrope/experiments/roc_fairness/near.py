"""Near-stationarity: the distance from x to the solution of a proximal problem at x, (4) of paper 4.

    x̂ = argmin over y in X of  f(y) + ρ̂/2 ‖y − x‖²   subject to   g(y) + ρ̃/2 ‖y − x‖² ≤ 0,        ρ̃ = 0 for convex g, else ρ̂

ρ̂ is the same for all points and methods, so that values are comparable; `tightrope.certify` chooses its own at every point.
The paper solves (4) by 2500 switching-subgradient steps. Cutting planes, as in `certify`, need about twenty evaluations of f
and g and bound their error; `tests/unit/test_roc_and_parity.py` checks that both agree. On bank they stop after a hundred
evaluations with an error of about 2%; after 5000 subgradient steps the error there is 10 to 20%. Double precision is needed:
in float32 the rounding of f alone moves x̂ by a hundredth of the measured distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ...certificates.proximal import Linearization, ProximalProblem, Scales, WeakConvexity
from ...problems.problem import Problem, cached_on_problem

LENGTH = 0.5
"""Scale of the solver's tolerance: it stops at a proven error of (‖x̂ − x‖ + LENGTH/10)/1000."""


class NearStationarity:
    """‖x̂ − x‖ as a metric.

    Args:
        problem: a problem without data, with one `at_most` constraint.
        weight: ρ̂.
        modulus: modulus of weak convexity of the objective, below ρ̂.
        convex: whether g is convex, so that ρ̃ = 0.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(jnp.abs(x)), tr.at_most(jnp.sum, 1.0))
        >>> near = NearStationarity(problem, weight=2.0, modulus=0.0, convex=True)
        >>> round(near(jnp.array([3.0, 0.1]), None), 2)  # x̂ = (1.45, −0.45)
        1.64
    """

    def __init__(self, problem: Problem, weight: float, modulus: float, convex: bool):
        (constraint,) = problem.constraints
        self.weight, self.modulus, self.convex = weight, modulus, convex
        self.bound = float(constraint.high)

        def first_order(y: Any) -> Any:
            return *jax.value_and_grad(problem.objective)(y), *jax.value_and_grad(constraint.fn)(y)

        programs = cached_on_problem(
            problem, ("near-stationarity",), lambda: (jax.jit(first_order), jax.jit(problem.domain.project))
        )
        self.first_order, self.project = programs

    def __call__(self, x: Any, batch: Any) -> float:
        """‖x̂ − x‖."""
        return float(np.linalg.norm(self.step(x)))

    def step(self, x: Any) -> Float[np.ndarray, " d"]:
        """x̂ − x."""
        center = np.asarray(x, float)

        def linearize(step: np.ndarray) -> Linearization:
            value, gradient, row, slope = (np.asarray(part) for part in self.first_order(center + step))
            return Linearization(step, float(value), gradient, np.atleast_1d(row - self.bound), slope[None])

        def project(step: np.ndarray) -> np.ndarray:
            nearest = np.asarray(self.project(center + step))
            return step if np.array_equal(nearest, center + step) else nearest - center

        with jax.enable_x64(True):
            here = np.zeros_like(center)
            bound, eps = np.array([abs(self.bound)]), float(np.finfo(float).eps)
            scales = Scales.of([linearize(here)], np.array([False]), bound, LENGTH, eps)
            moduli = WeakConvexity(self.modulus, np.array([0.0 if self.convex else self.weight]))
            return ProximalProblem(project, scales, self.weight, moduli).solve(linearize, here).step


class AtRecords:
    """A costly metric of a single run, evaluated at some of its records; nan at the others.

    Args:
        metric: the metric.
        records: the numbers of the records at which it is evaluated; 0 is the start.

    Example:
        >>> norm = AtRecords(lambda x, batch: abs(x), {0, 2})
        >>> [norm(x, None) for x in (1.0, 2.0, 3.0)]
        [1.0, nan, 3.0]
    """

    def __init__(self, metric: Callable[[Any, Any], float], records: Collection[int]):
        self.metric, self.records, self.seen = metric, frozenset(records), 0

    def __call__(self, x: Any, batch: Any) -> float:
        """The metric at the next record."""
        self.seen += 1
        return self.metric(x, batch) if self.seen - 1 in self.records else math.nan
