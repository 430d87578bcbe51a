r"""Two phases of recursive momentum: first toward feasibility, then on the augmented Lagrangian (TStoM).

[reconstructed] from the description in Cui, Shi, Wang, Xiao 2025, who compare with it: the form of phase 1, its schedule and
length, and the output are ours. Stochastic objective and constraints c(x) = 0, x in X; inequalities by slacks.

Phase 1, steps k ≤ N = ⌊warm_up_fraction · K⌋: recursive momentum on ½‖c‖² alone, on independent ζ¹, ζ².

    x_{k+1} = P_X(x_k − s_k v_k),  s_k = feasibility_step_size · k^{-1/3}
    v_{k+1} = H(x_{k+1}) + (1 − a_k)(v_k − H(x_k)),  H(x) = J(x, ζ¹)ᵀc(x, ζ²),  a_k = k^{-2/3}

Step N (`init` if N = 0) computes the start of phase 2 instead, at its new point x_1 and on its own samples B_1, so that the
samples B_2 of the next step are independent of x_2 and λ_2:

    v_1 = G_ρ(x_1, λ_1; B_1),  λ_2 = λ_1 + γ/log²2 · sign c(x_1, ζ²_1)

Phase 2, j = k − N = 1, 2, …: `LinearizedPenalty` with multipliers, its constants fixed by the horizon K:

    ρ = penalty · K^{1/5},  η = step_size · K^{-3/5},  α = momentum · K^{-4/5}, at most 1
    x_{j+1} = P_X(x_j − η v_j)
    v_{j+1} = G_ρ(x_{j+1}, λ_{j+1}; B_{j+1}) + (1 − α)(v_j − G_ρ(x_j, λ_j; B_{j+1}))
    λ_{j+2} = λ_{j+1} + γ/((j+1) log²(j+2)) sign c(x_{j+1}, ζ²_{j+1})

| symbol | name | symbol | name |
|---|---|---|---|
| x, v | `x`, `gradient` | λ_{j+1}, λ_{j+2} after step j | `multipliers`, `next_multipliers` |
| s, η | `feasibility_step_size`, `step_size` | ρ, γ | `penalty`, `dual_step_size` |
| a, α | `weight` | ξ⁰, ζ¹, ζ² | roles `objective`, `jacobian`, `value` |

Guaranteed, as they report it: an ε-KKT point in O(ε^{-5}) samples if the Jacobian's rows stay independent.
Output: x_{j+1} with j uniform on phase 2, by reservoir sampling, and its multiplier λ_j + ρ c(x_{j+1}, ζ²_{j+1}); the current
iterate during phase 1.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper
from .shared.constants import local_constants
from .shared.momentum import recursive_momentum
from .shared.penalty_gradient import PENALTY_ROLES, constraint_part, penalty_cost, penalty_gradient, sign_ascent
from .shared.schedules import power, reservoir_replaces


def _violation_gradient(oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Float[Array, " n"]:
    """H(x), the gradient of ½‖c‖² on two independent samples."""
    return constraint_part(oracle, x, draw.samples, jnp.zeros_like(oracle.multipliers), 1.0)[1]


class State(NamedTuple):
    """The iterate, the momentum, two sets of multipliers, and the sampled output with its multipliers."""

    x: Float[Array, " n"]
    gradient: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    next_multipliers: Float[Array, " rows"]
    picked: Float[Array, " n"]
    picked_multipliers: Float[Array, " rows"]


class TwoPhaseMomentum(Method):
    """Recursive momentum on the violation for a while, then on objective, multipliers and penalty together.

    Args:
        step_size: c2 of η = c2 K^{-3/5}; None: 2.5/((1 − warm_up_fraction)(L_f + penalty · L_c)), with the Lipschitz constants
            of ∇f and of the gradient of ½‖c‖² estimated near the start and on the way to c = 0. The steps then add up to
            those of `LinearizedPenalty`, Σ k^{-3/5} = 2.5 K^{2/5}.
        penalty: c1 of ρ = c1 K^{1/5}; None: 10 L_f/σ², with σ² the largest eigenvalue of JᵀJ at the start, as in
            `LinearizedPenalty`.
        momentum: c3 of α = c3 K^{-4/5}; None: 72 (L_f + penalty · L_c)² step_size², the theory's ratio to the step size.
        dual_step_size: γ; None: 0.3 ‖∇f‖/‖J‖ near the start. Multipliers move at most 3.4 γ.
        feasibility_step_size: scale of the steps of phase 1; None: 1/(2 L_c).
        warm_up_fraction: the fraction of the horizon that phase 1 takes.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.ones(2), tr.methods.TwoPhaseMomentum(), steps=5000)
        >>> bool(abs(result.x @ result.x - 1.0) < 0.05)
        True
    """

    step_size: Hyper = hyper(None)
    penalty: Hyper = hyper(None)
    momentum: Hyper = hyper(None)
    dual_step_size: Hyper = hyper(None)
    feasibility_step_size: Hyper = hyper(None)
    warm_up_fraction: Hyper = hyper(0.1, high=1.0)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="slacks", needs="projection")
    reference: ClassVar[str] = "TStoM, as Cui, Shi, Wang, Xiao 2025 describe it [reconstructed]"
    guarantee: ClassVar[str] = "ε-KKT in O(ε⁻⁵) samples if Jacobians keep full rank"
    cost: ClassVar[str] = "phase 1: 4 c (2 if exact), 2 Jᵀy; phase 2: also 2 ∇f; half of that at the step between them"

    @property
    def uses_horizon(self) -> bool:
        return True

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return dict(PENALTY_ROLES)

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.samples["objective"], draw.key)
        method = self.with_defaults(
            penalty=10.0 * s.balanced_penalty,
            dual_step_size=0.3 * s.multiplier_size,
            feasibility_step_size=0.5 / positive_or_one(s.path_penalty_smoothness),
        )
        smoothness = s.smoothness + method.penalty * s.path_penalty_smoothness
        method = method.with_defaults(step_size=2.5 / ((1.0 - method.warm_up_fraction) * smoothness))
        return method.with_defaults(momentum=72.0 * (smoothness * method.step_size) ** 2)

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        start = oracle.multipliers
        state = State(x, jnp.zeros_like(x), start, start, x, start)
        return jax.lax.cond(
            self._warm_up_steps(steps) == 0,
            lambda: self._start_phase_2(oracle, state, draw),
            lambda: state._replace(gradient=_violation_gradient(oracle, x, draw)),
        )

    def scheduled(self, steps: Float[Array, ""]) -> tuple[Array, Array, Array]:
        """Step size η, penalty ρ and momentum weight α of phase 2."""
        weight = jnp.minimum(1.0, power(self.momentum, steps, -4 / 5))
        return power(self.step_size, steps, -3 / 5), power(self.penalty, steps, 1 / 5), weight

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        j = draw.k - self._warm_up_steps(draw.steps)
        cost = partial(penalty_cost, oracle, draw.samples)
        return jax.lax.switch(
            jnp.sign(j) + 1,
            (
                lambda: (self._step_of_phase_1(oracle, state, draw), cost(2, objective=False)),
                lambda: (self._start_phase_2(oracle, self._move(oracle, state, draw), draw), cost(1)),
                lambda: (self._step_of_phase_2(oracle, state, draw, j), cost(2)),
            ),
        )

    def _warm_up_steps(self, steps: Int[Array, ""]) -> Int[Array, ""]:
        """N, the number of steps of phase 1."""
        return jnp.floor(self.warm_up_fraction * steps).astype(steps.dtype)

    def _move(self, oracle: Oracle, state: State, draw: Draw) -> State:
        """The new point of phase 1, with the old v."""
        step_size = power(self.feasibility_step_size, draw.k.astype(state.x.dtype), -1 / 3)
        new = oracle.project(state.x - step_size * state.gradient)
        return state._replace(x=new, picked=new)

    def _step_of_phase_1(self, oracle: Oracle, state: State, draw: Draw) -> State:
        """A step of phase 1 other than the last."""
        moved, weight = self._move(oracle, state, draw), draw.k.astype(state.x.dtype) ** (-2 / 3)
        at_new, at_old = (_violation_gradient(oracle, x, draw) for x in (moved.x, state.x))
        return moved._replace(gradient=recursive_momentum(state.gradient, at_new, at_old, weight))

    def _start_phase_2(self, oracle: Oracle, state: State, draw: Draw) -> State:
        """v_1 and λ_2 of phase 2, at its first point."""
        _, penalty, _ = self.scheduled(draw.steps.astype(state.x.dtype))
        c, gradient = penalty_gradient(oracle, state.x, draw.samples, state.multipliers, penalty)
        following = sign_ascent(state.multipliers, self.dual_step_size, 1.0, c)
        return state._replace(gradient=gradient, next_multipliers=following)

    def _step_of_phase_2(self, oracle: Oracle, state: State, draw: Draw, j: Int[Array, ""]) -> State:
        """Step j of phase 2."""
        x, samples = state.x, draw.samples
        step_size, penalty, weight = self.scheduled(draw.steps.astype(x.dtype))
        new = oracle.project(x - step_size * state.gradient)
        c, at_new = penalty_gradient(oracle, new, samples, state.next_multipliers, penalty)
        _, at_old = penalty_gradient(oracle, x, samples, state.multipliers, penalty)
        take = reservoir_replaces(draw.uniform, 1.0, j)
        return State(
            new,
            recursive_momentum(state.gradient, at_new, at_old, weight),
            state.next_multipliers,
            sign_ascent(state.next_multipliers, self.dual_step_size, j.astype(x.dtype) + 1.0, c),
            jnp.where(take, new, state.picked),
            jnp.where(take, state.multipliers + penalty * c, state.picked_multipliers),
        )

    def output(self, state: State) -> Float[Array, " n"]:
        return state.picked

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.picked_multipliers
