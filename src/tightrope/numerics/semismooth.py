"""A semismooth Newton method for concave functions, and its line search."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .scaling import positive_or_one

UNDAMPED_ROUNDS = 10
"""Rounds of Newton's method before damping may start."""


class ConcaveFunction(NamedTuple):
    """A concave function of y that is smooth except for kinks.

    Attributes:
        gradient: y ↦ the gradient of the smooth part.
        maximize_model: (y, gradient at y, damping) ↦ the maximizer of the damped quadratic model at y.
        directional_derivative: (y, end, point, gradient at point) ↦ the derivative of the whole function at a point between
            y and end, in the direction end − y.
        residual: (y, gradient at y) ↦ the distance from optimality.
        curvature_bounds: upper bounds of the curvature along each coordinate.
    """

    gradient: Callable[[Array], Array]
    maximize_model: Callable[[Array, Array, Array], Array]
    directional_derivative: Callable[[Array, Array, Array, Array], Array]
    residual: Callable[[Array, Array], Array]
    curvature_bounds: Float[Array, " m"]


class _Ascent(NamedTuple):
    y: Float[Array, " m"]
    gradient: Float[Array, " m"]
    best: Float[Array, " m"]
    """The y with the least residual so far."""
    least_residual: Float[Array, ""]
    damping: Float[Array, ""]
    moved: Bool[Array, ""]
    round: Int[Array, ""]


def semismooth_newton(
    f: ConcaveFunction, start: Float[Array, " m"], tolerance: Float[Array, ""] | float, rounds: int = 100
) -> Float[Array, " m"]:
    """Maximize a concave function, until its residual is at most `tolerance`; the function never decreases.

    A full step is taken if it halves the residual or if the function still increases at its end. Other steps are shortened
    by `line_search`, which uses slopes because differences of values are lost in rounding. Where the smooth part is
    piecewise quadratic, finitely many rounds are exact; elsewhere they converge fast. The y with the least residual is
    returned.

    Where pieces without curvature are narrow, steps may be shortened again and again. After UNDAMPED_ROUNDS, a step shorter
    than a tenth damps the next ones: by the fraction of the curvature bounds with which the model's maximum would have been
    the end of the shortened step. Each full step divides the damping by ten.
    """

    def unfinished(s: _Ascent) -> Array:
        return (s.least_residual > tolerance) & s.moved & (s.round < rounds)

    first = f.gradient(start)
    residual, zero = f.residual(start, first), jnp.zeros_like(first[0])
    begin = _Ascent(start, first, start, residual, zero, jnp.bool_(True), jnp.int32(0))
    return jax.lax.while_loop(unfinished, lambda s: _newton_step(f, s), begin).best


def _newton_step(f: ConcaveFunction, s: _Ascent) -> _Ascent:
    y = s.y
    end = f.maximize_model(y, s.gradient, s.damping)
    gradient_at_end = f.gradient(end)
    slope_at_end = f.directional_derivative(y, end, end, gradient_at_end)
    full = (slope_at_end >= 0) | (f.residual(end, gradient_at_end) <= 0.5 * s.least_residual)

    def slope(length: Array) -> Array:
        point = y + length * (end - y)
        return f.directional_derivative(y, end, point, f.gradient(point))

    slope_at_y = f.directional_derivative(y, end, y, s.gradient)
    length = line_search(slope, slope_at_y, slope_at_end, full)
    share = jnp.minimum(slope_at_y / positive_or_one(length * (end - y) ** 2 @ f.curvature_bounds), 1.0)
    stuck = (s.round >= UNDAMPED_ROUNDS) & (length < 0.1)
    damping = jnp.where(length == 1.0, 0.1 * s.damping, jnp.maximum(s.damping, jnp.where(stuck, share, 0.0)))
    new = jnp.where(length == 1.0, end, y + length * (end - y))
    gradient, moved = f.gradient(new), jnp.any(new != y)
    residual = f.residual(new, gradient)
    best = jnp.where(residual < s.least_residual, new, s.best)
    return _Ascent(new, gradient, best, jnp.minimum(residual, s.least_residual), damping, moved, s.round + 1)


def line_search(
    slope: Callable[[Array], Array], slope_at_0: Array, slope_at_1: Array, full: Bool[Array, ""], rounds: int = 40
) -> Float[Array, ""]:
    """Return a length in [0, 1] up to which a concave function increases, near its maximum; 1 where `full`.

    The slopes at 0 and 1 are positive and negative. Secant and bisection steps alternate until the slope at the length is
    at most a tenth of the slope at 0.
    """

    def unfinished(carry: tuple[Array, ...]) -> Array:
        low, high, at_low, _, count = carry
        return (low < high) & (at_low > 0.1 * slope_at_0) & (count < rounds)

    def shrink(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high, at_low, at_high, count = carry
        secant = at_low / (at_low - at_high)
        trial = low + (high - low) * jnp.where(count % 2 == 0, secant, jnp.where(low > 0, 0.5, 0.05))
        found = slope(trial)
        rising = found >= 0
        return (
            jnp.where(rising, trial, low),
            jnp.where(rising, high, trial),
            jnp.where(rising, found, at_low),
            jnp.where(rising, at_high, found),
            count + 1,
        )

    one = jnp.ones_like(slope_at_0)
    begin = (jnp.where(full, one, 0.0), one, slope_at_0, slope_at_1, jnp.int32(0))
    return jax.lax.while_loop(unfinished, shrink, begin)[0]
