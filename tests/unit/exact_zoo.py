"""Problems of the zoo with exact expectations, for tests.

Finite data is used in full. For samplers this file states each law a second time, independently of the zoo. Gaussian examples
are replaced by the 2n points mean ± √n·root·eᵢ, which have the same mean and covariance, so that the mean over them is the
expectation of any quadratic function of the examples, as all of these are. Uniform demands, which enter through a kink, are
replaced by integrals in closed form. `test_samples_agree_with_the_exact_expectations` compares these laws with large samples
from the zoo's own samplers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import tightrope as tr
from tightrope import zoo

NAMES = tuple(zoo.available())
INFEASIBLE = ("circle_and_wall",)
FEASIBLE = tuple(name for name in NAMES if name not in INFEASIBLE)


def cubature(mean: list[float], root: Any) -> np.ndarray:
    """2n examples with this mean and the covariance root·rootᵀ."""
    center, root = np.asarray(mean, float), np.asarray(root, float)
    steps = np.sqrt(center.size) * (root * np.eye(center.size) if root.ndim == 0 else root).T
    return np.concatenate([center + steps, center - steps])


REFLECTION = np.array([[1.0, -2.0, -2.0], [-2.0, 1.0, -2.0], [-2.0, -2.0, 1.0]]) / 3
LAWS = {
    "projection_on_plane": [cubature([0.5, 1.5, 1.0, 1.0], 0.5)],
    "least_eigenvector": [cubature([0.0, 0.0, 0.0], REFLECTION @ np.diag([0.5, 1.0, 1.5]))],
    "noisy_sphere": [cubature([2.0, -1.0, 2.0], 0.5), cubature([0.0, 0.0, 0.0], 0.3)],
    "outside_the_ball": [cubature([0.3, 0.4], 0.3)],
    "three_bands": [cubature([1.75, 0.25, -1.5], 0.5), cubature([0.0, 0.0, 0.0], 0.5)],
    "sparse_mean": [cubature([2.0, 1.0, 0.3, -0.1], 0.5)],
    "l1_budget": [cubature([2.0, -1.0, 0.25], 0.5)],
    "mean_variance": [cubature([0.35, 0.4, 0.5, 0.05], np.sqrt(np.diag([0.5, 1.0, 2.0, 1.0])))],
    "line_in_l1_ball": [cubature([3.0, 1.0, 0.2], 0.5)],
    "ball_and_box": [cubature([0.7, 2.1, 0.9, 2.0], 0.5)],
}
"""Examples that represent each sampler's law, in the order of `problem.sources`."""


def mean_shortage(stock: Any) -> Any:
    """E max(D − stock, 0) for D uniform on [0, 1]."""
    within = jnp.clip(stock, 0.0, 1.0)
    return 0.5 * (1.0 - within) ** 2 + jnp.maximum(-stock, 0.0)


INTEGRALS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "newsvendor": {"shortage": lambda x: mean_shortage(x) @ jnp.asarray([1.0, 4.0, 0.25])},
    "tail_risk": {"risk": lambda x: x["threshold"] + mean_shortage(x["stock"] + x["threshold"]) / 0.5},
}
"""Expectations of the constraints with kinks."""


class Exact(NamedTuple):
    """A problem of the zoo with exact expectations, on flat vectors."""

    problem: tr.Problem
    start: jax.Array
    unravel: Callable[[jax.Array], Any]
    solution: zoo.Solution
    x: jax.Array
    objective: Callable[[jax.Array], jax.Array]
    constraints: dict[str, Callable[[jax.Array], jax.Array]]

    def project(self, point: jax.Array) -> jax.Array:
        return ravel_pytree(self.problem.domain.project(self.unravel(point)))[0]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of the entries of `values`."""
        pairs = [
            np.broadcast_arrays(c.low, c.high, np.empty(jax.eval_shape(self.constraints[c.name], self.start).shape))[:2]
            for c in self.problem.constraints
        ]
        low, high = (np.concatenate([np.ravel(end) for end in ends]) for ends in zip(*pairs, strict=True))
        return low, high

    def values(self, point: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.ravel(h(point)) for h in self.constraints.values()])

    def violation(self, point: jax.Array) -> jax.Array:
        (low, high), values = self.bounds(), self.values(point)
        return jnp.max(jnp.maximum(values - high, low - values), initial=0.0)

    def signed_multipliers(self) -> np.ndarray:
        """One multiplier per entry of `values`, positive for an active upper bound."""
        stated = self.solution.multipliers
        assert stated is not None
        return np.concatenate(
            [(-1.0 if c.kind == "at_least" else 1.0) * np.ravel(stated[c.name]) for c in self.problem.constraints]
        )

    def lagrangian(self, point: jax.Array, multipliers: Any) -> jax.Array:
        return self.objective(point) + jnp.asarray(multipliers) @ self.values(point)


@functools.cache
def exact(name: str) -> Exact:
    """The problem of this name in float64; call it under `enable_x64`."""
    problem, x0, solution = zoo.available()[name]()
    start, unravel = ravel_pytree(x0)
    laws = iter(LAWS.get(name, []))
    examples = {id(s): s.arrays if isinstance(s, tr.Dataset) else next(laws, None) for s in problem.sources}

    def expectation(fn: Callable[..., Any], data: Any) -> Callable[[jax.Array], jax.Array]:
        if data is None:
            return jax.jit(lambda point: fn(unravel(point)))
        assert examples[id(data)] is not None, f"{name}: state the law of {data}"
        return jax.jit(lambda point: fn(unravel(point), jax.tree.map(jnp.asarray, examples[id(data)])))

    def constraint(c: tr.Constraint) -> Callable[[jax.Array], jax.Array]:
        integral = INTEGRALS.get(name, {}).get(c.name)
        return expectation(c.fn, c.data) if integral is None else lambda point: integral(unravel(point))

    x = start if solution.x is None else ravel_pytree(solution.x)[0]
    constraints = {c.name: constraint(c) for c in problem.constraints}
    return Exact(problem, start, unravel, solution, x, expectation(problem.objective, problem.data), constraints)
