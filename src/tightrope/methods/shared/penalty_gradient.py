"""The stochastic gradient of an augmented Lagrangian from three independent samples.

    G_ρ(x, λ; B) = ∇f(x, ξ⁰) + J(x, ζ¹)ᵀ(λ + ρ c(x, ζ²)),    B = (ξ⁰, ζ¹, ζ²)

It is unbiased because the Jacobian and the rows are evaluated on independent samples ζ¹ and ζ². With λ = 0 it is the
gradient of the quadratic penalty function f + ½ρ‖c‖².
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from ...oracles.oracle import Oracle, Sample
from ..base import Info

PENALTY_ROLES: dict[str, int | None] = {"objective": None, "jacobian": None, "value": None}
"""The samples ξ⁰, ζ¹, ζ² of one penalty gradient, each with the data's own batch size."""
MOMENTUM = 4.0
"""α_k over (L̃ρ η_k)²: of 1, 2, 4, 8 and 72 the one with the least errors on the problems that benchmarks/constants.py names."""


def constraint_part(
    oracle: Oracle,
    x: Float[Array, " n"],
    samples: dict[str, Sample],
    multipliers: Float[Array, " rows"],
    penalty: Float[Array, ""] | Float[Array, " rows"],
) -> tuple[Float[Array, " rows"], Float[Array, " n"]]:
    """The rows c(x, ζ²), and J(x, ζ¹)ᵀ(λ + ρ c(x, ζ²)), with one ρ or one for each row.

    Constraints without data are evaluated only once.
    """
    c, pullback = oracle.vjp(x, samples["jacobian"])
    if oracle.stochastic_constraints:
        c = oracle.c(x, samples["value"])
    return c, pullback(multipliers + penalty * c)


def penalty_gradient(
    oracle: Oracle,
    x: Float[Array, " n"],
    samples: dict[str, Sample],
    multipliers: Float[Array, " rows"],
    penalty: Float[Array, ""],
) -> tuple[Float[Array, " rows"], Float[Array, " n"]]:
    """The rows c(x, ζ²), and G_ρ(x, λ; B)."""
    if not oracle.stochastic_constraints:
        c, pullback = oracle.lagrangian_vjp(x, samples["objective"])
        return c, pullback(multipliers + penalty * c)
    c, from_constraints = constraint_part(oracle, x, samples, multipliers, penalty)
    return c, oracle.grad(x, samples["objective"]) + from_constraints


def penalty_cost(oracle: Oracle, samples: dict[str, Sample], points: int, *, objective: bool = True) -> Info:
    """The cost of G at this many points on one B; with `objective=False`, of its constraint part alone."""
    examples = oracle.count_examples("constraints", samples["jacobian"], samples["value"])
    if objective:
        examples += oracle.count_examples("objective", samples["objective"])
    return Info(points * objective, points * (1 + oracle.stochastic_constraints), points, examples)


def sign_ascent(
    multipliers: Float[Array, " rows"],
    step_size: Float[Array, ""],
    k: Float[Array, ""] | float,
    c: Float[Array, " rows"],
) -> Float[Array, " rows"]:
    """The multipliers after step k of bounded ascent, λ + γ/(k log²(k+1)) sign c, with c = c(x_k, ζ²_k)."""
    return multipliers + step_size / (k * jnp.log(k + 1.0) ** 2) * jnp.sign(c)


def total_ascent(offset: Float[Array, ""] | float) -> Float[Array, ""]:
    """How far `sign_ascent` with γ = 1 moves a multiplier at most, over all steps k = offset + 1, offset + 2, ….

    The terms fall, so their sum is at most the first one plus ∫ dt/(t log² t) = 1/log(offset + 1). For offset 0 it is 3.39.
    """
    first = offset + 1.0
    bound = 1.0 / (first * jnp.log(first + 1.0) ** 2) + 1.0 / jnp.log(jnp.maximum(first, 1.5))
    return jnp.minimum(3.4, bound)
