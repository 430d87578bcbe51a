"""Logistic regression on the unit sphere with ten sampled linear equations (paper 3, Section 6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ... import datasets
from ...problems.constraints import equals
from ...problems.data import Dataset
from ...problems.problem import Problem
from . import config

Draws = dict[str, np.ndarray]


def loss(x: Float[Array, " n"], batch: dict[str, Array]) -> Float[Array, ""]:
    """Mean logistic loss."""
    return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ x)))


def linear(x: Float[Array, " n"], batch: dict[str, Array]) -> Float[Array, " 10"]:
    """Mean of Ax − a."""
    return jnp.mean(batch["A"] @ x - batch["a"], axis=0)


def sphere(x: Float[Array, " n"]) -> Float[Array, ""]:
    """‖x‖²."""
    return x @ x


def draws(n: int, count: int = config.DRAWS) -> Draws:
    """Samples of (A, a) around A0 and a0, which are drawn once; the second parameters of the paper's normals are variances."""
    rng = np.random.default_rng(config.DATA_SEED)
    center, right = rng.normal(1.0, 10.0, (config.EQUATIONS, n)), rng.normal(1.0, 10.0, config.EQUATIONS)
    spread = np.sqrt(1e-3)
    return {
        "A": rng.normal(center, spread / np.sqrt(n), (count, config.EQUATIONS, n)).astype(np.float32),
        "a": rng.normal(right, spread, (count, config.EQUATIONS)).astype(np.float32),
    }


def start(n: int) -> Float[np.ndarray, " n"]:
    """A Gaussian vector of length 0.01, the same for every run."""
    x = np.random.default_rng(config.DATA_SEED + 1).normal(size=n)
    return (0.01 * x / np.linalg.norm(x)).astype(np.float32)


@cache
def examples(name: str, count: int | None) -> dict[str, np.ndarray]:
    """All examples of a data set, training and test, or the first `count`."""
    arrays = datasets.load(name).all()
    return {key: arrays[key][:count] for key in ("x", "y")}


@cache
def make(name: str, count: int | None = None) -> tuple[Problem, Float[np.ndarray, " n"]]:
    """The problem on a data set (or on its first `count` examples) and the start; cached to keep its compiled programs."""
    data = Dataset(examples(name, count), config.BATCH)
    n = data.arrays["x"].shape[1]
    constraints = [
        equals(linear, data=Dataset(draws(n), config.BATCH), name="linear"),
        equals(sphere, 1.0, name="sphere"),
    ]
    return Problem(loss, constraints, data=data), start(n)


@cache
def metrics(name: str, count: int | None = None) -> dict[str, Callable[[Any, Any], Array]]:
    """Objective, ‖c‖, min over λ of ‖∇F + Jᵀλ‖, and the larger of the last two, on all examples and draws.

    The records' own values use a part of them.
    """
    data = jax.tree.map(jnp.asarray, examples(name, count))
    samples = draws(data["x"].shape[1])
    mean = {
        key: jnp.asarray(value.mean(axis=0, keepdims=True, dtype=float), jnp.float32) for key, value in samples.items()
    }

    def constraints(x: Array) -> Array:
        return jnp.append(linear(x, mean), sphere(x) - 1.0)

    @jax.jit
    def violation(x: Array, _: Any) -> Array:
        return jnp.linalg.norm(constraints(x))

    @jax.jit
    def residual(x: Array, _: Any) -> Array:
        gradient, jacobian = jax.grad(loss)(x, data), jax.jacrev(constraints)(x)
        basis = jnp.linalg.qr(jacobian.T)[0]
        return jnp.linalg.norm(gradient - basis @ (basis.T @ gradient))

    @jax.jit
    def larger(x: Array, _: Any) -> Array:
        return jnp.maximum(violation(x, _), residual(x, _))

    @jax.jit
    def objective(x: Array, _: Any) -> Array:
        return loss(x, data)

    return {"loss": objective, "norm of c": violation, "KKT residual": residual, "ε": larger}
