"""The base class of all sets: projection, linear minimization and normal cones of a closed convex set X."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from ..numerics.scaling import norm, positive_or_one
from ._vectors import Point, epsilon, flatten


class Domain(eqx.Module):
    """A simple convex set X of pytrees, in the Euclidean norm over all leaves together.

    To define a set of your own, define `project`, `lmo` or both; the rest follows from them. With an lmo alone, `contains`
    refuses only points that it can separate from X, and normal cones are outer approximations. Numbers in the fields are
    pytree leaves: they can be vmapped, and a new value does not compile again.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import Domain
        >>> class HalfSpace(Domain):  # {x : Σx <= bound}
        ...     bound: float
        ...
        ...     def project(self, x):
        ...         return x - jnp.maximum(jnp.sum(x) - self.bound, 0) / x.size
        >>> half_space = HalfSpace(1.0)
        >>> half_space.project(jnp.array([2.0, 1.0]))
        Array([1., 0.], dtype=float32)
        >>> bool(half_space.contains(jnp.array([2.0, 1.0])))
        False
    """

    def project(self, x: Point) -> Point:
        """The projection onto X: its point nearest to `x`."""
        raise TypeError(f"{type(self).__name__} has no projection; use a method that needs only an lmo")

    def lmo(self, gradient: Point) -> Point:
        """A point s of X that minimizes <gradient, s>: the linear minimization oracle."""
        raise TypeError(
            f"{type(self).__name__} has no linear minimization oracle (lmo); use a method that needs only a projection"
        )

    @property
    def can_project(self) -> bool:
        """Whether the set has a projection."""
        return type(self).project is not Domain.project

    @property
    def can_minimize(self) -> bool:
        """Whether the set has a linear minimization oracle."""
        return type(self).lmo is not Domain.lmo

    @property
    def is_separable(self) -> bool:
        """Whether the set is known to be a product of intervals, one for each coordinate."""
        return False

    def contains(self, x: Point, tolerance: Float[Array, ""] | float | None = None) -> Bool[Array, ""]:
        """Whether the distance of `x` to X is at most `tolerance`.

        Without a projection, Frank-Wolfe steps from X toward x search for a hyperplane that separates x from X by more than
        `tolerance`; if they find none, x counts as inside.

        Args:
            x: the point.
            tolerance: a distance. None: 16 eps times the scale of the set, which allows for rounding.
        """
        if not self.can_project:
            return self._separation(x) <= (16 * epsilon(x) * self._scale(x) if tolerance is None else tolerance)
        nearest = self.project(x)
        distance = norm(flatten(jax.tree.map(jnp.subtract, x, nearest)))
        return distance <= (16 * epsilon(x) * self._scale(nearest) if tolerance is None else tolerance)

    def diameter(self, x: Point) -> Float[Array, ""]:
        """The largest distance between two points of X; inf if X is unbounded or does not define it. `x` gives the shape."""
        return jnp.full((), jnp.inf, flatten(x).dtype)

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """The projection of `v` onto the normal cone N_X(x) = {n : <n, y - x> <= 0 for all y in X}, for `x` in X.

        The default for a set with a projection: the derivative of the projection at x in direction v is the projection
        onto the tangent cone, P_T(v) ≈ (P(x + tv) - P(x)) / t, and P_N(v) = v - P_T(v) by Moreau. The quotient has a
        rounding error of eps·length / (t‖v‖) and a curvature error of t‖v‖ / length, where length is the scale of the set
        and its points; t = sqrt(eps)·length / ‖v‖ makes both sqrt(eps). For a set of unknown diameter, length is 1 or the
        norm of x, whichever is larger.

        The default for a set with an lmo alone: s = lmo(-v) is the best point of X for v, and the projection is onto
        {n : <n, s - x> <= 0}, a half-space that contains the normal cone. The rest of v has the norm
        max(<v, s - x>, 0) / ‖s - x‖, the Frank-Wolfe gap per distance: the rate at which <v, ·> grows from x toward s. It is
        zero exactly where v is in the cone, and at most the distance to the cone.
        """
        if not self.can_project:
            return self._project_half_space(x, v)
        point, restore = ravel_pytree(x)
        direction = flatten(v)
        length = jnp.maximum(norm(point), jnp.minimum(self.diameter(x), 1))
        size = norm(direction)
        step = epsilon(x) ** 0.5 * length / positive_or_one(size)
        moved = flatten(self.project(restore(point + step * direction)))
        tangent = (moved - flatten(self.project(x))) / positive_or_one(step)
        return restore(direction - tangent)

    def normal_cone_distance(self, x: Point, gradient: Point) -> Float[Array, ""]:
        """The distance of `gradient` to -N_X(x), for `x` in X: zero exactly where x minimizes <gradient, ·> over X."""
        descent = jax.tree.map(jnp.negative, gradient)
        return norm(flatten(jax.tree.map(jnp.subtract, descent, self.project_normal_cone(x, descent))))

    def check(self, x: Any) -> None:
        """A ValueError, with what came and what was expected, if the set does not match the pytree `x`."""

    def _project_half_space(self, x: Point, v: Point) -> Point:
        push, restore = ravel_pytree(v)
        backward = jax.lax.stop_gradient(jax.tree.map(jnp.negative, v))  # the gap has no derivative through s
        direction = flatten(jax.tree.map(jnp.subtract, self.lmo(backward), x))
        unit = direction / positive_or_one(norm(direction))
        return restore(push - jnp.maximum(push @ unit, 0) * unit)

    def _separation(self, x: Point, steps: int = 64) -> Float[Array, ""]:
        """A lower bound of the distance from `x` to X by linear minimization alone; zero if none was found.

        Frank-Wolfe with exact line search on ½‖y - x‖²: every point of X is at least as far along y - x as lmo(y - x).
        """
        point, restore = ravel_pytree(x)

        def frank_wolfe(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            y, bound = carry
            outward = y - point
            best = flatten(self.lmo(restore(outward)))
            found = outward @ (best - point) / positive_or_one(norm(outward))
            direction = best - y
            step = jnp.clip(-(outward @ direction) / positive_or_one(direction @ direction), 0, 1)
            return y + step * direction, jnp.maximum(bound, found)

        first = flatten(self.lmo(x)).astype(point.dtype)
        return jax.lax.fori_loop(0, steps, frank_wolfe, (first, jnp.zeros((), point.dtype)))[1]

    def _scale(self, x: Point) -> Float[Array, ""]:
        """The magnitude of the numbers that a point `x` of X is computed from: its rounding is in units of their eps."""
        return norm(flatten(x))
