"""The simplex."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from tightrope.domains._checks import check_positive, check_scalar
from tightrope.domains._levels import project_on_simplex, water_level
from tightrope.domains._vectors import Point, activity, flatten
from tightrope.domains.base import Domain


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
        check_positive("total", self.total)

    def project(self, x: Point) -> Point:
        """max(x - t, 0), at the t for which it sums to total."""
        point, restore = ravel_pytree(x)
        return restore(project_on_simplex(point, jnp.asarray(self.total, point.dtype)))

    def lmo(self, gradient: Point) -> Point:
        """The whole total on the smallest entry of the gradient."""
        slope, restore = ravel_pytree(gradient)
        vertex = jnp.zeros_like(slope).at[jnp.argmin(slope)].set(jnp.asarray(self.total, slope.dtype))
        return restore(vertex)

    def diameter(self, x: Point) -> Float[Array, ""]:
        """√2·total, the distance of two vertices; zero where there is only one."""
        point = flatten(x)
        return jnp.asarray(self.total, point.dtype) * (np.sqrt(2).item() if point.size > 1 else 0.0)

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """Nearest to v in {t·1 - mu : mu >= 0, mu = 0 on the support S of x}.

        On S it equals t, elsewhere min(v, t), and the best t has Σ_S (v - t) + Σ_{not S} max(v - t, 0) = 0.
        An entry is zero when it is eps^(2/3) of the mean entry, total / n: in a thousand entries most are small
        against the total.
        """
        point, restore = ravel_pytree(x)
        push = flatten(v)
        support = point > activity(x) * jnp.asarray(self.total, point.dtype) / point.size
        level = water_level(push, support, 0.0)
        return restore(jnp.where(support, level, jnp.minimum(push, level)))

    def check(self, x: Any) -> None:
        """ValueError if total is not one number or `x` has no entries."""
        check_scalar("total", self.total)
        if sum(np.size(leaf) for leaf in jax.tree.leaves(x)) == 0:
            raise ValueError(f"Simplex needs at least one entry to sum to its total; got x = {x!r}")

    def _scale(self, x: Point) -> Float[Array, ""]:
        return jnp.asarray(self.total, flatten(x).dtype)
