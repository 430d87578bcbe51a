"""Small problems of every kind, for the checks of the contract and for tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import domains
from ..methods.base import Method
from ..methods.selection import refusal
from ..problems.constraints import affine, at_most, between, equals
from ..problems.data import Dataset
from ..problems.problem import Problem

FEATURES, BATCH = 4, 8


class OnlyLinearMinimization(domains.Domain):
    """The unit simplex, known only through its linear minimization oracle."""

    def lmo(self, gradient: Array) -> Array:
        """The vertex at the smallest entry of the gradient."""
        return jax.nn.one_hot(jnp.argmin(gradient), gradient.size, dtype=gradient.dtype)

    def contains(self, x: Array, tolerance: Float[Array, ""] | float | None = None) -> Array:
        """Whether x is in the simplex."""
        slack = 1e-4 if tolerance is None else tolerance
        return jnp.all(x >= -slack) & (jnp.abs(jnp.sum(x) - 1.0) <= slack)


def points(count: int = 400, features: int = FEATURES, seed: int = 0) -> dict[str, np.ndarray]:
    """Random points `x` with labels `y` = ±1 and a centered group `s` that is correlated with the labels.

    Example:
        >>> sorted(points(10)), points(10)["x"].shape
        (['s', 'x', 'y'], (10, 4))
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, features))
    y = np.sign(x @ rng.normal(size=features) + 0.5 * rng.normal(size=count))
    s = (x[:, 0] + 0.5 * rng.normal(size=count) > 0).astype(float)
    return {"x": x, "y": y, "s": s - s.mean()}


def loss(w: Array, batch: dict[str, Array]) -> Array:
    """The mean logistic loss."""
    return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))


def parity(w: Array, batch: dict[str, Array]) -> Array:
    """The covariance of group and score."""
    return jnp.mean(batch["s"] * (batch["x"] @ w))


def square_norm(w: Array) -> Array:
    """‖w‖²."""
    return w @ w


KINDS: dict[str, Callable[[Dataset], tuple[Any, domains.Domain | None]]] = {
    "no constraints": lambda data: ((), None),
    "deterministic equality": lambda data: (equals(square_norm, 0.8), None),
    "deterministic inequalities": lambda data: (
        (at_most(square_norm, 0.2), between(lambda w: w[:3], -0.2, 0.3, name="each")),
        domains.Box(-1.0, 1.0),
    ),
    "free affine equality": lambda data: (affine(np.ones((1, FEATURES)), [0.0]), None),
    "affine equality": lambda data: (affine(np.ones((1, FEATURES)), [0.0]), domains.L2Ball(2.0)),
    "stochastic inequality": lambda data: (at_most(parity, 0.1, data=data), domains.L1Ball(3.0)),
    "stochastic equality": lambda data: (equals(parity, 0.1, data=data), None),
    "a set without projection": lambda data: (at_most(square_norm, 0.28), OnlyLinearMinimization()),
}
"""The kinds of problems: data ↦ constraints and domain."""

START = np.array([0.4, 0.3, 0.2, 0.1])
"""A point in every domain above."""
FLOAT32 = START.astype(np.float32)


def new_example(kind: str, objective: Callable[..., Array] = loss, arrays: Any = None) -> Problem:
    """A small logistic regression of this kind, with another objective or other data if given."""
    data = Dataset(points() if arrays is None else arrays, batch_size=BATCH)
    constraints, domain = KINDS[kind](data)
    return Problem(objective, constraints, domain=domain, data=data)


example = cache(new_example)
"""The same, with one problem per kind, so that checks share its compiled programs."""


def accepted(method: type[Method]) -> list[str]:
    """The kinds of problems that a method accepts."""
    return [kind for kind in KINDS if refusal(example(kind), method) is None]


def main_kind(method: type[Method]) -> str:
    """The kind of problem that most checks use: the last one that the method accepts, with at most one constraint."""
    return accepted(method)[-1]
