"""Random signs, for estimates of traces and row norms by products with random vectors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

WORD = 32


def random_signs(key: Array, size: int, dtype: Any) -> Float[Array, " size"]:
    """Independent signs, ±1 with equal probability, from one random bit each (`jax.random.rademacher` draws 32)."""
    words = jax.random.bits(key, (-(-size // WORD), 1))
    bits = (words >> jnp.arange(WORD, dtype=words.dtype)) & 1
    return 1 - 2 * bits.reshape(-1)[:size].astype(dtype)
