"""The l1 ball, whose projections are sparse."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..arguments import numbers
from ._checks import check_scalar
from ._levels import project_on_simplex, water_level
from ._vectors import Point, boundary_tolerance, flatten
from .base import Domain


class L1Ball(Domain):
    """Entries whose absolute values sum to at most a radius, over all leaves together.

    X = {x : Σ_i |x_i| <= radius}

    Args:
        radius: a positive number.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import L1Ball
        >>> L1Ball(1.0).project(jnp.array([-2.0, 1.5, 0.1]))
        Array([-0.75,  0.25,  0.  ], dtype=float32)
    """

    radius: Float[Array, ""] | float

    def __check_init__(self):
        numbers("L1Ball", "radius", self.radius, low=0.0)

    def project(self, x: Point) -> Point:
        """sign(x)·max(|x| - t, 0), with the t that makes its l1 norm the radius; x itself inside."""
        point, restore = ravel_pytree(x)
        radius = jnp.asarray(self.radius, point.dtype)
        size = jnp.abs(point)
        on_sphere = jnp.sign(point) * project_on_simplex(size, radius)
        return restore(jnp.where(jnp.sum(size) <= radius, point, on_sphere))

    def lmo(self, gradient: Point) -> Point:
        """The whole radius on the largest entry of the gradient, against its sign; zero for a zero gradient."""
        slope, restore = ravel_pytree(gradient)
        steepest = jnp.argmax(jnp.abs(slope))
        end = -jnp.asarray(self.radius, slope.dtype) * jnp.sign(slope[steepest])
        return restore(jnp.zeros_like(slope).at[steepest].set(end))

    def diameter(self, x: Point) -> Float[Array, ""]:
        """Twice the radius, the distance between opposite vertices."""
        return 2 * jnp.asarray(self.radius, flatten(x).dtype)

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """The projection of v onto {t·s : t >= 0, s = sign(x) on the support S of x, |s| <= 1 elsewhere}; zero inside.

        With u = sign(x)·v on S and |v| elsewhere it is sign·t on S and sign·min(u, t) elsewhere; the best t has
        Σ_S (u - t) + Σ_{not S} max(u - t, 0) = 0, or is 0 where that is negative. An entry of x is zero when it is
        eps^(2/3) of radius / n: of a thousand entries most are small compared with the radius.
        """
        point, restore = ravel_pytree(x)
        push = flatten(v)
        radius = jnp.asarray(self.radius, point.dtype)
        support = jnp.abs(point) > boundary_tolerance(x) * radius / point.size
        sign = jnp.where(support, jnp.sign(point), jnp.sign(push))
        outward = sign * push
        level = jnp.maximum(water_level(outward, support, 0.0), 0)
        normal = sign * jnp.where(support, level, jnp.minimum(outward, level))
        on_sphere = jnp.sum(jnp.abs(point)) >= (1 - boundary_tolerance(x)) * radius
        return restore(jnp.where(on_sphere, normal, 0))

    def check(self, x: Any) -> None:
        """A ValueError unless the radius is one number."""
        check_scalar("L1Ball", "radius", self.radius)

    def _scale(self, x: Point) -> Float[Array, ""]:
        return jnp.asarray(self.radius, flatten(x).dtype)
