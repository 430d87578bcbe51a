r"""Linearized quadratic penalty with recursive momentum, for stochastic constraints (Alacaoglu, Wright 2024, Algorithm 2).

Stochastic objective, c(x) = 0 with samples of its own, x in X; inequalities by slacks. The penalty's gradient

    G_ρ(x, λ; B) = ∇f(x, ξ⁰) + J(x, ζ¹)ᵀ(λ + ρ c(x, ζ²)),    B = (ξ⁰, ζ¹, ζ²) three independent samples         (3.1)

is unbiased because ζ¹ and ζ² are independent. From v_1 = G_{ρ_1}(x_1, λ_1; B_1), for k = 1, 2, …:

    x_{k+1} = P_X(x_k − η_k v_k)
    v_{k+1} = G_{ρ_{k+1}}(x_{k+1}, λ_{k+1}; B_{k+1}) + (1 − α_{k+1})(v_k − G_{ρ_k}(x_k, λ_k; B_{k+1}))

λ = 0 in Algorithm 2. With `dual` (Section 4.1) λ_1 is free and, after v_{k+1} is formed,

    λ_{k+2} = λ_{k+1} + γ_{k+1} sign c(x_{k+1}, ζ²_{k+1}),    γ_k = γ/((k + k_0) log²(k + k_0 + 1)),

and λ_2 likewise from (x_1, ζ²_1); an earlier update on the same sample would bias v. The paper has k_0 = 0, where the sign of
the first sample alone makes 61% of all the movement that there will ever be. The theorem needs only that the γ_k have a finite
sum, which `shared.penalty_gradient` bounds for every k_0.

    stochastic (Theorem 3.1):     ρ_k = penalty · k^{1/5},  η_k = step_size · (k+1)^{-3/5},  α_k = momentum · k^{-4/5}
    deterministic (Theorem 4.2):  ρ_k = penalty · k^{1/4},  η_k = step_size · (k+1)^{-1/2},  α_k = momentum · k^{-1/2}

with α_k at most 1. The theory has step_size = 1/(9 L̃ρ) and momentum = 72 (L̃ρ · step_size)² = 8/9, with L̃ρ the Lipschitz
constant of G_ρ; with `dual`, (‖λ_1‖ + Σ γ_k) L_∇c is part of it (D.1). Our steps are 9 times as long, and 72 times their square
would make α_k = 1, plain stochastic gradients at twice the cost, for the first 5,184 steps of the deterministic schedule. The
error of v is stable where α_k > (L̃ρ η_k)²; `momentum` = MOMENTUM (L̃ρ · step_size)² leaves room for that and lets momentum
average from the first steps on.

| symbol | name | symbol | name |
|---|---|---|---|
| x, v | `x`, `gradient` | λ_{k+1}, λ_{k+2} after step k | `multipliers`, `next_multipliers` |
| η, ρ, α | `step_size`, `penalty`, `weight` | γ | `dual_step_size` |
| ξ⁰, ζ¹, ζ² | roles `objective`, `jacobian`, `value` | prox of h in place of P_X (Remark 3.4) | `prox` |
| k_0 | `dual_offset` | | |

Guaranteed: squared stationarity and ‖c‖² in expectation ~ K^{-2/5} (stochastic) or K^{-1/2} (deterministic), up to logs.
Output: x_{k+1} with k uniform on {1, …, K}, by reservoir sampling. Its multiplier is λ_k + ρ_k c(x_{k+1}) with the expected
rows c (C.4). Exact constraints give it. From samples, ρ_k c(x_{k+1}, ζ²) would have ρ_k times the noise of one batch: then no
multipliers are reported, and the result has those of its certificate, from all data or a large sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..arguments import check_callable, check_type
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import local_constants
from .shared.momentum import recursive_momentum
from .shared.penalty_gradient import (
    MOMENTUM,
    PENALTY_ROLES,
    penalty_cost,
    penalty_gradient,
    sign_ascent,
    total_ascent,
)
from .shared.schedules import power, reservoir_replaces


class State(NamedTuple):
    """Iterate, momentum, two sets of multipliers, and the sampled output with its multipliers (None: sampled constraints)."""

    x: Float[Array, " n"]
    gradient: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    next_multipliers: Float[Array, " rows"]
    picked: Float[Array, " n"]
    picked_multipliers: Float[Array, " rows"] | None


class LinearizedPenalty(Method):
    """Quadratic penalty with growing weight: one gradient step at a time, with recursive momentum on the whole gradient.

    Args:
        step_size: scale of η_k; None: the value that makes the first step η_1 = 1/(L_f + penalty · L_c), with L_f and L_c the
            Lipschitz constants of ∇f and of the gradient of ½‖c‖², estimated near the start and on the way to c = 0: the
            theory's without its factor 1/9. With `dual`, L_f has the multipliers' term of D.1 too.
        penalty: scale of ρ_k; None: 10 L/σ², with L the measured curvature of the objective, or ‖∇f‖/D if that is larger, D
            how far x may have to move, and σ² the largest eigenvalue of JᵀJ one step nearer to c = 0. The distance
            ‖∇f‖/(ρ_k σ²) to the feasible set is then at most 0.1 D k^{-1/5}. The theorem's ρ > 1 is a choice of units: rows
            s · c with penalty ρ/s² make the same iterates, and the estimate is 10 for rows scaled to σ² = L.
        momentum: scale of α_k; None: 4 (L_f + penalty · L_c)² step_size².
        dual_step_size: γ; None: the value with which all steps γ_k together move a multiplier by 3 ‖∇f‖/‖J‖.
        dual_offset: k_0 of the dual steps; 0 is the paper's.
        schedule: 'stochastic', 'deterministic' (exact constraints), or 'auto': by whether constraints have data.
        dual: whether to update multipliers, as in Section 4.1.
        prox: `prox(params, step_size) -> params`, the prox of step_size · h for a convex h added to the objective, used
            instead of the projection onto the domain. The result's objective and stationarity leave h out.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.ones(2), tr.methods.LinearizedPenalty(penalty=10.0), steps=5000)
        >>> bool(abs(result.x @ result.x - 1.0) < 0.05)
        True
    """

    step_size: Hyper = hyper(None)
    penalty: Hyper = hyper(None)
    momentum: Hyper = hyper(None)
    dual_step_size: Hyper = hyper(None)
    dual_offset: Hyper = hyper(100.0, closed="[")
    schedule: str = choice("auto", "auto", "stochastic", "deterministic")
    dual: bool = eqx.field(default=False, static=True)
    prox: Callable[[Any, Array], Any] | None = eqx.field(default=None, static=True)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="slacks", needs="projection")
    reference: ClassVar[str] = "Alacaoglu, Wright 2024, Algorithm 2, Sections 4.1 and 4.2"
    guarantee: ClassVar[str] = "E stationarity² and E‖c‖² ~ K^(-2/5), exact constraints K^(-1/2); up to logs"
    cost: ClassVar[str] = "2 ∇f, 4 c (2 if exact), 2 Jᵀy"

    def __check_init__(self) -> None:
        check_type("LinearizedPenalty", "dual", self.dual, bool, "True or False")
        if self.prox is not None:
            check_callable("LinearizedPenalty", "prox", self.prox, "a function prox(params, step_size)", arguments=2)

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return dict(PENALTY_ROLES)

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        method = self.with_defaults(penalty=10.0 * s.balanced_penalty)
        smoothness = s.step_smoothness + method.penalty * s.path_penalty_smoothness
        if self.dual:
            movement = total_ascent(self.dual_offset)
            method = method.with_defaults(dual_step_size=3.0 * s.multiplier_size / movement)
            largest = jnp.linalg.norm(oracle.multipliers) + movement * method.dual_step_size
            smoothness += largest * s.jacobian_smoothness
        shrink, _, _ = self._exponents(oracle)
        method = method.with_defaults(step_size=2.0**-shrink / smoothness)
        return method.with_defaults(momentum=MOMENTUM * (smoothness * method.step_size) ** 2)

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        first = jnp.ones((), x.dtype)
        start = oracle.multipliers if self.dual else jnp.zeros_like(oracle.multipliers)
        c, gradient = penalty_gradient(oracle, x, draw.samples, start, self.penalty)
        following = self._ascend(start, first, c)
        return State(x, gradient, start, following, x, None if oracle.stochastic_constraints else jnp.zeros_like(start))

    def _ascend(self, multipliers: Array, k: Float[Array, ""], c: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """The multipliers after dual step k; without `dual`, the same ones."""
        if not self.dual:
            return multipliers
        return sign_ascent(multipliers, self.dual_step_size, k + self.dual_offset, c)

    def scheduled(self, oracle: Oracle, k: Float[Array, ""]) -> tuple[Array, Array, Array]:
        """Step size η_k, penalty ρ_k and momentum weight α_k."""
        shrink, growth, decay = self._exponents(oracle)
        weight = jnp.minimum(1.0, power(self.momentum, k, decay))
        return power(self.step_size, k + 1.0, shrink), power(self.penalty, k, growth), weight

    def _exponents(self, oracle: Oracle) -> tuple[float, float, float]:
        """The exponents of η_k, ρ_k and α_k."""
        exact = self.schedule == "deterministic" or (self.schedule == "auto" and not oracle.stochastic_constraints)
        return (-1 / 2, 1 / 4, -1 / 2) if exact else (-3 / 5, 1 / 5, -4 / 5)

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, samples, k = state.x, draw.samples, draw.k.astype(state.x.dtype)
        step_size, penalty, _ = self.scheduled(oracle, k)
        _, next_penalty, weight = self.scheduled(oracle, k + 1.0)
        new = self._move(oracle, x - step_size * state.gradient, step_size)
        c, at_new = penalty_gradient(oracle, new, samples, state.next_multipliers, next_penalty)
        _, at_old = penalty_gradient(oracle, x, samples, state.multipliers, penalty)
        take = reservoir_replaces(draw.uniform, 1.0, draw.k)
        state = State(
            new,
            recursive_momentum(state.gradient, at_new, at_old, weight),
            state.next_multipliers,
            self._ascend(state.next_multipliers, k + 1.0, c),
            jnp.where(take, new, state.picked),
            None
            if state.picked_multipliers is None
            else jnp.where(take, state.multipliers + penalty * c, state.picked_multipliers),
        )
        return state, penalty_cost(oracle, samples, 2)

    def _move(self, oracle: Oracle, point: Float[Array, " n"], step_size: Float[Array, ""]) -> Float[Array, " n"]:
        """P_X, or the prox with slacks projected onto their bounds."""
        if self.prox is None:
            return oracle.project(point)
        ravel, unravel, n = oracle.parameters.ravel, oracle.parameters.unravel_arrays, oracle.parameters.size
        moved = ravel(self.prox(unravel(point[:n]), step_size))
        return jnp.concatenate([moved, oracle.project(point)[n:]])

    def output(self, state: State) -> Float[Array, " n"]:
        return state.picked

    def multipliers(self, state: State) -> Float[Array, " rows"] | None:
        return state.picked_multipliers
