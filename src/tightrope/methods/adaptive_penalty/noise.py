"""The noise of samples, measured from their halves, and the errors of estimates: a scalar Kalman filter.

With s the variance of a sample, e that of the estimate's error, and q that of the change over a step of length one (all summed
over the entries of the vector), an estimate is carried over a step d and corrected by a sample with

    a = e'/(e' + s),  e' = e + q‖d‖²          e ← (1 − a)² (e + c) + a² s,  c the variance of this change

The gain a is fixed before the sample is drawn, so that an estimate stays unbiased: where the noise of a sample tells something
about its error, as it does for skewed rows, a gain that follows from the same sample would make the estimate drift.

s and q are means over the samples that the estimate remembers, about 1/a of them, and over at least `NOISE_MEMORY`. Kinks need
this: most samples show no change at all over a short step, a few a large one. With full passes, whose estimates remember no
sample for long, the mean is over `NOISE_MEMORY` samples.

References:
    R. E. Kalman. A new approach to linear filtering and prediction problems. Journal of Basic Engineering 82, 1960.
    A. Cutkosky and F. Orabona. Momentum-based variance reduction in non-convex SGD. NeurIPS 2019: the estimate is their
    recursive momentum, whose weight is a schedule in place of the gain a.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...numerics.scaling import positive_or_one
from .constants import NOISE_MEMORY


class Noise(NamedTuple):
    """Variances s of a sample, e of an estimate's error, and q of the change over a step of length one.

    Of a vector one number; of the rows, and of the Jacobian, one for each row.
    """

    sample: Float[Array, " ..."]
    error: Float[Array, " ..."]
    change: Float[Array, " ..."]

    @classmethod
    def first(cls, variance: Float[Array, " ..."]) -> Noise:
        """Return the noise of an estimate that is one sample of this variance."""
        return cls(variance, variance, jnp.zeros_like(variance))

    @property
    def remembered(self) -> Float[Array, " ..."]:
        """The number of samples that the estimate remembers; 0 where there is no noise."""
        return (self.error + self.sample) / positive_or_one(self.error)

    def gain(self, step_sq: Array | float = 0.0) -> Float[Array, " ..."]:
        """Return a for the next sample, after a step of this square."""
        error = self.error + self.change * step_sq
        return jnp.where(self.sample > 0, error / positive_or_one(error + self.sample), 1.0)

    def with_change(
        self,
        variance: Float[Array, " ..."],
        step_sq: Float[Array, ""],
        known: Bool[Array, ""],
        least_weight: Float[Array, ""],
    ) -> Noise:
        """Return the noise with q updated by the variance of a change over a step, where that is `known`."""
        measured = self._mean(self.change, variance / positive_or_one(step_sq), least_weight)
        return self._replace(change=jnp.where(known, measured, self.change))

    def with_sample(
        self, gain: Float[Array, " ..."], variance: Float[Array, " ..."], least_weight: Float[Array, ""]
    ) -> Noise:
        """Return the noise once the estimate has taken a share, the gain, of a sample of this variance."""
        sample = self._mean(self.sample, variance, least_weight)
        return self._replace(sample=sample, error=(1.0 - gain) ** 2 * self.error + gain**2 * sample)

    def _mean(self, old: Array, new: Array, least_weight: Float[Array, ""]) -> Array:
        """Return a mean over the samples that the estimate remembers, and over at least `NOISE_MEMORY`."""
        weight = jnp.maximum(jnp.minimum(1.0 / NOISE_MEMORY, self.gain()), least_weight)
        return old + weight.astype(old.dtype) * (new - old)


def least_weight(k: Int[Array, ""], full_passes: bool) -> Float[Array, ""]:
    """Return the least weight of a sample in the means of noise, at step k."""
    return jnp.maximum(1.0 / NOISE_MEMORY if full_passes else 0.0, 1.0 / (k + 1.0))


def gains(noise: Iterable[Noise], step_sq: Array | float = 0.0) -> tuple[Array, ...]:
    """Return the gains of the next sample, after a step of this square."""
    return tuple(n.gain(step_sq) for n in noise)


def noise_after(
    noise: tuple[Any, ...], variances: Iterable[Array], step_sq: Float[Array, ""], known: Bool[Array, ""], weight: Array
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the noise at x and at the end of a step, given the `variances` of the changes over it, where `known`.

    `weight` is the least weight in the means of noise.
    """
    pairs = list(zip(noise, variances, strict=True))
    stayed = tuple(n.with_change(c, step_sq, known, weight) for n, c in pairs)
    return stayed, tuple(n._replace(error=n.error + c) for n, (_, c) in zip(stayed, pairs, strict=True))


def correct_estimates(end: Any, weight: Float[Array, ""]) -> tuple[list[Array], tuple[Any, ...]]:
    """Return the estimates at an end of a trial with shares of the sample, and the noise of each after that.

    `weight` is the least weight in the means of noise.
    """
    corrected = [
        old + jnp.expand_dims(a, tuple(range(a.ndim, old.ndim))) * (new - old)
        for old, new, a in zip(end.state.estimates, end.sampled, end.gains, strict=True)
    ]
    parts = zip(end.state.noise, end.gains, end.variances, strict=True)
    return corrected, tuple(n.with_sample(a, s, weight) for n, a, s in parts)


def running_mean(old: Float[Array, ...], new: Float[Array, ...], k: Int[Array, ""]) -> Float[Array, ...]:
    """Return a mean over about the last `NOISE_MEMORY` steps, over all of them while there are fewer."""
    return old + jnp.maximum(1.0 / NOISE_MEMORY, 1.0 / (k + 1.0)).astype(old.dtype) * (new - old)
