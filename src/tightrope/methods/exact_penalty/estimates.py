r"""Estimates v̂, ĉ, Ĵ of the gradient, the rows and their Jacobian for `ExactPenalty` (Cui, Shi, Wang, Xiao 2025).

They are restarted at the inner steps i with i mod τ = 0 and updated at the others. With P_r the projection onto the ball of
radius r (G for v̂, M for ĉ, L_c for Ĵ), by setting:

    stochastic (3.2), (3.3):  restart: v̂^i = P_r(mean over a large sample)
                              update:  v̂^i = P_r(v̂^{i−1} + ∇f(x^i, ξ) − ∇f(x^{i−1}, ξ)), one sample at both points;
                              ĉ and Ĵ likewise, on samples of their own
    semi (5.1):               v̂ as above; ĉ and Ĵ exact
    finite_sum (5.2), (5.3):  restart: all data at the anchor x̃ = x^{⌊i/τ⌋τ}
                              update, with δ = x^i − x̃:
                              v̂ = P_r(∇f(x̃) + ∇f(x^i, ξ) − ∇f(x̃, ξ)), Ĵ likewise,
                              ĉ = P_r(c(x̃) + J(x̃)δ + c(x^i, ζ) − c(x̃, ζ) − J(x̃, ζ)δ)
    deterministic (5.3):      exact
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.scaling import truncate
from ...oracles.oracle import Oracle, Sample
from ...problems.data import Dataset
from ..base import Draw, Info
from ..shared.momentum import first_order_svrg, spider

RESTART_PERIOD = 20
"""Default number of steps between restarts; a restart's samples are that many batches, its square for the rows."""


class Estimates(NamedTuple):
    """Estimates of the objective's gradient, the rows and their Jacobian."""

    gradient: Float[Array, " n"]
    value: Float[Array, " rows"]
    jacobian: Float[Array, "rows n"]


class Anchor(NamedTuple):
    """The point and the estimates that the next update starts from: the previous iterate; finite_sum: the last restart."""

    x: Float[Array, " n"]
    estimates: Estimates


def resolve_setting(requested: str, oracle: Oracle) -> str:
    """The setting to use: the requested one, or for 'auto' the most exact one that the problem's data allow."""
    allowed = {
        "deterministic": not oracle.sources,
        "semi": not oracle.stochastic_constraints,
        "finite_sum": all(isinstance(source, Dataset) for source in oracle.sources),
        "stochastic": True,
    }
    if requested == "auto":
        return next(name for name, fits in allowed.items() if fits)
    if not allowed[requested]:
        fitting = ", ".join(repr(name) for name, fits in allowed.items() if fits)
        raise ValueError(
            f"ExactPenalty: setting {requested!r} does not fit the problem's data; expected one of {fitting}"
        )
    return requested


def sample_roles(setting: str, oracle: Oracle) -> dict[str, int | None]:
    """The samples of an update; for N examples the sizes of Proposition 5.1: ⌈2N^{2/5}⌉, ⌈4N^{4/5}⌉, ⌈2N^{2/5}⌉."""
    if setting != "finite_sum":
        return {"gradient": None, "value": None, "jacobian": None}
    n = _largest_dataset(oracle)
    few, many = min(n, math.ceil(2 * n**0.4)), min(n, math.ceil(4 * n**0.8))
    return {"gradient": few, "value": many, "jacobian": few}


def default_period(setting: str, oracle: Oracle) -> int:
    """Steps between restarts: 20; for N examples ⌊N^{1/5}/2 − 1⌋, at least 1 (the ceiling printed there breaks the proof)."""
    if setting != "finite_sum":
        return RESTART_PERIOD
    return max(1, math.floor(_largest_dataset(oracle) ** 0.2 / 2 - 1))


class Estimator(NamedTuple):
    """The estimates of one setting.

    Attributes:
        setting: 'stochastic', 'semi', 'finite_sum' or 'deterministic'.
        restart_batch_size: examples of each sample of a restart; None: RESTART_PERIOD batches, its square for the rows.
        gradient_radius: the radius G of v̂.
        value_radius: the radius M of ĉ.
        jacobian_radius: the radius L_c of Ĵ.
    """

    setting: str
    restart_batch_size: int | None
    gradient_radius: Float[Array, ""]
    value_radius: Float[Array, ""]
    jacobian_radius: Float[Array, ""]

    def estimate(
        self, oracle: Oracle, x: Float[Array, " n"], anchor: Anchor, draw: Draw, restarts: Bool[Array, ""]
    ) -> tuple[Estimates, Anchor, Info]:
        """The estimates at x, the anchor of the next step, and the cost."""
        finite = self.setting == "finite_sum"
        if self.setting == "deterministic":
            estimates, info = self.restart(oracle, x, draw.key)
            return estimates, Anchor(x, estimates), info
        infos: dict[str, Info] = {}

        def restart() -> Estimates:
            estimates, infos["restart"] = self.restart(oracle, x, draw.key)
            return estimates

        def update() -> Estimates:
            estimates, infos["update"] = (self._update_finite if finite else self._update)(oracle, x, anchor, draw)
            return estimates

        estimates = jax.lax.cond(restarts, restart, update)
        costs = zip(infos["restart"], infos["update"], strict=True)
        info = Info(*(a if a == b else jnp.where(restarts, a, b) for a, b in costs))
        here = Anchor(x, estimates)
        return estimates, jax.tree.map(lambda a, b: jnp.where(restarts, a, b), here, anchor) if finite else here, info

    def restart(self, oracle: Oracle, x: Float[Array, " n"], key: Array) -> tuple[Estimates, Info]:
        """(3.2): estimates from large samples; (5.3): from all data."""
        if self.setting in ("finite_sum", "deterministic"):
            everything = oracle.everything()
            estimates = Estimates(oracle.grad(x, everything), *oracle.rows_and_jacobian(x, everything))
            return estimates, Info(1, 1, 1, oracle.count_examples("both", everything))
        first, second, third = self.large_samples(oracle, key)
        gradient = truncate(oracle.grad(x, first), self.gradient_radius)
        examples = oracle.count_examples("objective", first)
        if self.setting == "semi":
            return Estimates(gradient, *oracle.rows_and_jacobian(x, second)), Info(1, 1, 1, examples)
        value = truncate(oracle.c(x, second), self.value_radius)
        jacobian = truncate(oracle.jac(x, third), self.jacobian_radius)
        examples += oracle.count_examples("constraints", second, third)
        return Estimates(gradient, value, jacobian), Info(1, 2, 1, examples)

    def large_samples(self, oracle: Oracle, key: Array) -> tuple[Sample, Sample, Sample]:
        """Independent samples for a restart's gradient, rows and Jacobian."""
        batch = max((source.batch_size for source in oracle.sources), default=1)
        large, larger = (self.restart_batch_size or batch * RESTART_PERIOD**power for power in (1, 2))
        gradient, value, jacobian = jax.random.split(key, 3)
        return oracle.draw(gradient, large), oracle.draw(value, larger), oracle.draw(jacobian, large)

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


def _largest_dataset(oracle: Oracle) -> int:
    """N: the number of examples of the largest data set."""
    return max((source.size for source in oracle.sources if isinstance(source, Dataset)), default=1)
