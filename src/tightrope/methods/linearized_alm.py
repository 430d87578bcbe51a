r"""Linearized augmented Lagrangian with recursive momentum, for linear constraints (Alacaoglu, Wright 2024, Algorithm 1).

Stochastic objective, Ax = b, x free. The penalty and the dual step are constant and no projection is needed:

    x_k = x_{k−1} − η_k (v_{k−1} + Aᵀλ_{k−1} + ρ Aᵀ(A x_{k−1} − b))
    λ_k = λ_{k−1} + ρ (A x_k − b)
    v_k = ∇f(x_k, ξ_k) + (1 − α_k)(v_{k−1} − ∇f(x_{k−1}, ξ_k))        the same ξ_k at both points

    η_k = step_size / ((k + k0)^{1/3} log(k + k0)),   α_k = 121 L_f² η_k², at most 1                            (2.1)

| symbol | name | symbol | name |
|---|---|---|---|
| x, v, λ | `x`, `gradient`, `multipliers` | ρ | `penalty` |
| η, α | `step_size`, `weight` | L_f, k0 | `smoothness`, `offset` |

Only products with A and Aᵀ are formed, one of each per step: the direction Aᵀ(λ_k + ρ(A x_k − b)) of step k + 1 needs the
same A x_k − b as λ_k, so it is kept as `constraint_part`. A need not have full row rank.

The theory asks for ρ of the order L_f/δ, δ the least nonzero eigenvalue of AᵀA, and η = 1/(11 (L_f + ρ‖A‖²)). Its constants
(B.19) make steps invisibly small (with all of them 1, ρ = 6272 and k0 ≈ 8e52): the forms are kept, the constants are not.
Guaranteed with the theory's constants: E‖∇F + Aᵀλ‖² and E‖Ax − b‖² at the output fall as K^{-2/3}, up to logs.
Output: (x_k, λ_k) with k uniform on {1, …, K}, by reservoir sampling.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper
from .shared.constants import local_constants
from .shared.momentum import recursive_momentum
from .shared.schedules import log_power, reservoir_replaces


class State(NamedTuple):
    """Iterate, momentum, multipliers, the constraints' part of the next direction, and the sampled output."""

    x: Float[Array, " n"]
    gradient: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    constraint_part: Float[Array, " n"]
    picked: Float[Array, " n"]
    picked_multipliers: Float[Array, " rows"]


class LinearizedALM(Method):
    """Augmented Lagrangian for Ax = b with constant penalty: one gradient step, one multiplier step, recursive momentum.

    Args:
        step_size: scale η of η_k; None: 1/(L_f + ρ‖A‖²), the theory's value without its factor 1/11.
        penalty: ρ, the penalty and the dual step; None: 2 L_f/‖A‖², with ‖A‖² by power iteration at the start. That is the
            theory's order L_f/δ if A is well conditioned; a larger one helps if it is not and F is not convex.
        smoothness: L_f, Lipschitz constant of the objective's gradient; None: estimated near the start.
        offset: k0, at least 2.

    Example:
        >>> import jax.numpy as jnp, numpy as np, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.affine(np.ones((1, 2)), [1.0], name="budget"))
        >>> result = tr.solve(problem, jnp.zeros(2), tr.methods.LinearizedALM(), steps=2000)
        >>> round(float(result.multipliers["budget"][0]), 2)
        3.0
    """

    step_size: Hyper = hyper(None)
    penalty: Hyper = hyper(None)
    smoothness: Hyper = hyper(None)
    offset: Hyper = hyper(2.0, low=2.0, closed="[")

    accepts: ClassVar[Accepts] = Accepts(
        "affine", inequalities=False, stochastic=False, form="native", needs="everywhere"
    )
    reference: ClassVar[str] = "Alacaoglu, Wright 2024, Algorithm 1"
    guarantee: ClassVar[str] = "E stationarity² and E‖Ax − b‖² ~ K^(-2/3) up to logs; F may be non-convex"
    cost: ClassVar[str] = "2 ∇f, 1 Ax, 1 Aᵀy"

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"objective": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        square_norm = s.penalty_smoothness  # ‖A‖²; 0 without constraints, where any penalty will do
        method = self.with_defaults(smoothness=jnp.where(s.smoothness > 0, s.smoothness, s.step_smoothness))
        method = method.with_defaults(penalty=2.0 * method.smoothness / positive_or_one(square_norm))
        return method.with_defaults(step_size=1.0 / (method.smoothness + method.penalty * square_norm))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        sample, multipliers = draw.samples["objective"], oracle.multipliers
        residual, pullback = oracle.vjp(x, sample)
        constraint_part = pullback(multipliers + self.penalty * residual)
        return State(x, oracle.grad(x, sample), multipliers, constraint_part, x, multipliers)

    def schedule(self, k: Float[Array, ""]) -> tuple[Array, Array]:
        """Step size η_k and momentum weight α_k."""
        step_size = log_power(self.step_size, k + self.offset, -1.0 / 3.0, k + self.offset)
        return step_size, jnp.minimum(1.0, (11.0 * self.smoothness * step_size) ** 2)

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, sample = state.x, draw.samples["objective"]
        step_size, weight = self.schedule(draw.k.astype(x.dtype))
        new = x - step_size * (state.gradient + state.constraint_part)
        residual, pullback = oracle.vjp(new, sample)
        multipliers = state.multipliers + self.penalty * residual
        gradient = recursive_momentum(state.gradient, oracle.grad(new, sample), oracle.grad(x, sample), weight)
        take = reservoir_replaces(draw.uniform, 1.0, draw.k)
        state = State(
            new,
            gradient,
            multipliers,
            pullback(multipliers + self.penalty * residual),
            jnp.where(take, new, state.picked),
            jnp.where(take, multipliers, state.picked_multipliers),
        )
        return state, Info(2, 1, 1, oracle.count_examples("objective", sample))

    def output(self, state: State) -> Float[Array, " n"]:
        return state.picked

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.picked_multipliers
