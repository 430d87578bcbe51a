r"""Estimates v̂, ĉ, Ĵ of the gradient, the rows and their Jacobian for `ExactPenalty` (Cui, Shi, Wang, Xiao 2025).

They are restarted at the inner steps i with i mod τ = 0 and updated at the others. With P_r the projection onto the ball of
radius r (G for v̂, M for ĉ, L_c for Ĵ), by setting:

    stochastic (3.2), (3.3):  restart: v̂^i = P_r(mean over large samples)
                              update:  v̂^i = P_r(v̂^{i−1} + ∇f(x^i, ξ) − ∇f(x^{i−1}, ξ)), one sample at both points;
                              ĉ and Ĵ likewise, on samples of their own
    semi (5.1):               v̂ as above; ĉ and Ĵ exact
    finite_sum (5.2), (5.3):  restart: all data at the anchor x̃ = x^{⌊i/τ⌋τ}
                              update, with δ = x^i − x̃:
                              v̂ = P_r(∇f(x̃) + ∇f(x^i, ξ) − ∇f(x̃, ξ)), Ĵ likewise,
                              ĉ = P_r(c(x̃) + J(x̃)δ + c(x^i, ζ) − c(x̃, ζ) − J(x̃, ζ)δ)
    deterministic (5.3):      exact

`sizes` says when they restart and on how many examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...numerics.scaling import truncate
from ...oracles.oracle import Oracle, Sample
from ...problems.data import Dataset
from ..base import Draw, Info
from ..shared.momentum import first_order_svrg, spider
from .sizes import Loop, Three, counted


class Estimates(NamedTuple):
    """Estimates of the objective's gradient, the rows and their Jacobian."""

    gradient: Float[Array, " n"]
    value: Float[Array, " rows"]
    jacobian: Float[Array, "rows n"]


class Anchor(NamedTuple):
    """The point and the estimates that the next update starts from: the previous iterate; finite_sum: the last restart."""

    x: Float[Array, " n"]
    estimates: Estimates


class LargeSamples(NamedTuple):
    """The samples of a restart, for v̂, ĉ and Ĵ: `draws` times `sizes` examples, or all data if those are no more.

    Attributes:
        sizes: examples of one draw from each source.
        counted: how many of them the estimate uses; 0: it uses no data.
        draws: the number of draws.
        all_data: the number of examples that there are; None: endless.
    """

    sizes: Three
    counted: Three
    draws: Int[Array, " 3"]
    all_data: int | None

    @property
    def takes_all(self) -> Bool[Array, ""]:
        """Whether all data are taken, in one pass for the three estimates."""
        return jnp.bool_(False) if self.all_data is None else self._drawn >= self.all_data

    @property
    def examples(self) -> Int[Array, ""]:
        """The number of examples."""
        return self._drawn if self.all_data is None else jnp.minimum(self._drawn, self.all_data)

    @property
    def _drawn(self) -> Int[Array, ""]:
        return jnp.sum(self.draws * jnp.asarray(self.counted))

    def mean(self, oracle: Oracle, place: int, fn: Callable[[Sample], Array], key: Array) -> Array:
        """The mean of a function of a sample, for the first, second or third estimate."""
        size, draws = self.sizes[place], self.draws[place]
        if not self.counted[place]:
            return fn(oracle.draw(key, 1))

        def add(j: Array, total: Array) -> Array:
            return total + fn(oracle.draw(jax.random.fold_in(key, j), size))

        zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(fn, oracle.draw(key, size)))
        return jax.lax.fori_loop(0, draws, add, zero) / jnp.maximum(draws, 1)


