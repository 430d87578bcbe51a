r"""The sizes of `ExactPenalty`: its setting, its samples, the restarts of its estimates and the length of its inner loops.

Lemma 3.4 has three sizes at restarts, A for v̂, B for ĉ and S for Ĵ, and three between them. Theorem 3.1 needs
A, S ~ ε^{-2}, B ~ ε^{-4} and T = τ ~ ε^{-1}. Its constants are out of reach (B > 10^8 for ε = 1), so:

- Without an accuracy, A, B and S are 20, 400 and 20 batches and τ = 20, T = 5 for the first 2,000 steps. From then on the
  samples are multiplied by 4 and τ by 2 whenever the number of steps is multiplied by 4, so that the errors fall like
  k^{-1/2} and a step costs ~ k^{1/2}. All is a function of the step number: no horizon is needed.
- With an accuracy ε, and ε' = ε/max{1, M₂ + Q₂^½} as in Theorem 4.1, A = 4σ_f²/ε'² and S = 4λ²σ_J²/ε'² with λ the size of
  the multipliers. These are Lemma 3.4's with the largest L_f and L_J that have the same γ, without the factor C_1. The lemma
  bounds the error of ĉ in every step by itself, hence B ~ ε^{-4}. But that error is the same through all of a period: it
  shifts c by a constant, and Φ jumps by at most 2ρ‖ĉ − c‖ once per period. So ε^{-2} is enough: B = 4σ_c²/ε².
  τ = √((Φ_ρ(x0) − C*)/γ)/ε', at most 16 times the batch size, above which the lemma asks for more than a batch between
  restarts; and T = τ, or less so that ten inner loops fit in the horizon.

A restart whose samples would have no fewer examples than there are is one pass over all data. So 'stochastic' has no floor on
data sets either, and 'auto' can go by the examples per step. With N = 20,000 and batches of 64 they are 1,182 against 15,625 of
'finite_sum', and on a test problem an accuracy of 0.01 took 166,000 examples against 2,500,000.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...oracles.oracle import Oracle
from ...problems.data import Dataset, Span
from ..shared.constants import LocalConstants

INNER_STEPS, RESTART_PERIOD = 100, 20
"""Steps of an inner loop, and between two restarts, before they grow."""
GROWTH_START, GROWTHS = 2_000, 10
"""The samples of restarts are multiplied by 4 at step GROWTH_START · 4^j, j = 0, 1, …; this many times at most."""
LEAST_LOOPS = 10
"""Inner loops that fit in the horizon, at least, if the accuracy sets their length."""
MOST_DRAWS = 2**20
"""Samples of a restart, at most."""
Three = tuple[int, int, int]
"""A number for each of v̂, ĉ and Ĵ."""


class Loop(NamedTuple):
    """A step's place in its inner loop, whether the estimates restart there, and on how many samples each."""

    i: Int[Array, ""]
    restarts: Bool[Array, ""]
    draws: Int[Array, " 3"]


class Lengths(NamedTuple):
    """What an accuracy asks for: steps between restarts, steps of an inner loop, samples of a restart."""

    period: Int[Array, ""]
    inner_steps: Int[Array, ""]
    draws: Int[Array, " 3"]

    def at(self, k: Int[Array, ""]) -> Loop:
        """The place of step k."""
        i = (k - 1) % self.inner_steps
        return Loop(i, i % self.period == 0, self.draws)


class Sizes(NamedTuple):
    """The sizes that do not depend on numbers.

    Attributes:
        restart: examples of one sample of a restart.
        update: examples of an update's samples; None: the problem's own batches.
        period: steps between restarts; None: 20, growing if `grows`.
        inner_steps: steps of an inner loop; None: 100, growing if `grows`.
        grows: whether the restarts grow with the step number.
    """

    restart: Three
    update: tuple[int | None, int | None, int | None]
    period: int | None
    inner_steps: int | None
    grows: bool

    def filled(self, otherwise: Three) -> Three:
        """The sizes of an update's samples, with these for those that are not given."""
        a, b, s = (given or other for given, other in zip(self.update, otherwise, strict=True))
        return a, b, s

    def at(self, k: Int[Array, ""]) -> Loop:
        """The place of step k, if no accuracy is given."""
        starts = GROWTH_START * 4 ** jnp.arange(GROWTHS if self.grows else 0)
        growth = jnp.sum(k > starts)
        first = jnp.where(growth > 0, starts[growth - 1], 0) if self.grows and self.inner_steps is None else 0
        i = (k - 1 - first) % (self.inner_steps or INNER_STEPS * 2**growth)
        restarts = i % (self.period or RESTART_PERIOD * 2**growth) == 0
        return Loop(i, restarts, jnp.full(3, 4**growth))


def as_three(size: int | Three | None) -> Three | None:
    """One size for all three, or each its own."""
    return (size, size, size) if isinstance(size, int) else size


def largest_batch(oracle: Oracle) -> int:
    """The largest batch size of the problem's data."""
    return max((source.batch_size for source in oracle.sources), default=1)


