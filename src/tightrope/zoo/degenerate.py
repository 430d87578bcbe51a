"""Degenerate problems: dependent rows, complementarity, no multiplier, no feasible point."""

import math

import jax.numpy as jnp
import numpy as np

from ..domains import NonNegative
from ..problems.constraints import affine, at_least, equals
from ..problems.problem import Problem
from .base import Case, Solution


def repeated_row() -> Case:
    """An equation given twice: rank-deficient Jacobian, multipliers not unique.

    Minimize ½‖x − (1, 1, 0.5)‖² subject to Σx = 1 and 2Σx = 2. The nearest point is x = (0.5, 0.5, 0), F = 0.375; all
    λ with λ₀ + 2λ₁ = 0.5 are multipliers, and the shortest is (0.1, 0.2).
    """

    def half_distance(x):
        return 0.5 * jnp.sum((x - jnp.asarray([1.0, 1.0, 0.5])) ** 2)

    plane = affine([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], [1.0, 2.0], name="plane")
    multipliers = {"plane": np.array([0.1, 0.2])}
    solution = Solution(jnp.asarray([0.5, 0.5, 0.0]), 0.375, multipliers, multipliers_unique=False)
    return Problem(half_distance, plane), jnp.asarray([0.0, 0.0, 0.0]), solution


def complementarity() -> Case:
    """One of two nonnegative numbers must be zero: nonconvex, multipliers unbounded.

    Minimize (x₀ − 2)² + (x₁ − 1)² over x ≥ 0 subject to x₀x₁ = 0. The better of the two branches is x₁ = 0 with
    x = (2, 0), F = 1; (0, 1) is a local minimum with value 4. At (2, 0) every λ ≥ 1 is a multiplier, together with a normal of
    x ≥ 0, which is 0 for λ = 1.
    """

    def square_distance(x):
        return (x[0] - 2.0) ** 2 + (x[1] - 1.0) ** 2

    def product(x):
        return x[0] * x[1]

    solution = Solution(jnp.asarray([2.0, 0.0]), 1.0, {"product": 1.0}, multipliers_unique=False)
    problem = Problem(square_distance, equals(product), domain=NonNegative())
    return problem, jnp.asarray([1.5, 0.5]), solution


def flat_power(power: int = 3) -> Case:
    """A constraint that is flat at its zeros, x₀³ = 0: error-bound exponent 5/3, no multiplier.

    Minimize ½(x₀ − 1)² + ½(x₁ − 2)² subject to c(x) = x₀^p = 0. The feasible set is the line x₀ = 0 and the minimizer
    x = (0, 2), F = 0.5; but ∇c = 0 there and ∇F = (−1, 0), so no multiplier exists: λ grows without bound along a run. Since
    ‖∇c‖|c| = p|x₀|^(2p − 1) = p|c|^θ with θ = 2 − 1/p, the error bound has exponent θ: 5/3 for the cube.
    """

    def half_distance(x):
        return 0.5 * (x[0] - 1.0) ** 2 + 0.5 * (x[1] - 2.0) ** 2

    def flat(x):
        return x[0] ** power

    return Problem(half_distance, equals(flat)), jnp.asarray([1.0, 0.0]), Solution(jnp.asarray([0.0, 2.0]), 0.5, None)


def circle_and_wall() -> Case:
    """A circle and a half-plane that do not meet: infeasible, with a known minimal violation.

    Minimize ‖x‖² subject to ‖x‖² = 1 and x₀ ≥ 2. The larger of the violations |‖x‖² − 1| and 2 − x₀ is minimal on the
    axis, x = (t, 0), where they are equal: t² − 1 = 2 − t, so t = (√13 − 1)/2 and the minimal violation is (5 − √13)/2 ≈ 0.697.
    """

    def circle(x):
        return x @ x

    def wall(x):
        return x[0]

    problem = Problem(circle, [equals(circle, 1.0), at_least(wall, 2.0)])
    solution = Solution(None, math.inf, None, feasible=False, unique=False, violation=(5 - math.sqrt(13)) / 2)
    return problem, jnp.asarray([0.5, 0.5]), solution
