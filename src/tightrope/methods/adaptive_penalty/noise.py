"""How noisy samples are, seen from their halves, and how wrong an estimate is that is carried along: a Kalman filter.

With s the mean square of a sample's noise, e that of the estimate's error, and q that of the noise in changes over a step of
length one,

    e ← e + q‖d‖²  with a step d          a = e/(e + s),  e ← (1 − a) e  with a sample, of which the estimate takes a share a
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...numerics.scaling import positive_or_one

REMEMBERED = 20
"""Steps that running means of noise go back."""


class Noise(NamedTuple):
    """Mean squares of a sample's noise, of an estimate's error, and of the noise in changes over a step of length one."""

    sample: Float[Array, ""]
    error: Float[Array, ""]
    change: Float[Array, ""]

    def with_sample(self, spread: Float[Array, ""], k: Int[Array, ""]) -> tuple[Float[Array, ""], Noise]:
        """The share a of a sample with this spread, and the noise once the estimate has taken it."""
        sample = smooth(self.sample, spread, k)
        gain = jnp.where(sample > 0, self.error / positive_or_one(self.error + sample), 1.0)
        return gain, Noise(sample, (1.0 - gain) * self.error, self.change)

    def with_step(
        self,
        spread: Float[Array, ""],
        square: Float[Array, ""],
        walked: Float[Array, ""],
        known: Bool[Array, ""],
        k: Int[Array, ""],
    ) -> Noise:
        """The noise after a step of this square, with this spread in its changes where they are `known`.

        `walked` is the square where the step was taken, else 0.
        """
        change = jnp.where(known, smooth(self.change, spread / positive_or_one(square), k), self.change)
        return self._replace(change=change, error=self.error + change * walked)


def spread(halves: Float[Array, "2 ..."]) -> Float[Array, ""]:
    """The square of the noise of a sample, from its halves."""
    return 0.25 * jnp.sum((halves[0] - halves[1]) ** 2)


def smooth(old: Float[Array, ""], new: Float[Array, ""], k: Int[Array, ""]) -> Float[Array, ""]:
    """A running mean over the last REMEMBERED steps or so."""
    return old + jnp.maximum(1.0 / REMEMBERED, 1.0 / (k + 1.0)).astype(old.dtype) * (new - old)