def restart_sizes(given: Three | None, oracle: Oracle, has_accuracy: bool) -> Three:
    """Examples of one sample of a restart, for v̂, ĉ and Ĵ."""
    few = RESTART_PERIOD * largest_batch(oracle)
    return given or (few, few if has_accuracy else RESTART_PERIOD * few, few)


def finite_sum_sizes(oracle: Oracle) -> tuple[Three, int]:
    """Proposition 5.1 for N examples: ⌈2N^{2/5}⌉, ⌈4N^{4/5}⌉, ⌈2N^{2/5}⌉, and the period ⌊N^{1/5}/2 − 1⌋, at least 1.

    The ceiling printed for the period breaks the proof.
    """
    n = max((source.size for source in oracle.sources if isinstance(source, Dataset)), default=1)
    few, many = min(n, math.ceil(2 * n**0.4)), min(n, math.ceil(4 * n**0.8))
    return (few, many, few), max(1, math.floor(n**0.2 / 2 - 1))


def resolve_setting(requested: str, oracle: Oracle, sizes: Sizes) -> str:
    """The setting to use: the requested one, or for 'auto' the cheapest step among those that the problem's data allow."""
    allowed = {
        "deterministic": not oracle.sources,
        "semi": not oracle.stochastic_constraints,
        "finite_sum": all(isinstance(source, Dataset) for source in oracle.sources),
        "stochastic": True,
    }
    if requested == "auto":
        if allowed["deterministic"]:
            return "deterministic"
        other = "semi" if allowed["semi"] else "stochastic"
        if not allowed["finite_sum"]:
            return other
        return "finite_sum" if _cost_finite_sum(oracle, sizes) <= _cost_stochastic(oracle, sizes) else other
    if not allowed[requested]:
        fitting = ", ".join(repr(name) for name, fits in allowed.items() if fits)
        raise ValueError(
            f"ExactPenalty: setting {requested!r} does not fit the problem's data; expected one of {fitting}"
        )
    return requested


def counted(oracle: Oracle, sizes: Three) -> Three:
    """The examples that v̂, ĉ and Ĵ use of samples with these sizes: each uses the data of its own terms."""
    of = [tuple(Span(0, size) for _ in oracle.sources) for size in sizes]
    count = oracle.count_examples
    return count("objective", of[0]), count("constraints", of[1]), count("constraints", of[2])


def _cost_finite_sum(oracle: Oracle, sizes: Sizes) -> float:
    """Examples per step of 'finite_sum'."""
    update, period = finite_sum_sizes(oracle)
    period = sizes.period or period
    everything = oracle.count_examples("both", oracle.everything())
    return (everything + (period - 1) * sum(counted(oracle, sizes.filled(update)))) / period


def _cost_stochastic(oracle: Oracle, sizes: Sizes) -> float:
    """Examples per step of 'stochastic', or 'semi', before the samples grow; a restart takes no more than all data."""
    period, batch = sizes.period or RESTART_PERIOD, largest_batch(oracle)
    everything = oracle.count_examples("both", oracle.everything())
    restart = min(sum(counted(oracle, sizes.restart)), everything)
    return (restart + (period - 1) * sum(counted(oracle, sizes.filled((batch, batch, batch))))) / period


def lengths_for(
    accuracy: Array,
    local: LocalConstants,
    penalty: Array,
    step_size: Array,
    fractions: Array,
    sizes: Sizes,
    oracle: Oracle,
    steps: Int[Array, ""],
) -> Lengths:
    """The restarts and loops for an accuracy, from constants measured at the start; `fractions` is αζ.

    Φ_ρ(x0) − C* is taken to be ‖∇f‖ · travel + ρ‖c‖.
    """
    batch = largest_batch(oracle)
    gap = local.gradient_norm * local.travel + penalty * local.constraint_norm
    inner = accuracy / jnp.maximum(1.0, violation_factor(local, penalty, step_size, fractions, gap))
    noise = jnp.stack([local.gradient_noise, local.constraint_noise, local.multiplier_size * local.jacobian_noise])
    needed = batch * 4.0 * (noise / jnp.stack([inner, accuracy, inner])) ** 2
    draws = jnp.clip(jnp.ceil(needed / jnp.asarray(sizes.restart)), 1, MOST_DRAWS).astype(jnp.int32)
    period = jnp.clip(jnp.ceil(jnp.sqrt(gap / step_size) / inner), 1, 16 * batch).astype(jnp.int32)
    period = jnp.asarray(sizes.period or period, jnp.int32)
    loops = jnp.clip(steps // (LEAST_LOOPS * period), 1, period)
    return Lengths(period, jnp.asarray(sizes.inner_steps or period * loops, jnp.int32), draws)


def violation_factor(
    local: LocalConstants, penalty: Array, step_size: Array, fractions: Array, gap: Array
) -> Float[Array, ""]:
    """Theorem 4.1's M₂ + Q₂^½: where (2.5) holds, ‖c‖ is at most this times the bound on ‖𝒢‖."""
    c1 = 24.0 * (gap / penalty + 4.0)
    steepness = (local.gradient_norm / penalty + local.jacobian_norm) / fractions
    return steepness + step_size / (penalty * c1) * jnp.sqrt((8.0 + c1) / 288.0)
