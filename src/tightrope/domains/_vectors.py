"""Pytrees as vectors: flattening, tolerances and broadcasting, shared by all sets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

Point = PyTree[Float[Array, "..."], "Point"]
"""A point of the space: any pytree of float arrays, including one array."""

Vector = Float[Array, " size"]
Scalar = Float[Array, ""]


def flatten(x: Any) -> Vector:
    """The entries of all leaves in one vector."""
    return ravel_pytree(x)[0]


def epsilon(x: Any) -> float:
    """The machine epsilon of the coarsest float type among the leaves of `x`."""
    return max((float(jnp.finfo(jnp.result_type(leaf)).eps) for leaf in jax.tree.leaves(x)), default=0.0)


def boundary_tolerance(x: Any) -> float:
    """The distance from the boundary, relative to the size of a set, at which a point counts as on it: eps^(2/3).

    A projection in floats lands within a modest multiple of eps of the boundary (reductions over n entries add a
    factor that grows with n), and must count as on it: eps^(2/3) leaves a factor eps^(-1/3), 200 in float32 and
    165,000 in float64. It must not be larger either: a gradient that pushes a point across the remaining gap counts as
    stationary, which hides a decrease of up to eps^(2/3) of the decrease across the whole set.
    """
    return epsilon(x) ** (2 / 3)


def broadcast(prefix: Any, x: Any) -> Any:
    """Broadcast `prefix`, a pytree prefix of `x` with smaller leaves, to the structure, shapes and types of `x`."""

    def spread(value: Any, leaf: Any) -> Array:
        return jnp.broadcast_to(jnp.asarray(value, jnp.result_type(leaf)), jnp.shape(leaf))

    return jax.tree.map(spread, jax.tree.broadcast(prefix, x), x)
