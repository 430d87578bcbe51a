"""Problems without a solution: infeasible constraints and unbounded objectives.

Example:
    >>> import tightrope as tr
    >>> problem, x0, solution = tr.zoo.infeasible.available()["sum_outside_box"]()
    >>> solution.feasible, solution.objective, solution.violation
    (False, inf, 2.0)
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import lambertw

from ..domains import Box, L2Ball, NonNegative, Simplex
from ..problems.constraints import affine, at_least, at_most, equals
from ..problems.data import Dataset
from ..problems.problem import Problem
from .base import Case, Solution, gaussian, half_square_distance

__all__ = ["available", "unbounded"]


def available() -> dict[str, Callable[..., Case]]:
    """Problems without a feasible point, by name; `violation` is the minimum of the largest violation.

    Example:
        >>> import tightrope as tr
        >>> len(tr.zoo.infeasible.available()) >= 10
        True
    """
    problems = (
        parallel_planes,
        three_lines,
        no_real_root,
        two_circles,
        wave_too_high,
        exponential_and_wall,
        hyperbola_and_sum,
        sum_outside_box,
        return_outside_simplex,
        line_outside_ball,
        noisy_disc,
        ellipse_and_wall,
        recall_in_ball,
        scales_apart,
    )
    return {problem.__name__: problem for problem in problems}


def unbounded() -> dict[str, Callable[..., Case]]:
    """Problems whose objective is unbounded below on the feasible set, by name.

    Example:
        >>> import tightrope as tr
        >>> tr.zoo.infeasible.unbounded()["open_parabola"]()[2].objective
        -inf
    """
    problems = (falling_line, falling_quartic, noisy_fall, open_parabola, fall_in_orthant)
    return {problem.__name__: problem for problem in problems}


_UNBOUNDED = Solution(None, -math.inf, None, unique=False)


def _no_point(violation: float) -> Solution:
    return Solution(None, math.inf, None, feasible=False, unique=False, violation=violation)


def _half_square_norm(x):
    return 0.5 * jnp.sum(x**2)


def parallel_planes() -> Case:
    """Two parallel planes: linear equations that contradict each other.

    Minimize ½‖x‖² subject to x₀ + x₁ + x₂ = 1 and x₀ + x₁ + x₂ = 3. Halfway between them both are violated by 1.
    """
    planes = affine([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [1.0, 3.0], name="planes")
    return Problem(_half_square_norm, planes), jnp.asarray([1.0, 0.0, -1.0]), _no_point(1.0)


def three_lines() -> Case:
    """Three lines that form a triangle: more equations than unknowns.

    Minimize ½‖x‖² subject to x₀ = 0, x₁ = 0 and x₀ + x₁ = 1. At x = (⅓, ⅓) all three are violated by ⅓; the third value is
    the sum of the others minus 1, so no point does better.
    """

    def lines(x):
        return jnp.stack([x[0], x[1], x[0] + x[1] - 1.0])

    return Problem(_half_square_norm, equals(lines)), jnp.asarray([2.0, -1.0]), _no_point(1 / 3)


def no_real_root() -> Case:
    """A squared norm that must be negative: nonlinear equation without a root.

    Minimize x₀ + x₁ subject to ‖x‖² = −1; it is violated by 1 at the origin, where the gradient of ‖x‖² vanishes.
    """

    def square(x):
        return x @ x

    return Problem(jnp.sum, equals(square, -1.0)), jnp.asarray([2.0, -1.0]), _no_point(1.0)


def two_circles() -> Case:
    """Two circles too far apart to meet: nonlinear equations.

    Minimize x₁ subject to ‖x‖² = 1 and ‖x − (4, 0)‖² = 1. The larger of the two squared distances is minimal halfway, at
    (2, 0), where both are 4.
    """

    def circles(x):
        return jnp.stack([x @ x, x @ x - 8.0 * x[0] + 16.0])

    return Problem(lambda x: x[1], equals(circles, 1.0)), jnp.asarray([1.0, 1.0]), _no_point(3.0)


def wave_too_high() -> Case:
    """A wave that must exceed its maximum: the violation has many local minima and saddles.

    Minimize ½‖x‖² subject to sin(x₀) cos(x₁) = 1.5; the left side is at most 1.
    """

    def wave(x):
        return jnp.sin(x[0]) * jnp.cos(x[1])

    return Problem(_half_square_norm, equals(wave, 1.5)), jnp.asarray([0.3, 0.4]), _no_point(0.5)


def exponential_and_wall() -> Case:
    """Two contradictory convex inequalities.

    Minimize (x₀ − 1)² + x₁² subject to exp(x₀) ≤ ½ and x₀ ≥ 0. The violations exp(x₀) − ½ and −x₀ are equal where
    x₀ + exp(x₀) = ½, that is x₀ = ½ − W(√e) with Lambert's W.
    """

    def square_distance(x):
        return (x[0] - 1.0) ** 2 + x[1] ** 2

    exponential = at_most(lambda x: jnp.exp(x[0]), 0.5, name="exponential")
    wall = at_least(lambda x: x[0], 0.0, name="wall")
    violation = float(lambertw(math.exp(0.5)).real) - 0.5
    return Problem(square_distance, [exponential, wall]), jnp.asarray([1.0, 1.0]), _no_point(violation)


def hyperbola_and_sum() -> Case:
    """A product that is too large for the sum: nonconvex inequality on the orthant.

    Minimize ½‖x‖² over x ≥ 0 subject to x₀x₁ ≥ 1 and x₀ + x₁ ≤ 1. For a given sum the product is largest at x = (t, t), and
    1 − t² = 2t − 1 at t = √3 − 1, so the minimal violation is 2√3 − 3.
    """
    product = at_least(lambda x: x[0] * x[1], 1.0, name="product")
    total = at_most(jnp.sum, 1.0, name="total")
    problem = Problem(_half_square_norm, [product, total], domain=NonNegative())
    return problem, jnp.asarray([2.0, 0.5]), _no_point(2 * math.sqrt(3) - 3)


def sum_outside_box() -> Case:
    """A sum that is too large for the box: feasible without the set.

    Minimize ½‖x‖² over [0, 1]³ subject to x₀ + x₁ + x₂ = 5; the sum is at most 3.
    """
    total = equals(jnp.sum, 5.0, name="total")
    return Problem(_half_square_norm, total, domain=Box(0.0, 1.0)), jnp.asarray([0.5, 0.2, 0.1]), _no_point(2.0)


def return_outside_simplex(noise: float = 0.5, batch_size: int = 16) -> Case:
    """A required mean return above that of every asset: sampled inequality on the simplex.

    Minimize E ½‖x − ξ‖² over the simplex subject to E ξ·x ≥ 1.2 with ξ ~ N((1, 0.6, 0.3, 0.1), noise² I): the mean is
    at most 1.
    """
    returns = gaussian([1.0, 0.6, 0.3, 0.1], noise, batch_size)

    def mean_return(x, batch):
        return jnp.mean(batch @ x)

    target = at_least(mean_return, 1.2, data=returns)
    problem = Problem(half_square_distance, target, domain=Simplex(), data=returns)
    return problem, jnp.full(4, 0.25), _no_point(0.2)


def line_outside_ball() -> Case:
    """A line that misses the ball.

    Minimize (x₀ − x₁)² over ‖x‖ ≤ 1 subject to x₀ + x₁ = 2; the sum is at most √2.
    """
    line = affine([[1.0, 1.0]], [2.0], name="line")
    problem = Problem(lambda x: (x[0] - x[1]) ** 2, line, domain=L2Ball(1.0))
    return problem, jnp.asarray([0.5, -0.5]), _no_point(2 - math.sqrt(2))


def noisy_disc(noise: float = 0.5, spread: float = 0.8, batch_size: int = 8) -> Case:
    """A mean distance below the spread of the points: sampled inequality, all from `Sampler`s.

    Minimize E ½‖x − ξ‖² with ξ ~ N((1, 1, 1), noise² I) subject to E ‖x − ζ‖² ≤ 1 with ζ ~ N(0, spread² I). That mean is
    ‖x‖² + 3 spread², which is minimal at the origin and exceeds the bound there by 3 spread² − 1 (0.92).
    """

    def square_distance(x, batch):
        return 2.0 * half_square_distance(x, batch)

    disc = at_most(square_distance, 1.0, data=gaussian([0.0, 0.0, 0.0], spread, batch_size), name="disc")
    problem = Problem(half_square_distance, disc, data=gaussian([1.0, 1.0, 1.0], noise, batch_size))
    return problem, jnp.asarray([1.0, -1.0, 0.5]), _no_point(3 * spread**2 - 1)


def ellipse_and_wall(batch_size: int = 2) -> Case:
    """An ellipse defined by finite data and a half-plane beyond it: sampled and exact inequalities.

    Minimize x₀² subject to the mean of (a·x)² over the examples a = (±2, ±1) being at most 1, that is 4x₀² + x₁² ≤ 1, and
    x₁ ≥ 3. At x = (0, t) both violations are equal if t² − 1 = 3 − t, so the minimal violation is (7 − √17)/2.
    """
    data = Dataset(np.array([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]]), batch_size)

    def ellipse(x, batch):
        return jnp.mean((batch @ x) ** 2)

    wall = at_least(lambda x: x[1], 3.0, name="wall")
    problem = Problem(lambda x: x[0] ** 2, [at_most(ellipse, 1.0, data=data), wall])
    return problem, jnp.asarray([0.5, 1.0]), _no_point((7 - math.sqrt(17)) / 2)


def recall_in_ball(batch_size: int = 8) -> Case:
    """A recall beyond what short weights can reach: sampled inequality in a ball.

    Minimize the mean of softplus(w·x) over the negatives (−0.5, ±1, ±0.5) with ‖w‖ ≤ 1 subject to the mean of softplus(−w·x)
    over the positives (1, ±1, ±0.5) being at most 0.1. By symmetry the latter is minimal at w = (1, 0, 0), where it is
    softplus(−1) ≈ 0.313.
    """
    signs = np.array(np.meshgrid([-1.0, 1.0], [-0.5, 0.5])).reshape(2, -1).T
    positives, negatives = (Dataset(np.hstack([np.full((4, 1), first), signs]), batch_size) for first in (1.0, -0.5))

    def false_alarms(w, batch):
        return jnp.mean(jax.nn.softplus(batch @ w))

    def missed(w, batch):
        return jnp.mean(jax.nn.softplus(-(batch @ w)))

    recall = at_most(missed, 0.1, data=positives, name="recall")
    problem = Problem(false_alarms, recall, domain=L2Ball(1.0), data=negatives)
    return problem, jnp.zeros(3), _no_point(math.log1p(math.exp(-1)) - 0.1)


def scales_apart() -> Case:
    """Contradictory equations with scales 10⁴ apart, in variables with scales 10⁶ apart.

    Minimize ½(10⁻³ x₁)² subject to 10⁴ d = 10⁴ and d = −1 for d = 10³ x₀ − 10⁻³ x₁. Both violations are equal at
    d = (10⁴ − 1)/(10⁴ + 1), namely d + 1 = 2·10⁴/(10⁴ + 1).
    """

    def scaled(x):
        difference = 1e3 * x[0] - 1e-3 * x[1]
        return jnp.stack([1e4 * (difference - 1.0), difference + 1.0])

    problem = Problem(lambda x: 0.5 * (1e-3 * x[1]) ** 2, equals(scaled))
    return problem, jnp.asarray([1.0, 1.0]), _no_point(2e4 / (1e4 + 1))


def falling_line() -> Case:
    """A linear objective on a line.

    Minimize −x₀ − x₁ subject to x₀ − x₁ = 1: it falls along (1, 1).
    """
    line = affine([[1.0, -1.0]], [1.0], name="line")
    return Problem(lambda x: -x[0] - x[1], line), jnp.asarray([0.0, 0.0]), _UNBOUNDED


def falling_quartic() -> Case:
    """A quartic on a line, falling at a growing rate.

    Minimize x₁² − x₀⁴ subject to x₀ + x₁ = 1: it falls in both directions along the line.
    """

    def quartic(x):
        return x[1] ** 2 - x[0] ** 4

    return Problem(quartic, equals(jnp.sum, 1.0, name="line")), jnp.asarray([1.0, 1.0]), _UNBOUNDED


def noisy_fall(noise: float = 1.0, batch_size: int = 4) -> Case:
    """A linear objective with noise in its slope.

    Minimize E ξ·x with ξ ~ N(−(1, 1, 1), noise² I) subject to x₀ + x₁ − 2x₂ = 0: it falls along (1, 1, 1).
    """

    def slope(x, batch):
        return jnp.mean(batch @ x)

    plane = affine([[1.0, 1.0, -2.0]], [0.0], name="plane")
    problem = Problem(slope, plane, data=gaussian([-1.0, -1.0, -1.0], noise, batch_size))
    return problem, jnp.asarray([1.0, 0.0, 0.0]), _UNBOUNDED


def open_parabola() -> Case:
    """A parabola that is open in the direction of descent: convex inequality.

    Minimize −x₀ subject to x₁² ≤ x₀.
    """
    parabola = at_most(lambda x: x[1] ** 2 - x[0], name="parabola")
    return Problem(lambda x: -x[0], parabola), jnp.asarray([1.0, 2.0]), _UNBOUNDED


def fall_in_orthant() -> Case:
    """An orthant and a half-space with an unbounded direction of descent.

    Minimize x₁² − x₀ over x ≥ 0 subject to x₀ ≥ 2x₁.
    """
    above = at_least(lambda x: x[0] - 2.0 * x[1], name="above")
    problem = Problem(lambda x: x[1] ** 2 - x[0], above, domain=NonNegative())
    return problem, jnp.asarray([0.0, 1.0]), _UNBOUNDED
