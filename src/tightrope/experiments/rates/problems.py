"""Problems that meet the assumptions of the theorems and whose expectations are known in closed form.

Every objective is f(x, ξ) = φ(x) + ½ s (ξᵀ(x − t))² + σ ξᵀx with ξ standard normal, so that F = φ + ½ s ‖x − t‖². The quadratic
noise makes the difference of the gradients at two points random, as the theorems allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ... import domains
from ...problems.constraints import affine, at_most, equals
from ...problems.data import Sampler
from ...problems.problem import Problem

DIMENSION, BATCH = 10, 1
SPREAD, NOISE = 0.2, 0.5
TARGET = np.linspace(-1.0, 1.5, DIMENSION).astype(np.float32)


class Case(NamedTuple):
    """A problem, its start, the expectations of objective and constraints, and the optimal value if it is known."""

    problem: Problem
    start: np.ndarray
    objective: Callable[[Array], Array]
    constraint: Callable[[Array], Array]
    optimum: float | None = None


def _normal(key: Array, count: int) -> Array:
    return jax.random.normal(key, (count, DIMENSION))


def _waves(x: Array) -> Array:
    """A smooth, nonconvex function with bounded derivatives."""
    return jnp.sum(jnp.log1p((x - TARGET) ** 2))


def _noisy(smooth: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    def f(x: Array, xi: Array) -> Array:
        return smooth(x) + jnp.mean(0.5 * SPREAD * (xi @ (x - TARGET)) ** 2 + NOISE * (xi @ x))

    return f


def _expected(smooth: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: smooth(x) + 0.5 * SPREAD * jnp.sum((x - TARGET) ** 2)


def _data() -> Sampler:
    return Sampler(_normal, batch_size=BATCH)


def linear() -> Case:
    """Ax = b with a rank-deficient A, x free, F nonconvex (1a)."""
    rows = np.random.default_rng(0).normal(size=(3, DIMENSION)) / np.sqrt(DIMENSION)
    matrix = np.vstack([rows, rows[0] + rows[1]])
    right = matrix @ np.full(DIMENSION, 0.3)
    problem = Problem(_noisy(_waves), affine(matrix, right), data=_data())

    def exact(x: Array) -> Array:
        return jnp.asarray(matrix, x.dtype) @ x - jnp.asarray(right, x.dtype)

    return Case(problem, np.ones(DIMENSION, np.float32), _expected(_waves), exact)


def _sphere(x: Array) -> Array:
    return jnp.stack([x @ x - 1.0, x[0] + x[1] ** 2 - 0.2])


def noisy_sphere() -> Case:
    """Sampled nonlinear equalities c(x, ζ) = c(x) + 0.3 (ζ₁ + ζᵀx), with a noisy Jacobian (1b, 1c)."""

    def sampled(x: Array, zeta: Array) -> Array:
        return _sphere(x) + 0.3 * jnp.mean(zeta[:, :2] + zeta @ x[:, None], axis=0)

    data = _data()
    problem = Problem(
        _noisy(_waves), equals(sampled, data=_data(), name="sphere"), domain=domains.L2Ball(3.0), data=data
    )
    return Case(problem, np.full(DIMENSION, 0.5, np.float32), _expected(_waves), _sphere)


def sphere(domain: domains.Domain) -> Case:
    """The same equalities without noise, in a set (1d, 2a, 2b; error bound with θ = 1)."""
    problem = Problem(_noisy(_waves), equals(_sphere, name="sphere"), domain=domain, data=_data())
    return Case(problem, np.full(DIMENSION, 0.5, np.float32), _expected(_waves), _sphere)


def flat(power: int) -> Case:
    """c(x) = x₁^p = 0 with θ = 2 − 1/p: so flat at its zeros that no multipliers exist there (2a, 2b)."""

    def exact(x: Array) -> Array:
        return x[:1] ** power

    problem = Problem(_noisy(_waves), equals(exact, name="power"), domain=domains.L2Ball(4.0), data=_data())
    return Case(problem, np.full(DIMENSION, 0.8, np.float32), _expected(_waves), exact)


def budget() -> Case:
    """Convex least squares under a sampled budget Σx ≤ 1 in a box; the optimum follows from the KKT conditions (5a, 5b)."""

    def quadratic(x: Array) -> Array:
        return 0.5 * jnp.sum((x - TARGET) ** 2)

    def sampled(x: Array, zeta: Array) -> Array:
        return jnp.mean((1.0 + zeta) @ x) - 1.0

    curvature = 1.0 + SPREAD
    optimum = TARGET - (np.sum(TARGET) - 1.0) / DIMENSION  # F is ½·1.2‖x − t‖² and the box does not bind
    value = float(0.5 * curvature * np.sum((optimum - TARGET) ** 2))
    problem = Problem(
        _noisy(quadratic), at_most(sampled, data=_data(), name="budget"), domain=domains.Box(-3.0, 3.0), data=_data()
    )

    def exact(x: Array) -> Array:
        return jnp.sum(x)[None] - 1.0

    return Case(problem, np.zeros(DIMENSION, np.float32), _expected(quadratic), exact, value)


def describe(case: Case) -> dict[str, Any]:
    """Dimension, batch size and domain, for the report."""
    return {"d": DIMENSION, "batch": BATCH, "domain": type(case.problem.domain).__name__}
