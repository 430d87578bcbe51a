"""Products: inner products of long vectors, and multipliers from products with a Jacobian that is never formed.

`range_multipliers_by_products` is `ranges.range_multipliers` for a Gram matrix G known by its products, and
`kkt_multipliers_by_products` is `kkt.kkt_multipliers` built on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .kkt import STEP_LENGTHS, Mapping, distance_sq
from .prox_linear import ProxLinearModel
from .ranges import RangePenalty
from .scaling import positive_or_one
from .semismooth import line_search

PROBES = 16
"""Products from which the norms of the rows are estimated, to about a third."""

MAX_SEPARATE = 16
"""The largest number of vectors whose inner products with others are found vector by vector."""


class Linear(NamedTuple):
    """A linear map by its products: d ↦ Jd and y ↦ Jᵀy."""

    push: Callable[[Float[Array, " n"]], Float[Array, " m"]]
    pull: Callable[[Float[Array, " m"]], Float[Array, " n"]]


def inner_products(vectors: Float[Array, "k n"], others: Float[Array, "l n"]) -> Float[Array, "k l"]:
    """Return all inner products of the vectors with the others, by one matrix-vector product per vector if they are few.

    On CPUs a product of two wide matrices with few rows took several times as long inside a step of AdaptivePenalty.
    """
    if len(vectors) > MAX_SEPARATE:
        return vectors @ others.T
    return jnp.stack([others @ vector for vector in vectors])


def linearize(
    fn: Callable[[Float[Array, " n"]], Float[Array, " m"]], x: Float[Array, " n"]
) -> tuple[Float[Array, " m"], Linear]:
    """Return the function's value and derivative at x."""
    value, push = jax.linearize(fn, x)
    transposed = jax.linear_transpose(push, x)
    return value, Linear(push, lambda y: transposed(y)[0])


def row_squares(linear: Linear, x: Float[Array, " n"], key: Array, probes: int = PROBES) -> Float[Array, " m"]:
    """Estimate the squared norms of the rows: the mean of (Jz)² over random signs z."""

    def add(i: int, total: Array) -> Array:
        signs = jax.random.rademacher(jax.random.fold_in(key, i), x.shape, x.dtype)
        return total + linear.push(signs) ** 2 / probes

    shape = jax.eval_shape(linear.push, x)
    return jax.lax.fori_loop(0, probes, add, jnp.zeros(shape.shape, shape.dtype))


