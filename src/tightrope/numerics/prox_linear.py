"""Prox-linear steps: a linear model, a penalty on the norm of the linearized constraints, and a proximal term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .scaling import positive_or_one, reciprocal_or_zero, truncate
from .semismooth import ConcaveFunction, semismooth_newton

RANK_TOLERANCE = 10.0
"""Singular values below this many eps of the largest count as zero, and so do parts of a vector that are as small."""

Jacobian = TypeVar("Jacobian")


class ProxLinearModel(NamedTuple, Generic[Jacobian]):
    """The model vᵀd + ‖d‖²/(2γ) of the objective and h + Jd of the rows, for steps d with x + d in X.

    Its dual function is q(y) = min over x + d in X of vᵀd + yᵀ(h + Jd) + ‖d‖²/(2γ), which is concave, with

        d(y) = P_X(x − γ(v + Jᵀy)) − x          ∇q(y) = h + Jd(y)          ∇²q(y) = −γ J P_X' Jᵀ

    J is an m×n matrix, or a `products.Linear` where it is too large.
    """

    gradient: Float[Array, " n"]
    value: Float[Array, " m"]
    jacobian: Jacobian
    step_size: Float[Array, ""]
    x: Float[Array, " n"]
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]]


def dual_center(model: ProxLinearModel[Array], y: Float[Array, " m"]) -> Float[Array, " n"]:
    """The point x − γ(v + Jᵀy) that is projected onto X."""
    return model.x - model.step_size * (model.gradient + y @ model.jacobian)


def dual_gradient(model: ProxLinearModel[Array], y: Float[Array, " m"]) -> Float[Array, " m"]:
    """∇q(y) = h + Jd(y)."""
    return model.value + model.jacobian @ (model.project(dual_center(model, y)) - model.x)


def dual_curvature(model: ProxLinearModel[Array], y: Float[Array, " m"]) -> Float[Array, "m m"]:
    """−∇²q(y) = γ J P_X' Jᵀ."""
    _, change = jax.linearize(model.project, dual_center(model, y))
    half = 0.5 * model.step_size * model.jacobian @ jax.vmap(change)(model.jacobian).T
    return half + half.T


