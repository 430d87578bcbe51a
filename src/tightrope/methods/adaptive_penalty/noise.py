"""The noise of samples, measured from their halves, and the errors of estimates: a scalar Kalman filter.

With s the variance of a sample, e that of the estimate's error, and q that of the change over a step of length one (all summed
over the entries of the vector),

    e ← e + q‖d‖²  with a step d          a = e/(e + s),  e ← (1 − a) e  with a sample, of which the estimate takes a share a

References:
    R. E. Kalman. A new approach to linear filtering and prediction problems. Journal of Basic Engineering 82, 1960.
    A. Cutkosky and F. Orabona. Momentum-based variance reduction in non-convex SGD. NeurIPS 2019: the estimate is their
    recursive momentum, whose weight is a schedule in place of the gain a.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Sample
from .constants import NOISE_MEMORY


class Noise(NamedTuple):
    """Variances s of a sample, e of an estimate's error, and q of the change over a step of length one."""

    sample: Float[Array, ""]
    error: Float[Array, ""]
    change: Float[Array, ""]

    @classmethod
    def first(cls, variance: Float[Array, ""]) -> Noise:
        """Return the noise of an estimate that is one sample of this variance."""
        return cls(variance, variance, jnp.zeros_like(variance))

    def with_sample(self, variance: Float[Array, ""], k: Int[Array, ""]) -> tuple[Float[Array, ""], Noise]:
        """Return the gain a for a sample of this variance, and the noise once the estimate has taken its share."""
        sample = running_mean(self.sample, variance, k)
        gain = jnp.where(sample > 0, self.error / positive_or_one(self.error + sample), 1.0)
        return gain, Noise(sample, (1.0 - gain) * self.error, self.change)

    def with_change(
        self, variance: Float[Array, ""], step_sq: Float[Array, ""], known: Bool[Array, ""], k: Int[Array, ""]
    ) -> Noise:
        """Return the noise with q updated by the variance of a change over a step, where that is `known`."""
        measured = running_mean(self.change, variance / positive_or_one(step_sq), k)
        return self._replace(change=jnp.where(known, measured, self.change))

    def after_step(self, step_sq: Float[Array, ""]) -> Noise:
        """Return the noise of the estimate carried over to the end of a step: e + q‖d‖²."""
        return self._replace(error=self.error + self.change * step_sq)


def correct_estimates(
    estimates: Iterable[Array], samples: Iterable[Array], noise: Iterable[Noise], variances: Iterable[Array], k: Array
) -> tuple[list[Array], tuple[Any, ...]]:
    """Return the estimates corrected by samples of these variances, and the noise of each after that."""
    gains, noise = zip(*(n.with_sample(a, k) for n, a in zip(noise, variances, strict=True)), strict=True)
    return [old + a * (new - old) for old, a, new in zip(estimates, gains, samples, strict=True)], noise


def halves_of(sample: Sample) -> Sample:
    """Return the two halves of a sample, stacked."""
    return jax.tree.map(lambda a: a.reshape(2, a.shape[0] // 2, *a.shape[1:]), sample)


def variance_from_halves(halves: Float[Array, "2 ..."]) -> Float[Array, ""]:
    """Return the variance of the mean of two independent halves."""
    return 0.25 * jnp.sum((halves[0] - halves[1]) ** 2)


def running_mean(old: Float[Array, ...], new: Float[Array, ...], k: Int[Array, ""]) -> Float[Array, ...]:
    """Return a mean over about the last `NOISE_MEMORY` steps, over all of them while there are fewer."""
    return old + jnp.maximum(1.0 / NOISE_MEMORY, 1.0 / (k + 1.0)).astype(old.dtype) * (new - old)
