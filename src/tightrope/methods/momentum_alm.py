r"""Momentum-based linearized augmented Lagrangian (MLALM: Shi, Wang, Wang 2022).

[reconstructed] from the updates and orders in later papers: the scales, the default dual step and the output are ours.
Stochastic objective; deterministic c_i(x) = 0 (i in E) and c_i(x) ≤ 0 (i in I), x in X. Momentum is on ∇f alone:

    z_i = λ_i + β c_i(x_k) on E,  max(λ_i + β c_i(x_k), 0) on I
    x_{k+1} = P_X(x_k − η (v_k + J(x_k)ᵀ z))
    v_{k+1} = ∇f(x_{k+1}, ξ) + (1 − α)(v_k − ∇f(x_k, ξ))        the same ξ at both points
    λ_i ← λ_i + ρ c_i(x_{k+1}) on E,  λ_i + ρ max{−λ_i/β, c_i(x_{k+1})} on I

with v_1 = ∇f(x_1, ξ_1) and constants fixed by the horizon K:

    start 'any':       β = penalty · K^{1/4},  η = step_size · K^{-1/4},  α = momentum · K^{-1/2}
    start 'feasible':  β = penalty · K^{1/3},  η = step_size · K^{-1/3},  α = momentum · K^{-2/3}

with α at most 1. ρ is at most β, which keeps the multipliers of inequalities nonnegative.

| symbol | name | symbol | name |
|---|---|---|---|
| x, v | `x`, `gradient` | λ | `multipliers` |
| η, α | `step_size`, `weight` | β, ρ | `penalty`, `dual_step_size` |

The constraints are evaluated once per step, at x_{k+1}: for λ and for the part J(x_{k+1})ᵀz of the next direction, which is
kept as `constraint_part`. Guaranteed, as reported: an ε-KKT point in O(ε^{-4}) samples under a constraint qualification,
O(ε^{-3}) from a nearly feasible start. Output: the last iterate, with λ.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import local_constants
from .shared.momentum import recursive_momentum
from .shared.schedules import power


class State(NamedTuple):
    """Iterate, momentum, multipliers, and the constraints' part of the next direction."""

    x: Float[Array, " n"]
    gradient: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    constraint_part: Float[Array, " n"]


class MomentumALM(Method):
    """Momentum on the objective, exact augmented Lagrangian of equalities and inequalities, constants fixed by the horizon.

    Args:
        step_size: scale of η; None: 1/(2 L_f), with the Lipschitz constant of ∇f estimated near the start.
        penalty: scale of β; None: 1/(2 L_c · step_size), so that η β L_c = 1/2. Since η does not shrink, L_c, the Lipschitz
            constant of the gradient of ½‖c‖², has to hold wherever x may move, not only near the start.
        momentum: scale of α.
        dual_step_size: ρ; None: a tenth of `penalty`, so that λ settles within about 10 K^{1/4} steps.
        start: 'any', or 'feasible' if x0 is nearly feasible.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> result = tr.solve(problem, jnp.zeros(2), tr.methods.MomentumALM(), steps=2000)
        >>> round(float(result.multipliers["budget"]), 2)
        1.0
    """

    step_size: Hyper = hyper(None)
    penalty: Hyper = hyper(None)
    momentum: Hyper = hyper(1.0)
    dual_step_size: Hyper = hyper(None)
    start: str = choice("any", "any", "feasible")

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=False, form="native", needs="projection")
    reference: ClassVar[str] = "MLALM: Shi, Wang, Wang 2022 [reconstructed]"
    guarantee: ClassVar[str] = "ε-KKT in O(ε⁻⁴) samples under a qualification; O(ε⁻³) from a nearly feasible start"
    cost: ClassVar[str] = "2 ∇f, 1 c, 1 Jᵀy"

    @property
    def uses_horizon(self) -> bool:
        return True

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"objective": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        curvature = positive_or_one(s.global_penalty_smoothness)
        method = self.with_defaults(step_size=0.5 / s.step_smoothness)
        method = method.with_defaults(penalty=0.5 / (curvature * method.step_size))
        return method.with_defaults(dual_step_size=0.1 * method.penalty)

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        sample, multipliers = draw.samples["objective"], oracle.multipliers
        c, pullback = oracle.vjp(x, sample)
        _, penalty, _ = self.schedule(steps.astype(x.dtype))
        constraint_part = pullback(_shifted_multipliers(oracle, multipliers, penalty, c))
        return State(x, oracle.grad(x, sample), multipliers, constraint_part)

    def schedule(self, horizon: Float[Array, ""]) -> tuple[Array, Array, Array]:
        """Step size η, penalty β and momentum weight α."""
        exponent = 1 / 4 if self.start == "any" else 1 / 3
        weight = jnp.minimum(1.0, power(self.momentum, horizon, -2.0 * exponent))
        return power(self.step_size, horizon, -exponent), power(self.penalty, horizon, exponent), weight

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, sample = state.x, draw.samples["objective"]
        step_size, penalty, weight = self.schedule(draw.steps.astype(x.dtype))
        new = oracle.project(x - step_size * (state.gradient + state.constraint_part))
        gradient = recursive_momentum(state.gradient, oracle.grad(new, sample), oracle.grad(x, sample), weight)
        c, pullback = oracle.vjp(new, sample)
        ascent = jnp.where(oracle.equality, c, jnp.maximum(c, -state.multipliers / penalty))
        multipliers = state.multipliers + jnp.minimum(self.dual_step_size, penalty) * ascent
        state = State(new, gradient, multipliers, pullback(_shifted_multipliers(oracle, multipliers, penalty, c)))
        return state, Info(2, 1, 1, oracle.count_examples("objective", sample))

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.multipliers


def _shifted_multipliers(
    oracle: Oracle, multipliers: Array, penalty: Array, c: Float[Array, " rows"]
) -> Float[Array, " rows"]:
    """The multipliers z in the augmented Lagrangian's gradient."""
    shifted = multipliers + penalty * c
    return jnp.where(oracle.equality, shifted, jnp.maximum(shifted, 0.0))
