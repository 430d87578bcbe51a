"""Prox-linear steps: a linear model with the norm of linearized constraints for a penalty."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .ascent import OnSet, newton_ascent
from .scaling import truncate

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

    and is maximized over ‖y‖ ≤ ρ by `newton_ascent` from the y that is right without X: the quadratic model at y is
    maximized over the ball exactly, as in `prox_linear`. The residual is ‖y − P_ρ(y + t∇q)‖. Each round costs m derivatives
    of P_X and O(m²n).
    """
    if value.size == 0:
        return project(x - step_size * gradient) - x, value
    eps, size = jnp.finfo(x.dtype).eps, jnp.linalg.norm(jacobian)
    small, lipschitz = NEGLIGIBLE * eps, step_size * size**2
    reach = jnp.linalg.norm(value) + lipschitz * penalty
    scale = jnp.where(reach > 0, penalty / jnp.where(reach > 0, reach, 1.0), 0.0)
    rounding = jnp.linalg.norm(value) + size * (jnp.linalg.norm(x) + step_size * jnp.linalg.norm(gradient))
    dual = OnSet(gradient, value, jacobian, step_size, x, project)

    def goal(y: Array, up: Array, damping: Array) -> Array:
        """The maximizer of the quadratic model at y over the ball."""
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
    y = newton_ascent(start, dual.slope, goal, climb, residual, enough, sizes)
    return project(dual.center(y)) - x, y
