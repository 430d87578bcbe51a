"""What is done with a Jacobian of very many rows, known by its products alone: it is never formed.

`range_multipliers_by_products` is `subproblems.range_multipliers` for a Gram matrix G that can only be multiplied with, and
`kkt_multipliers_by_products` is `subproblems.kkt_multipliers` on top of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .ascent import length_of_climb
from .kkt import LENGTHS
from .ranges import within
from .scaling import positive_or_one

PROBES = 16
"""Products from which the lengths of the rows are guessed: to about a third."""


class Linear(NamedTuple):
    """A linear map by its products: d ↦ Jd and y ↦ Jᵀy."""

    push: Callable[[Float[Array, " n"]], Float[Array, " m"]]
    pull: Callable[[Float[Array, " m"]], Float[Array, " n"]]


def linearize(
    fn: Callable[[Float[Array, " n"]], Float[Array, " m"]], x: Float[Array, " n"]
) -> tuple[Float[Array, " m"], Linear]:
    """The function at x, and its derivative there."""
    value, push = jax.linearize(fn, x)
    transposed = jax.linear_transpose(push, x)
    return value, Linear(push, lambda y: transposed(y)[0])


def row_squares(linear: Linear, x: Float[Array, " n"], key: Array, probes: int = PROBES) -> Float[Array, " m"]:
    """About the squares of the rows' lengths: the mean of (Jz)² over random signs z."""

    def look(i: int, total: Array) -> Array:
        signs = jax.random.rademacher(jax.random.fold_in(key, i), x.shape, x.dtype)
        return total + linear.push(signs) ** 2 / probes

    shape = jax.eval_shape(linear.push, x)
    return jax.lax.fori_loop(0, probes, look, jnp.zeros(shape.shape, shape.dtype))


class Ascent(NamedTuple):
    """Multipliers on the way up."""

    multipliers: Float[Array, " m"]
    end: Float[Array, " m"]
    """Where they take the rows."""
    direction: Float[Array, " m"]
    inward: Bool[Array, ""]
    """Whether the direction ends inside the limits; if not, it is one of the conjugate directions."""
    free: Float[Array, ""]
    """The square of the slope of the rows between their limits."""
    off: Float[Array, ""]
    """The sum of the slopes of all rows: those of penalties are judged by sums."""
    first: Float[Array, ""]
    """The same at the start, or at zero where that is better."""
    products: Int[Array, ""]


