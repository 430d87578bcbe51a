"""Constrained logistic classifiers on generated data; their solutions come from Newton's method in float64."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..domains import L2Ball
from ..problems.constraints import at_most, between
from ..problems.data import Dataset
from ..problems.problem import Problem
from .base import Case, Solution

Vector = Float[np.ndarray, " size"]
Expansion = Callable[[Vector], tuple[float, Vector, Float[np.ndarray, "size size"]]]
"""A function's value, gradient and Hessian at a point."""


def fair_logistic_regression(batch_size: int = 32) -> Case:
    """Ridge logistic regression, fair to two groups: `between` at its upper bound, L2Ball.

    Minimize the mean of softplus(−y w·x) + 0.05‖w‖² over ‖w‖ ≤ 10 subject to |mean of s w·x| ≤ 0.05, where s = ±½ is the
    group. 200 examples from a fixed seed: x ~ N(0, I) in R⁵ with x₀ shifted by 2s, labels y = ±1 with the logistic scores
    x·(1.5, −1, 0.5, 0, 0). Without the constraint the mean is above 0.05, so the upper bound is active; the solution is that of
    the two equations ∇F + λ∇h = 0, h = 0.05, by Newton's method.
    """
    random = np.random.default_rng(0)
    group = np.tile([0.5, -0.5], 100)
    x = random.normal(size=(200, 5)) + 2.0 * np.outer(group, [1.0, 0.0, 0.0, 0.0, 0.0])
    y = _labels(random, x @ [1.5, -1.0, 0.5, 0.0, 0.0])

    def loss(w, batch):
        return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w))) + 0.05 * w @ w

    def parity(w, batch):
        return jnp.mean(batch["group"] * (batch["x"] @ w))

    data = Dataset({"x": x, "y": y, "group": group}, batch_size)
    problem = Problem(loss, between(parity, -0.05, 0.05, data=data), domain=L2Ball(10.0), data=data)
    w, multiplier, value = _on_the_boundary(_logistic(y[:, None] * x, 0.1), _linear(group @ x / 200), 0.05, size=5)
    return problem, jnp.zeros(5), Solution(jnp.asarray(w), value, {"parity": multiplier})


def neyman_pearson(batch_size: int = 16) -> Case:
    """Minimal loss on one class with a bound on the other's: two data sets, convex inequality.

    Minimize the mean of softplus(−w·x) over the positives subject to the mean of softplus(w·x) over the negatives being at
    most 0.3. 100 positives N(c, I) and 100 negatives N(−c, I) from a fixed seed, with c = (0.8, 0.4, 0, 0) and a last entry 1.
    The loss on the positives alone has no minimizer, so the bound is active; the solution is that of ∇F + μ∇g = 0, g = 0.3, by
    Newton's method.
    """
    random = np.random.default_rng(1)
    center = np.array([0.8, 0.4, 0.0, 0.0])
    positives, negatives = (
        np.hstack([random.normal(size=(100, 4)) + sign * center, np.ones((100, 1))]) for sign in (1, -1)
    )

    def missed(w, batch):
        return jnp.mean(jax.nn.softplus(-(batch @ w)))

    def false_alarms(w, batch):
        return jnp.mean(jax.nn.softplus(batch @ w))

    bound = at_most(false_alarms, 0.3, data=Dataset(negatives, batch_size))
    w, multiplier, value = _on_the_boundary(_logistic(positives), _logistic(-negatives), 0.3, size=5)
    solution = Solution(jnp.asarray(w), value, {"false_alarms": multiplier})
    return Problem(missed, bound, data=Dataset(positives, batch_size)), jnp.zeros(5), solution


def _labels(random: np.random.Generator, scores: Vector) -> Vector:
    return np.where(random.uniform(size=scores.size) < 1 / (1 + np.exp(-scores)), 1.0, -1.0)


def _logistic(signed: Float[np.ndarray, "examples size"], ridge: float = 0.0) -> Expansion:
    """The mean of softplus(−signed·w) + ½ ridge ‖w‖²."""

    def expand(w: Vector):
        margins = signed @ w
        wrong = 1 / (1 + np.exp(margins))
        value = np.mean(np.logaddexp(0, -margins)) + 0.5 * ridge * w @ w
        gradient = -signed.T @ wrong / len(signed) + ridge * w
        hessian = signed.T * (wrong * (1 - wrong)) @ signed / len(signed) + ridge * np.eye(w.size)
        return float(value), gradient, hessian

    return expand


def _linear(slope: Vector) -> Expansion:
    return lambda w: (float(slope @ w), slope, np.zeros((w.size, w.size)))


def _on_the_boundary(
    objective: Expansion, constraint: Expansion, level: float, size: int
) -> tuple[Vector, float, float]:
    """(w, μ, objective) with ∇f + μ∇g = 0 and g = level, by 25 steps of Newton's method from w = 0, μ = 1."""
    w, multiplier = np.zeros(size), 1.0
    for _ in range(25):
        _, slope, curvature = objective(w)
        value, normal, hessian = constraint(w)
        system = np.block([[curvature + multiplier * hessian, normal[:, None]], [normal[None, :], np.zeros((1, 1))]])
        step = np.linalg.solve(system, -np.append(slope + multiplier * normal, value - level))
        w, multiplier = w + step[:-1], multiplier + float(step[-1])
    return w, multiplier, objective(w)[0]
