r"""Two phases of recursive momentum: first toward feasibility, then on the augmented Lagrangian (TStoM).

[reconstructed] from the description in Cui, Shi, Wang, Xiao 2025, who compare with it: the form of phase 1, its schedule, its
test, and the output are ours. Stochastic objective and constraints c(x) = 0, x in X; inequalities by slacks.

Phase 1, until nearly feasible: recursive momentum on ½Σ_i c_i²/w_i alone, on independent ζ¹, ζ², and on the rows themselves.

    x_{k+1} = P_X(x_k − s_k v_k),  s_k = feasibility_step_size · k^{-1/3},  a_k = k^{-2/3}
    v_{k+1} = H(x_{k+1}) + (1 − a_k)(v_k − H(x_k)),  H(x) = J(x, ζ¹)ᵀ W⁻¹ c(x, ζ²)
    ĉ_{k+1} = c(x_{k+1}, ζ²) + (1 − a_k)(ĉ_k − c(x_k, ζ²))

w_i is the curvature of ½c_i² at the start: a row that is steep or flat by its units moves like the others, and c_i/√w_i is
about the distance to c_i = 0.

Phase 1 ends with the first step N at whose start ‖W^{-1/2} ĉ‖ ≤ feasibility_tolerance, or that reaches warm_up_fraction · K.
Step N computes the start of phase 2, at its new point x_1 and on its own samples B_1, so that the samples B_2 of the next step
are independent of x_2 and λ_2:

    v_1 = G_ρ(x_1, λ_1; B_1),  λ_2 = λ_1 + γ_1 sign c(x_1, ζ²_1)

Phase 2, j = k − N = 1, 2, …: `LinearizedPenalty` with multipliers, its constants fixed by the horizon K:

    ρ = penalty · K^{1/5},  η = step_size · K^{-3/5},  α = momentum · K^{-4/5}, at most 1
    x_{j+1} = P_X(x_j − η v_j)
    v_{j+1} = G_ρ(x_{j+1}, λ_{j+1}; B_{j+1}) + (1 − α)(v_j − G_ρ(x_j, λ_j; B_{j+1}))
    λ_{j+2} = λ_{j+1} + γ_{j+1} sign c(x_{j+1}, ζ²_{j+1}),   γ_j = γ/((j + j_0) log²(j + j_0 + 1))

| symbol | name | symbol | name |
|---|---|---|---|
| x, v | `x`, `gradient` | λ_{j+1}, λ_{j+2} after step j | `multipliers`, `next_multipliers` |
| s, η | `feasibility_step_size`, `step_size` | ρ, γ | `penalty`, `dual_step_size` |
| a, α | `weight` | ξ⁰, ζ¹, ζ² | roles `objective`, `jacobian`, `value` |
| ĉ, w | `rows`, `row_curvatures` | N, j_0 | `first_phase`, `dual_offset` |

Guaranteed, as they report it: an ε-KKT point in O(ε^{-5}) samples if the Jacobian's rows stay independent.
Output: x_{j+1} with j uniform on phase 2, by reservoir sampling; the current iterate during phase 1. Its multiplier is
λ_j + ρ c(x_{j+1}), reported for exact constraints alone, as in `LinearizedPenalty`.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper
from .shared.constants import local_constants, local_smoothness, row_curvatures
from .shared.momentum import recursive_momentum
from .shared.penalty_gradient import (
    MOMENTUM,
    PENALTY_ROLES,
    constraint_part,
    penalty_cost,
    penalty_gradient,
    sign_ascent,
    total_ascent,
)
from .shared.schedules import power, reservoir_replaces


class State(NamedTuple):
    """The iterate, the momentum, two sets of multipliers, the sampled output, and the state of phase 1.

    `picked_multipliers` are those of the output (None: sampled constraints). `first_phase` is N, 0 before it is known.
    """

    x: Float[Array, " n"]
    gradient: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    next_multipliers: Float[Array, " rows"]
    picked: Float[Array, " n"]
    picked_multipliers: Float[Array, " rows"] | None
    rows: Float[Array, " rows"]
    row_curvatures: Float[Array, " rows"]
    first_phase: Int[Array, ""]


class TwoPhaseMomentum(Method):
    """Recursive momentum on the violation until it is small, then on objective, multipliers and penalty together.

    Args:
        step_size: c2 of η = c2 K^{-3/5}; None: 2.5/(L_f + penalty · L_c), with the Lipschitz constants of ∇f and of the
            gradient of ½‖c‖² estimated near the start and on the way to c = 0. K steps then add up to those of
            `LinearizedPenalty`, Σ k^{-3/5} = 2.5 K^{2/5}. L_f has the multipliers' term too.
        penalty: c1 of ρ = c1 K^{1/5}; None: as in `LinearizedPenalty`.
        momentum: c3 of α = c3 K^{-4/5}; None: 4 (L_f + penalty · L_c)² step_size², as there.
        dual_step_size: γ; None: the value with which all dual steps together move a multiplier by 3 ‖∇f‖/‖J‖.
        dual_offset: j_0 of the dual steps; 0 is the paper's.
        feasibility_step_size: scale of the steps of phase 1; None: 1/(2 L), with L the Lipschitz constant of the gradient of
            ½Σ c_i²/w_i.
        feasibility_tolerance: the distance ‖W^{-1/2} ĉ‖ to c = 0 that ends phase 1; None: 0.1 D K^{-1/5}, D how far x may have
            to move, which is what the default penalty of phase 2 holds for rows of similar units.
        warm_up_fraction: the largest fraction of the horizon that phase 1 may take.

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
    dual_offset: Hyper = hyper(100.0, closed="[")
    feasibility_step_size: Hyper = hyper(None)
    feasibility_tolerance: Hyper = hyper(None, closed="[")
    warm_up_fraction: Hyper = hyper(0.5, high=1.0)

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
        s = local_constants(oracle, x, draw.key)
        movement = total_ascent(self.dual_offset)
        method = self.with_defaults(
            penalty=10.0 * s.balanced_penalty,
            dual_step_size=3.0 * s.multiplier_size / movement,
            feasibility_step_size=0.5 / self._first_smoothness(oracle, x, draw, s.travel),
        )
        largest = jnp.linalg.norm(oracle.multipliers) + movement * method.dual_step_size
        smoothness = s.step_smoothness + largest * s.jacobian_smoothness + method.penalty * s.path_penalty_smoothness
        method = method.with_defaults(step_size=2.5 / smoothness)
        method = method.with_defaults(momentum=MOMENTUM * (smoothness * method.step_size) ** 2)
        return method.with_defaults(feasibility_tolerance=power(0.1 * s.travel, draw.steps.astype(x.dtype), -1 / 5))

    def _first_smoothness(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, travel: Array) -> Float[Array, ""]:
        """Lipschitz constant of the gradient of phase 1 at the start, at least 1, its value for one row."""
        sample = draw.samples["jacobian"]
        weights = 1.0 / row_curvatures(oracle, x, sample)

        def gradient(y: Float[Array, " n"]) -> Float[Array, " n"]:
            rows, pullback = oracle.vjp(y, sample)
            return pullback(weights * rows)

        direction = gradient(x) + oracle.vjp(x, sample)[1](jnp.sqrt(weights))
        return jnp.maximum(1.0, local_smoothness(gradient, oracle.nearby, x, direction, 0.2 * travel))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        start = oracle.multipliers
        curvatures = row_curvatures(oracle, x, draw.samples["jacobian"])
        rows, gradient = constraint_part(oracle, x, draw.samples, jnp.zeros_like(start), 1.0 / curvatures)
        reported = None if oracle.stochastic_constraints else start
        return State(x, gradient, start, start, x, reported, rows, curvatures, jnp.int32(0))

    def scheduled(self, steps: Float[Array, ""]) -> tuple[Array, Array, Array]:
        """Step size η, penalty ρ and momentum weight α of phase 2."""
        weight = jnp.minimum(1.0, power(self.momentum, steps, -4 / 5))
        return power(self.step_size, steps, -3 / 5), power(self.penalty, steps, 1 / 5), weight

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        cost = partial(penalty_cost, oracle, draw.samples)
        limit = jnp.floor(self.warm_up_fraction * draw.steps).astype(draw.k.dtype)
        ends = (_distance(state) <= self.feasibility_tolerance) | (draw.k >= limit)
        return jax.lax.switch(
            jnp.where(state.first_phase > 0, 2, ends.astype(jnp.int32)),
            (
                lambda: (self._step_of_phase_1(oracle, state, draw), cost(2, objective=False)),
                lambda: (self._start_phase_2(oracle, self._move(oracle, state, draw), draw), cost(1)),
                lambda: (self._step_of_phase_2(oracle, state, draw), cost(2)),
            ),
        )

    def _move(self, oracle: Oracle, state: State, draw: Draw) -> State:
        """The new point of phase 1, with the old v."""
        step_size = power(self.feasibility_step_size, draw.k.astype(state.x.dtype), -1 / 3)
        new = oracle.project(state.x - step_size * state.gradient)
        return state._replace(x=new, picked=new)

    def _step_of_phase_1(self, oracle: Oracle, state: State, draw: Draw) -> State:
        """A step of phase 1 other than the last."""
        moved, weight = self._move(oracle, state, draw), draw.k.astype(state.x.dtype) ** (-2 / 3)
        none, weights = jnp.zeros_like(state.rows), 1.0 / state.row_curvatures
        new, at_new = constraint_part(oracle, moved.x, draw.samples, none, weights)
        old, at_old = constraint_part(oracle, state.x, draw.samples, none, weights)
        return moved._replace(
            gradient=recursive_momentum(state.gradient, at_new, at_old, weight),
            rows=recursive_momentum(state.rows, new, old, weight),
        )

    def _start_phase_2(self, oracle: Oracle, state: State, draw: Draw) -> State:
        """v_1 and λ_2 of phase 2, at its first point."""
        _, penalty, _ = self.scheduled(draw.steps.astype(state.x.dtype))
        c, gradient = penalty_gradient(oracle, state.x, draw.samples, state.multipliers, penalty)
        following = sign_ascent(state.multipliers, self.dual_step_size, 1.0 + self.dual_offset, c)
        return state._replace(gradient=gradient, next_multipliers=following, first_phase=draw.k)

    def _step_of_phase_2(self, oracle: Oracle, state: State, draw: Draw) -> State:
        """Step j of phase 2."""
        x, samples, j = state.x, draw.samples, draw.k - state.first_phase
        step_size, penalty, weight = self.scheduled(draw.steps.astype(x.dtype))
        new = oracle.project(x - step_size * state.gradient)
        c, at_new = penalty_gradient(oracle, new, samples, state.next_multipliers, penalty)
        _, at_old = penalty_gradient(oracle, x, samples, state.multipliers, penalty)
        take = reservoir_replaces(draw.uniform, 1.0, j)
        number = j.astype(x.dtype) + 1.0 + self.dual_offset
        reported = state.picked_multipliers
        return state._replace(
            x=new,
            gradient=recursive_momentum(state.gradient, at_new, at_old, weight),
            multipliers=state.next_multipliers,
            next_multipliers=sign_ascent(state.next_multipliers, self.dual_step_size, number, c),
            picked=jnp.where(take, new, state.picked),
            picked_multipliers=None if reported is None else jnp.where(take, state.multipliers + penalty * c, reported),
        )

    def output(self, state: State) -> Float[Array, " n"]:
        return state.picked

    def multipliers(self, state: State) -> Float[Array, " rows"] | None:
        return state.picked_multipliers

    def note(self, state: State) -> str | None:
        distance, tolerance = float(_distance(state)), float(self.feasibility_tolerance)
        if distance <= tolerance:
            return None
        ended = (
            f"ended at its limit of {float(self.warm_up_fraction):.0%} of the steps"
            if state.first_phase > 0
            else "went on"
        )
        return f"phase 1 {ended}, with x about {distance:.2g} from c = 0, above feasibility_tolerance = {tolerance:.2g}"


def _distance(state: State) -> Float[Array, ""]:
    """About how far the iterate of phase 1 is from c = 0."""
    return jnp.linalg.norm(state.rows / jnp.sqrt(state.row_curvatures))
