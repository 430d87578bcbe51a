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
    """Sizes, Lipschitz constants and noise of a problem near a point x.

    Means and the constants of the rows are taken over one large sample, the objective's Lipschitz constant and noise over a few
    batches. "Nearby" below means within a tenth of `length`.

    Attributes:
        length: the scale of x: max(1, ‖x‖), or the set's diameter if that is smaller.
        travel: how far x may have to move. It is the distance along the gradient's tangential part at which the gradient has
            changed by its own size, or the rows start to leave their bounds; or the distance to the rows' bounds if that is
            larger; at least ‖x‖/10. If none of these is positive or finite, it is `length`.
        gradient_norm: the norm of the objective's gradient to be expected nearby.
        tangential_norm: the norm of its part at x that is tangential to the active rows.
        smoothness: Lipschitz constant of the gradient of a batch, in the mean square, at x and at the end of the travel, over a
            fifth of the travel. It is measured curvature alone: 0 for a linear objective.
        jacobian_norm: the Frobenius norm of the Jacobian; 0 without constraints.
        normal_curvature: the curvature of ½‖c‖² normal to the feasible set: the largest eigenvalue of JᵀJ one Cauchy step
            closer to c = 0; if the Jacobian vanishes there, ‖c‖ · jacobian_smoothness; 0 without constraints.
        penalty_smoothness: Lipschitz constant of the gradient of ½‖c‖²; 0 without constraints.
        path_penalty_smoothness: the same on the way to c = 0: the largest of its values at x and one Cauchy step closer to
            c = 0, and 2‖c‖ · jacobian_smoothness, which is ‖J‖² at c = 0 if J vanishes at x. Noise in the rows adds
            constraint_noise · jacobian_smoothness, as in the theory's constant.
        constraint_norm: the norm of the rows to be expected nearby.
        jacobian_smoothness: Lipschitz constant of the Jacobian (Frobenius); 0 for linear constraints.
        gradient_noise: standard deviation of the gradient of one batch, √E‖∇f − ∇F‖²; 0 for a deterministic objective.
        constraint_noise: the same for the rows.
        jacobian_noise: the same for the Jacobian (Frobenius): how fast the noise of the rows can grow away from x.
    """

    length: Float[Array, ""]
    travel: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    tangential_norm: Float[Array, ""]
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
    def step_smoothness(self) -> Float[Array, ""]:
        """The inverse of the longest sensible step size along the objective's gradient.

        It is `smoothness`, or what limits the first step to the travel if that is larger: curvature does not limit it if the
        objective is linear, or flat at x. The part of the gradient that is normal to the rows counts for a tenth, because the
        rows soon cancel it.
        """
        limit = jnp.maximum(self.tangential_norm, 0.1 * self.gradient_norm) / self.travel
        flat = positive_or_one(self.penalty_smoothness)  # a constant objective: any positive number will do
        return jnp.where(limit > 0, jnp.maximum(self.smoothness, limit), flat)

    @property
    def global_penalty_smoothness(self) -> Float[Array, ""]:
        """Lipschitz constant of the gradient of ½‖c‖² within `length`, for step sizes that never shrink."""
        return (jnp.sqrt(self.penalty_smoothness) + self.length * self.jacobian_smoothness) ** 2

    @property
    def balanced_penalty(self) -> Float[Array, ""]:
        """The penalty ρ at which ½ρ‖c‖² is as curved normal to the feasible set as the objective is.

        The minimizer of f + ½ρ‖c‖² lies about ‖∇f‖/(ρσ²) off the feasible set, with σ² the normal curvature of ½‖c‖².
        The objective counts as curved by at least ‖∇f‖/travel, so that distance is at most travel · balanced_penalty/ρ.
        Without normal curvature, any penalty is as good as another.
        """
        curvature = jnp.maximum(self.step_smoothness, self.gradient_norm / self.travel)
        return curvature / positive_or_one(self.normal_curvature)

    @property
    def multiplier_size(self) -> Float[Array, ""]:
        """The expected size of multipliers: ‖∇f‖/‖J‖, or ‖∇f‖ if J vanishes."""
        return self.gradient_norm / positive_or_one(self.jacobian_norm)


BATCHES = 8
"""Number of batches behind each standard deviation and each mean square."""
MEAN_EXAMPLES = 256
"""Number of examples behind each mean, at least a batch."""


