"""Smooth problems with equality constraints: linear and nonlinear, deterministic and sampled."""

import jax
import jax.numpy as jnp
import numpy as np

from ..problems.constraints import affine, equals
from ..problems.data import Dataset, Sampler
from ..problems.problem import Problem
from .base import Case, Solution, gaussian, half_square_distance


def projection_on_plane(noise: float = 0.5, batch_size: int = 8) -> Case:
    """The point of a plane closest to a Gaussian mean: convex, sampled objective, `affine`.

    Minimize E ½‖x − ξ‖² with ξ ~ N(m, noise² I), m = (0.5, 1.5, 1, 1), subject to x₀ + x₁ + x₂ + x₃ = 2 and
    x₀ − x₁ = 1. Stationarity is x = m − Aᵀλ, and the two equations give λ = (AAᵀ)⁻¹(Am − b) = (0.5, −1), so
    x = (1, 0, 0.5, 0.5) and F = 1.5 + 2 noise².
    """
    plane = affine([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 0.0, 0.0]], [2.0, 1.0], name="plane")
    problem = Problem(half_square_distance, plane, data=gaussian([0.5, 1.5, 1.0, 1.0], noise, batch_size))
    solution = Solution(jnp.asarray([1.0, 0.0, 0.5, 0.5]), 1.5 + 2 * noise**2, {"plane": np.array([0.5, -1.0])})
    return problem, jnp.asarray([0.0, 0.0, 0.0, 0.0]), solution


def linear_on_circle() -> Case:
    """The lowest point of a circle: nonconvex equality, all deterministic.

    Minimize a·x with a = (3, 4) subject to ‖x‖² = 1. Stationarity a + 2λx = 0 leaves x = ±a/5; the lower one is
    x = (−0.6, −0.8) with λ = ‖a‖/2 = 2.5 and F = −5.
    """

    def height(x):
        return 3.0 * x[0] + 4.0 * x[1]

    def circle(x):
        return x @ x

    solution = Solution(jnp.asarray([-0.6, -0.8]), -5.0, {"circle": 2.5})
    return Problem(height, equals(circle, 1.0)), jnp.asarray([1.0, 0.5]), solution


def least_eigenvector(batch_size: int = 16) -> Case:
    """The direction of smallest variance: nonconvex, sampled objective, two solutions.

    Minimize E ½(ξ·x)² = ½ xᵀCx subject to ‖x‖² = 1, where ξ = Q diag(0.5, 1, 1.5) z with z ~ N(0, I) and the reflection
    Q = I − ⅔ 11ᵀ, so C has the eigenvalues 0.25, 1, 2.25 and the columns of Q as eigenvectors. The minimizers are
    x = ±(1, −2, −2)/3; Cx + 2λx = 0 gives λ = −0.125, and F = 0.125.
    """
    root = (np.eye(3) - 2 / 3) * np.array([0.5, 1.0, 1.5])

    def draw(key, n):
        return jax.random.normal(key, (n, 3)) @ jnp.asarray(root).T

    def half_variance(x, batch):
        return 0.5 * jnp.mean((batch @ x) ** 2)

    def sphere(x):
        return x @ x

    problem = Problem(half_variance, equals(sphere, 1.0), data=Sampler(draw, batch_size))
    solution = Solution(jnp.asarray([1 / 3, -2 / 3, -2 / 3]), 0.125, {"sphere": -0.125}, unique=False)
    return problem, jnp.asarray([1.0, 0.0, -0.5]), solution


def noisy_sphere(noise: float = 0.5, spread: float = 0.3, batch_size: int = 8) -> Case:
    """The point of a sphere closest to a mean: nonconvex equality with its own samples.

    Minimize E ½‖x − ξ‖² with ξ ~ N(m, noise² I), m = (2, −1, 2), subject to E ‖x − ζ‖² = 1 + 3 spread² with an independent
    ζ ~ N(0, spread² I): the noise multiplies x. In expectation the constraint is ‖x‖² = 1, so x = m/‖m‖ = (2, −1, 2)/3,
    x − m + 2λx = 0 gives λ = (‖m‖ − 1)/2 = 1, and F = 2 + 1.5 noise².
    """

    def square_distance(x, batch):
        return 2.0 * half_square_distance(x, batch)

    centers = gaussian([0.0, 0.0, 0.0], spread, batch_size)
    sphere = equals(square_distance, 1.0 + 3 * spread**2, data=centers, name="sphere")
    problem = Problem(half_square_distance, sphere, data=gaussian([2.0, -1.0, 2.0], noise, batch_size))
    solution = Solution(jnp.asarray([2 / 3, -1 / 3, 2 / 3]), 2.0 + 1.5 * noise**2, {"sphere": 1.0})
    return problem, jnp.asarray([0.0, 0.5, 0.5]), solution


def ellipse_of_data(batch_size: int = 2) -> Case:
    """The lowest point of an ellipse defined by finite data: nonconvex equality on a `Dataset`.

    Minimize −3x₀ − 2x₁ subject to the mean of (a·x)² over the four examples a = (±2, ±1) being 1, that is 4x₀² + x₁² = 1.
    Stationarity (3, 2) = 2λ(4x₀, x₁) gives x = (0.3, 0.8), λ = 1.25 and F = −2.5.
    """
    data = Dataset(np.array([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]]), batch_size)

    def height(x):
        return -3.0 * x[0] - 2.0 * x[1]

    def ellipse(x, batch):
        return jnp.mean((batch @ x) ** 2)

    solution = Solution(jnp.asarray([0.3, 0.8]), -2.5, {"ellipse": 1.25})
    return Problem(height, equals(ellipse, 1.0, data=data)), jnp.asarray([0.8, 0.2]), solution
