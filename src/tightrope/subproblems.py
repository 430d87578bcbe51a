"""Small optimisation problems that are solved inside larger ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
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
        steps = y + jnp.array([0.0, 0.01, 0.1, 0.3, 1.0], y.dtype)[:, None] * (goal - y)
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
    rounds: int = 30,
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """`prox_linear` with x + d in X: argmin vᵀd + ρ‖c + Jd‖ + ‖d‖²/(2γ), and its y.

    The dual function q(y) = min over x + d in X of vᵀd + yᵀ(c + Jd) + ‖d‖²/(2γ) is concave, with

        d(y) = P_X(x − γ(v + Jᵀy)) − x          ∇q(y) = c + Jd(y)          ∇²q(y) = −γ J P_X' Jᵀ

    and is maximised over ‖y‖ ≤ ρ by a semismooth Newton method from the y that is right without X: the quadratic model at
    y is maximised over the ball exactly, as in `prox_linear`. A step that halves the optimality residual
    ‖y − P_ρ(y + t∇q)‖ is taken in full, and so is one that q still climbs at its end; any other is cut near the maximum of q
    on it, at a point up to which q climbs (that is seen from slopes, for differences of q drown in rounding). Where P_X
    is piecewise linear finitely many rounds are exact; where it is smooth they converge fast. The y of the least residual
    is returned. Each round costs m derivatives of P_X and O(m²n).
    """
    if value.size == 0:
        return project(x - step_size * gradient) - x, value
    eps, size = jnp.finfo(x.dtype).eps, jnp.linalg.norm(jacobian)
    small, lipschitz = NEGLIGIBLE * eps, step_size * size**2
    reach = jnp.linalg.norm(value) + lipschitz * penalty
    scale = jnp.where(reach > 0, penalty / jnp.where(reach > 0, reach, 1.0), 0.0)
    rounding = jnp.linalg.norm(value) + size * (jnp.linalg.norm(x) + step_size * jnp.linalg.norm(gradient))
    enough = 4 * eps * (penalty + scale * rounding)

    def centre(y: Array) -> Array:
        return x - step_size * (gradient + jacobian.T @ y)

    def slope(y: Array) -> Array:
        return value + jacobian @ (project(centre(y)) - x)

    def residual(y: Array, up: Array) -> Array:
        return jnp.linalg.norm(y - truncate(y + scale * up, penalty))

    def goal(y: Array, up: Array) -> Array:
        """The maximiser of the quadratic model at y over the ball."""
        _, change = jax.linearize(project, centre(y))
        hessian = step_size * jacobian @ jax.vmap(change)(jacobian).T
        curvature, basis = jnp.linalg.eigh(0.5 * (hessian + hessian.T))
        curvature = jnp.where(curvature > small * curvature[-1], curvature, 0.0)
        linear = basis.T @ (up + hessian @ y)
        noise = small * (jnp.linalg.norm(up) + curvature[-1] * penalty)
        linear = jnp.where((curvature > 0) | (jnp.abs(linear) > noise), linear, 0.0)
        total = curvature + _ball_multiplier(curvature, linear, penalty)
        return basis @ jnp.where(total > 0, linear / jnp.where(total > 0, total, 1.0), 0.0)

    def newton(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        y, up, best, least, _, count = carry
        direction = goal(y, up) - y
        at_end = slope(y + direction)
        whole = (at_end @ direction >= 0) | (residual(y + direction, at_end) <= 0.5 * least)
        length = _climb(lambda t: slope(y + t * direction) @ direction, up @ direction, at_end @ direction, whole)
        y, moved = y + length * direction, length * jnp.linalg.norm(direction)
        up = slope(y)
        left = residual(y, up)
        return y, up, jnp.where(left < least, y, best), jnp.minimum(left, least), moved, count + 1

    def going(carry: tuple[Array, ...]) -> Array:
        _, _, _, least, moved, count = carry
        return (least > enough) & (moved > eps * jnp.linalg.norm(carry[0])) & (count < rounds)

    y = prox_linear(gradient, value, jacobian, penalty, step_size)[1]
    up = slope(y)
    start = (y, up, y, residual(y, up), penalty, jnp.int32(0))
    y = jax.lax.while_loop(going, newton, start)[2]
    return project(centre(y)) - x, y


def _climb(
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


def range_multipliers(
    gram: Float[Array, "m m"],
    value: Float[Array, " m"],
    low: Float[Array, " m"],
    high: Float[Array, " m"],
    penalty: Float[Array, " m"],
    start: Float[Array, " m"],
    rounds: int = 30,
) -> Float[Array, " m"]:
    """The y that maximises rᵀy − ½ yᵀGy − Σ max(high_i y_i, low_i y_i) over |y_i| ≤ ρ_i; G is positive semidefinite.

    It is the dual of min over d of ½ dᵀMd + vᵀd + Σ ρ_i dist(h_i + J_i d, [low_i, high_i]) with G = JM⁻¹Jᵀ and
    r = h − JM⁻¹v: the step is d = −M⁻¹(v + Jᵀy), and r − Gy is where it takes h. One row is solved in closed form. More are
    gone through one after the other, which never goes down; after each sweep the rows that are held at an end of their range
    are solved for together, and that is taken where it is better. From a good start a round or two is enough.
    """
    size = jnp.diag(gram)
    inverse = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 0.0)

    def alone(without: Array, i: Any) -> Array:
        """The best y_i where row i stands at `without` when y_i is 0."""
        up = jnp.clip((without - high[i]) * inverse[i], 0.0, penalty[i])
        down = jnp.clip((without - low[i]) * inverse[i], -penalty[i], 0.0)
        flat = jnp.where(without > high[i], penalty[i], jnp.where(without < low[i], -penalty[i], 0.0))
        return jnp.where(size[i] > 0, up + down, flat)

    if value.size == 1:
        return alone(value, slice(None))

    ends = jnp.where(jnp.isfinite(low), low, 0.0), jnp.where(jnp.isfinite(high), high, 0.0)

    def dual(y: Array) -> Array:
        return (value - 0.5 * gram @ y) @ y - jnp.sum(jnp.where(y > 0, ends[1], ends[0]) * y)

    def sweep(i: Any, y: Array) -> Array:
        return y.at[i].set(alone(value[i] - gram[i] @ y + size[i] * y[i], i))

    def together(y: Array) -> Array:
        """The rows strictly between their limits solved for at once, and cut back into them."""
        free = (y != 0) & (jnp.abs(y) < penalty)
        fixed = jnp.where(free, 0.0, y)
        solved = held_multipliers(gram, value - jnp.where(y > 0, ends[1], ends[0]) - gram @ fixed, free)
        return fixed + jnp.clip(solved, jnp.where(y > 0, 0.0, -penalty), jnp.where(y > 0, penalty, 0.0))

    def improve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        y, _, count = carry
        swept = jax.lax.fori_loop(0, value.size, sweep, y)
        at_once = together(swept)
        better = jnp.where(dual(at_once) >= dual(swept), at_once, swept)
        again = jax.vmap(lambda i: alone(value[i] - gram[i] @ better + size[i] * better[i], i))(jnp.arange(value.size))
        off = jnp.max(jnp.abs(again - better) / jnp.where(penalty > 0, penalty, 1.0))
        return better, off, count + 1

    def going(carry: tuple[Array, Array, Array]) -> Array:
        _, off, count = carry
        return (off > 100 * jnp.finfo(value.dtype).eps) & (count < rounds)

    one = jnp.ones((), value.dtype)
    return jax.lax.while_loop(going, improve, (jnp.clip(start, -penalty, penalty), one, jnp.int32(0)))[0]


def held_multipliers(
    gram: Float[Array, "m m"], value: Float[Array, " m"], held: Bool[Array, " m"]
) -> Float[Array, " m"]:
    """The q with Gq = value on the rows held, zero elsewhere; rows without a gradient are left out."""
    size = jnp.diag(gram)
    root = jnp.where(held & (size > 0), 1.0 / jnp.sqrt(jnp.where(size > 0, size, 1.0)), 0.0)
    ridge = jnp.where(root > 0, 10 * jnp.finfo(gram.dtype).eps, 1.0)
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
    rounds: int = 15,
) -> Float[Array, " m"]:
    """The y of min over x + d in X of vᵀd + ‖d‖²/(2γ) + Σ ρ_i dist(h_i + J_i d, [low_i, high_i]): d = P_X(x − γ(v + Jᵀy)) − x.

    The dual function is concave, with slope h + Jd(y) and curvature γ J P_X' Jᵀ. Newton's method: the model at y is maximised
    by `range_multipliers`, and the best of a few lengths on the way there is taken, so that no round goes down. Where P_X is
    piecewise linear finitely many rounds are exact.
    """
    lengths = jnp.array([0.0, 0.01, 0.1, 0.3, 1.0], x.dtype)

    def at(y: Array) -> tuple[Array, Array]:
        """The dual function at y and its slope, the ends of the ranges apart."""
        centre = x - step_size * (gradient + y @ jacobian)
        d = project(centre) - x
        rows = value + jacobian @ d
        ends = jnp.where(y > 0, jnp.where(y > 0, high, 0.0), jnp.where(y < 0, low, 0.0))
        return gradient @ d + d @ d / (2.0 * step_size) + y @ (rows - ends), rows

    def newton(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        y, _, count = carry
        _, tangent = jax.linearize(project, x - step_size * (gradient + y @ jacobian))
        gram = step_size * jacobian @ jax.vmap(tangent)(jacobian).T
        gram = 0.5 * (gram + gram.T)
        goal = range_multipliers(gram, at(y)[1] + gram @ y, low, high, penalty, y)
        trials = y + lengths[:, None] * (goal - y)
        best = jnp.argmax(jax.vmap(lambda trial: at(trial)[0])(trials))
        moved = jnp.max(jnp.abs(trials[best] - y) / jnp.where(penalty > 0, penalty, 1.0), initial=0.0)
        return trials[best], moved, count + 1

    def going(carry: tuple[Array, Array, Array]) -> Array:
        _, moved, count = carry
        return (moved > 100 * jnp.finfo(x.dtype).eps) & (count < rounds)

    if value.size == 0:
        return value
    begin = jnp.clip(start, jnp.where(jnp.isinf(low), 0.0, -penalty), jnp.where(jnp.isinf(high), 0.0, penalty))
    return jax.lax.while_loop(going, newton, (begin, jnp.ones((), x.dtype), jnp.int32(0)))[0]
