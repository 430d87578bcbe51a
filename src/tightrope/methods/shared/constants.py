"""Constants of a problem near a point, estimated from samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample


class LocalConstants(NamedTuple):
    """Sizes, Lipschitz constants and noise of a problem near a point x, on one sample.

    "Nearby" below means within a tenth of `length`.

    Attributes:
        length: how far x may have to move: max(1, ‖x‖), or the set's diameter if that is smaller.
        gradient_norm: the norm of the objective's gradient to be expected nearby.
        smoothness: Lipschitz constant of the objective's gradient, at least gradient_norm/length.
        jacobian_norm: the Frobenius norm of the Jacobian; 0 without constraints.
        normal_curvature: the curvature of ½‖c‖² normal to the feasible set: the largest eigenvalue of JᵀJ, and at least
            ‖c‖ · jacobian_smoothness because the Jacobian may vanish at x alone; 0 without constraints.
        penalty_smoothness: Lipschitz constant of the gradient of ½‖c‖²; 0 without constraints.
        path_penalty_smoothness: the same on the way to c = 0: the largest of its values at x and one Cauchy step closer to
            c = 0, and 2‖c‖ · jacobian_smoothness, which is ‖J‖² at c = 0 if J vanishes at x. Noise in the rows adds
            constraint_noise · jacobian_smoothness, as in the theory's constant.
        constraint_norm: the norm of the rows to be expected nearby.
        jacobian_smoothness: Lipschitz constant of the Jacobian (Frobenius); 0 for linear constraints.
        gradient_noise: standard deviation of the gradient of one sample, √E‖∇f − ∇F‖²; 0 for a deterministic objective.
        constraint_noise: the same for the rows.
        jacobian_noise: the same for the Jacobian (Frobenius): how fast the noise of the rows can grow away from x.
    """

    length: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    smoothness: Float[Array, ""]
    jacobian_norm: Float[Array, ""]
    normal_curvature: Float[Array, ""]
    penalty_smoothness: Float[Array, ""]
    path_penalty_smoothness: Float[Array, ""]
    constraint_norm: Float[Array, ""]
    jacobian_smoothness: Float[Array, ""]
    gradient_noise: Float[Array, ""]
    constraint_noise: Float[Array, ""]
    jacobian_noise: Float[Array, ""]

    @property
    def global_penalty_smoothness(self) -> Float[Array, ""]:
        """Lipschitz constant of the gradient of ½‖c‖² within `length`, for step sizes that never shrink."""
        return (jnp.sqrt(self.penalty_smoothness) + self.length * self.jacobian_smoothness) ** 2

    @property
    def balanced_penalty(self) -> Float[Array, ""]:
        """The penalty ρ at which ½ρ‖c‖² is as curved normal to the feasible set as the objective is.

        The minimizer of f + ½ρ‖c‖² lies about ‖∇f‖/(ρσ²) off the feasible set, with σ² the normal curvature of ½‖c‖².
        Since `smoothness` is at least ‖∇f‖/length, that distance is at most length · balanced_penalty/ρ. Without normal
        curvature, any penalty is as good as another.
        """
        return self.smoothness / positive_or_one(self.normal_curvature)

    @property
    def multiplier_size(self) -> Float[Array, ""]:
        """The expected size of multipliers: ‖∇f‖/‖J‖, or ‖∇f‖ if J vanishes."""
        return self.gradient_norm / positive_or_one(self.jacobian_norm)


NOISE_SAMPLES = 4
"""Number of samples behind each standard deviation."""


def local_constants(oracle: Oracle, x: Float[Array, " n"], sample: Sample, key: Array) -> LocalConstants:
    """The problem's constants near x: noise from a few fresh samples, everything else from one.

    The compiler drops the computation of constants that a method does not use.
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
    flat = positive_or_one(penalty)  # a constant objective: any positive number will do
    smoothness = jnp.where(smoothness > 0, smoothness, flat)
    jacobian = oracle.jac(x, sample)
    jacobian_norm = jnp.linalg.norm(jacobian)
    normal = local_smoothness(lambda d: jacobian.T @ (jacobian @ d), lambda d: d, jnp.zeros_like(x), start, reach)
    constraint_norm = jnp.maximum(jnp.linalg.norm(value), reach * jacobian_norm)
    jacobian_smoothness = _jacobian_smoothness(oracle, x, sample, (gradient, start), reach)
    gradient_noise, constraint_noise, jacobian_noise = _noise(
        lambda s: (oracle.grad(x, s), oracle.c(x, s), oracle.jac(x, s)), oracle, key
    )
    closer = _cauchy_point(oracle, x, sample)
    later = local_smoothness(penalty_gradient, oracle.nearby, closer, start, reach)
    ahead = jnp.maximum(jnp.maximum(penalty, later), 2.0 * constraint_norm * jacobian_smoothness)
    return LocalConstants(
        length=length,
        gradient_norm=jnp.maximum(size, reach * smoothness),
        smoothness=smoothness,
        jacobian_norm=jacobian_norm,
        normal_curvature=jnp.maximum(normal, constraint_norm * jacobian_smoothness),
        penalty_smoothness=penalty,
        path_penalty_smoothness=ahead + constraint_noise * jacobian_smoothness,
        constraint_norm=constraint_norm,
        jacobian_smoothness=jacobian_smoothness,
        gradient_noise=gradient_noise,
        constraint_noise=constraint_noise,
        jacobian_noise=jacobian_noise,
    )


