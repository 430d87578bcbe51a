"""Logistic regression of income with a score almost uncorrelated with sex (paper 5, problem (58)), and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ... import datasets
from ...problems.constraints import between
from ...problems.data import Dataset
from ...problems.problem import Problem
from . import config


def loss(theta: Float[Array, " d"], batch: dict[str, Array]) -> Float[Array, ""]:
    """Mean logistic loss; y = ±1."""
    return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ theta)))


def covariance(theta: Float[Array, " d"], batch: dict[str, Array]) -> Float[Array, ""]:
    """Mean of (s − s̄) θᵀx; `group` is s − s̄, with the mean over the training set."""
    return jnp.mean(batch["group"] * (batch["x"] @ theta))


def accuracy(theta: Float[Array, " d"], batch: dict[str, Array]) -> Float[Array, ""]:
    """The share of examples whose sign θᵀx ≥ 0 predicts, in percent."""
    return 100.0 * jnp.mean((batch["x"] @ theta >= 0) == (batch["y"] > 0))


def p_rule(theta: Float[Array, " d"], batch: dict[str, Array]) -> Float[Array, ""]:
    """The p%-rule (139): the smaller rate of θᵀx ≥ 0 in the two groups as a percentage of the larger; 100 if both are 0."""
    chosen, first = batch["x"] @ theta >= 0, batch["group"] > 0
    rates = jnp.stack([jnp.sum(chosen & group) / jnp.sum(group) for group in (first, ~first)])
    return 100.0 * jnp.where(jnp.max(rates) > 0, jnp.min(rates) / jnp.maximum(jnp.max(rates), 1e-9), 1.0)


@cache
def parts(count: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Training and test set, of all examples or of the first `count`; `group` minus its mean over the training set."""
    every = {key: values[:count] for key, values in datasets.load("adult").all().items()}
    total = len(every["y"])
    train, validation = config.TRAIN, config.VALIDATION
    if count is not None:
        train, validation = round(0.63 * total), round(0.07 * total)
    first, _, last = datasets.split(every, train, validation, total - train - validation)
    center = first["group"].mean(dtype=float)
    return tuple({**part, "group": (part["group"] - center).astype(np.float32)} for part in (first, last))  # pyright: ignore


@cache
def make(count: int | None = None) -> tuple[Problem, Float[np.ndarray, " d"]]:
    """The problem and θ = 0; cached, since a problem keeps its compiled programs."""
    train, _ = parts(count)
    data = Dataset(train, config.BATCH)
    fair = between(covariance, -config.BOUND, config.BOUND, data=data, name="covariance")
    return Problem(loss, fair, data=data), np.zeros(train["x"].shape[1], np.float32)


@cache
def metrics(count: int | None = None) -> dict[str, Callable[[Any, Any], Array]]:
    """Loss, covariance and violation on the training set (the records' own use a part of it); the rest on the test set."""
    train, test = (jax.tree.map(jnp.asarray, part) for part in parts(count))

    def violation(theta: Array, _: Any) -> Array:
        return jnp.maximum(jnp.abs(covariance(theta, train)) - config.BOUND, 0.0)

    return {
        "loss": jax.jit(lambda theta, _: loss(theta, train)),
        "signed covariance": jax.jit(lambda theta, _: covariance(theta, train)),
        "excess": jax.jit(violation),
        "accuracy": jax.jit(lambda theta, _: accuracy(theta, test)),
        "p-rule": jax.jit(lambda theta, _: p_rule(theta, test)),
    }
