"""Steps with penalties on ranges: one dual variable for each constraint, between limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .ascent import OnSet, newton_ascent
from .scaling import positive_or_one

PLACED = 20.0
"""In units of rounding: how far a row may be from where its multiplier belongs."""

EARLY = 4
"""Rounds in which rows are released before the rows that are held are solved for; these find most of a new set of rows."""


def range_multipliers(
    gram: Float[Array, "m m"],
    value: Float[Array, " m"],
    low: Float[Array, " m"],
    high: Float[Array, " m"],
    penalty: Float[Array, " m"],
    start: Float[Array, " m"],
) -> Float[Array, " m"]:
    """The y that maximizes rᵀy − ½ yᵀGy − Σ max(high_i y_i, low_i y_i) over |y_i| ≤ ρ_i; G is positive semidefinite.

    It is the dual of min over d of ½ dᵀMd + vᵀd + Σ ρ_i dist(h_i + J_i d, [low_i, high_i]) with G = JM⁻¹Jᵀ and
    r = h − JM⁻¹v: the step is d = −M⁻¹(v + Jᵀy), and z = r − Gy is where it takes h. One row is solved in closed form.

    More are an active-set method. The function is quadratic on pieces: y_i is in [0, ρ_i], where its slope is z_i − high_i, or
    in [−ρ_i, 0], where it is z_i − low_i; for an equality these are one. Rows strictly inside their piece are held: there the
    slope is to be zero. A round

        releases    goes through the rows one after the other and gives each its best y_i
        solves      y + s with Gs = slope on the rows held; where that leaves a piece, `_bent_step`

    and never goes down. A step of the second kind solves for the rows held or leaves fewer of them; but for the first rounds a
    row is released only once they are solved for, and then the function goes up: no set of rows is solved for twice, and the
    method ends. (To release earlier zigzags without end where rows nearly depend on each other.) Singular G need nothing
    special: the ridge of `held_multipliers` makes a step without curvature so long that it ends at limits.

    The end is where every z_i is where its y_i belongs, to rounding of the terms it is made of. From a good start that is one
    round, without a release.
    """
    size, equality = jnp.diag(gram), low == high
    if value.size == 1:
        return solve_one_row(value, size, low, high, penalty)

    def look(y: Array) -> _Piece:
        rows = value - gram @ y
        up, down = (y > 0) | ((y == 0) & (rows > high)), (y < 0) | ((y == 0) & (rows < low))
        end = jnp.where(up, high, jnp.where(down, low, rows))
        slope, terms = rows - end, jnp.abs(value) + jnp.abs(gram) @ jnp.abs(y) + jnp.abs(end)
        lower, upper = jnp.where(equality | down, -penalty, 0.0), jnp.where(equality | up, penalty, 0.0)
        off = (jnp.abs(slope) > PLACED * jnp.finfo(y.dtype).eps * terms) & jnp.where(slope > 0, y < upper, y > lower)
        return _Piece(y, slope, lower, upper, off)

    def release(y: Array) -> _Piece:
        def one(i: Any, y: Array) -> Array:
            without = value[i] - gram[i] @ y + size[i] * y[i]
            return y.at[i].set(solve_one_row(without, size[i], low[i], high[i], penalty[i]))

        return look(jax.lax.fori_loop(0, value.size, one, y))

    def improve(carry: tuple[_Piece, Array, Array]) -> tuple[_Piece, Array, Array]:
        old, _, count = carry
        solved = ~jnp.any(old.off & old.inside)
        releases = jnp.any(old.off & ~old.inside) & (solved | (count < EARLY))
        piece = jax.lax.cond(releases, release, lambda _: old, old.y)
        step = held_multipliers(gram, piece.slope, piece.inside)
        y = piece.y + step
        fits = jnp.all((y >= piece.lower) & (y <= piece.upper))
        y = jax.lax.cond(fits, lambda: y, lambda: _bent_step(gram, piece, step))
        return look(y), jnp.any(y != old.y), count + 1

    def going(carry: tuple[_Piece, Array, Array]) -> Array:
        piece, moved, count = carry
        return jnp.any(piece.off) & moved & (count < 30 + 10 * value.size)

    y = jnp.where(size > 0, within(start, low, high, penalty), solve_one_row(value, size, low, high, penalty))
    return jax.lax.while_loop(going, improve, (look(y), jnp.bool_(True), jnp.int32(0)))[0].y


class _Piece(NamedTuple):
    """The piece on which y goes up, if it can: slope there, limits, and the rows that are off from where they belong."""

    y: Float[Array, " m"]
    slope: Float[Array, " m"]
    lower: Float[Array, " m"]
    upper: Float[Array, " m"]
    off: Bool[Array, " m"]

    @property
    def inside(self) -> Bool[Array, " m"]:
        return (self.y > self.lower) & (self.y < self.upper)


def solve_one_row(without: Array, size: Array, low: Array, high: Array, penalty: Array) -> Array:
    """The best y_i if no other changes, where row i stands at `without` − size · y_i."""
    up = jnp.clip((without - high) / positive_or_one(size), 0.0, penalty)
    down = jnp.clip((without - low) / positive_or_one(size), -penalty, 0.0)
    flat = jnp.where(without > high, penalty, jnp.where(without < low, -penalty, 0.0))
    return jnp.where(size > 0, up + down, flat)


def within(y: Array, low: Array, high: Array, penalty: Array) -> Array:
    """The nearest multipliers that are possible: |y| ≤ ρ, and none towards an end that a range does not have."""
    return jnp.clip(y, jnp.where(jnp.isinf(low), 0.0, -penalty), jnp.where(jnp.isinf(high), 0.0, penalty))


def _bent_step(gram: Float[Array, "m m"], piece: _Piece, step: Float[Array, " m"]) -> Float[Array, " m"]:
    """The first maximum on the way y + ts, t ≥ 0, on which each row stays where it arrives at a limit of its piece.

    The way is straight between arrivals: after each (a row of the arrays below), with the rows under way and how far all have
    gone, the function rises and bends by known numbers, which says where its top would be. The step is one that climbs
    and that reaches a limit, so the top is not before the first arrival.
    """
    y, bound = piece.y, jnp.where(step > 0, piece.upper, piece.lower)
    arrival = jnp.where(step != 0, (bound - y) / jnp.where(step != 0, step, 1.0), jnp.inf)
    times = jnp.sort(arrival)
    under_way = arrival > times[:, None]
    moving = jnp.where(under_way, step, 0.0)
    gone = jnp.where(under_way, times[:, None] * step, bound - y)
    turn = moving @ gram
    rise, bend = moving @ piece.slope - jnp.sum(turn * gone, axis=1), jnp.sum(turn * moving, axis=1)
    top = times + jnp.where(rise > 0, jnp.where(bend > 0, rise / positive_or_one(bend), jnp.inf), 0.0)
    length = top[jnp.argmax(top <= jnp.append(times[1:], jnp.inf))]
    return jnp.where(arrival <= length, bound, y + length * step)


def held_multipliers(
    gram: Float[Array, "m m"], value: Float[Array, " m"], held: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """The q with Gq = value on the rows held, zero elsewhere; rows without a gradient are left out."""
    size = jnp.diag(gram)
    root = jnp.where(held & (size > 0), 1.0 / jnp.sqrt(jnp.where(size > 0, size, 1.0)), 0.0)
    ridge = jnp.where(root > 0, (10 + value.size) * jnp.finfo(gram.dtype).eps, 1.0)
    return root * jnp.linalg.solve(root[:, None] * gram * root[None, :] + jnp.diag(ridge), root * value)


def range_multipliers_on_set(
    gradient: Float[Array, " n"],
    value: Float[Array, " m"],
    jacobian: Float[Array, "m n"],
    low: Float[Array, " m"],
    high: Float[Array, " m"],
    penalty: Float[Array, " m"],
    step_size: Float[Array, ""],
    x: Float[Array, " n"],
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    start: Float[Array, " m"],
) -> Float[Array, " m"]:
    """The y of min over x + d in X of vᵀd + ‖d‖²/(2γ) + Σ ρ_i dist(h_i + J_i d, [low_i, high_i]): d = P_X(x − γ(v + Jᵀy)) − x.

    The dual function is that of `prox_linear_on_set`, less Σ max(high_i y_i, low_i y_i), and is maximized over |y_i| ≤ ρ_i in
    the same way; `range_multipliers` maximizes the quadratic model. The residual is how far each y_i is from the best one
    by itself, if X did not bend the function, in units of rounding of the rows.
    """
    if value.size == 0:
        return value
    norms = jnp.linalg.norm(jacobian, axis=1)
    size, reach = step_size * norms**2, jnp.linalg.norm(x) + step_size * jnp.linalg.norm(gradient)
    unit = positive_or_one(size) / positive_or_one(jnp.finfo(x.dtype).eps * (jnp.abs(value) + norms * reach))
    dual = OnSet(gradient, value, jacobian, step_size, x, project)

    def goal(y: Array, rows: Array, damping: Array) -> Array:
        gram = dual.curvature(y) + damping * jnp.diag(size)
        return range_multipliers(gram, rows + gram @ y, low, high, penalty, y)

    def climb(y: Array, end: Array, at: Array, rows: Array) -> Array:
        """At a kink (y_i = 0) on the side that is on the way; rows that do not move may have no end there."""
        moves, side = end != y, jnp.where(at != 0, at, y + end)
        target = jnp.where(moves, jnp.where(side > 0, high, low), 0.0)
        return (rows - target) @ (end - y)

    def residual(y: Array, rows: Array) -> Array:
        return jnp.max(unit * jnp.abs(y - solve_one_row(rows + size * y, size, low, high, penalty)))

    return newton_ascent(within(start, low, high, penalty), dual.slope, goal, climb, residual, 10.0, size)