def local_constants(oracle: Oracle, x: Float[Array, " n"], key: Array) -> LocalConstants:
    """The problem's constants near x, on fresh samples.

    The compiler drops the computation of constants that a method does not use.
    """
    sample = oracle.draw(jax.random.fold_in(key, 2), max([MEAN_EXAMPLES, *(s.batch_size for s in oracle.sources)]))
    length = jnp.minimum(oracle.diameter(), jnp.maximum(1.0, jnp.linalg.norm(x))).astype(x.dtype)
    reach = 0.1 * length
    gradient = oracle.grad(x, sample)

    def penalty_gradient(y: Float[Array, " n"]) -> Float[Array, " n"]:
        value, pullback = oracle.vjp(y, sample)
        return pullback(value)

    value, pullback = oracle.vjp(x, sample)
    start = penalty_gradient(x) + pullback(jnp.ones_like(value))
    jacobian = oracle.jac(x, sample)
    jacobian_norm = jnp.linalg.norm(jacobian)
    constraint_norm = jnp.maximum(jnp.linalg.norm(value), reach * jacobian_norm)
    jacobian_smoothness = _jacobian_smoothness(oracle, x, sample, (gradient, start), reach)
    closer = _cauchy_point(oracle, x, sample)
    both = jnp.stack([x, closer])
    normal = _square_norm(oracle, closer, sample, start)
    penalty, later = jax.vmap(lambda y: local_smoothness(penalty_gradient, oracle.nearby, y, start, reach))(both)
    tangential = _tangential(oracle, x, sample, gradient)
    travel, end = _travel(oracle, x, sample, tangential, jnp.linalg.norm(closer - x))
    smoothness = _objective_smoothness(oracle, jnp.stack([x, end]), 0.2 * travel, key)
    gradient_noise, constraint_noise, jacobian_noise = _noise(
        lambda s: (oracle.grad(x, s), oracle.c(x, s), oracle.jac(x, s)), oracle, key
    )
    ahead = jnp.maximum(jnp.maximum(penalty, later), 2.0 * constraint_norm * jacobian_smoothness)
    return LocalConstants(
        length=length,
        travel=travel,
        gradient_norm=jnp.maximum(jnp.linalg.norm(gradient), reach * smoothness),
        tangential_norm=jnp.linalg.norm(tangential),
        smoothness=smoothness,
        jacobian_norm=jacobian_norm,
        normal_curvature=jnp.where(normal > 0, normal, constraint_norm * jacobian_smoothness),
        penalty_smoothness=penalty,
        path_penalty_smoothness=ahead + constraint_noise * jacobian_smoothness,
        constraint_norm=constraint_norm,
        jacobian_smoothness=jacobian_smoothness,
        gradient_noise=gradient_noise,
        constraint_noise=constraint_noise,
        jacobian_noise=jacobian_noise,
    )


def row_noise(oracle: Oracle, x: Float[Array, " n"], key: Array) -> Float[Array, ""]:
    """The `constraint_noise` of `local_constants` alone: the standard deviation of the rows of one batch."""
    return _noise(lambda s: (oracle.c(x, s),), oracle, key)[0]


def _objective_smoothness(
    oracle: Oracle, points: Float[Array, "points n"], reach: Float[Array, ""], key: Array
) -> Float[Array, ""]:
    """The largest curvature of the objective found from these points, in the mean square over batches.

    Each point is probed from the gradient's direction and from a random one: the gradient may be blind to the curvature.
    """
    keys = _batch_keys(oracle, key)

    def gradients(y: Float[Array, " n"]) -> Float[Array, "batches n"]:
        return jax.vmap(lambda k: oracle.grad(y, oracle.draw(k)))(keys)

    def from_point(y: Array) -> Array:
        directions = jnp.stack([jnp.mean(gradients(y), 0), jax.random.normal(jax.random.key(0), y.shape, y.dtype)])
        probe = jax.vmap(lambda d: local_smoothness(gradients, oracle.nearby, y, d, reach, iterations=8))
        return jnp.max(probe(directions))

    return jnp.max(jax.vmap(from_point)(points))


SHORTEST, DOUBLINGS = 1e-3, 40
"""Where the search for the travel starts, in lengths, and after how many doublings it gives up."""


