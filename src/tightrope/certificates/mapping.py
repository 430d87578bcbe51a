r"""The gradient mapping: the part of a vector that the set X cannot cancel near x.

The normal cone of X at x is that of the exact point: an x that is a rounding error inside a bound has none. The gradient
mapping looks from x as far as a step of length t leads,

    r(v) = (P(x + tv) − x)/t          t = ε ‖x‖/‖∇F‖,  ε = 0.01

where P is the projection onto X. With x⁺ = x + t r(v), the rest v − r(v) is in N_X(x⁺). So where ‖r(−∇L)‖ is small, x is at a
distance of t‖r‖ = ε ‖x‖ ‖r‖/‖∇F‖ from a point of X at which −∇L is within ‖r‖ of the normal cone. As t → 0, ‖r(v)‖ grows to the
distance of v to N_X(x). In a box, an entry of v that pushes x toward a bound at a distance s counts with min(|v_j|, s/t).

t does not depend on the units of x or F. Where x = 0, the least size of x takes the place of ‖x‖ (see `scales`).

2⟨v, r⟩ − ‖r‖² = ‖r‖² + 2⟨v − r, r⟩ has the gradient 2r(v), and its root has a gradient of norm at most one. The second term, at
least 0, is the complementarity of X: t⟨v − r, r⟩ = ⟨v − r, x⁺ − x⟩ is what the distance to x⁺ is worth.

Reference:
    Y. Nesterov. Lectures on Convex Optimization, 2nd edition, Springer 2018, Section 2.2.4.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..domains import Reals
from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .scales import MIN_LENGTH

REACH = 0.01
"""ε: a step of length t along the gradient has this share of the size of x."""


def size_of(x: Float[Array, " n"], start: Float[Array, " n"]) -> Float[Array, ""]:
    """‖x‖, at least `MIN_LENGTH` times the way from x0; 1 if that is 0."""
    return positive_or_one(jnp.maximum(jnp.linalg.norm(x), MIN_LENGTH * jnp.linalg.norm(x - start)))


def mapping_length(
    x: Float[Array, " n"], start: Float[Array, " n"], gradient_norm: Float[Array, ""]
) -> Float[Array, ""]:
    """Return t; `start` is x0, or x if there is none."""
    return REACH * size_of(x, start) / positive_or_one(gradient_norm)


def gradient_mapping(
    oracle: Oracle, x: Float[Array, " n"], length: Float[Array, ""]
) -> Callable[[Float[Array, " n"]], Float[Array, " n"]]:
    """Return v ↦ r(v) at x for t = `length`; for a set without a projection, v less its projection onto the normal cone."""
    if isinstance(oracle.domain, Reals):
        return lambda v: v
    if not oracle.domain.can_project:
        return lambda v: v - oracle.project_normal_cone(x, v)
    x = oracle.project(x)

    def mapping(v: Float[Array, " n"]) -> Float[Array, " n"]:
        end = x + length * v
        return v - (end - oracle.project(end)) / length  # exact for entries that the projection leaves as they are

    return mapping
