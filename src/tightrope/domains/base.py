"""What a domain is: a closed convex set X with what it can of projection, linear minimization and normal cones."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from tightrope.domains._vectors import Point, epsilon, flatten, norm


class Domain(eqx.Module):
    """A simple convex set X of pytrees, in the Euclidean norm over all leaves together.

    A set of your own defines `project`, `lmo` or both; the rest follows from them, more weakly from an lmo alone: `contains`
    then refuses only what it can separate from X, and normal cones are outer approximations. Numbers in its fields are
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
        """The point of X nearest to `x`."""
        raise TypeError(f"{type(self).__name__} has no projection; use a method that needs only its lmo")

    def lmo(self, gradient: Point) -> Point:
        """A point s of X that minimizes <gradient, s>: the linear minimization oracle."""
        raise TypeError(
            f"{type(self).__name__} has no linear minimization oracle (lmo); "
            "use a method that needs only its projection"
        )

    @property
    def can_project(self) -> bool:
        """Whether the set has a projection."""
        return type(self).project is not Domain.project

    @property
    def can_minimize(self) -> bool:
        """Whether the set has a linear minimization oracle."""
        return type(self).lmo is not Domain.lmo

    def contains(self, x: Point, tolerance: Float[Array, ""] | float | None = None) -> Bool[Array, ""]:
        """Whether the distance of `x` to X is at most `tolerance`.

        Without a projection, Frank-Wolfe steps from X towards x look for a hyperplane that separates x from X by more than
        `tolerance`; a point with which they find none counts as inside.

        Args:
            x: the point.
            tolerance: a distance. None: what rounding can make of a point of the set, 16 eps times its scale.
        """
        if not self.can_project:
            return self._separation(x) <= (16 * epsilon(x) * self._scale(x) if tolerance is None else tolerance)
        nearest = self.project(x)
        distance = norm(flatten(jax.tree.map(jnp.subtract, x, nearest)))
        return distance <= (16 * epsilon(x) * self._scale(nearest) if tolerance is None else tolerance)

    def diameter(self, x: Point) -> Float[Array, ""]:
        """The largest distance of two points of X, inf where X is unbounded or does not say; `x` gives the shape."""
        return jnp.full((), jnp.inf, flatten(x).dtype)

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """The point nearest to `v` of the normal cone N_X(x) = {n : <n, y - x> <= 0 for all y in X}, for `x` in X.

        For a set that says no more than its projection: the derivative of the projection at x in direction v is the
        projection on the tangent cone, P_T(v) ≈ (P(x + tv) - P(x)) / t, and P_N(v) = v - P_T(v) by Moreau. Rounding
        puts eps·length / (t‖v‖) into the quotient and curvature t‖v‖ / length, where length is that of the set and
        its points; t = sqrt(eps)·length / ‖v‖ makes both sqrt(eps). The length of a set whose diameter is unknown is
        taken for 1 or the norm of x, if that is larger.

        For a set that says no more than its lmo: s = lmo(-v) is the best point of X for v, and what is returned is the
        nearest point to v of {n : <n, s - x> <= 0}, a half-space that contains the normal cone. The rest of v has the
        norm max(<v, s - x>, 0) / ‖s - x‖, the Frank-Wolfe gap over the way there: the rate at which <v, ·> grows from x
        towards s. It is zero exactly where v is in the cone, and never more than the distance to it.
        """
        if not self.can_project:
            return self._project_half_space(x, v)
        point, restore = ravel_pytree(x)
        direction = flatten(v)
        length = jnp.maximum(norm(point), jnp.minimum(self.diameter(x), 1))
        size = norm(direction)
        step = epsilon(x) ** 0.5 * length / jnp.where(size > 0, size, 1)
        moved = flatten(self.project(restore(point + step * direction)))
        tangent = (moved - flatten(self.project(x))) / jnp.where(step > 0, step, 1)
        return restore(direction - tangent)

    def normal_cone_distance(self, x: Point, gradient: Point) -> Float[Array, ""]:
        """The distance of `gradient` to -N_X(x), for `x` in X: zero exactly where x minimizes <gradient, ·> over X."""
        descent = jax.tree.map(jnp.negative, gradient)
        return norm(flatten(jax.tree.map(jnp.subtract, descent, self.project_normal_cone(x, descent))))

    def check(self, x: Any) -> None:
        """ValueError that says what came and what was expected, if the set does not match the pytree `x`."""

    def _project_half_space(self, x: Point, v: Point) -> Point:
        push, restore = ravel_pytree(v)
        best = self.lmo(
            jax.lax.stop_gradient(jax.tree.map(jnp.negative, v))
        )  # how s moves with v does not change the gap
        way = flatten(jax.tree.map(jnp.subtract, best, x))
        length = norm(way)
        unit = way / jnp.where(length > 0, length, 1)
        return restore(push - jnp.maximum(push @ unit, 0) * unit)

    def _separation(self, x: Point, steps: int = 64) -> Float[Array, ""]:
        """A lower bound of the distance of `x` to X from linear minimization alone, zero where none was found.

        Frank-Wolfe with exact line search on ½‖y - x‖²: every point of X is at least as far along y - x as lmo(y - x).
        """
        point, restore = ravel_pytree(x)

        def look(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            y, bound = carry
            outward = y - point
            distance = norm(outward)
            best = flatten(self.lmo(restore(outward)))
            found = outward @ (best - point) / jnp.where(distance > 0, distance, 1)
            way = best - y
            square = way @ way
            step = jnp.clip(-(outward @ way) / jnp.where(square > 0, square, 1), 0, 1)
            return y + step * way, jnp.maximum(bound, found)

        first = flatten(self.lmo(x)).astype(point.dtype)
        return jax.lax.fori_loop(0, steps, look, (first, jnp.zeros((), point.dtype)))[1]

    def _scale(self, x: Point) -> Float[Array, ""]:
        """The magnitude of the numbers that make `x`, a point of X, in units of whose eps it is rounded."""
        return norm(flatten(x))