def range_multipliers_by_products(
    gram: Callable[[Float[Array, " m"]], Float[Array, " m"]],
    value: Float[Array, " m"],
    low: Float[Array, " m"],
    high: Float[Array, " m"],
    penalty: Float[Array, " m"],
    start: Float[Array, " m"],
    size: Float[Array, " m"],
    *,
    enough: float = 0.1,
    products: Int[Array, ""] | int | None = None,
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """The y that maximizes rᵀy − ½ yᵀGy − Σ max(high_i y_i, low_i y_i) over |y_i| ≤ ρ_i, nearly; G positive semidefinite.

    Conjugate gradients on the rows strictly between their limits, until one meets its limit or those at their limits have more
    to gain; then one step up the slope of all rows, cut back into the limits. Every step goes as far as the dual function
    climbs, so it never falls, and costs one product. With y comes whether it is as near as asked for.

    Args:
        gram: y ↦ Gy.
        value: r.
        low: lower ends; −∞ where there is none.
        high: upper ends.
        penalty: ρ; may be ∞ where G is positive definite.
        start: where to start.
        size: about the roots of G's diagonal, up to a common factor: rows are measured in them.
        enough: it ends once the slope, in these units, is this share of that at the start.
        products: the most products; None: twice as many as rows, in which conjugate gradients end, but at least 200 and at
            most 2,000.
    """
    if not value.size:
        return value, jnp.bool_(True)
    scale, eps = 1.0 / positive_or_one(size), jnp.finfo(value.dtype).eps
    limit = min(max(2 * value.size, 200), 2000) if products is None else products

    def slope(y: Array, end: Array) -> tuple[Array, Array, Array]:
        """Of the dual function where y may move, and the limits between which it is quadratic."""
        above = (y > 0) | ((y == 0) & (end > high))
        below = (y < 0) | ((y == 0) & (end < low))
        up = jnp.where(above, end - high, jnp.where(below, end - low, 0.0))
        least = jnp.where(above & (low < high), 0.0, -penalty)
        most = jnp.where(below & (low < high), 0.0, penalty)
        movable = ((up > 0) & (y < most)) | ((up < 0) & (y > least))
        return jnp.where(movable, up, 0.0), least, most

    def square(up: Array) -> Array:
        return jnp.sum((scale * up) ** 2)

    def total(up: Array) -> Array:
        return jnp.sum(jnp.abs(scale * up))

    def again(c: Ascent) -> Ascent:
        y, p, load = c.multipliers, c.direction, c.inward & (c.products == 0)
        product = gram(p)
        up, least, most = slope(y, c.end)
        bend = p @ product
        pays = jnp.where(bend > 0, (up @ p) / positive_or_one(bend), far)
        ahead = jnp.where(p > 0, most - y, jnp.where(p < 0, y - least, jnp.inf)) / positive_or_one(jnp.abs(p))
        room = jnp.where(c.inward, 1.0, jnp.minimum(jnp.min(ahead), far))
        length = jnp.where(load, 1.0, jnp.clip(pays, 0.0, room))
        y = jnp.where((ahead <= length * (1 + 4 * eps)) & ~load, jnp.where(p > 0, most, least), y + length * p)
        end = c.end - length * product
        blocked = (pays > room) & ~c.inward

        up, least, most = slope(y, end)
        between = jnp.where((y > least) & (y < most) & ((y != 0) | (low == high)), up, 0.0)
        free, off = square(between), total(up)
        inward = blocked | (square(up) > 2.0 * free)
        step = positive_or_one(jnp.sum((p / scale) ** 2)) / positive_or_one(bend)
        cut = jnp.clip(y + step * scale**2 * up, least, most) - y
        conjugate = scale**2 * between + jnp.where(c.inward, 0.0, free / positive_or_one(c.free)) * p
        first = jnp.where(load, jnp.minimum(off, c.first), c.first)
        return Ascent(y, end, jnp.where(inward, cut, conjugate), inward, free, off, first, c.products + 1)

    def near(c: Ascent) -> Bool[Array, ""]:
        return (c.products > 0) & (c.off <= jnp.maximum(enough * c.first, 10 * eps * jnp.sqrt(square(value))))

    zero, far = jnp.zeros_like(value), jnp.finfo(value.dtype).max ** 0.5
    begin = within(start, low, high, penalty)
    up = slope(zero, value)[0]
    given, off = jnp.any(begin != 0), total(up)
    direction = jnp.where(given, begin, scale**2 * up)
    beginning = Ascent(zero, value, direction, given, square(up), off, off, jnp.int32(0))
    last = jax.lax.while_loop(lambda c: ~near(c) & (c.products < limit), again, beginning)
    return last.multipliers, near(last)


def range_multipliers_on_set_by_products(
    gradient: Float[Array, " n"],
    value: Float[Array, " m"],
    jacobian: Linear,
    low: Float[Array, " m"],
    high: Float[Array, " m"],
    penalty: Float[Array, " m"],
    step_size: Float[Array, ""],
    x: Float[Array, " n"],
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    start: Float[Array, " m"],
    size: Float[Array, " m"],
    rounds: int = 6,
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """`subproblems.range_multipliers_on_set` with products, nearly; and whether it is as near as asked for.

    Newton's method on the dual function, whose slope is h + Jd(y) and whose curvature is γ J P_X' Jᵀ; a step that the dual
    function does not climb to its end is cut where it stops climbing.
    """
    push, pull = jacobian

    def center(y: Array) -> Array:
        return x - step_size * (gradient + pull(y))

    def slope(y: Array, direction: Array) -> Array:
        """Of the dual function along a direction."""
        end = value + push(project(center(y)) - x)
        upper = (y > 0) | ((y == 0) & (direction > 0))
        return direction @ jnp.where(direction == 0, 0.0, end - jnp.where(upper, high, low))

    def newton(c: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        y, _, _, count = c
        projected, tangent = jax.linearize(project, center(y))

        def gram(y: Array) -> Array:
            return step_size * push(tangent(pull(y)))

        reach = value + push(projected - x) + gram(y)
        goal, near = range_multipliers_by_products(gram, reach, low, high, penalty, y, size)
        direction = goal - y
        begin, end = slope(y, direction), slope(goal, direction)
        length = length_of_climb(lambda t: slope(y + t * direction, direction), begin, end, end >= 0)
        new = jnp.where(length == 1.0, goal, y + length * direction)
        moved = jnp.max(size * jnp.abs(new - y)) > 1e-3 * jnp.max(size * jnp.abs(new))
        return new, near, moved, count + 1

    begin = within(start, low, high, penalty)
    first = (begin, jnp.bool_(True), jnp.bool_(True), jnp.int32(0))
    y, near, moved, _ = jax.lax.while_loop(lambda c: c[2] & (c[3] < rounds), newton, first)
    return y, near & ~moved


def kkt_multipliers_by_products(
    gradient: Float[Array, " n"],
    jacobian: Linear,
    rows: Float[Array, " m"],
    equality: Bool[Array, " m"],
    project_normal_cone: Callable[[Float[Array, " n"]], Float[Array, " n"]] | None,
    products: Int[Array, ""] | int = 400,
    rounds: int = 12,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """`subproblems.kkt_multipliers` with products: nearly the same multipliers, and the residual that they leave.

    The residual is that of the multipliers which are returned, so what is left of stationarity is never said too small. The
    lengths of the rows, in which complementarity is measured, are guesses.
    """
    squares = row_squares(jacobian, gradient, jax.random.key(0))
    damping = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0)) ** 2
    size = jnp.sqrt(squares + damping)
    low, zero, free = jnp.where(equality, 0.0, -jnp.inf), jnp.zeros_like(rows), jnp.full_like(rows, jnp.inf)

    def left(push: Array) -> Array:
        return push if project_normal_cone is None else push - project_normal_cone(push)

    def value(y: Array) -> Array:
        return jnp.sum(left(-(gradient + jacobian.pull(y))) ** 2) + y @ (damping * y)

    def newton(_: int, y: Array) -> Array:
        push, change = jax.linearize(left, -(gradient + jacobian.pull(y)))

        def hessian(y: Array) -> Array:
            return jacobian.push(change(jacobian.pull(y))) + damping * y

        slope = jacobian.push(push) - damping * y
        goal = range_multipliers_by_products(
            hessian, slope + hessian(y), low, zero, free, y, size, enough=1e-6, products=products
        )[0]
        if project_normal_cone is None:
            return goal
        steps = y + LENGTHS.astype(y.dtype)[:, None] * (goal - y)
        return steps[jnp.argmin(jax.lax.map(value, steps))]

    y = jax.lax.fori_loop(0, 1 if project_normal_cone is None else rounds, newton, zero)
    return y, -left(-(gradient + jacobian.pull(y)))
