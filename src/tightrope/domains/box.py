"""Boxes: bounds on every entry."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from ..numerics.scaling import norm
from ._checks import check_broadcast, check_real, is_concrete
from ._vectors import Point, boundary_tolerance, broadcast, flatten
from .base import Domain


class Box(Domain):
    """Every entry between two bounds.

    X = {x : low <= x <= high}

    Args:
        low: lower bounds, a number or a pytree like x (or a prefix of it) whose leaves broadcast to those of x;
            -inf for no bound.
        high: upper bounds, likewise; inf for no bound.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import Box
        >>> Box(0.0, jnp.array([1.0, jnp.inf])).project(jnp.array([3.0, 3.0]))
        Array([1., 3.], dtype=float32)
    """

    low: Any
    high: Any

    def __check_init__(self):
        for argument, bound, absurd in (("low", self.low, np.inf), ("high", self.high, -np.inf)):
            check_real("Box", argument, bound)
            for leaf in filter(is_concrete, jax.tree.leaves(bound)):
                if np.any(np.isnan(leaf)) or np.any(np.asarray(leaf) == absurd):
                    raise ValueError(f"Box: {argument} must have no NaN and no {absurd}, got {leaf!r}")
        if is_concrete((self.low, self.high)):
            _check_order(self.low, self.high)

    def project(self, x: Point) -> Point:
        """min(max(x, low), high)."""
        return optax.projections.projection_box(x, broadcast(self.low, x), broadcast(self.high, x))

    @property
    def is_separable(self) -> bool:
        """True: each coordinate has its own interval."""
        return True

    @property
    def can_minimize(self) -> bool:
        """Whether the set has a linear minimization oracle: not if a bound is known to be infinite."""
        return not is_concrete((self.low, self.high)) or all(
            bool(np.all(np.isfinite(leaf))) for leaf in jax.tree.leaves((self.low, self.high))
        )

    def lmo(self, gradient: Point) -> Point:
        """The bound that the gradient points away from; low where the gradient is zero."""
        if not self.can_minimize:
            raise ValueError(f"Box: lmo needs finite bounds, got low={self.low!r}, high={self.high!r}")
        low, high = broadcast(self.low, gradient), broadcast(self.high, gradient)
        return jax.tree.map(lambda slope, bottom, top: jnp.where(slope >= 0, bottom, top), gradient, low, high)

    def diameter(self, x: Point) -> Float[Array, ""]:
        """‖high - low‖."""
        return norm(flatten(jax.tree.map(jnp.subtract, broadcast(self.high, x), broadcast(self.low, x))))

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """For each entry: min(v, 0) at low, max(v, 0) at high, v where low = high, 0 between.

        The tolerance of "at" is relative to the bound or to the width, whichever is smaller. Clipping is exact, so this
        misses no boundary point, while a tolerance relative to the width alone would take 1 for 0 in Box(0, 1e6).
        """
        near = boundary_tolerance(x)

        def project_entry(at: Array, push: Array, bottom: Array, top: Array) -> Array:
            width = top - bottom
            at_bottom = (at <= bottom + near * _finite(jnp.minimum(jnp.abs(bottom), width))) | (width == 0)
            at_top = (at >= top - near * _finite(jnp.minimum(jnp.abs(top), width))) | (width == 0)
            return jnp.clip(push, jnp.where(at_bottom, -jnp.inf, 0), jnp.where(at_top, jnp.inf, 0))

        return jax.tree.map(project_entry, x, v, broadcast(self.low, x), broadcast(self.high, x))

    def check(self, x: Any) -> None:
        """A ValueError unless the bounds broadcast to `x`."""
        check_broadcast("Box", "low", self.low, x)
        check_broadcast("Box", "high", self.high, x)


def _finite(scale: Array) -> Array:
    """The scale of a bound; 0 for an infinite bound, which no point is near."""
    return jnp.where(jnp.isfinite(scale), scale, 0)


def _check_order(low: Any, high: Any) -> None:
    """A ValueError where low > high."""
    low, high = _aligned(low, high)
    for bottom, top in zip(jax.tree.leaves(low), jax.tree.leaves(high), strict=True):
        try:
            np.broadcast_shapes(np.shape(bottom), np.shape(top))
        except ValueError:
            came = f"{np.shape(bottom)} and {np.shape(top)}"
            raise ValueError(f"Box: low and high must have shapes that broadcast, got {came}") from None
        if np.any(np.asarray(bottom) > np.asarray(top)):
            raise ValueError(f"Box: low must be at most high, got low={bottom!r} and high={top!r}")


def _aligned(low: Any, high: Any) -> tuple[Any, Any]:
    """Both bounds with the structure of the finer one."""
    for coarse, fine in ((low, high), (high, low)):
        with contextlib.suppress(ValueError):
            spread = jax.tree.broadcast(coarse, fine)
            return (spread, high) if fine is high else (low, spread)
    came = f"{jax.tree.structure(low)} and {jax.tree.structure(high)}"
    raise ValueError(f"Box: low and high must be numbers or pytrees of one structure, got {came}")
