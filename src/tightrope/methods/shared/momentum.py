"""Momentum and variance reduction: running estimates of gradients and values from samples."""

from __future__ import annotations

from jaxtyping import Array, Float


def recursive_momentum(
    estimate: Float[Array, " n"], new: Float[Array, " n"], old: Float[Array, " n"], weight: Float[Array, ""]
) -> Float[Array, " n"]:
    """`new + (1 − weight)(estimate − old)`, with `new` and `old` gradients of one sample at the new and the old point."""
    return new + (1.0 - weight) * (estimate - old)


def spider(estimate: Float[Array, ...], new: Float[Array, ...], old: Float[Array, ...]) -> Float[Array, ...]:
    """`estimate + new − old`: recursive momentum with weight 0 (SPIDER), for estimates restarted on large samples."""
    return estimate + new - old


def first_order_svrg(
    full: Float[Array, " m"],
    full_change: Float[Array, " m"],
    new: Float[Array, " m"],
    old: Float[Array, " m"],
    old_change: Float[Array, " m"],
) -> Float[Array, " m"]:
    """`full + full_change + new − old − old_change`: values at x from all data at an anchor and one sample at both points.

    The changes are J(anchor)(x − anchor), on all data and on the sample. The remaining noise is of second order in
    x − anchor. Without the changes this is SVRG, that is `spider` with the full mean at the anchor as its estimate.
    """
    return full + full_change + new - old - old_change


def polyak_momentum(
    estimate: Float[Array, " n"], new: Float[Array, " n"], weight: Float[Array, ""]
) -> Float[Array, " n"]:
    """`(1 − weight) estimate + weight · new`."""
    return (1.0 - weight) * estimate + weight * new
