"""The exact penalty Σ ρ_i dist(h_i, [low_i, high_i]): how penalties fall."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...numerics.scaling import positive_or_one
from .constants import AMPLE_FACTOR, MIN_SCALED_PENALTY, RELAX_FACTOR


def decrease_penalties(
    penalty: Float[Array, " rows"],
    multipliers: Float[Array, " rows"],
    row_norm: Float[Array, " rows"],
    gradient_sq: Float[Array, ""],
) -> Float[Array, " rows"]:
    """Return the penalties after an accepted step: lower where they are ample, if they held every row, |y_i| < ρ_i.

    A distant start may raise penalties by orders of magnitude, and with that much weight on curved constraints every step is
    tiny. A penalty is ample if the scaled penalty ρ_i‖∇h_i‖ is more than ten times what the hardest row needs, the largest
    |y_j|‖∇h_j‖, which counts as at least a tenth of ‖∇F‖.
    """
    held = jnp.all(jnp.abs(multipliers) < penalty)
    needed = jnp.maximum(
        jnp.max(jnp.abs(multipliers) * row_norm, initial=0.0), MIN_SCALED_PENALTY * jnp.sqrt(gradient_sq)
    )
    ample = AMPLE_FACTOR * needed / positive_or_one(row_norm)
    return jnp.where(held, jnp.maximum(RELAX_FACTOR * penalty, jnp.minimum(penalty, ample)), penalty)