def prox_linear(
    gradient: Float[Array, " n"],
    value: Float[Array, " m"],
    jacobian: Float[Array, "m n"],
    penalty: Float[Array, ""],
    step_size: Float[Array, ""],
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """Return argmin over d of vᵀd + ρ‖c + Jd‖ + ‖d‖²/(2γ), and y, the subgradient of ρ‖·‖ at c + Jd with d = −γ(v + Jᵀy).

    The dual is max bᵀy − (γ/2) yᵀJJᵀy over ‖y‖ ≤ ρ with b = c − γJv. With J = UΣVᵀ and c', v' the coordinates Uᵀc, Vᵀv,

        y' = (c' − γσv') / (γσ² + μ)          d' = −γ(μv' + σc') / (γσ² + μ)          d = Vd' − γ(I − VVᵀ)v

    where μ ≥ 0 is the multiplier of the ball, and c + Jd = μy. The decomposition is of J, not of K = JJᵀ, whose small
    eigenvalues have lost half their digits, and d' avoids the difference v + Jᵀy, which may cancel. So (d, y) solves a problem
    whose c and J differ from the given ones by rounding. Singular values that rounding alone explains count as zero, and so
    does the part of c along them if it is as small; y is then the shortest solution. The cost is O(m²n) for m ≤ n.
    """
    if value.size == 0:
        return -step_size * gradient, value
    left, singular, right = jnp.linalg.svd(jacobian, full_matrices=False)
    largest = positive_or_one(singular[0])
    small = RANK_TOLERANCE * jnp.finfo(gradient.dtype).eps
    sigma = jnp.where(singular > small * largest, singular / largest, 0.0)
    v, outside_v = _split(right, gradient)
    c, outside_c = _split(left.T, value)
    outside_norm = jnp.linalg.norm(outside_c)
    curvature = jnp.append(sigma**2, 0.0)
    known = jnp.append(c, outside_norm)
    known = jnp.where((curvature > 0) | (jnp.abs(known) > small * jnp.linalg.norm(value)), known, 0.0)
    linear = (known / (step_size * largest) - jnp.append(sigma * v, 0.0)) / largest
    shift = ball_multiplier(curvature, linear, penalty)  # μ / (γ σ_1²)
    inverse = reciprocal_or_zero(curvature + shift)
    y = linear * inverse
    kept = jnp.where(sigma > 0, shift * inverse[:-1], 1.0)
    d = -step_size * (outside_v + right.T @ (kept * v)) - right.T @ (sigma * known[:-1] * inverse[:-1] / largest)
    along = jnp.where(outside_norm > 0, y[-1] / positive_or_one(outside_norm), 0.0)
    return d, left @ y[:-1] + outside_c * along


def _split(basis: Float[Array, "r n"], vector: Float[Array, " n"]) -> tuple[Float[Array, " r"], Float[Array, " n"]]:
    """Coordinates in orthonormal rows, and the orthogonal rest.

    The rest is made orthogonal twice: once leaves rounding of the whole vector.
    """
    coordinates = basis @ vector
    if len(basis) == vector.size:
        return coordinates, jnp.zeros_like(vector)
    rest = vector - basis.T @ coordinates
    return coordinates, rest - basis.T @ (basis @ rest)


def ball_multiplier(
    curvature: Float[Array, " r"], linear: Float[Array, " r"], radius: Float[Array, ""], rounds: int = 30
) -> Float[Array, ""]:
    """Return the multiplier μ ≥ 0 of the ball in max bᵀy − ½ Σ λ_i y_i², ‖y‖ ≤ radius, λ ≥ 0: y_i = b_i / (λ_i + μ).

    This is the secular equation of a trust-region problem. μ = 0 where ‖b/λ‖ ≤ radius (0/0 is 0), else the root of
    ‖y(μ)‖ = radius. 1/‖y(μ)‖ is increasing and concave, so Newton's method on it increases to the root from any point below.
    It starts at the best of the bounds ‖b_S‖/radius − max λ_S over the sets S of the smallest λ, where every
    |y_i| ≤ radius already; a handful of rounds remains.
    """
    target = jnp.abs(linear) / radius
    size = jnp.max(target)
    order = jnp.argsort(curvature)
    norms = size * jnp.sqrt(jnp.cumsum((target / positive_or_one(size))[order] ** 2))
    start = jnp.maximum(jnp.max(norms - curvature[order]), 0.0)
    tolerance = 8 * jnp.finfo(linear.dtype).eps

    def norm_and_step(shift: Array) -> tuple[Array, Array]:
        """‖y‖/radius at a shift, and the Newton step from there."""
        inverse = reciprocal_or_zero(curvature + shift)
        part = target * inverse
        norm = jnp.linalg.norm(part)
        unit = part / positive_or_one(norm)
        slope = unit @ (unit * inverse)
        return norm, (norm - 1.0) / positive_or_one(slope)

    def unfinished(carry: tuple[Array, Array, Array, Array]) -> Array:
        shift, norm, _, count = carry
        return (jnp.abs(norm - 1.0) > tolerance) & ((shift > 0) | (norm > 1.0)) & (count < rounds)

    def newton(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        shift, _, step, count = carry
        shift = jnp.maximum(shift + step, 0.0)
        return shift, *norm_and_step(shift), count + 1

    return jax.lax.while_loop(unfinished, newton, (start, *norm_and_step(start), jnp.int32(0)))[0]


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

    The dual function of `ProxLinearModel` is maximized over ‖y‖ ≤ ρ by `semismooth_newton`, from the y that is optimal
    without X. Each quadratic model is maximized over the ball exactly, as in `prox_linear`. The residual is
    ‖y − P_ρ(y + t∇q)‖. Each round costs m derivatives of P_X and O(m²n).
    """
    if value.size == 0:
        return project(x - step_size * gradient) - x, value
    eps, size = jnp.finfo(x.dtype).eps, jnp.linalg.norm(jacobian)
    small, lipschitz = RANK_TOLERANCE * eps, step_size * size**2
    reach = jnp.linalg.norm(value) + lipschitz * penalty
    scale = jnp.where(reach > 0, penalty / positive_or_one(reach), 0.0)
    rounding = jnp.linalg.norm(value) + size * (jnp.linalg.norm(x) + step_size * jnp.linalg.norm(gradient))
    model = ProxLinearModel(gradient, value, jacobian, step_size, x, project)

    def maximize_model(y: Array, slope: Array, damping: Array) -> Array:
        hessian = dual_curvature(model, y) + damping * lipschitz * jnp.eye(y.size, dtype=y.dtype)
        curvature, basis = jnp.linalg.eigh(hessian)
        curvature = jnp.where(curvature > small * curvature[-1], curvature, 0.0)
        linear = basis.T @ (slope + hessian @ y)
        noise = small * (jnp.linalg.norm(slope) + curvature[-1] * penalty)
        linear = jnp.where((curvature > 0) | (jnp.abs(linear) > noise), linear, 0.0)
        total = curvature + ball_multiplier(curvature, linear, penalty)
        return basis @ jnp.where(total > 0, linear / positive_or_one(total), 0.0)

    def residual(y: Array, slope: Array) -> Array:
        return jnp.linalg.norm(y - truncate(y + scale * slope, penalty))

    dual = ConcaveFunction(
        gradient=lambda y: dual_gradient(model, y),
        maximize_model=maximize_model,
        directional_derivative=lambda y, end, point, slope: slope @ (end - y),
        residual=residual,
        curvature_bounds=jnp.broadcast_to(lipschitz, value.shape),
    )
    start = prox_linear(gradient, value, jacobian, penalty, step_size)[1]
    y = semismooth_newton(dual, start, tolerance=4 * eps * (penalty + scale * rounding))
    return project(dual_center(model, y)) - x, y
