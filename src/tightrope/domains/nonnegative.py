"""The non-negative orthant."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from ._vectors import Point
from .base import Domain


class NonNegative(Domain):
    """Every entry at least zero.

    X = {x : x >= 0}

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import NonNegative
        >>> NonNegative().project(jnp.array([-1.0, 2.0]))
        Array([0., 2.], dtype=float32)
    """

    def project(self, x: Point) -> Point:
        """max(x, 0)."""
        return optax.projections.projection_non_negative(x)

    @property
    def is_separable(self) -> bool:
        """True: each coordinate has its own interval."""
        return True

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """min(v, 0) where x is zero, else zero.

        No tolerance: projections have exact zeros, and a cone has no scale that a tolerance could be relative to.
        """
        return jax.tree.map(lambda at, push: jnp.where(at <= 0, jnp.minimum(push, 0), 0), x, v)
