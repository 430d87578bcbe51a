"""Norms and divisions that are safe at zero and at overflow."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def positive_or_one(number: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The number where it is positive, else 1: a divisor for quotients that are 0, or unused, where it is not."""
    return jnp.where(number > 0, number, 1.0)


def reciprocal_or_zero(number: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """1 / number where it is positive, else 0."""
    return jnp.where(number > 0, 1.0 / positive_or_one(number), 0.0)


def norm(vector: Float[Array, " size"]) -> Float[Array, ""]:
    """The Euclidean norm, also of vectors whose squares overflow or underflow; its gradient at 0 is 0."""
    largest = jnp.max(jnp.abs(vector), initial=0)
    ordinary = (largest > 0) & (largest < jnp.inf)
    scaled = jnp.where(ordinary, vector, 1) / jnp.where(ordinary, largest, 1)
    return jnp.where(ordinary, largest * jnp.sqrt(jnp.sum(scaled**2)), largest)


def truncate(v: Float[Array, "*shape"], radius: Float[Array, ""]) -> Float[Array, "*shape"]:
    """The projection of v onto the ball of this radius around 0 (Frobenius norm for a matrix); 0 where ‖v‖² overflows."""
    size = jnp.linalg.norm(v)
    return v * jnp.where(size > radius, radius / size, 1.0)