def row_noise(oracle: Oracle, x: Float[Array, " n"], key: Array) -> Float[Array, ""]:
    """The `constraint_noise` of `local_constants` alone: the standard deviation of the rows of one sample."""
    return _noise(lambda s: (oracle.c(x, s),), oracle, key)[0]


def _cauchy_point(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Float[Array, " n"]:
    """The minimizer of ½‖c‖², with c linearized at x, along its gradient; x itself if the gradient is zero."""
    value, pullback = oracle.vjp(x, sample)
    downhill = pullback(value)
    _, change = oracle.jvp(x, downhill, sample)
    square = change @ change
    return oracle.nearby(x - downhill * (downhill @ downhill) / positive_or_one(square))


def _noise(estimates: Callable[[Sample], tuple[Array, ...]], oracle: Oracle, key: Array) -> list[Float[Array, ""]]:
    """Standard deviations over samples of the arrays that `estimates` computes from one sample."""
    fresh = jax.vmap(lambda k: estimates(oracle.draw(k)))(jax.random.split(key, NOISE_SAMPLES))
    return [jnp.sqrt(jnp.sum(jnp.var(values, axis=0, ddof=1))) for values in fresh]


def _jacobian_smoothness(
    oracle: Oracle, x: Float[Array, " n"], sample: Sample, directions: tuple[Array, ...], reach: Float[Array, ""]
) -> Float[Array, ""]:
    """The largest ‖J(y) − J(x)‖ / ‖y − x‖ over points y at distance `reach` against each direction."""
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
    """The largest quotient ‖∇(y) − ∇(x)‖ / ‖y − x‖ found over points y of the set, at distance `reach` before projection.

    This is a power iteration on the difference quotient: each difference is the next direction, so for a quadratic the
    result tends to the largest eigenvalue. Unlike second derivatives, differences over a finite distance also detect the
    kinks of a non-smooth function.
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


MARGIN_EXAMPLES = 2048
"""Size of the sample from which the Slater margin is estimated."""


def slater_margin(
    oracle: Oracle,
    x: Float[Array, " n"],
    key: Array,
    move: Callable[[Float[Array, " n"], Float[Array, " n"], Float[Array, ""]], Float[Array, " n"]],
    rounds: int = 30,
) -> Float[Array, ""]:
    """The largest −max_i c_i(y) found over a few points y: a lower estimate of the σ in Slater's condition.

    It is −∞ without finite rows. The rows are evaluated on one sample of MARGIN_EXAMPLES examples, because an ordinary
    batch may be too noisy to show any margin. Each point is `move(y, direction, k)` from the previous one, where the
    direction is a subgradient of the largest row; the caller chooses the step size and keeps the point in the set.
    """
    sample = oracle.draw(key, MARGIN_EXAMPLES)

    def try_point(k: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        y, margin = carry
        rows, pullback = oracle.vjp(y, sample)
        worst = jnp.zeros_like(rows).at[jnp.argmax(rows)].set(1.0)
        found = -jnp.max(rows)
        new = move(y, pullback(worst), jnp.asarray(k + 1, x.dtype))
        return new, jnp.where(found > margin, found, margin)

    none = jnp.asarray(-jnp.inf, x.dtype)
    return none if oracle.multipliers.size == 0 else jax.lax.fori_loop(0, rounds, try_point, (x, none))[1]


def _unit(direction: Float[Array, " n"]) -> Float[Array, " n"]:
    """The direction scaled to length 1; the vector of equal entries if it is zero."""
    norm = jnp.linalg.norm(direction)
    return jnp.where(norm > 0, direction / positive_or_one(norm), 1.0 / jnp.sqrt(direction.size))
