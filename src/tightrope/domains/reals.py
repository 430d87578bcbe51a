"""The whole space."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ._vectors import Point
from .base import Domain


class Reals(Domain):
    """The whole space: no constraint at all.

    X = R^n

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import Reals
        >>> Reals().project(jnp.array([-1.0, 2.0]))
        Array([-1.,  2.], dtype=float32)
    """

    def project(self, x: Point) -> Point:
        """`x` itself."""
        return x

    @property
    def is_separable(self) -> bool:
        """True: each coordinate has its own interval."""
        return True

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """Zero, the only normal vector."""
        return jax.tree.map(jnp.zeros_like, v)
