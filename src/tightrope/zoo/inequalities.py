"""Smooth problems with inequality constraints: one- and two-sided, with several entries, convex and nonconvex."""

import jax.numpy as jnp
import numpy as np

from ..problems.constraints import at_least, at_most, between
from ..problems.problem import Problem
from .base import Case, Solution, gaussian, half_square_distance


def lens() -> Case:
    """The lowest point of two overlapping discs: convex, `at_most` with two active entries.

    Minimize x₁ subject to (x₀ + 0.6)² + x₁² ≤ 1 and (x₀ − 0.6)² + x₁² ≤ 1. The lowest point of the lens is x = (0, −0.8);
    (0, 1) + 2μ₀(0.6, −0.8) + 2μ₁(−0.6, −0.8) = 0 gives μ = (0.3125, 0.3125), and F = −0.8.
    """

    def height(x):
        return x[1]

    def discs(x):
        return (x[0] + jnp.asarray([0.6, -0.6])) ** 2 + x[1] ** 2

    solution = Solution(jnp.asarray([0.0, -0.8]), -0.8, {"discs": np.array([0.3125, 0.3125])})
    return Problem(height, at_most(discs, 1.0)), jnp.asarray([0.3, 0.1]), solution


def saddle_in_disc() -> Case:
    """A saddle over a disc: nonconvex objective, one active inequality, two solutions.

    Minimize x₀x₁ subject to ‖x‖² ≤ 2. By (x₀ + x₁)² ≥ 0 the value is at least −‖x‖²/2 ≥ −1, reached at x = ±(1, −1);
    (x₁, x₀) + 2μx = 0 gives μ = 0.5.
    """

    def saddle(x):
        return x[0] * x[1]

    def disc(x):
        return x @ x

    solution = Solution(jnp.asarray([1.0, -1.0]), -1.0, {"disc": 0.5}, unique=False)
    return Problem(saddle, at_most(disc, 2.0)), jnp.asarray([1.0, -0.2]), solution


def outside_the_ball(noise: float = 0.3, batch_size: int = 8) -> Case:
    """The point outside a ball closest to a mean inside it: nonconvex `at_least`.

    Minimize E ½‖x − ξ‖² with ξ ~ N(m, noise² I), m = (0.3, 0.4), subject to ‖x‖² ≥ 1 and x₀ ≤ 2, which is not active.
    x = m/‖m‖ = (0.6, 0.8); x − m − 2μx = 0 gives μ = (1 − ‖m‖)/2 = 0.25, and F = 0.125 + noise².
    """

    def ball(x):
        return x @ x

    def wall(x):
        return x[0]

    data = gaussian([0.3, 0.4], noise, batch_size)
    problem = Problem(half_square_distance, [at_least(ball, 1.0), at_most(wall, 2.0)], data=data)
    solution = Solution(jnp.asarray([0.6, 0.8]), 0.125 + noise**2, {"ball": 0.25, "wall": 0.0})
    return problem, jnp.asarray([1.5, -0.5]), solution


def three_bands(noise: float = 0.5, batch_size: int = 8) -> Case:
    """Three noisy bands, active above, active below and inactive: `between` with three entries.

    Minimize E ½‖x − ξ‖² with ξ ~ N(m, noise² I), m = (1.75, 0.25, −1.5), subject to −1 ≤ E (Mx + ζ) ≤ 1 entry by entry,
    where Mx = (x₀ + x₁, x₁ + x₂, x₂ + x₀) and an independent ζ ~ N(0, noise² I). At x = (1, 0, −1), Mx = (1, −1, 0), and
    x = m − Mᵀλ holds with λ = (0.75, −0.5, 0), with the signs of the active bounds; F = 0.4375 + 1.5 noise².
    """

    def bands(x, batch):
        return x + jnp.roll(x, -1) + jnp.mean(batch, axis=0)

    shifts = gaussian([0.0, 0.0, 0.0], noise, batch_size)
    data = gaussian([1.75, 0.25, -1.5], noise, batch_size)
    problem = Problem(half_square_distance, between(bands, -1.0, 1.0, data=shifts), data=data)
    multipliers = {"bands": np.array([0.75, -0.5, 0.0])}
    return (
        problem,
        jnp.asarray([0.0, 0.0, 0.0]),
        Solution(jnp.asarray([1.0, 0.0, -1.0]), 0.4375 + 1.5 * noise**2, multipliers),
    )
