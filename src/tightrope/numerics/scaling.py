"""Scaling that is safe at zero and at overflow."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def positive_or_one(number: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The number where it is above zero, else 1: what is divided by it is zero there, or not used."""
    return jnp.where(number > 0, number, 1.0)


def truncate(v: Float[Array, "*shape"], radius: Float[Array, ""]) -> Float[Array, "*shape"]:
    """The nearest point to v of the ball of this radius around 0 (Frobenius for a matrix); 0 where ‖v‖² overflows."""
    norm = jnp.linalg.norm(v)
    return v * jnp.where(norm > radius, radius / norm, 1.0)
