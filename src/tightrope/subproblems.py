"""Small optimisation problems that are solved inside larger ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .estimators import truncate


def or_one(number: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The number where it is above zero, else 1: what is divided by it is zero there, or not used."""
    return jnp.where(number > 0, number, 1.0)


def bounded_quadratic(
    matrix: Float[Array, "m m"], linear: Float[Array, " m"], free: Bool[Array, " m"], rounds: int = 30
) -> Float[Array, " m"]:
    """Argmin ½ yᵀKy + bᵀy over y with y_i ≥ 0 where not `free`; K positive definite.

    Mehrotra's predictor-corrector method on Ky + b = z, y_i z_i = μ → 0 (z = 0 where y is free), one factorisation a
    round; its cost does not depend on the data and degenerate cases need nothing special. Then one solve on the set it
    found, which makes the zeros exact, taken where it is no worse.
    """
    if linear.size == 0:
        return linear
    bounded, size = ~free, jnp.max(jnp.abs(linear))
    scale = jnp.where(size > 0, size, 1.0)
    b, count = linear / scale, jnp.maximum(jnp.sum(~free), 1)
    floor = jnp.finfo(linear.dtype).tiny ** 0.5
    rounding = (
        linear.size * jnp.finfo(linear.dtype).eps * jnp.max(jnp.diag(matrix))
    )  # of a pivot: none may fall below 0

    def objective(y: Array) -> Array:
        return y @ (0.5 * matrix @ y + b)

    def improve(_: int, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        y, z = pair
        ratio, mean = jnp.where(free, 0.0, z / y), z @ y / count
        factor = jax.scipy.linalg.cho_factor(matrix + jnp.diag(ratio + rounding))

        def direction(target: Array) -> tuple[Array, Array]:
            """The Newton step towards y z = target."""
            push = jnp.where(free, 0.0, target / y)
            dy = jax.scipy.linalg.cho_solve(factor, push - matrix @ y - b)
            return dy, jnp.where(free, 0.0, push - z - ratio * dy)

        def longest(dy: Array, dz: Array) -> Array:
            """The longest step that keeps y and z positive."""
            room = jnp.where(bounded & (dy < 0), -y / dy, jnp.inf), jnp.where(bounded & (dz < 0), -z / dz, jnp.inf)
            return jnp.minimum(1.0, 0.995 * jnp.minimum(jnp.min(room[0]), jnp.min(room[1])))

        dy, dz = direction(jnp.zeros_like(y))
        step = longest(dy, dz)
        reached = (z + step * dz) @ jnp.where(free, 0.0, y + step * dy) / count
        centre = jnp.where(mean > 0, (reached / jnp.where(mean > 0, mean, 1.0)) ** 3, 0.0)
        dy, dz = direction(centre * mean - dy * dz)
        step = longest(dy, dz)
        new = y + step * dy, z + step * dz
        kept = jax.tree.map(lambda a: jnp.where(bounded, jnp.maximum(a, floor), a), new)
        finite = jnp.all(jnp.isfinite(new[0]) & jnp.isfinite(new[1]))
        return jax.tree.map(lambda a, old: jnp.where(finite, a, old), kept, pair)

    start = jnp.where(free, 0.0, 1.0).astype(b.dtype)
    y, z = jax.lax.fori_loop(0, rounds, improve, (start, start))
    fixed = bounded & (y < z)
    kept = jnp.where(fixed[:, None] | fixed[None, :], jnp.diag(fixed.astype(b.dtype)), matrix)
    exact = jnp.linalg.solve(kept, jnp.where(fixed, 0.0, -b))
    exact = jnp.where(bounded, jnp.maximum(exact, 0.0), exact)
    return scale * jnp.where(objective(exact) <= objective(y), exact, y)


LENGTHS = np.append(0.0, np.logspace(-6, 0, 13))
"""Shares of a Newton step of which the best is taken."""


def kkt_multipliers(
    gradient: Float[Array, " n"],
    jacobian: Float[Array, "m n"],
    rows: Float[Array, " m"],
    equality: Bool[Array, " m"],
    project_normal_cone: Callable[[Float[Array, " n"]], Float[Array, " n"]] | None,
    rounds: int = 12,
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """Multipliers λ (≥ 0 for inequalities) that make x as nearly stationary as possible, and the residual that is left.

    Minimises ‖∇F + Jᵀλ + ν‖² + Σ (λ_i min(c_i, 0))² over λ and ν in N_X(x): the second sum, over the inequalities, is
    the complementarity, so that a constraint far from active gets no multiplier and none appears or vanishes at a
    threshold. Each row is divided by the norm of its gradient first, which makes the answer independent of the rows'
    scales.

    Without a set that is one bounded quadratic problem. With one, ν is the projection of −(∇F + Jᵀλ) on the normal cone and
    what is left in λ is convex and, for polyhedral cones, piecewise quadratic: Newton's method on its pieces, each step
    cut to the best of a few lengths, so that no step goes up.
    """
    norms = jnp.linalg.norm(jacobian, axis=1)
    scale = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    unit = jacobian * scale[:, None]
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    damping = jnp.diag(slack**2 + rows.size * jnp.finfo(gradient.dtype).eps)

    if project_normal_cone is None:
        y = bounded_quadratic(unit @ unit.T + damping, unit @ gradient, equality)
        return y * scale, gradient + unit.T @ y

    def tangent_part(push: Array) -> Array:
        return push - project_normal_cone(push)

    def value(y: Array) -> Array:
        return jnp.sum(tangent_part(-(gradient + unit.T @ y)) ** 2) + y @ damping @ y

    def newton(_: int, y: Array) -> Array:
        push = -(gradient + unit.T @ y)
        left, change = jax.linearize(tangent_part, push)
        curvature = jax.vmap(change)(unit) @ unit.T
        hessian = 0.5 * (curvature + curvature.T) + damping
        slope = -unit @ left + damping @ y
        goal = bounded_quadratic(hessian, slope - hessian @ y, equality)
        steps = y + LENGTHS.astype(y.dtype)[:, None] * (goal - y)
        return steps[jnp.argmin(jax.vmap(value)(steps))]

    y = jax.lax.fori_loop(0, rounds, newton, jnp.zeros_like(rows))
    return y * scale, -tangent_part(-(gradient + unit.T @ y))


# ---- prox-linear steps -------------------------------------------------------------------------------------------------

NEGLIGIBLE = 10.0
"""In units of rounding: singular values, relative to the largest, and parts of a vector that count as zero."""


def prox_linear(
    gradient: Float[Array, " n"],
    value: Float[Array, " m"],
    jacobian: Float[Array, "m n"],
    penalty: Float[Array, ""],
    step_size: Float[Array, ""],
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """Argmin over d of vᵀd + ρ‖c + Jd‖ + ‖d‖²/(2γ), and y, the subgradient of ρ‖·‖ at c + Jd with d = −γ(v + Jᵀy).

    The dual is max bᵀy − (γ/2) yᵀJJᵀy over ‖y‖ ≤ ρ with b = c − γJv. With J = UΣVᵀ and c', v' the coordinates Uᵀc, Vᵀv,

        y' = (c' − γσv') / (γσ² + μ)          d' = −γ(μv' + σc') / (γσ² + μ)          d = Vd' − γ(I − VVᵀ)v

    where μ ≥ 0 is the multiplier of the ball, and c + Jd = μy. J is taken apart, not K = JJᵀ, whose small eigenvalues have
    lost half their digits, and d' is written without the difference v + Jᵀy, which may cancel: (d, y) then solves a problem
    whose c and J differ from the given ones by rounding. Singular values that rounding alone explains count as zero,
    and so does the part of c along them if it is as small; y is then the shortest. Cost O(m²n) for m ≤ n.
    """
    if value.size == 0:
        return -step_size * gradient, value
    left, singular, right = jnp.linalg.svd(jacobian, full_matrices=False)
    largest = jnp.where(singular[0] > 0, singular[0], 1.0)
    small = NEGLIGIBLE * jnp.finfo(gradient.dtype).eps
    sigma = jnp.where(singular > small * largest, singular / largest, 0.0)
    v, outside_v = _split(right, gradient)
    c, outside_c = _split(left.T, value)
    off = jnp.linalg.norm(outside_c)
    curvature = jnp.append(sigma**2, 0.0)
    known = jnp.append(c, off)
    known = jnp.where((curvature > 0) | (jnp.abs(known) > small * jnp.linalg.norm(value)), known, 0.0)
    linear = (known / (step_size * largest) - jnp.append(sigma * v, 0.0)) / largest
    shift = _ball_multiplier(curvature, linear, penalty)  # μ / (γ σ_1²)
    total = curvature + shift
    inverse = jnp.where(total > 0, 1.0 / jnp.where(total > 0, total, 1.0), 0.0)
    y = linear * inverse
    kept = jnp.where(sigma > 0, shift * inverse[:-1], 1.0)
    d = -step_size * (outside_v + right.T @ (kept * v)) - right.T @ (sigma * known[:-1] * inverse[:-1] / largest)
    return d, left @ y[:-1] + outside_c * jnp.where(off > 0, y[-1] / jnp.where(off > 0, off, 1.0), 0.0)


def _split(basis: Float[Array, "r n"], vector: Float[Array, " n"]) -> tuple[Float[Array, " r"], Float[Array, " n"]]:
    """Coordinates in orthonormal rows and what is left, made orthogonal twice: once leaves rounding of the whole vector."""
    coordinates = basis @ vector
    if len(basis) == vector.size:
        return coordinates, jnp.zeros_like(vector)
    left = vector - basis.T @ coordinates
    return coordinates, left - basis.T @ (basis @ left)


def _ball_multiplier(
    curvature: Float[Array, " r"], linear: Float[Array, " r"], radius: Float[Array, ""], rounds: int = 30
) -> Float[Array, ""]:
    """The multiplier μ ≥ 0 of the ball in max bᵀy − ½ Σ λ_i y_i², ‖y‖ ≤ radius, λ ≥ 0: then y_i = b_i / (λ_i + μ).

    μ = 0 where ‖b/λ‖ ≤ radius (0/0 is 0), else the root of ‖y(μ)‖ = radius. 1/‖y(μ)‖ is increasing and concave, so
    Newton's method on it increases to the root from any point below. It starts at the best of the bounds ‖b_S‖/radius −
    max λ_S over the sets S of the smallest λ, where every |y_i| ≤ radius already; a handful of rounds is left.
    """
    target = jnp.abs(linear) / radius
    size = jnp.max(target)
    order = jnp.argsort(curvature)
    norms = size * jnp.sqrt(jnp.cumsum((target / jnp.where(size > 0, size, 1.0))[order] ** 2))
    start = jnp.maximum(jnp.max(norms - curvature[order]), 0.0)
    enough = 8 * jnp.finfo(linear.dtype).eps

    def look(shift: Array) -> tuple[Array, Array]:
        """‖y‖/radius at a shift, and the Newton step from there."""
        total = curvature + shift
        inverse = jnp.where(total > 0, 1.0 / jnp.where(total > 0, total, 1.0), 0.0)
        part = target * inverse
        norm = jnp.linalg.norm(part)
        unit = part / jnp.where(norm > 0, norm, 1.0)
        slope = unit @ (unit * inverse)
        return norm, (norm - 1.0) / jnp.where(slope > 0, slope, 1.0)

    def going(carry: tuple[Array, Array, Array, Array]) -> Array:
        shift, norm, _, count = carry
        return (jnp.abs(norm - 1.0) > enough) & ((shift > 0) | (norm > 1.0)) & (count < rounds)

    def newton(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        shift, _, step, count = carry
        shift = jnp.maximum(shift + step, 0.0)
        return shift, *look(shift), count + 1

    return jax.lax.while_loop(going, newton, (start, *look(start), jnp.int32(0)))[0]


def prox_linear_on_set(
    gradient: Float[Array, " n"],
    value: Float[Array, " m"],
    jacobian: Float[Array, "m n"],
    penalty: Float[Array, ""],
    step_size: Float[Array, ""],
    x: Float[Array, " n"],
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]],
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """`prox_linear` with x + d in X: argmin vᵀd + ρ‖c + Jd‖ + ‖d‖²/(2γ), and its y.

    The dual function q(y) = min over x + d in X of vᵀd + yᵀ(c + Jd) + ‖d‖²/(2γ) is concave, with

        d(y) = P_X(x − γ(v + Jᵀy)) − x          ∇q(y) = c + Jd(y)          ∇²q(y) = −γ J P_X' Jᵀ

    and is maximised over ‖y‖ ≤ ρ by `_newton_ascent` from the y that is right without X: the quadratic model at y is
    maximised over the ball exactly, as in `prox_linear`. The residual is ‖y − P_ρ(y + t∇q)‖. Each round costs m derivatives
    of P_X and O(m²n).
    """
    if value.size == 0:
        return project(x - step_size * gradient) - x, value
    eps, size = jnp.finfo(x.dtype).eps, jnp.linalg.norm(jacobian)
    small, lipschitz = NEGLIGIBLE * eps, step_size * size**2
    reach = jnp.linalg.norm(value) + lipschitz * penalty
    scale = jnp.where(reach > 0, penalty / jnp.where(reach > 0, reach, 1.0), 0.0)
    rounding = jnp.linalg.norm(value) + size * (jnp.linalg.norm(x) + step_size * jnp.linalg.norm(gradient))
    dual = _OnSet(gradient, value, jacobian, step_size, x, project)

    def goal(y: Array, up: Array, damping: Array) -> Array:
        """The maximiser of the quadratic model at y over the ball."""
        hessian = dual.curvature(y) + damping * lipschitz * jnp.eye(y.size, dtype=y.dtype)
        curvature, basis = jnp.linalg.eigh(hessian)
        curvature = jnp.where(curvature > small * curvature[-1], curvature, 0.0)
        linear = basis.T @ (up + hessian @ y)
        noise = small * (jnp.linalg.norm(up) + curvature[-1] * penalty)
        linear = jnp.where((curvature > 0) | (jnp.abs(linear) > noise), linear, 0.0)
        total = curvature + _ball_multiplier(curvature, linear, penalty)
        return basis @ jnp.where(total > 0, linear / jnp.where(total > 0, total, 1.0), 0.0)

    def climb(y: Array, end: Array, at: Array, up: Array) -> Array:
        return up @ (end - y)

    def residual(y: Array, up: Array) -> Array:
        return jnp.linalg.norm(y - truncate(y + scale * up, penalty))

    start = prox_linear(gradient, value, jacobian, penalty, step_size)[1]
    enough, sizes = 4 * eps * (penalty + scale * rounding), jnp.broadcast_to(lipschitz, value.shape)
    y = _newton_ascent(start, dual.slope, goal, climb, residual, enough, sizes)
    return project(dual.centre(y)) - x, y


PATIENT = 10
"""Rounds of Newton's method without a damping."""


class _OnSet(NamedTuple):
    """The dual function q(y) = min over x + d in X of vᵀd + yᵀ(c + Jd) + ‖d‖²/(2γ)."""

    gradient: Float[Array, " n"]
    value: Float[Array, " m"]
    jacobian: Float[Array, "m n"]
    step_size: Float[Array, ""]
    x: Float[Array, " n"]
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]]

    def centre(self, y: Float[Array, " m"]) -> Float[Array, " n"]:
        """What is projected: x − γ(v + Jᵀy)."""
        return self.x - self.step_size * (self.gradient + y @ self.jacobian)

    def slope(self, y: Float[Array, " m"]) -> Float[Array, " m"]:
        """∇q(y) = c + Jd(y)."""
        return self.value + self.jacobian @ (self.project(self.centre(y)) - self.x)

    def curvature(self, y: Float[Array, " m"]) -> Float[Array, "m m"]:
        """−∇²q(y) = γ J P_X' Jᵀ."""
        _, change = jax.linearize(self.project, self.centre(y))
        half = 0.5 * self.step_size * self.jacobian @ jax.vmap(change)(self.jacobian).T
        return half + half.T


def _newton_ascent(
    start: Float[Array, " m"],
    slope: Callable[[Array], Array],
    goal: Callable[[Array, Array, Array], Array],
    climb: Callable[[Array, Array, Array, Array], Array],
    residual: Callable[[Array, Array], Array],
    enough: Float[Array, ""] | float,
    sizes: Float[Array, " m"],
    rounds: int = 100,
) -> Float[Array, " m"]:
    """The maximiser of a concave function that is smooth but for kinks: a semismooth Newton method that never goes down.

    `slope` is that of the smooth part, `goal` the maximiser of the quadratic model at a y with its slope, `climb` the
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
        share = jnp.minimum(at_start / or_one(length * (end - y) ** 2 @ sizes), 1.0)
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


# ---- penalties on ranges ------------------------------------------------------------------------------------------------

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
    """The y that maximises rᵀy − ½ yᵀGy − Σ max(high_i y_i, low_i y_i) over |y_i| ≤ ρ_i; G is positive semidefinite.

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
        return _alone(value, size, low, high, penalty)

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
            return y.at[i].set(_alone(without, size[i], low[i], high[i], penalty[i]))

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

    y = jnp.where(size > 0, _within(start, low, high, penalty), _alone(value, size, low, high, penalty))
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


def _alone(without: Array, size: Array, low: Array, high: Array, penalty: Array) -> Array:
    """The best y_i if no other changes, where row i stands at `without` − size · y_i."""
    up = jnp.clip((without - high) / or_one(size), 0.0, penalty)
    down = jnp.clip((without - low) / or_one(size), -penalty, 0.0)
    flat = jnp.where(without > high, penalty, jnp.where(without < low, -penalty, 0.0))
    return jnp.where(size > 0, up + down, flat)


def _within(y: Array, low: Array, high: Array, penalty: Array) -> Array:
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
    top = times + jnp.where(rise > 0, jnp.where(bend > 0, rise / or_one(bend), jnp.inf), 0.0)
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

    The dual function is that of `prox_linear_on_set`, less Σ max(high_i y_i, low_i y_i), and is maximised over |y_i| ≤ ρ_i in
    the same way; `range_multipliers` maximises the quadratic model. The residual is how far each y_i is from the best one
    by itself, if X did not bend the function, in units of rounding of the rows.
    """
    if value.size == 0:
        return value
    norms = jnp.linalg.norm(jacobian, axis=1)
    size, reach = step_size * norms**2, jnp.linalg.norm(x) + step_size * jnp.linalg.norm(gradient)
    unit = or_one(size) / or_one(jnp.finfo(x.dtype).eps * (jnp.abs(value) + norms * reach))
    dual = _OnSet(gradient, value, jacobian, step_size, x, project)

    def goal(y: Array, rows: Array, damping: Array) -> Array:
        gram = dual.curvature(y) + damping * jnp.diag(size)
        return range_multipliers(gram, rows + gram @ y, low, high, penalty, y)

    def climb(y: Array, end: Array, at: Array, rows: Array) -> Array:
        """At a kink (y_i = 0) on the side that is on the way; rows that do not move may have no end there."""
        moves, side = end != y, jnp.where(at != 0, at, y + end)
        target = jnp.where(moves, jnp.where(side > 0, high, low), 0.0)
        return (rows - target) @ (end - y)

    def residual(y: Array, rows: Array) -> Array:
        return jnp.max(unit * jnp.abs(y - _alone(rows + size * y, size, low, high, penalty)))

    return _newton_ascent(_within(start, low, high, penalty), dual.slope, goal, climb, residual, 10.0, size)
