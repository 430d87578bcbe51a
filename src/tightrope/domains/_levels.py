"""The water level: the one equation behind projections and normal cones of the simplex and the l1 ball."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._vectors import Scalar, Vector


def water_level(values: Vector, support: Bool[Array, " size"], volume: Float[Array, ""] | float) -> Scalar:
    """Return the level t at which Σ_{i in S} (values_i - t) + Σ_{i not in S} max(values_i - t, 0) = volume.

    The left side is the maximum over k of h_k(t) = Σ_{i in S} (values_i - t) + Σ_{k largest others} (values_i - t).
    Each h_k decreases in t, so the root is the largest root of the h_k. One sort gives them all:

        t = max_k (Σ_S values + Σ_{k largest others} values - volume) / (|S| + k).

    Args:
        values: the heights.
        support: the set S of entries that count with either sign. It may be empty if `volume` is positive.
        volume: the target of the sum.
    """
    others = jnp.sort(jnp.where(support, -jnp.inf, values), descending=True)
    counted = others > -jnp.inf
    in_support = jnp.sum(support)
    from_support = jnp.sum(jnp.where(support, values, 0)) - volume
    sums = from_support + jnp.cumsum(jnp.where(counted, others, 0))
    roots = jnp.where(counted, sums / (in_support + jnp.arange(1, values.size + 1)), -jnp.inf)
    root_without_others = jnp.where(in_support > 0, from_support / jnp.maximum(in_support, 1), -jnp.inf)
    return jnp.maximum(root_without_others, jnp.max(roots))


def project_on_simplex(vector: Vector, total: Scalar) -> Vector:
    """The projection onto {p ≥ 0, Σ p = total}: p = max(vector - t, 0) at the level t where p sums to total."""
    # optax.projections.projection_simplex cancels where entries are large compared with the total (in float32 its projection
    # of (1e8, 1e8, 1e8 + 8) sums to 9). Here the largest entry is shifted to 0 first, which does not change the projection,
    # and entries that lie `total` or more below it, and so outside the support, add no rounding to the sums.
    heights = jnp.maximum(vector - jnp.max(vector), -total)
    empty = jnp.zeros(vector.shape, bool)
    return jnp.maximum(heights - water_level(heights, empty, total), 0)
