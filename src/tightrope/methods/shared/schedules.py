"""What depends on the step's number alone, and the on-line choice of one iterate among many."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Number = Float[Array, ""]


def power(scale: Number, k: Number, exponent: float | Number) -> Number:
    """`scale · k^exponent`, k ≥ 1."""
    return scale * k**exponent


def log_power(scale: Number, k: Number, exponent: float | Number, inside: Number) -> Number:
    """`scale · k^exponent / log(inside)`: a power of k, made summable where the power alone just is not."""
    return scale * k**exponent / jnp.log(inside)


def begins(k: Int[Array, ""], period: int | Int[Array, ""]) -> Bool[Array, ""]:
    """Whether step k, counted from 1, is the first of a period."""
    return (k - 1) % period == 0


def reservoir_replaces(uniform: Number, weight: Number | float, total: Number) -> Bool[Array, ""]:
    """Whether the newest iterate takes the place of the one picked so far.

    With `total` the sum of all weights up to and including this one, and one uniform number for each iterate, what is
    kept in the end is each iterate with probability weight / Σ weights: no iterate has to be stored but the picked one.
    """
    return (weight > 0) & (uniform * total < weight)
