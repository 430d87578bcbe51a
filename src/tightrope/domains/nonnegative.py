"""The non-negative orthant."""

import jax
import jax.numpy as jnp
import optax

from tightrope.domains._vectors import Point
from tightrope.domains.base import Domain


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

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """min(v, 0) where x is zero, else zero.

        Zero is meant exactly: the projection makes it exactly, and a cone has no scale for "nearly" to refer to.
        """
        return jax.tree.map(lambda at, push: jnp.where(at <= 0, jnp.minimum(push, 0), 0), x, v)
