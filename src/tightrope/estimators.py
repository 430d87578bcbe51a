"""Estimates from samples that methods share: momentum, truncation, and the constants of a problem near a point."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .oracle import Oracle, Sample


def truncate(v: Float[Array, " n"], radius: Float[Array, ""]) -> Float[Array, " n"]:
    """The nearest point to v of the ball of this radius around 0; 0 where the square of v's norm overflows."""
    norm = jnp.linalg.norm(v)
    return v * jnp.where(norm > radius, radius / norm, 1.0)


def recursive_momentum(
    estimate: Float[Array, " n"], new: Float[Array, " n"], old: Float[Array, " n"], weight: Float[Array, ""]
) -> Float[Array, " n"]:
    """`new + (1 − weight)(estimate − old)`, with new and old the gradients of ONE sample at the new and the old point."""
    return new + (1.0 - weight) * (estimate - old)


def polyak_momentum(
    estimate: Float[Array, " n"], new: Float[Array, " n"], weight: Float[Array, ""]
) -> Float[Array, " n"]:
    """`(1 − weight) estimate + weight · new`."""
    return (1.0 - weight) * estimate + weight * new


class Scales(NamedTuple):
    """How large things are near the start.

    Attributes:
        length: how far x may have to go: the set's diameter where that is smaller than max(1, ‖x‖).
        gradient: norm of the objective's gradient that is to be expected within a tenth of that length.
        smoothness: Lipschitz constant of the objective's gradient, at least gradient/length.
        constraint_gradient: norm of the Jacobian (Frobenius); 0 without constraints.
        penalty_smoothness: Lipschitz constant of the gradient of ½‖c‖²; 0 without constraints.
    """

    length: Float[Array, ""]
    gradient: Float[Array, ""]
    smoothness: Float[Array, ""]
    constraint_gradient: Float[Array, ""]
    penalty_smoothness: Float[Array, ""]


def scales(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Scales:
    """The problem's scales at x, from one sample."""
    length = jnp.minimum(oracle.diameter(), jnp.maximum(1.0, jnp.linalg.norm(x))).astype(x.dtype)
    reach = 0.1 * length
    gradient = oracle.grad(x, sample)
    curvature = local_smoothness(lambda y: oracle.grad(y, sample), oracle.project, x, gradient, reach)
    size = jnp.maximum(jnp.linalg.norm(gradient), reach * curvature)

    def penalty_gradient(y: Float[Array, " n"]) -> Float[Array, " n"]:
        value, pullback = oracle.vjp(y, sample)
        return pullback(value)

    rows = oracle.jac(x, sample)
    start = penalty_gradient(x) + jnp.sum(rows, 0)
    penalty = local_smoothness(penalty_gradient, oracle.project, x, start, reach)
    smoothness = jnp.maximum(curvature, size / length)
    flat = jnp.where(penalty > 0, penalty, 1.0)  # a constant objective: anything positive will do
    smoothness = jnp.where(smoothness > 0, smoothness, flat)
    return Scales(length, jnp.maximum(size, reach * smoothness), smoothness, jnp.linalg.norm(rows), penalty)


def local_smoothness(
    gradient: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    x: Float[Array, " n"],
    direction: Float[Array, " n"],
    reach: Float[Array, ""],
    iterations: int = 5,
) -> Float[Array, ""]:
    """The largest quotient ‖∇(y) − ∇(x)‖ / ‖y − x‖ seen over points y of the set at distance `reach`.

    Power iteration on the difference quotient: each difference is the next direction, so for a quadratic this tends to the
    largest eigenvalue; differences over a finite reach, unlike second derivatives, also see the kinks of a non-smooth
    function.
    """
    at_x = gradient(x)

    def probe(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        largest, direction = carry
        norm = jnp.linalg.norm(direction)
        unit = jnp.where(norm > 0, direction / jnp.where(norm > 0, norm, 1.0), 1.0 / jnp.sqrt(x.size))
        y = project(x + reach * unit)
        difference, distance = gradient(y) - at_x, jnp.linalg.norm(y - x)
        quotient = jnp.linalg.norm(difference) / jnp.where(distance > 0, distance, 1.0)
        finite = jnp.isfinite(quotient) & (distance > 0)
        return jnp.where(finite, jnp.maximum(largest, quotient), largest), jnp.where(finite, difference, -direction)

    return jax.lax.fori_loop(0, iterations, probe, (jnp.zeros((), x.dtype), direction))[0]
