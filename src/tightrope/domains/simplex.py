"""The simplex: non-negative entries with a given sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..arguments import numbers
from ._checks import check_scalar
from ._levels import project_on_simplex, water_level
from ._vectors import Point, boundary_tolerance, flatten
from .base import Domain


class Simplex(Domain):
    """Non-negative entries that sum to a total, over all leaves together.

    X = {x : x >= 0, Σ_i x_i = total}

    Args:
        total: a positive number; 1 makes x a probability vector.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import Simplex
        >>> Simplex().project(jnp.array([1.0, 0.5, -3.0]))
        Array([0.75, 0.25, 0.  ], dtype=float32)
    """

    total: Float[Array, ""] | float = 1.0

    def __check_init__(self):
        numbers("Simplex", "total", self.total, low=0.0)

    def project(self, x: Point) -> Point:
        """max(x - t, 0), with the t that makes its sum the total."""
        point, restore = ravel_pytree(x)
        return restore(project_on_simplex(point, jnp.asarray(self.total, point.dtype)))

    def lmo(self, gradient: Point) -> Point:
        """The whole total on the smallest entry of the gradient."""
        slope, restore = ravel_pytree(gradient)
        vertex = jnp.zeros_like(slope).at[jnp.argmin(slope)].set(jnp.asarray(self.total, slope.dtype))
        return restore(vertex)

    def diameter(self, x: Point) -> Float[Array, ""]:
        """√2·total, the distance between two vertices; zero if there is only one."""
        point = flatten(x)
        return jnp.asarray(self.total, point.dtype) * (np.sqrt(2).item() if point.size > 1 else 0.0)

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """The projection of v onto {t·1 - mu : mu >= 0, mu = 0 on the support S of x}.

        On S it equals t, elsewhere min(v, t), and the best t has Σ_S (v - t) + Σ_{not S} max(v - t, 0) = 0.
        An entry is zero when it is eps^(2/3) of the mean entry, total / n: of a thousand entries most are small
        compared with the total.
        """
        point, restore = ravel_pytree(x)
        push = flatten(v)
        support = point > boundary_tolerance(x) * jnp.asarray(self.total, point.dtype) / point.size
        level = water_level(push, support, 0.0)
        return restore(jnp.where(support, level, jnp.minimum(push, level)))

    def check(self, x: Any) -> None:
        """A ValueError unless total is one number and `x` has entries."""
        check_scalar("Simplex", "total", self.total)
        if sum(np.size(leaf) for leaf in jax.tree.leaves(x)) == 0:
            raise ValueError(f"Simplex: x must have at least one entry, got {x!r}")

    def _scale(self, x: Point) -> Float[Array, ""]:
        return jnp.asarray(self.total, flatten(x).dtype)
