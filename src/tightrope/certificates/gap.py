r"""The estimated optimality gap of a point, in units of the objective.

With multipliers λ at x, the Lagrangian L and the tangent space T of the active rows and of the face of X at x,

    gap = Σ |λ_i c_i| + ⟨ν, x⁺ − x⟩ + max over d in T of −(rᵀd + ½ dᵀ∇²L d)

where r is the part of ∇L that X cannot cancel near x, and −ν the part that it cancels, with ν normal to X at x⁺ (see
`mapping`). The first term is the duality gap F − L(·, λ), including what violations are worth; the second is what the distance
from x to the face of X is worth; the third is the decrease that the quadratic model of the Lagrangian predicts. In a convex
problem, and near a strict local solution of any other, the sum is F(x) − F* to second order. Where X is bounded and can
minimize linear functions, the Frank–Wolfe gap ∇Lᵀ(x − s), s in argmin over X of ∇Lᵀs, is an upper bound of the second and
third terms together, and the smaller of the two counts.

The maximum is found by conjugate gradients, which stop as soon as an iteration adds little. Products with ∇²L are differences
of gradients over a short distance, so kinks have a curvature too, and functions need only one derivative. Along a direction
without curvature the model falls without bound; the step is then as long as x or as the way from x0, whichever is longer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..domains import Reals
from ..numerics.kkt import Mapping
from ..numerics.scaling import positive_or_one, reciprocal_or_zero
from ..oracles.oracle import Oracle, Sample
from .mapping import gradient_mapping, mapping_length, size_of

MAX_ITERATIONS = 30
"""The most iterations of conjugate gradients."""
SMALL_INCREMENT = 0.01
"""Conjugate gradients stop if an iteration adds less than this share of the decrease so far."""
MAX_STRETCH = 100.0
"""A minimizer along a direction farther than this many times the length of x counts as none."""
DIFFERENCE_EXPONENT = 0.4
"""Gradients are compared over the size of x times eps to this power: above rounding, and short."""


class Curvature(NamedTuple):
    """The predicted decrease of the Lagrangian, and ‖∇²L x‖, the change of its gradient over the size of x."""

    decrease: Any
    gradient_change: Any


class _Search(NamedTuple):
    """Conjugate gradients between two products: `gradient` is that of the model, `along` the next direction."""

    number: Int[Array, ""]
    base: Float[Array, " n"]
    gradient_change: Float[Array, ""]
    gradient: Float[Array, " n"]
    along: Float[Array, " n"]
    decrease: Float[Array, ""]
    done: Bool[Array, ""]


def curvature_at(
    oracle: Oracle,
    start: Float[Array, " n"],
    sample: Sample,
    x: Float[Array, " n"],
    residual: Float[Array, " n"],
    gradient_norm: Float[Array, ""],
    raw_multipliers: Float[Array, " raw"],
) -> Curvature:
    """Return the predicted decrease at x, for an oracle in native form.

    Args:
        oracle: the oracle.
        start: x0, or x if there is none.
        sample: the sample on which curvature is measured.
        x: the point.
        residual: r.
        gradient_norm: ‖∇F‖.
        raw_multipliers: λ, of the raw values.
    """
    oracle, x, start = oracle.hold_state(x, start)
    multipliers, size = oracle.rows.from_raw(raw_multipliers), size_of(x, start)
    reach = jnp.maximum(size, jnp.linalg.norm(x - start))
    small = jnp.finfo(x.dtype).eps ** DIFFERENCE_EXPONENT

    def lagrangian_gradient(point: Float[Array, " n"]) -> Float[Array, " n"]:
        return oracle.grad(point, sample) + oracle.vjp(point, sample)[1](multipliers)

    on_face, slack = _face(oracle, x, mapping_length(x, start, gradient_norm), lagrangian_gradient)
    project = _tangent_projection(oracle, x, on_face, multipliers, sample)
    first = project(residual)
    towards = jnp.where(jnp.any(x != 0), x, first)

    def product(s: _Search) -> _Search:
        """The gradient at x, then its change along x, then one iteration of conjugate gradients after the other."""
        direction = jnp.where(s.number == 0, jnp.zeros_like(x), jnp.where(s.number == 1, towards, s.along))
        shift = small * size * reciprocal_or_zero(jnp.linalg.norm(direction))
        at = lagrangian_gradient(x + shift * direction)
        turned = (at - s.base) * reciprocal_or_zero(shift)
        iterated = _iterate(s, project(turned), reach)
        change = jnp.linalg.norm(turned) * size * reciprocal_or_zero(jnp.linalg.norm(towards))
        begun = s._replace(
            base=jnp.where(s.number == 0, at, s.base),
            gradient_change=jnp.where(s.number == 1, change, s.gradient_change),
        )
        picked = jax.tree.map(lambda a, b: jnp.where(s.number < 2, a, b), begun, iterated)
        return picked._replace(number=s.number + 1)

    zero = jnp.zeros((), x.dtype)
    begin = _Search(jnp.int32(0), first, zero, first, -first, zero, jnp.bool_(False))
    end = jax.lax.while_loop(lambda s: ~s.done & (s.number < MAX_ITERATIONS + 2), product, begin)
    return Curvature(jnp.minimum(end.decrease + slack, _frank_wolfe_gap(oracle, x, end.base)), end.gradient_change)


def _iterate(s: _Search, turned: Float[Array, " n"], reach: Float[Array, ""]) -> _Search:
    """One iteration: `turned` is ∇²L along the direction, within the tangent space."""
    square, curvature = s.gradient @ s.gradient, s.along @ turned
    longest = reach * reciprocal_or_zero(jnp.linalg.norm(s.along))
    curved = curvature * MAX_STRETCH * longest > square
    length = jnp.where(curved, square / positive_or_one(curvature), longest)
    more = length * square - 0.5 * length**2 * curvature
    gradient = s.gradient + length * turned
    ratio = (gradient @ gradient) / positive_or_one(square)
    decrease = s.decrease + more
    done = ~curved | (more <= SMALL_INCREMENT * decrease) | ~jnp.isfinite(decrease)
    return s._replace(gradient=gradient, along=ratio * s.along - gradient, decrease=decrease, done=done)


def _face(
    oracle: Oracle, x: Float[Array, " n"], length: Float[Array, ""], lagrangian_gradient: Mapping
) -> tuple[Mapping, Float[Array, ""]]:
    """Return the projection onto the directions of the face of X, and ⟨ν, x⁺ − x⟩."""
    if isinstance(oracle.domain, Reals):
        return lambda v: v, jnp.zeros((), x.dtype)
    push = -lagrangian_gradient(x)
    rest, on_face = jax.linearize(gradient_mapping(oracle, x, length), push)
    return on_face, jnp.maximum(length * (push - rest) @ rest, 0.0)  # negative by rounding alone


def _tangent_projection(oracle: Oracle, x: Any, on_face: Mapping, multipliers: Any, sample: Sample) -> Any:
    """The projection onto the tangent space of the active rows and of the face of X, given that onto the face."""
    if multipliers.size == 0 or oracle.large_jacobian:
        return on_face
    jacobian = oracle.jac(x, sample)
    active = jnp.asarray(oracle.equality) | (multipliers != 0)
    unit = jnp.where(active[:, None], jacobian * reciprocal_or_zero(jnp.linalg.norm(jacobian, axis=1))[:, None], 0.0)
    unit = jax.vmap(on_face)(unit)
    # Rows may depend on each other: the pseudo-inverse.
    inverse = jnp.linalg.pinv(unit @ unit.T, rtol=1e2 * multipliers.size * jnp.finfo(x.dtype).eps, hermitian=True)

    def project(vector: Array) -> Array:
        vector = on_face(vector)
        return vector - (inverse @ (unit @ vector)) @ unit

    return project


def _frank_wolfe_gap(oracle: Oracle, x: Float[Array, " n"], gradient: Float[Array, " n"]) -> Float[Array, ""]:
    """∇Lᵀ(x − s), with s in X as far down as possible; ∞ unless X is bounded and has such a point at hand."""
    if isinstance(oracle.domain, Reals) or not oracle.domain.can_minimize:
        return jnp.asarray(jnp.inf, x.dtype)
    gap = gradient @ (x - oracle.lmo(gradient))
    return jnp.where(jnp.isfinite(oracle.diameter()) & jnp.isfinite(gap), jnp.maximum(gap, 0.0), jnp.inf)
