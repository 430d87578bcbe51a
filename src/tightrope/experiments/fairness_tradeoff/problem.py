"""Two Gaussian classes in the plane and a sensitive attribute correlated with them (paper 5, Appendix F).

The classifiers for all angles and bounds c form one separable problem: a vector θ each, the sum of their losses, and one
covariance constraint each. CSOA treats every constraint separately, so this is the same as separate runs on the same samples.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...problems.constraints import between
from ...problems.data import Dataset
from ...problems.problem import Problem
from ..fair_adult.problem import accuracy, covariance, loss, p_rule
from . import config

Thetas = Float[Array, "angles bounds 3"]


def attribute_probability(x: Float[np.ndarray, "points 2"], angle: float) -> Float[np.ndarray, " points"]:
    """p(s = 1) = p(x̂ | 1) / (p(x̂ | 1) + p(x̂ | −1)) with x̂ = x rotated by the angle."""
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    one, other = (_density(x @ rotation.T, *each) for each in (config.POSITIVE, config.NEGATIVE))
    return one / (one + other)


def _density(x: Float[np.ndarray, "points 2"], mean: Any, spread: Any) -> Float[np.ndarray, " points"]:
    """The density of a Gaussian, times 2π."""
    centered, inverse = x - np.array(mean), np.linalg.inv(spread)
    return np.exp(-0.5 * np.sum(centered @ inverse * centered, axis=1)) / np.sqrt(np.linalg.det(spread))


@cache
def points(count: int = config.POINTS) -> dict[str, np.ndarray]:
    """`x` with a constant as third column, `y` = ±1, `group` = s − s̄ with one column per angle."""
    rng = np.random.default_rng(config.DATA_SEED)
    positive = rng.random(count) < 0.5
    one, other = (rng.multivariate_normal(*each, size=count) for each in (config.POSITIVE, config.NEGATIVE))
    x, chance = np.where(positive[:, None], one, other), rng.random(count)
    group = np.stack([chance < attribute_probability(x, angle) for angle in config.ANGLES.values()], axis=1)
    arrays = {"x": np.c_[x, np.ones(count)], "y": np.where(positive, 1.0, -1.0), "group": group - group.mean(axis=0)}
    return {key: values.astype(np.float32) for key, values in arrays.items()}


def for_angle(data: dict[str, Any], place: int) -> dict[str, Any]:
    """The points with the sensitive attribute of one angle."""
    return {**data, "group": data["group"][:, place]}


def losses(thetas: Thetas, batch: dict[str, Array]) -> Float[Array, ""]:
    """The sum of the classifiers' mean logistic losses."""
    return sum(jnp.sum(jax.vmap(loss, (0, None))(each, batch)) for each in thetas)  # pyright: ignore[reportReturnType]


def covariances(thetas: Thetas, batch: dict[str, Array]) -> Float[Array, "angles bounds"]:
    """The covariance of each classifier with the attribute of its angle."""
    found = [jax.vmap(covariance, (0, None))(each, for_angle(batch, i)) for i, each in enumerate(thetas)]
    return jnp.stack(found)


def make(count: int = config.POINTS) -> tuple[Problem, Float[np.ndarray, "angles bounds 3"]]:
    """The problem and θ = 0."""
    data, bounds = Dataset(points(count), config.BATCH), np.tile(config.BOUNDS, len(config.ANGLES))
    fair = between(
        lambda thetas, batch: covariances(thetas, batch).ravel(), -bounds, bounds, data=data, name="covariance"
    )
    start = np.zeros((len(config.ANGLES), len(config.BOUNDS), 3), np.float32)
    return Problem(losses, fair, data=data), start


MEASURED = {"loss": loss, "signed covariance": covariance, "accuracy": accuracy, "p-rule": p_rule}


@jax.jit
def measure(thetas: Float[Array, "classifiers 3"], data: dict[str, Array]) -> dict[str, Float[Array, " classifiers"]]:
    """Loss, covariance, accuracy and p%-rule of classifiers, on all points."""
    return {name: jax.lax.map(lambda theta, fn=fn: fn(theta, data), thetas) for name, fn in MEASURED.items()}