class Estimator(NamedTuple):
    """The estimates of one setting.

    Attributes:
        setting: 'stochastic', 'semi', 'finite_sum' or 'deterministic'.
        restart_sizes: examples of one draw of a restart, for v̂, ĉ and Ĵ.
        gradient_radius: the radius G of v̂.
        value_radius: the radius M of ĉ.
        jacobian_radius: the radius L_c of Ĵ.
    """

    setting: str
    restart_sizes: Three
    gradient_radius: Float[Array, ""]
    value_radius: Float[Array, ""]
    jacobian_radius: Float[Array, ""]

    def estimate(
        self, oracle: Oracle, x: Float[Array, " n"], anchor: Anchor, draw: Draw, loop: Loop
    ) -> tuple[Estimates, Anchor, Info]:
        """The estimates at x, the anchor of the next step, and the cost."""
        finite = self.setting == "finite_sum"
        if self.setting == "deterministic":
            estimates = self.restart(oracle, x, draw.key, loop.draws)
            return estimates, Anchor(x, estimates), self.cost_of_restart(oracle, loop.draws)
        restarts, infos = loop.restarts, {"restart": self.cost_of_restart(oracle, loop.draws)}

        def restart() -> Estimates:
            draws = jnp.where(restarts, loop.draws, 0)  # lanes that restart at different steps all come here
            return self.restart(oracle, x, draw.key, draws)

        def update() -> Estimates:
            estimates, infos["update"] = (self._update_finite if finite else self._update)(oracle, x, anchor, draw)
            return estimates

        estimates = jax.lax.cond(restarts, restart, update)
        costs = zip(infos["restart"], infos["update"], strict=True)
        info = Info(*(a if isinstance(a, int) and a == b else jnp.where(restarts, a, b) for a, b in costs))
        here = Anchor(x, estimates)
        return estimates, jax.tree.map(lambda a, b: jnp.where(restarts, a, b), here, anchor) if finite else here, info

    def restart(self, oracle: Oracle, x: Float[Array, " n"], key: Array, draws: Int[Array, " 3"]) -> Estimates:
        """(3.2): estimates from large samples; (5.3), or if the samples would be no smaller: from all data."""

        def exact() -> Estimates:
            everything = oracle.everything()
            return Estimates(oracle.grad(x, everything), *oracle.rows_and_jacobian(x, everything))

        def sampled() -> Estimates:
            first, second, third = jax.random.split(key, 3)
            gradient = truncate(samples.mean(oracle, 0, lambda s: oracle.grad(x, s), first), self.gradient_radius)
            if self.setting == "semi":
                return Estimates(gradient, *oracle.rows_and_jacobian(x, oracle.draw(second, 1)))
            value = truncate(samples.mean(oracle, 1, lambda s: oracle.c(x, s), second), self.value_radius)
            jacobian = truncate(samples.mean(oracle, 2, lambda s: oracle.jac(x, s), third), self.jacobian_radius)
            return Estimates(gradient, value, jacobian)

        if self.setting in ("finite_sum", "deterministic"):
            return exact()
        samples = self.large_samples(oracle, draws)
        return sampled() if samples.all_data is None else jax.lax.cond(samples.takes_all, exact, sampled)

    def cost_of_restart(self, oracle: Oracle, draws: Int[Array, " 3"]) -> Info:
        """The cost of a restart."""
        if self.setting in ("finite_sum", "deterministic"):
            return Info(1, 1, 1, oracle.count_examples("both", oracle.everything()))
        samples = self.large_samples(oracle, draws)
        values = 1 if self.setting == "semi" else jnp.where(samples.takes_all, 1, 2)
        return Info(1, values, 1, samples.examples)

    def large_samples(self, oracle: Oracle, draws: Int[Array, " 3"]) -> LargeSamples:
        """The samples of a restart."""
        finite = all(isinstance(source, Dataset) for source in oracle.sources)
        all_data = oracle.count_examples("both", oracle.everything()) if finite else None
        return LargeSamples(self.restart_sizes, counted(oracle, self.restart_sizes), draws, all_data)

    def _update(self, oracle: Oracle, x: Float[Array, " n"], anchor: Anchor, draw: Draw) -> tuple[Estimates, Info]:
        """(3.3): the last estimates plus the change since then on small samples, each truncated."""
        old, last = anchor
        first, second, third = (draw.samples[role] for role in ("gradient", "value", "jacobian"))
        gradient = spider(last.gradient, oracle.grad(x, first), oracle.grad(old, first))
        gradient = truncate(gradient, self.gradient_radius)
        examples = oracle.count_examples("objective", first)
        if self.setting == "semi":
            return Estimates(gradient, *oracle.rows_and_jacobian(x, second)), Info(2, 1, 1, examples)
        value = spider(last.value, oracle.c(x, second), oracle.c(old, second))
        jacobian = spider(last.jacobian, oracle.jac(x, third), oracle.jac(old, third))
        examples += oracle.count_examples("constraints", second, third)
        estimates = gradient, truncate(value, self.value_radius), truncate(jacobian, self.jacobian_radius)
        return Estimates(*estimates), Info(2, 4, 2, examples)

    def _update_finite(
        self, oracle: Oracle, x: Float[Array, " n"], anchor: Anchor, draw: Draw
    ) -> tuple[Estimates, Info]:
        """(5.2): the full values at the anchor plus the change since then on small samples, each truncated."""
        start, full = anchor
        first, second, third = (draw.samples[role] for role in ("gradient", "value", "jacobian"))
        gradient = spider(full.gradient, oracle.grad(x, first), oracle.grad(start, first))
        old, slope = oracle.jvp(start, x - start, second)
        value = first_order_svrg(full.value, full.jacobian @ (x - start), oracle.c(x, second), old, slope)
        jacobian = spider(full.jacobian, oracle.jac(x, third), oracle.jac(start, third))
        examples = oracle.count_examples("objective", first) + oracle.count_examples("constraints", second, third)
        estimates = Estimates(
            truncate(gradient, self.gradient_radius),
            truncate(value, self.value_radius),
            truncate(jacobian, self.jacobian_radius),
        )
        return estimates, Info(2, 4, 3, examples)
