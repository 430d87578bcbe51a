"""Newton's method on concave dual functions of problems on a set."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .scaling import positive_or_one

PATIENT = 10
"""Rounds of Newton's method without a damping."""


class OnSet(NamedTuple):
    """The dual function q(y) = min over x + d in X of vᵀd + yᵀ(c + Jd) + ‖d‖²/(2γ)."""

    gradient: Float[Array, " n"]
    value: Float[Array, " m"]
    jacobian: Float[Array, "m n"]
    step_size: Float[Array, ""]
    x: Float[Array, " n"]
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]]

    def center(self, y: Float[Array, " m"]) -> Float[Array, " n"]:
        """What is projected: x − γ(v + Jᵀy)."""
        return self.x - self.step_size * (self.gradient + y @ self.jacobian)

    def slope(self, y: Float[Array, " m"]) -> Float[Array, " m"]:
        """∇q(y) = c + Jd(y)."""
        return self.value + self.jacobian @ (self.project(self.center(y)) - self.x)

    def curvature(self, y: Float[Array, " m"]) -> Float[Array, "m m"]:
        """−∇²q(y) = γ J P_X' Jᵀ."""
        _, change = jax.linearize(self.project, self.center(y))
        half = 0.5 * self.step_size * self.jacobian @ jax.vmap(change)(self.jacobian).T
        return half + half.T


def newton_ascent(
    start: Float[Array, " m"],
    slope: Callable[[Array], Array],
    goal: Callable[[Array, Array, Array], Array],
    climb: Callable[[Array, Array, Array, Array], Array],
    residual: Callable[[Array, Array], Array],
    enough: Float[Array, ""] | float,
    sizes: Float[Array, " m"],
    rounds: int = 100,
) -> Float[Array, " m"]:
    """The maximizer of a concave function that is smooth but for kinks: a semismooth Newton method that never goes down.

    `slope` is that of the smooth part, `goal` the maximizer of the quadratic model at a y with its slope, `climb` the
    derivative of the whole function at a point with its slope on the way from y to an end. A step that halves the `residual` is
    taken in full, and so is one that still climbs at its end; any other is cut near the maximum on it, at a point up to
    which it climbs (that is seen from slopes, for differences of values drown in rounding). A step in full ends exactly at the
    goal. Where the smooth part is piecewise quadratic finitely many rounds are exact; where it is smoother they converge
    fast. The y of the least residual is returned.

    Where pieces without curvature are narrow, steps may be cut again and again. After PATIENT rounds a step of which less
    than a tenth is left damps the next ones: by the share of `sizes`, bounds of the curvature, with which the model would
    have ended where the step was cut. Each step in full takes nine tenths of the damping back.
    """

    def newton(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        y, up, best, least, damping, _, count = carry
        end = goal(y, up, damping)
        up_at_end = slope(end)
        at_end = climb(y, end, end, up_at_end)
        whole = (at_end >= 0) | (residual(end, up_at_end) <= 0.5 * least)

        def on_the_way(length: Array) -> Array:
            at = y + length * (end - y)
            return climb(y, end, at, slope(at))

        at_start = climb(y, end, y, up)
        length = length_of_climb(on_the_way, at_start, at_end, whole)
        share = jnp.minimum(at_start / positive_or_one(length * (end - y) ** 2 @ sizes), 1.0)
        stuck = (count >= PATIENT) & (length < 0.1)
        damping = jnp.where(length == 1.0, 0.1 * damping, jnp.maximum(damping, jnp.where(stuck, share, 0.0)))
        new = jnp.where(length == 1.0, end, y + length * (end - y))
        up, moved = slope(new), jnp.any(new != y)
        left = residual(new, up)
        return new, up, jnp.where(left < least, new, best), jnp.minimum(left, least), damping, moved, count + 1

    def going(carry: tuple[Array, ...]) -> Array:
        _, _, _, least, _, moved, count = carry
        return (least > enough) & moved & (count < rounds)

    up = slope(start)
    begin = (start, up, start, residual(start, up), jnp.zeros_like(up[0]), jnp.bool_(True), jnp.int32(0))
    return jax.lax.while_loop(going, newton, begin)[2]


def length_of_climb(
    slope: Callable[[Array], Array], begin: Array, end: Array, whole: Bool[Array, ""], rounds: int = 40
) -> Float[Array, ""]:
    """A length in [0, 1] up to which a concave function climbs, near its maximum; 1 where the step is taken `whole`.

    The slopes at 0 and 1 are positive and negative: secants and bisections in turn until little of the first is left.
    """

    def going(carry: tuple[Array, ...]) -> Array:
        low, high, at_low, _, count = carry
        return (low < high) & (at_low > 0.1 * begin) & (count < rounds)

    def halve(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, at_low, at_high, count = carry
        secant = at_low / (at_low - at_high)
        trial = low + (high - low) * jnp.where(count % 2 == 0, secant, jnp.where(low > 0, 0.5, 0.05))
        found = slope(trial)
        up = found >= 0
        return (
            jnp.where(up, trial, low),
            jnp.where(up, high, trial),
            jnp.where(up, found, at_low),
            jnp.where(up, at_high, found),
            count + 1,
        )

    one = jnp.ones_like(begin)
    return jax.lax.while_loop(going, halve, (jnp.where(whole, one, 0.0), one, begin, end, jnp.int32(0)))[0]
