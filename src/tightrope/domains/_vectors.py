"""Pytrees as vectors: norms, tolerances and broadcasting that every set shares."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

Point = PyTree[Float[Array, "..."], "Point"]
"""A point of the space: any pytree of float arrays, one array included."""

Vector = Float[Array, " size"]
Scalar = Float[Array, ""]


def flatten(x: Any) -> Vector:
    """The entries of all leaves in one vector."""
    return ravel_pytree(x)[0]


def norm(vector: Vector) -> Scalar:
    """Euclidean norm, of vectors whose squares would overflow or underflow too; its gradient at 0 is 0."""
    largest = jnp.max(jnp.abs(vector), initial=0)
    ordinary = (largest > 0) & (largest < jnp.inf)
    scaled = jnp.where(ordinary, vector, 1) / jnp.where(ordinary, largest, 1)
    return jnp.where(ordinary, largest * jnp.sqrt(jnp.sum(scaled**2)), largest)


def epsilon(x: Any) -> float:
    """Spacing of the coarsest float type among the leaves of `x`, at 1."""
    return max((float(jnp.finfo(jnp.result_type(leaf)).eps) for leaf in jax.tree.leaves(x)), default=0.0)


def activity(x: Any) -> float:
    """How near to its boundary, relative to the size of a set, a point counts as on the boundary: eps^(2/3).

    A projection in floats lands within a modest multiple of eps of the boundary (reductions over n entries add a
    factor that grows with n), and must count as on it: eps^(2/3) leaves a factor eps^(-1/3), 200 in float32 and
    165 000 in float64. It must not be larger either: a gradient that pushes a point over the remaining gap is taken
    for stationary, which hides a decrease of up to eps^(2/3) of what crossing the whole set could give.
    """
    return epsilon(x) ** (2 / 3)


def broadcast(prefix: Any, x: Any) -> Any:
    """Arrays with the structure, shapes and types of `x` from `prefix`, a pytree prefix of it with smaller leaves."""

    def spread(value: Any, leaf: Any) -> Array:
        return jnp.broadcast_to(jnp.asarray(value, jnp.result_type(leaf)), jnp.shape(leaf))

    return jax.tree.map(spread, jax.tree.broadcast(prefix, x), x)
