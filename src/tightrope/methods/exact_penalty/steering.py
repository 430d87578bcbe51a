"""The outer test of `ExactPenalty` (Algorithm 2.1): its trial step, its rounding error, and points that no penalty can help."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.prox_linear import prox_linear_on_set
from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle
from .estimates import Estimates

TRIAL_PENALTY_FACTOR = 1e3
"""Ratio of the trial step's penalty on a set to the expected size of its multipliers."""
STATIONARY_SHARE = 1e-2
"""Share of the violation below which a first-order decrease counts as none."""
NOISE_DEVIATIONS = 3.0
"""Standard deviations of ĉ that noise may explain."""


def trial_step(
    oracle: Oracle,
    x: Float[Array, " n"],
    estimates: Estimates,
    penalty: Array,
    step_size: Array,
    normal_fraction: Array,
) -> Float[Array, " n"]:
    """The step s = γ(αw − u), or its counterpart on a set; `normal_fraction` is α."""
    gradient, value, jacobian = estimates
    if not value.size:
        return oracle.project(x - step_size * gradient) - x
    if oracle.whole_space:
        left, singular, right = jnp.linalg.svd(jacobian, full_matrices=False)
        rank = singular > jnp.finfo(x.dtype).eps ** 0.5 * singular[0]
        normal = right.T @ jnp.where(rank, left.T @ value / jnp.where(rank, singular, 1.0), 0.0)  # −w
        tangent = gradient - right.T @ jnp.where(rank, right @ gradient, 0.0)
        return -step_size * (tangent + normal_fraction * normal)
    size = positive_or_one(jnp.linalg.norm(jacobian))
    multipliers = jnp.linalg.norm(gradient) / size + normal_fraction * jnp.linalg.norm(value) / size**2
    high = TRIAL_PENALTY_FACTOR * jnp.maximum(penalty, multipliers)
    target = step_size * normal_fraction * value
    return prox_linear_on_set(gradient, target, jacobian, high, step_size, x, oracle.project)[0]


def is_locally_infeasible(oracle: Oracle, x: Float[Array, " n"], estimates: Estimates, noise: Array) -> Bool[Array, ""]:
    """Whether x is a stationary point of the violation, and the violation is not zero."""
    violation = jnp.linalg.norm(estimates.value)
    downhill = -estimates.jacobian.T @ estimates.value
    step = oracle.project(x + travel_length(oracle, x) * downhill / positive_or_one(jnp.linalg.norm(downhill))) - x
    return (downhill @ step <= STATIONARY_SHARE * violation**2) & (violation > NOISE_DEVIATIONS * noise)


def travel_length(oracle: Oracle, x: Float[Array, " n"]) -> Float[Array, ""]:
    """R = max{1, ‖x‖}, or the set's diameter if that is smaller."""
    return jnp.minimum(oracle.diameter(), jnp.maximum(1.0, jnp.linalg.norm(x))).astype(x.dtype)


def rounding_of_test(
    oracle: Oracle, x: Float[Array, " n"], estimates: Estimates, penalty: Array, step_size: Array
) -> Float[Array, ""]:
    """The rounding error of the test's two sides: at a solution both sides are that small."""
    size = jnp.linalg.norm(estimates.gradient)
    length = step_size * size
    if not oracle.whole_space:  # s is a difference of points there, and the decrease of the rows has its error too
        length, size = length + jnp.linalg.norm(x), size + penalty * jnp.linalg.norm(estimates.jacobian)
    return 10.0 * jnp.finfo(x.dtype).eps * length * size