def range_multipliers_by_products(
    gram: Callable[[Float[Array, " m"]], Float[Array, " m"]],
    value: Float[Array, " m"],
    ranges: RangePenalty,
    start: Float[Array, " m"],
    size: Float[Array, " m"],
    *,
    tolerance: float = 0.1,
    products: Int[Array, ""] | int | None = None,
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """Approximate the y that maximizes rᵀy − ½ yᵀGy − Σ max(high_i y_i, low_i y_i) over |y_i| ≤ ρ_i; return it and convergence.

    The method alternates conjugate gradients on the free rows, whose y_i is strictly between its limits, with single steps
    along the projected gradient of all rows. It changes to the latter when a free row reaches a limit or when the other
    rows contribute more to the slope. Every step goes as far as the dual function increases, so the function never
    decreases, and costs one product.

    Args:
        gram: y ↦ Gy; G is positive semidefinite.
        value: r.
        ranges: the ranges and their penalties ρ, which may be ∞ where G is positive definite.
        start: the first y.
        size: estimates of the roots of G's diagonal, up to a common factor: the units of the rows.
        tolerance: stop once the slope, in these units, is this fraction of the slope at the start.
        products: the maximum number of products. None: twice the number of rows, with which conjugate gradients end, but at
            least 200 and at most 2,000.
    """
    if not value.size:
        return value, jnp.bool_(True)
    dual = _DualFunction(gram, value, ranges, 1.0 / positive_or_one(size))
    limit = min(max(2 * value.size, 200), 2000) if products is None else products

    def converged(s: _Ascent) -> Bool[Array, ""]:
        rounding = 10 * jnp.finfo(value.dtype).eps * jnp.sqrt(dual.square(value))
        return (s.products > 0) & (s.slope_sum <= jnp.maximum(tolerance * s.first_slope_sum, rounding))

    last = jax.lax.while_loop(lambda s: ~converged(s) & (s.products < limit), dual.ascend, dual.begin(start))
    return last.multipliers, converged(last)


class _Ascent(NamedTuple):
    """An iterate of `range_multipliers_by_products`."""

    multipliers: Float[Array, " m"]
    rows: Float[Array, " m"]
    """r − Gy."""
    direction: Float[Array, " m"]
    projected: Bool[Array, ""]
    """Whether the direction ends inside the limits; if not, it is a conjugate direction."""
    free_square: Float[Array, ""]
    """The square of the slope of the free rows."""
    slope_sum: Float[Array, ""]
    """The sum of the absolute slopes of all rows: penalties add up the rows' distances."""
    first_slope_sum: Float[Array, ""]
    """The same at the start, or at zero where that is less."""
    products: Int[Array, ""]


class _DualFunction(NamedTuple):
    """The function that `range_multipliers_by_products` maximizes; slopes are measured in units of 1/scale."""

    gram: Callable[[Float[Array, " m"]], Float[Array, " m"]]
    value: Float[Array, " m"]
    ranges: RangePenalty
    scale: Float[Array, " m"]

    def begin(self, start: Float[Array, " m"]) -> _Ascent:
        """The first iterate, y = 0; its direction leads to the start in one step, where one is given."""
        zero, start = jnp.zeros_like(self.value), self.ranges.clip(start)
        slope = self.slope(zero, self.value)[0]
        given, total = jnp.any(start != 0), self.total(slope)
        direction = jnp.where(given, start, self.scale**2 * slope)
        return _Ascent(zero, self.value, direction, given, self.square(slope), total, total, jnp.int32(0))

    def slope(self, y: Array, rows: Array) -> tuple[Array, Array, Array]:
        """The slope at y in the rows that can still increase, and the limits between which the function is quadratic."""
        low, high, penalty = self.ranges
        above = (y > 0) | ((y == 0) & (rows > high))
        below = (y < 0) | ((y == 0) & (rows < low))
        slope = jnp.where(above, rows - high, jnp.where(below, rows - low, 0.0))
        lower = jnp.where(above & (low < high), 0.0, -penalty)
        upper = jnp.where(below & (low < high), 0.0, penalty)
        movable = ((slope > 0) & (y < upper)) | ((slope < 0) & (y > lower))
        return jnp.where(movable, slope, 0.0), lower, upper

    def square(self, slope: Array) -> Array:
        """The squared norm of a slope."""
        return jnp.sum((self.scale * slope) ** 2)

    def total(self, slope: Array) -> Array:
        """The sum of the absolute values of a slope."""
        return jnp.sum(jnp.abs(self.scale * slope))

    def ascend(self, s: _Ascent) -> _Ascent:
        """Take one step along the direction, with one product, and find the next direction."""
        y, p, from_zero = s.multipliers, s.direction, s.projected & (s.products == 0)
        eps, far = jnp.finfo(y.dtype).eps, jnp.finfo(y.dtype).max ** 0.5
        product = self.gram(p)
        slope, lower, upper = self.slope(y, s.rows)
        curvature = p @ product
        best = jnp.where(curvature > 0, (slope @ p) / positive_or_one(curvature), far)
        ahead = jnp.where(p > 0, upper - y, jnp.where(p < 0, y - lower, jnp.inf)) / positive_or_one(jnp.abs(p))
        room = jnp.where(s.projected, 1.0, jnp.minimum(jnp.min(ahead), far))
        length = jnp.where(from_zero, 1.0, jnp.clip(best, 0.0, room))
        stops = (ahead <= length * (1 + 4 * eps)) & ~from_zero
        y = jnp.where(stops, jnp.where(p > 0, upper, lower), y + length * p)
        rows, blocked = s.rows - length * product, (best > room) & ~s.projected

        slope, lower, upper = self.slope(y, rows)
        inside = (y > lower) & (y < upper) & ((y != 0) | (self.ranges.low == self.ranges.high))
        free_slope = jnp.where(inside, slope, 0.0)
        free_square, total = self.square(free_slope), self.total(slope)
        projected = blocked | (self.square(slope) > 2.0 * free_square)
        step = positive_or_one(jnp.sum((p / self.scale) ** 2)) / positive_or_one(curvature)
        clipped = jnp.clip(y + step * self.scale**2 * slope, lower, upper) - y
        momentum = jnp.where(s.projected, 0.0, free_square / positive_or_one(s.free_square))
        direction = jnp.where(projected, clipped, self.scale**2 * free_slope + momentum * p)
        first = jnp.where(from_zero, jnp.minimum(total, s.first_slope_sum), s.first_slope_sum)
        return _Ascent(y, rows, direction, projected, free_square, total, first, s.products + 1)


def range_multipliers_on_set_by_products(
    model: ProxLinearModel[Linear],
    ranges: RangePenalty,
    start: Float[Array, " m"],
    size: Float[Array, " m"],
    rounds: int = 6,
) -> tuple[Float[Array, " m"], Bool[Array, ""]]:
    """Approximate `ranges.range_multipliers_on_set` from products; return the multipliers and whether they converged.

    Newton's method on the dual function of `ProxLinearModel`, with `range_multipliers_by_products` for its quadratic models;
    `line_search` shortens a step at whose end the dual function decreases.
    """
    gradient, value, (push, pull), step_size, x, project = model

    def center(y: Array) -> Array:
        return x - step_size * (gradient + pull(y))

    def slope(y: Array, direction: Array) -> Array:
        """The slope of the dual function along a direction."""
        rows = value + push(project(center(y)) - x)
        upper = (y > 0) | ((y == 0) & (direction > 0))
        return direction @ jnp.where(direction == 0, 0.0, rows - jnp.where(upper, ranges.high, ranges.low))

    def newton(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        y, _, _, count = carry
        projected, tangent = jax.linearize(project, center(y))

        def gram(y: Array) -> Array:
            return step_size * push(tangent(pull(y)))

        reach = value + push(projected - x) + gram(y)
        goal, converged = range_multipliers_by_products(gram, reach, ranges, y, size)
        direction = goal - y
        begin, end = slope(y, direction), slope(goal, direction)
        length = line_search(lambda t: slope(y + t * direction, direction), begin, end, end >= 0)
        new = jnp.where(length == 1.0, goal, y + length * direction)
        moved = jnp.max(size * jnp.abs(new - y)) > 1e-3 * jnp.max(size * jnp.abs(new))
        return new, converged, moved, count + 1

    first = (ranges.clip(start), jnp.bool_(True), jnp.bool_(True), jnp.int32(0))
    y, converged, moved, _ = jax.lax.while_loop(lambda c: c[2] & (c[3] < rounds), newton, first)
    return y, converged & ~moved


def kkt_multipliers_by_products(
    gradient: Float[Array, " n"],
    jacobian: Linear,
    rows: Float[Array, " m"],
    equality: Bool[Array, " m"],
    mapping: Mapping | None,
    products: Int[Array, ""] | int = 400,
    rounds: int = 12,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Approximate `kkt.kkt_multipliers` from products; return the multipliers and their residual.

    The residual belongs to the multipliers that are returned, so it is never too small. The norms of the rows, the units of
    complementarity, are estimates.
    """
    squares = row_squares(jacobian, gradient, jax.random.key(0))
    damping = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0)) ** 2
    size = jnp.sqrt(squares + damping)
    zero = jnp.zeros_like(rows)
    ranges = RangePenalty(jnp.where(equality, 0.0, -jnp.inf), zero, jnp.full_like(rows, jnp.inf))

    def outside(push: Array) -> Array:
        return push if mapping is None else mapping(push)

    def objective(y: Array) -> Array:
        push = -(gradient + jacobian.pull(y))
        return distance_sq(push, outside(push)) + y @ (damping * y)

    def newton(_: int, y: Array) -> Array:
        rest, change = jax.linearize(outside, -(gradient + jacobian.pull(y)))

        def hessian(y: Array) -> Array:
            return jacobian.push(change(jacobian.pull(y))) + damping * y

        slope = jacobian.push(rest) - damping * y
        goal = range_multipliers_by_products(
            hessian, slope + hessian(y), ranges, y, size, tolerance=1e-6, products=products
        )[0]
        if mapping is None:
            return goal
        steps = y + STEP_LENGTHS.astype(y.dtype)[:, None] * (goal - y)
        return steps[jnp.argmin(jax.lax.map(objective, steps))]

    y = jax.lax.fori_loop(0, 1 if mapping is None else rounds, newton, zero)
    return y, -outside(-(gradient + jacobian.pull(y)))
