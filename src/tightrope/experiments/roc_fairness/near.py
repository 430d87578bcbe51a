"""Near-stationarity: how far x is from the solution of a proximal problem around it, (4) of paper 4.

    x̂ = argmin over y in X of  f(y) + ρ̂/2 ‖y − x‖²   subject to   g(y) + ρ̃/2 ‖y − x‖² ≤ 0,        ρ̃ = 0 for convex g, else ρ̂

One ρ̂ for all points and methods, so that they can be compared; `tightrope.certify` fits its own to every point. The paper
solves (4) by 2500 switching-subgradient steps. Cutting planes, as `certify` uses them, need some twenty looks at f and g and
say how wrong they may be; `tests/unit/test_roc_and_parity.py` checks that both ways agree. On bank they stop after a hundred
looks, some 2% off; 5000 steps are 10 to 20% off there. Double precision: in float32 the rounding of f alone moves x̂ by a
hundredth of what is measured.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ...certificates.proximal import Look, Proximal, Scales, WeakConvexity
from ...problems.problem import Problem, cached_on_problem

LENGTH = 0.5
"""The scale of the solver's tolerance: it stops at a proven error of a thousandth of ‖x̂ − x‖ + LENGTH/10."""


class GivenWeight(Proximal):
    """Problem (4) with ρ̂ and the moduli of weak convexity given, ρ̃ = 0 for a convex g and ρ̂ otherwise."""

    def __init__(self, into: Any, scales: Scales, weight: float, modulus: float, convex: bool):
        self.into, self.scales, self.weight = into, scales, weight
        self.allowed = WeakConvexity(modulus, np.array([0.0 if convex else weight]))
        self.strong = weight - modulus


class NearStationarity:
    """‖x̂ − x‖ as a metric.

    Args:
        problem: without data, with one `at_most`.
        weight: ρ̂.
        modulus: of the objective's weak convexity, below ρ̂.
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

        def look(y: Any) -> Any:
            return *jax.value_and_grad(problem.objective)(y), *jax.value_and_grad(constraint.fn)(y)

        programs = cached_on_problem(
            problem, ("near-stationarity",), lambda: (jax.jit(look), jax.jit(problem.domain.project))
        )
        self.look, self.project = programs

    def __call__(self, x: Any, batch: Any) -> float:
        """‖x̂ − x‖."""
        return float(np.linalg.norm(self.step(x)))

    def step(self, x: Any) -> Float[np.ndarray, " d"]:
        """x̂ − x."""
        center = np.asarray(x, float)

        def look(step: np.ndarray) -> Look:
            value, gradient, row, slope = (np.asarray(part) for part in self.look(center + step))
            return Look(step, float(value), gradient, np.atleast_1d(row - self.bound), slope[None])

        def into(step: np.ndarray) -> np.ndarray:
            nearest = np.asarray(self.project(center + step))
            return step if np.array_equal(nearest, center + step) else nearest - center

        with jax.enable_x64(True):
            here = np.zeros_like(center)
            bound, eps = np.array([abs(self.bound)]), float(np.finfo(float).eps)
            scales = Scales.seen([look(here)], np.array([False]), bound, LENGTH, eps)
            return GivenWeight(into, scales, self.weight, self.modulus, self.convex).solve(look, here).step
