"""Euclidean balls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..arguments import numbers
from ..numerics.scaling import norm, positive_or_one
from ._checks import check_broadcast, check_real, check_scalar, is_concrete
from ._vectors import Point, Scalar, Vector, boundary_tolerance, broadcast, epsilon, flatten
from .base import Domain


class L2Ball(Domain):
    """A Euclidean ball over all leaves together.

    X = {x : ‖x - center‖ <= radius}

    Args:
        radius: a positive number.
        center: a number or a pytree like x (or a prefix of it) whose leaves broadcast to those of x; None for zero.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import L2Ball
        >>> L2Ball(5.0).project(jnp.array([6.0, 8.0]))
        Array([3., 4.], dtype=float32)
    """

    radius: Float[Array, ""] | float
    center: Any = None

    def __check_init__(self):
        numbers("L2Ball", "radius", self.radius, low=0.0)
        if self.center is None:
            return
        check_real("L2Ball", "center", self.center)
        for leaf in filter(is_concrete, jax.tree.leaves(self.center)):
            if not np.all(np.isfinite(leaf)):
                raise ValueError(f"L2Ball: center must be finite, got {leaf!r}")

    def project(self, x: Point) -> Point:
        """The point on the ray from the center through `x`, at most radius away."""
        # optax.projections.projection_l2_ball squares the norm and the radius, which overflow in float32 beyond 1e19: it
        # moves far points to the center, and every point of a ball of radius 1e20.
        point, restore = ravel_pytree(x)
        center, radius = self._numbers(x, point)
        offset = point - center
        distance = norm(offset)
        on_sphere = center + radius * (offset / jnp.maximum(distance, radius))
        return restore(jnp.where(distance <= radius, point, on_sphere))

    def lmo(self, gradient: Point) -> Point:
        """Center - radius·gradient / ‖gradient‖; the center where the gradient is zero."""
        slope, restore = ravel_pytree(gradient)
        center, radius = self._numbers(gradient, slope)
        return restore(center - radius * _unit(slope))

    def diameter(self, x: Point) -> Float[Array, ""]:
        """Twice the radius."""
        return 2 * jnp.asarray(self.radius, flatten(x).dtype)

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """The component of v along the outward ray through x if x is on the sphere; zero inside."""
        point, restore = ravel_pytree(x)
        center, radius = self._numbers(x, point)
        offset = point - center
        rounding = 4 * epsilon(x) * norm(center)  # of point - center
        on_sphere = norm(offset) >= (1 - boundary_tolerance(x)) * radius - rounding
        outward = _unit(offset)
        length = jnp.maximum(jnp.sum(outward * flatten(v)), 0)
        return restore(jnp.where(on_sphere, length * outward, 0))

    def check(self, x: Any) -> None:
        """A ValueError unless the radius is one number and the center broadcasts to `x`."""
        check_scalar("L2Ball", "radius", self.radius)
        if self.center is not None:
            check_broadcast("L2Ball", "center", self.center, x)

    def _numbers(self, x: Point, point: Vector) -> tuple[Vector, Scalar]:
        """The center and the radius in the type of the vector `point`."""
        center = jnp.zeros_like(point) if self.center is None else flatten(broadcast(self.center, x))
        return center, jnp.asarray(self.radius, point.dtype)

    def _scale(self, x: Point) -> Float[Array, ""]:
        center, radius = self._numbers(x, flatten(x))
        return radius + norm(center)


def _unit(vector: Vector) -> Vector:
    """The direction of a vector; zero for the zero vector."""
    return vector / positive_or_one(norm(vector))