def _travel(
    oracle: Oracle, x: Float[Array, " n"], sample: Sample, tangential: Array, to_bounds: Array
) -> tuple[Float[Array, ""], Float[Array, " n"]]:
    """The `travel` of LocalConstants, and the point at its end along the gradient's tangential part.

    `tangential` is that part, `to_bounds` the distance to c = 0. The distance is doubled until the gradient has changed by the
    size of its tangential part, or a row's violation has grown by half of what a step along its own gradient would make it, or
    the set stops the step.
    """
    size, gradient = jnp.linalg.norm(x), oracle.grad(x, sample)
    length = jnp.minimum(oracle.diameter(), jnp.maximum(1.0, size)).astype(x.dtype)
    slope, first, steepness = jnp.linalg.norm(tangential), _violations(oracle, x, sample), _row_norms(oracle, x, sample)

    def point(distance: Array) -> Array:
        return oracle.nearby(x - distance * _unit(tangential))

    def unfinished(carry: tuple[Array, ...]) -> Array:
        count, *_, ended = carry
        return (count < DOUBLINGS) & ~ended

    def double(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        """The next distance, the last one that was not too far with the curvature up to there, and whether this one is."""
        count, distance, reached, reached_curvature, _ = carry
        y = point(distance)
        moved = jnp.linalg.norm(y - x)
        curvature = jnp.linalg.norm(oracle.grad(y, sample) - gradient) / positive_or_one(moved)
        inside = jnp.all(_violations(oracle, y, sample) - first <= 0.5 * steepness * moved)
        fine = (moved * curvature <= slope) & inside & (moved >= 0.5 * distance)
        reached_curvature = jnp.where(fine, curvature, reached_curvature)
        return count + 1, 2.0 * distance, jnp.where(fine, moved, reached), reached_curvature, ~fine

    nothing, shortest = jnp.zeros((), x.dtype), SHORTEST * length
    start = (jnp.int32(0), shortest, shortest, nothing, jnp.bool_(False))
    _, _, reached, curvature, ended = jax.lax.while_loop(unfinished, double, start)
    by_curvature = jnp.maximum(slope / positive_or_one(curvature), reached)
    found = jnp.where(by_curvature <= 2.0 * reached, by_curvature, jnp.sqrt(2.0) * reached)
    found = jnp.where(ended & (slope > 0), found, 0.0)
    travel = jnp.maximum(jnp.maximum(found, jnp.where(jnp.isfinite(to_bounds), to_bounds, 0.0)), 0.1 * size)
    travel = jnp.where(travel > 0, jnp.minimum(travel, oracle.diameter()), length).astype(x.dtype)
    return travel, point(jnp.where(found > 0, found, length))


TANGENT_PRODUCTS = 10
"""The number of products with the Jacobian, and with its transpose, behind the tangential part of a gradient."""


def _tangential(oracle: Oracle, x: Float[Array, " n"], sample: Sample, v: Float[Array, " n"]) -> Float[Array, " n"]:
    """The vector v without its part normal to the active rows, by conjugate gradients for min ‖v − Jᵀy‖.

    They end where the norm no longer falls: once the residual is rounding, further steps have any length.
    """
    rows, pullback = oracle.vjp(x, sample)
    active = ((rows >= oracle.rows.high) | (rows <= oracle.rows.low)).astype(x.dtype)

    def iterate(_: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        rest, direction, square = carry
        normal = pullback(active * direction)
        moved = rest - square / positive_or_one(normal @ normal) * normal
        falls = moved @ moved < rest @ rest
        residual = active * oracle.jvp(x, moved, sample)[1]
        new = residual @ residual
        further = moved, residual + new / positive_or_one(square) * direction, new
        return jax.tree.map(lambda a, b: jnp.where(falls, a, b), further, (rest, 0.0 * direction, 0.0 * square))

    first = active * oracle.jvp(x, v, sample)[1]
    return jax.lax.fori_loop(0, TANGENT_PRODUCTS, iterate, (v, first, first @ first))[0]


def _violations(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Float[Array, " rows"]:
    """How far each row is outside its bounds, with the best slacks."""
    rows = oracle.c(oracle.with_slacks(x[: oracle.parameters.size], sample), sample)
    return jnp.abs(rows - jnp.clip(rows, oracle.rows.low, oracle.rows.high))


def _row_norms(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Float[Array, " rows"]:
    """The norm of each row's gradient, slacks apart, from a few products with random vectors: the Jacobian is not formed."""
    vectors = jax.random.normal(jax.random.key(0), (TANGENT_PRODUCTS, x.size), x.dtype)
    vectors = vectors.at[:, oracle.parameters.size :].set(0.0)
    products = jax.vmap(lambda v: oracle.jvp(x, v, sample)[1])(vectors)
    return jnp.sqrt(jnp.mean(products**2, axis=0))


def row_curvatures(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Float[Array, " rows"]:
    """For each row the curvature of ½c_i² on the way to c_i = 0: ‖∇c_i‖² at x, and at least 2|c_i| times that of c_i.

    The last is ‖∇c_i‖² at c_i = 0 if ∇c_i vanishes at x. Both are measured at x and at a point nearby; 1 for a constant row.
    """
    y = oracle.nearby(x + 0.1 * jnp.maximum(1.0, jnp.linalg.norm(x)) * _unit(jnp.zeros_like(x)))
    rows, jacobian = oracle.rows_and_jacobian(x, sample)
    there = oracle.jac(y, sample)
    square = jnp.maximum(jnp.sum(jacobian**2, 1), jnp.sum(there**2, 1))
    bend = jnp.linalg.norm(there - jacobian, axis=1) / positive_or_one(jnp.linalg.norm(y - x))
    return positive_or_one(jnp.maximum(square, 2.0 * jnp.abs(rows) * bend))


def _square_norm(oracle: Oracle, x: Float[Array, " n"], sample: Sample, direction: Array) -> Float[Array, ""]:
    """The largest eigenvalue of JᵀJ at x, by a power iteration from this direction."""
    _, pullback = oracle.vjp(x, sample)
    return local_smoothness(
        lambda d: pullback(oracle.jvp(x, d, sample)[1]),
        lambda d: d,
        jnp.zeros_like(x),
        direction,
        jnp.ones((), x.dtype),
    )


def _cauchy_point(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Float[Array, " n"]:
    """The minimizer of ½‖c‖², with c linearized at x, along its gradient; x itself if the gradient is zero."""
    value, pullback = oracle.vjp(x, sample)
    downhill = pullback(value)
    _, change = oracle.jvp(x, downhill, sample)
    square = change @ change
    return oracle.nearby(x - downhill * (downhill @ downhill) / positive_or_one(square))


def _batch_keys(oracle: Oracle, key: Array) -> Array:
    """The keys of a few batches; of one if there are no data."""
    return jax.random.split(key, BATCHES if oracle.sources else 1)


def _noise(estimates: Callable[[Sample], tuple[Array, ...]], oracle: Oracle, key: Array) -> list[Float[Array, ""]]:
    """Standard deviations over batches of the arrays that `estimates` computes from one batch; 0 without data."""
    fresh = jax.vmap(lambda k: estimates(oracle.draw(k)))(_batch_keys(oracle, key))
    return [jnp.sqrt(jnp.sum(jnp.var(values, axis=0) * BATCHES / (BATCHES - 1))) for values in fresh]


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
    gradient: Callable[[Float[Array, " n"]], Float[Array, "*batches n"]],
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    x: Float[Array, " n"],
    direction: Float[Array, " n"],
    reach: Float[Array, ""],
    iterations: int = 5,
) -> Float[Array, ""]:
    """The largest quotient ‖∇(y) − ∇(x)‖ / ‖y − x‖ found over points y of the set, at distance `reach` before projection.

    This is a power iteration on the difference quotient: each difference is the next direction, so for a quadratic the
    result tends to the largest eigenvalue. Unlike second derivatives, differences over a finite distance also detect the
    kinks of a non-smooth function. For the gradients of several batches it is the root mean square of their quotients.
    """
    at_x = gradient(x)

    def probe(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        largest, direction = carry
        y = project(x + reach * _unit(direction))
        differences, distance = jnp.atleast_2d(gradient(y) - at_x), jnp.linalg.norm(y - x)
        size = jnp.sqrt(jnp.mean(jnp.sum(differences**2, -1)))
        quotient = size / positive_or_one(distance)
        finite = jnp.isfinite(quotient) & (distance > 0)
        mean = jnp.mean(differences, 0)
        return jnp.where(finite, jnp.maximum(largest, quotient), largest), jnp.where(finite, mean, -direction)

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
