"""Step-size schedules, periods, and reservoir sampling of one iterate."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Number = Float[Array, ""]


def power(scale: Number, k: Number, exponent: float | Number) -> Number:
    """`scale · k^exponent`, k ≥ 1."""
    return scale * k**exponent


def log_power(scale: Number, k: Number, exponent: float | Number, inside: Number) -> Number:
    """`scale · k^exponent / log(inside)`: the logarithm makes sums converge that diverge without it."""
    return scale * k**exponent / jnp.log(inside)


def starts_period(k: Int[Array, ""], period: int | Int[Array, ""]) -> Bool[Array, ""]:
    """Whether step k, counted from 1, is the first one of a period."""
    return (k - 1) % period == 0


def reservoir_replaces(uniform: Number, weight: Number | float, total: Number) -> Bool[Array, ""]:
    """Whether the newest iterate replaces the one picked so far (weighted reservoir sampling).

    `total` is the sum of all weights so far, this one included; `uniform` is a fresh uniform number for each iterate. At the
    end each iterate is the picked one with probability weight / Σ weights, and only one iterate was ever stored.
    """
    return (weight > 0) & (uniform * total < weight)
