"""Multipliers of penalties on ranges: one dual variable per row, between limits.

`range_multipliers` is an active-set method on the dual function, which is piecewise quadratic: y_i is in [0, ρ_i], where its
slope is z_i − high_i, or in [−ρ_i, 0], where it is z_i − low_i; for an equality these are one piece. Rows whose y_i is strictly
inside its piece are active: there the slope must be zero. A round

    releases    gives each row in turn its best y_i (coordinate ascent)
    solves      moves to y + s with Gs = slope on the active rows; where that leaves a piece, `_project_step`

and never decreases the function. A step of the second kind solves for the active rows or leaves fewer of them. After the first
rounds, rows are released only once the active rows are solved for, and then the function increases: no active set is solved
for twice, so the method ends. (Releasing rows earlier zigzags without end where rows are nearly dependent.) Singular G need no
special case: with the ridge of `solve_active_rows`, a step without curvature is so long that it ends at limits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .prox_linear import ProxLinearModel, dual_curvature, dual_gradient
from .scaling import positive_or_one
from .semismooth import ConcaveFunction, semismooth_newton

OPTIMALITY_TOLERANCE = 20.0
"""How far a row may be from the place that its multiplier requires, in units of rounding."""

EARLY_ROUNDS = 4
"""Rounds that may release rows before the active rows are solved for; these find most of a new active set."""


class RangePenalty(NamedTuple):
    """The penalty Σ ρ_i dist(h_i, [low_i, high_i]) on rows h, with `penalty` for ρ.

    Ends of a range may be infinite. The subgradients y_i lie in [−ρ_i, ρ_i]; y_i > 0 pulls h_i down to its upper end,
    y_i < 0 pulls it up to its lower end.
    """

    low: Float[Array, " m"]
    high: Float[Array, " m"]
    penalty: Float[Array, " m"]

    def clip(self, y: Float[Array, " m"]) -> Float[Array, " m"]:
        """The nearest admissible multipliers: |y| ≤ ρ, and 0 toward an end that a range does not have."""
        lower, upper = -self.penalty, self.penalty
        return jnp.clip(y, jnp.where(jnp.isinf(self.low), 0.0, lower), jnp.where(jnp.isinf(self.high), 0.0, upper))

    def best_multiplier(self, without: Float[Array, " m"], size: Float[Array, " m"]) -> Float[Array, " m"]:
        """The best y_i while all others stay the same, where row i is at `without` − size · y_i."""
        up = jnp.clip((without - self.high) / positive_or_one(size), 0.0, self.penalty)
        down = jnp.clip((without - self.low) / positive_or_one(size), -self.penalty, 0.0)
        flat = jnp.where(without > self.high, self.penalty, jnp.where(without < self.low, -self.penalty, 0.0))
        return jnp.where(size > 0, up + down, flat)


class _Piece(NamedTuple):
    """A quadratic piece of the dual function at y: its slope and limits, and the rows that are not optimal yet."""

    y: Float[Array, " m"]
    slope: Float[Array, " m"]
    lower: Float[Array, " m"]
    upper: Float[Array, " m"]
    misplaced: Bool[Array, " m"]

    @property
    def active(self) -> Bool[Array, " m"]:
        """Rows that are held at an end of their range: their multipliers are strictly between the limits."""
        return (self.y > self.lower) & (self.y < self.upper)


def range_multipliers(
    gram: Float[Array, "m m"], value: Float[Array, " m"], ranges: RangePenalty, start: Float[Array, " m"]
) -> Float[Array, " m"]:
    """Return the y that maximizes rᵀy − ½ yᵀGy − Σ max(high_i y_i, low_i y_i) over |y_i| ≤ ρ_i; G is positive semidefinite.

    This is the dual of min over d of ½ dᵀMd + vᵀd + Σ ρ_i dist(h_i + J_i d, [low_i, high_i]) with G = JM⁻¹Jᵀ and
    r = h − JM⁻¹v: the step is d = −M⁻¹(v + Jᵀy), and it takes h to z = r − Gy. One row is solved in closed form.

    Several rows are solved by the active-set method at the top of this file, which stops when every z_i is where its y_i
    requires, to rounding of the terms of z_i. A good start needs one round and no release.
    """
    size = jnp.diag(gram)
    if value.size == 1:
        return ranges.best_multiplier(value, size)

    def release(y: Array) -> _Piece:
        def one(i: Any, y: Array) -> Array:
            without = value[i] - gram[i] @ y + size[i] * y[i]
            row = RangePenalty(ranges.low[i], ranges.high[i], ranges.penalty[i])
            return y.at[i].set(row.best_multiplier(without, size[i]))

        return _piece_at(gram, value, ranges, jax.lax.fori_loop(0, value.size, one, y))

    def improve(carry: tuple[_Piece, Array, Array]) -> tuple[_Piece, Array, Array]:
        old, _, count = carry
        solved = ~jnp.any(old.misplaced & old.active)
        releases = jnp.any(old.misplaced & ~old.active) & (solved | (count < EARLY_ROUNDS))
        piece = jax.lax.cond(releases, release, lambda _: old, old.y)
        step = solve_active_rows(gram, piece.slope, piece.active)
        y = piece.y + step
        fits = jnp.all((y >= piece.lower) & (y <= piece.upper))
        y = jax.lax.cond(fits, lambda: y, lambda: _project_step(gram, piece, step))
        return _piece_at(gram, value, ranges, y), jnp.any(y != old.y), count + 1

    def unfinished(carry: tuple[_Piece, Array, Array]) -> Array:
        piece, moved, count = carry
        return jnp.any(piece.misplaced) & moved & (count < 30 + 10 * value.size)

    y = jnp.where(size > 0, ranges.clip(start), ranges.best_multiplier(value, size))
    begin = (_piece_at(gram, value, ranges, y), jnp.bool_(True), jnp.int32(0))
    return jax.lax.while_loop(unfinished, improve, begin)[0].y


def _piece_at(gram: Float[Array, "m m"], value: Float[Array, " m"], ranges: RangePenalty, y: Array) -> _Piece:
    """The piece on which the dual function increases from y, if it can."""
    low, high, penalty = ranges
    rows, equality = value - gram @ y, low == high
    up, down = (y > 0) | ((y == 0) & (rows > high)), (y < 0) | ((y == 0) & (rows < low))
    end = jnp.where(up, high, jnp.where(down, low, rows))
    slope, terms = rows - end, jnp.abs(value) + jnp.abs(gram) @ jnp.abs(y) + jnp.abs(end)
    lower, upper = jnp.where(equality | down, -penalty, 0.0), jnp.where(equality | up, penalty, 0.0)
    beyond_rounding = jnp.abs(slope) > OPTIMALITY_TOLERANCE * jnp.finfo(y.dtype).eps * terms
    return _Piece(y, slope, lower, upper, beyond_rounding & jnp.where(slope > 0, y < upper, y > lower))


def _project_step(gram: Float[Array, "m m"], piece: _Piece, step: Float[Array, " m"]) -> Float[Array, " m"]:
    """The first maximum along the projected path of y + ts, t ≥ 0, on which each y_i stops at the limit of its piece.

    The path is straight between the times at which a y_i reaches its limit. After each such time (a row of the arrays below)
    the slope and the curvature along the path are known, and so is the next maximum. The step goes up and reaches a limit, so
    the maximum is not before the first of these times.
    """
    y, bound = piece.y, jnp.where(step > 0, piece.upper, piece.lower)
    arrival = jnp.where(step != 0, (bound - y) / jnp.where(step != 0, step, 1.0), jnp.inf)
    times = jnp.sort(arrival)
    moves = arrival > times[:, None]
    moving = jnp.where(moves, step, 0.0)
    gone = jnp.where(moves, times[:, None] * step, bound - y)
    product = moving @ gram
    slope, curvature = moving @ piece.slope - jnp.sum(product * gone, axis=1), jnp.sum(product * moving, axis=1)
    ahead = jnp.where(curvature > 0, slope / positive_or_one(curvature), jnp.inf)
    maximum = times + jnp.where(slope > 0, ahead, 0.0)
    length = maximum[jnp.argmax(maximum <= jnp.append(times[1:], jnp.inf))]
    return jnp.where(arrival <= length, bound, y + length * step)


def solve_active_rows(
    gram: Float[Array, "m m"], value: Float[Array, " m"], active: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """Return the q with Gq = value on the active rows and zero elsewhere; a small ridge, and zero for rows without gradient."""
    size = jnp.diag(gram)
    root = jnp.where(active & (size > 0), 1.0 / jnp.sqrt(positive_or_one(size)), 0.0)
    ridge = jnp.where(root > 0, (10 + value.size) * jnp.finfo(gram.dtype).eps, 1.0)
    return root * jnp.linalg.solve(root[:, None] * gram * root[None, :] + jnp.diag(ridge), root * value)


def range_multipliers_on_set(
    model: ProxLinearModel[Array], ranges: RangePenalty, start: Float[Array, " m"]
) -> Float[Array, " m"]:
    """Return the y of min over x + d in X of vᵀd + ‖d‖²/(2γ) + Σ ρ_i dist(h_i + J_i d, [low_i, high_i]).

    The step is d = P_X(x − γ(v + Jᵀy)) − x. The dual function is that of `ProxLinearModel`, less
    Σ max(high_i y_i, low_i y_i). It is maximized over |y_i| ≤ ρ_i by `semismooth_newton`, and its quadratic models by
    `range_multipliers`. The residual is the distance of each y_i from its best value if X were the whole space, in units of
    rounding of the rows.
    """
    gradient, value, jacobian, step_size, x, _ = model
    if value.size == 0:
        return value
    norms = jnp.linalg.norm(jacobian, axis=1)
    size, reach = step_size * norms**2, jnp.linalg.norm(x) + step_size * jnp.linalg.norm(gradient)
    unit = positive_or_one(size) / positive_or_one(jnp.finfo(x.dtype).eps * (jnp.abs(value) + norms * reach))

    def maximize_model(y: Array, rows: Array, damping: Array) -> Array:
        gram = dual_curvature(model, y) + damping * jnp.diag(size)
        return range_multipliers(gram, rows + gram @ y, ranges, y)

    def directional_derivative(y: Array, end: Array, point: Array, rows: Array) -> Array:
        """At a kink (y_i = 0), the derivative on the side of the direction; rows that do not move may have no end there."""
        moves, side = end != y, jnp.where(point != 0, point, y + end)
        target = jnp.where(moves, jnp.where(side > 0, ranges.high, ranges.low), 0.0)
        return (rows - target) @ (end - y)

    dual = ConcaveFunction(
        gradient=lambda y: dual_gradient(model, y),
        maximize_model=maximize_model,
        directional_derivative=directional_derivative,
        residual=lambda y, rows: jnp.max(unit * jnp.abs(y - ranges.best_multiplier(rows + size * y, size))),
        curvature_bounds=size,
    )
    return semismooth_newton(dual, ranges.clip(start), tolerance=10.0)
