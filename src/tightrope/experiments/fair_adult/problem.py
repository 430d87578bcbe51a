"""Income by logistic regression whose score hardly varies with sex (paper 5, problem (58)), and what is measured of it."""

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
    """Mean of (s − s̄) θᵀx; `group` is s − s̄, with the mean over all training rows."""
    return jnp.mean(batch["group"] * (batch["x"] @ theta))


def accuracy(theta: Float[Array, " d"], batch: dict[str, Array]) -> Float[Array, ""]:
    """The share of rows with y = 1 where θᵀx ≥ 0 and −1 elsewhere, in percent."""
    return 100.0 * jnp.mean((batch["x"] @ theta >= 0) == (batch["y"] > 0))


def p_rule(theta: Float[Array, " d"], batch: dict[str, Array]) -> Float[Array, ""]:
    """(139): the smaller over the larger rate of θᵀx ≥ 0 in the two groups, in percent; 100 where neither has any."""
    chosen, first = batch["x"] @ theta >= 0, batch["group"] > 0
    rates = jnp.stack([jnp.sum(chosen & group) / jnp.sum(group) for group in (first, ~first)])
    return 100.0 * jnp.where(jnp.max(rates) > 0, jnp.min(rates) / jnp.maximum(jnp.max(rates), 1e-9), 1.0)


@cache
def parts(rows: int | None = None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Training and test rows, of all complete ones or of the first `rows`; `group` less its mean over the training rows."""
    every = {key: values[:rows] for key, values in datasets.load("adult").all().items()}
    count = len(every["y"])
    train, validation = config.TRAIN, config.VALIDATION
    if rows is not None:
        train, validation = round(0.63 * count), round(0.07 * count)
    first, _, last = datasets.split(every, train, validation, count - train - validation)
    center = first["group"].mean(dtype=float)
    return tuple({**part, "group": (part["group"] - center).astype(np.float32)} for part in (first, last))  # pyright: ignore


@cache
def make(rows: int | None = None) -> tuple[Problem, Float[np.ndarray, " d"]]:
    """The problem, and θ = 0; made once: it keeps its programs."""
    train, _ = parts(rows)
    data = Dataset(train, config.BATCH)
    fair = between(covariance, -config.BOUND, config.BOUND, data=data, name="covariance")
    return Problem(loss, fair, data=data), np.zeros(train["x"].shape[1], np.float32)


@cache
def metrics(rows: int | None = None) -> dict[str, Callable[[Any, Any], Array]]:
    """Loss, covariance and violation on all training rows (the records' own are on a part of them); the rest on test rows."""
    train, test = (jax.tree.map(jnp.asarray, part) for part in parts(rows))

    def violation(theta: Array, _: Any) -> Array:
        return jnp.maximum(jnp.abs(covariance(theta, train)) - config.BOUND, 0.0)

    return {
        "loss": jax.jit(lambda theta, _: loss(theta, train)),
        "signed covariance": jax.jit(lambda theta, _: covariance(theta, train)),
        "excess": jax.jit(violation),
        "accuracy": jax.jit(lambda theta, _: accuracy(theta, test)),
        "p-rule": jax.jit(lambda theta, _: p_rule(theta, test)),
    }
