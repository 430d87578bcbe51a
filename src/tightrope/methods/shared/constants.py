"""The constants of a problem near a point, estimated from samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample


class Scales(NamedTuple):
    """How large things are near the start.

    Attributes:
        length: how far x may have to go: the set's diameter where that is smaller than max(1, ‖x‖).
        gradient: norm of the objective's gradient that is to be expected within a tenth of that length.
        smoothness: Lipschitz constant of the objective's gradient, at least gradient/length.
        constraint_gradient: norm of the Jacobian (Frobenius); 0 without constraints.
        normal_curvature: how curved ½‖c‖² is across the feasible set: the largest eigenvalue of JᵀJ; at
            least ‖c‖ · jacobian_smoothness, as the Jacobian may vanish at the start alone; 0 without constraints.
        penalty_smoothness: Lipschitz constant of the gradient of ½‖c‖²; 0 without constraints.
        penalty_on_the_way: the same where x is likely to pass: the largest of that at the start, that one Cauchy step nearer to
            c = 0, and 2‖c‖ · jacobian_smoothness, which is ‖J‖² at c = 0 where J vanishes at the start; and noise in the rows
            adds constraint_noise · jacobian_smoothness, as in the theory's constant.
        constraint: norm of the rows that is to be expected within a tenth of that length.
        jacobian_smoothness: Lipschitz constant of the Jacobian (Frobenius); 0 for linear constraints.
        gradient_noise: standard deviation of the gradient of one sample, √E‖∇f − ∇F‖²; 0 for a deterministic objective.
        constraint_noise: the same of the rows.
        jacobian_noise: the same of the Jacobian (Frobenius): how fast the noise of the rows can grow away from the start.
    """

    length: Float[Array, ""]
    gradient: Float[Array, ""]
    smoothness: Float[Array, ""]
    constraint_gradient: Float[Array, ""]
    normal_curvature: Float[Array, ""]
    penalty_smoothness: Float[Array, ""]
    penalty_on_the_way: Float[Array, ""]
    constraint: Float[Array, ""]
    jacobian_smoothness: Float[Array, ""]
    gradient_noise: Float[Array, ""]
    constraint_noise: Float[Array, ""]
    jacobian_noise: Float[Array, ""]

    @property
    def penalty_bound(self) -> Float[Array, ""]:
        """Lipschitz constant of the gradient of ½‖c‖² wherever x may go, for steps that have no second chance."""
        return (jnp.sqrt(self.penalty_smoothness) + self.length * self.jacobian_smoothness) ** 2

    @property
    def balanced_penalty(self) -> Float[Array, ""]:
        """The penalty ρ at which ½ρ‖c‖² is as curved across the feasible set as the objective; where it is flat, any.

        The minimizer of f + ½ρ‖c‖² is about ‖∇f‖/(ρσ²) away from the feasible set, σ² the curvature of ½‖c‖² there. As
        `smoothness` is at least ‖∇f‖/length, that is at most length · balanced_penalty/ρ.
        """
        return self.smoothness / positive_or_one(self.normal_curvature)

    @property
    def multiplier(self) -> Float[Array, ""]:
        """How large multipliers may be expected to be: ‖∇f‖/‖J‖, where J vanishes ‖∇f‖ itself."""
        return self.gradient / positive_or_one(self.constraint_gradient)


NOISE_SAMPLES = 4
"""Samples that the standard deviations are estimated from."""


def scales(oracle: Oracle, x: Float[Array, " n"], sample: Sample, key: Array) -> Scales:
    """The problem's scales at x: noise from a few fresh samples, the rest from one.

    What a method does not use of them is not computed either: the compiler drops it.
    """
    length = jnp.minimum(oracle.diameter(), jnp.maximum(1.0, jnp.linalg.norm(x))).astype(x.dtype)
    reach = 0.1 * length
    gradient = oracle.grad(x, sample)
    curvature = local_smoothness(lambda y: oracle.grad(y, sample), oracle.nearby, x, gradient, reach)
    size = jnp.maximum(jnp.linalg.norm(gradient), reach * curvature)

    def penalty_gradient(y: Float[Array, " n"]) -> Float[Array, " n"]:
        value, pullback = oracle.vjp(y, sample)
        return pullback(value)

    value, pullback = oracle.vjp(x, sample)
    start = penalty_gradient(x) + pullback(jnp.ones_like(value))
    penalty = local_smoothness(penalty_gradient, oracle.nearby, x, start, reach)
    smoothness = jnp.maximum(curvature, size / length)
    flat = positive_or_one(penalty)  # a constant objective: anything positive will do
    smoothness = jnp.where(smoothness > 0, smoothness, flat)
    jacobian = oracle.jac(x, sample)
    rows = jnp.linalg.norm(jacobian)
    across = local_smoothness(lambda d: jacobian.T @ (jacobian @ d), lambda d: d, jnp.zeros_like(x), start, reach)
    constraint = jnp.maximum(jnp.linalg.norm(value), reach * rows)
    bend = _jacobian_smoothness(oracle, x, sample, (gradient, start), reach)
    gradient_noise, constraint_noise, jacobian_noise = _noise(
        lambda s: (oracle.grad(x, s), oracle.c(x, s), oracle.jac(x, s)), oracle, key
    )
    nearer = _cauchy_point(oracle, x, sample)
    later = local_smoothness(penalty_gradient, oracle.nearby, nearer, start, reach)
    way = jnp.maximum(jnp.maximum(penalty, later), 2.0 * constraint * bend) + constraint_noise * bend
    return Scales(
        length,
        jnp.maximum(size, reach * smoothness),
        smoothness,
        rows,
        jnp.maximum(across, constraint * bend),
        penalty,
        way,
        constraint,
        bend,
        gradient_noise,
        constraint_noise,
        jacobian_noise,
    )


def row_noise(oracle: Oracle, x: Float[Array, " n"], key: Array) -> Float[Array, ""]:
    """The `constraint_noise` of `scales` alone: standard deviation of the rows of one sample."""
    return _noise(lambda s: (oracle.c(x, s),), oracle, key)[0]


def _cauchy_point(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Float[Array, " n"]:
    """Where ½‖c‖², c linearized at x, is least down its gradient; x where that is zero."""
    value, pullback = oracle.vjp(x, sample)
    downhill = pullback(value)
    _, change = oracle.jvp(x, downhill, sample)
    square = change @ change
    return oracle.nearby(x - downhill * (downhill @ downhill) / positive_or_one(square))


def _noise(estimates: Callable[[Sample], tuple[Array, ...]], oracle: Oracle, key: Array) -> list[Float[Array, ""]]:
    """Standard deviations, over samples, of arrays that a sample gives."""
    fresh = jax.vmap(lambda k: estimates(oracle.draw(k)))(jax.random.split(key, NOISE_SAMPLES))
    return [jnp.sqrt(jnp.sum(jnp.var(values, axis=0, ddof=1))) for values in fresh]


def _jacobian_smoothness(
    oracle: Oracle, x: Float[Array, " n"], sample: Sample, directions: tuple[Array, ...], reach: Float[Array, ""]
) -> Float[Array, ""]:
    """The largest ‖J(y) − J(x)‖ / ‖y − x‖ over points y one `reach` down each direction."""
    at_x = oracle.jac(x, sample)
    quotients = []
    for direction in directions:
        y = oracle.nearby(x - reach * _unit(direction))
        distance = jnp.linalg.norm(y - x)
        quotient = jnp.linalg.norm(oracle.jac(y, sample) - at_x) / positive_or_one(distance)
        quotients.append(jnp.where(jnp.isfinite(quotient), quotient, 0.0))
    return jnp.max(jnp.stack(quotients))


def local_smoothness(
    gradient: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    x: Float[Array, " n"],
    direction: Float[Array, " n"],
    reach: Float[Array, ""],
    iterations: int = 5,
) -> Float[Array, ""]:
    """The largest quotient ‖∇(y) − ∇(x)‖ / ‖y − x‖ seen over points y of the set, at distance `reach` before projection.

    Power iteration on the difference quotient: each difference is the next direction, so for a quadratic this tends to the
    largest eigenvalue; differences over a finite reach, unlike second derivatives, also see the kinks of a non-smooth
    function.
    """
    at_x = gradient(x)

    def probe(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        largest, direction = carry
        y = project(x + reach * _unit(direction))
        difference, distance = gradient(y) - at_x, jnp.linalg.norm(y - x)
        quotient = jnp.linalg.norm(difference) / positive_or_one(distance)
        finite = jnp.isfinite(quotient) & (distance > 0)
        return jnp.where(finite, jnp.maximum(largest, quotient), largest), jnp.where(finite, difference, -direction)

    return jax.lax.fori_loop(0, iterations, probe, (jnp.zeros((), x.dtype), direction))[0]


MARGIN_ROWS = 2048
"""Rows of the sample that the margin of the constraints is estimated from."""


def slater_margin(
    oracle: Oracle,
    x: Float[Array, " n"],
    key: Array,
    move: Callable[[Float[Array, " n"], Float[Array, " n"], Float[Array, ""]], Float[Array, " n"]],
    rounds: int = 30,
) -> Float[Array, ""]:
    """How far below zero the largest row gets: about the σ of Slater's condition, or less; −∞ without finite rows.

    On one sample of MARGIN_ROWS rows: a batch may be too noisy to show a margin at all. It is the best of a few points, each
    `move(y, direction, k)` from the one before, with the largest row's subgradient for the direction: how to go there and
    stay in the set is the caller's matter.
    """
    sample = oracle.draw(key, MARGIN_ROWS)

    def look(k: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        y, margin = carry
        rows, pullback = oracle.vjp(y, sample)
        worst = jnp.zeros_like(rows).at[jnp.argmax(rows)].set(1.0)
        found = -jnp.max(rows)
        new = move(y, pullback(worst), jnp.asarray(k + 1, x.dtype))
        return new, jnp.where(found > margin, found, margin)

    nowhere = jnp.asarray(-jnp.inf, x.dtype)
    return nowhere if oracle.multipliers.size == 0 else jax.lax.fori_loop(0, rounds, look, (x, nowhere))[1]


def _unit(direction: Float[Array, " n"]) -> Float[Array, " n"]:
    """The direction at length 1; where it is zero, that of all ones."""
    norm = jnp.linalg.norm(direction)
    return jnp.where(norm > 0, direction / positive_or_one(norm), 1.0 / jnp.sqrt(direction.size))
