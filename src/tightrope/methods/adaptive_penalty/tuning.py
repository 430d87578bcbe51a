"""What the steps of a run have taught: the part of the state that the dense and the matrix-free method share."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample
from .constants import FALLBACK_LENGTH, MEMORY_SIZE
from .full_pass import FullPass
from .quasi_newton import LBFGSMemory


class Tuning(NamedTuple):
    """Quantities that other methods ask their users for, and records of the run."""

    memory: LBFGSMemory
    """Pairs of M, and δ."""
    damping: Float[Array, ""]
    """σ."""
    penalty: Float[Array, " rows"]
    """ρ."""
    multipliers: Float[Array, " rows"]
    """y of the last step."""
    restoration: Float[Array, " rows"]
    """Multipliers of the last restoration step, as shares of its penalties."""
    last_pass: FullPass
    stalled: Float[Array, ""]
    """Share of late steps with a violation beyond noise, and no step that leads nearer to the constraints."""
    rejected: Int[Array, ""]
    """Number of rejected steps."""

    @classmethod
    def first(
        cls, x: Float[Array, " n"], curvature: Float[Array, ""], penalty: Float[Array, " rows"], multipliers: Array
    ) -> Tuning:
        """Return the tuning before the first step: no pairs, and σ = δ."""
        return cls(
            memory=LBFGSMemory.empty(MEMORY_SIZE, x, curvature),
            damping=curvature,
            penalty=penalty,
            multipliers=multipliers,
            restoration=jnp.zeros_like(penalty),
            last_pass=FullPass.none(penalty),
            stalled=jnp.zeros((), x.dtype),
            rejected=jnp.int32(0),
        )


def initial_curvature(
    oracle: Oracle,
    x: Float[Array, " n"],
    sample: Sample,
    gradient: Float[Array, " n"],
    multipliers: Float[Array, " rows"],
    distance: Float[Array, ""],
) -> Float[Array, ""]:
    """Return the first δ: the curvature of the Lagrangian along the gradient, from one Hessian-vector product.

    Where it is zero or not finite, the curvature for which the first step is as long as the linearized `distance` to the
    constraints, or as x where nothing is violated.
    """

    def slope(y: Float[Array, " n"]) -> Float[Array, ""]:
        return gradient @ (oracle.grad(y, sample) + oracle.vjp(y, sample)[1](multipliers))

    gradient_norm = jnp.linalg.norm(gradient)
    measured = jnp.linalg.norm(jax.grad(slope)(x)) / positive_or_one(gradient_norm)
    length = jnp.where(distance > 0, distance, jnp.maximum(FALLBACK_LENGTH, jnp.linalg.norm(x)))
    usable = (measured > 0) & jnp.isfinite(measured)
    return jnp.where(usable, measured, positive_or_one(gradient_norm / length))
