r"""Inexact augmented Lagrangian with a momentum method inside (Stoc-iALM: Li, Chen, Liu, Lu, Xu 2023).

Stochastic objective and constraints c(x) = 0, x in X; inequalities by slacks. [inner budget reconstructed]: the paper's number
of inner steps depends on constants that are unknown in practice; here it is T_j = T0 σ^{2j}. Round j = 0, 1, … has the penalty
β_j = β0 σ^j and minimizes the augmented Lagrangian by PStorm, t = 0, 1, …, T_j − 1, from the last point of the previous round:

    g_t(x) = ∇f(x, ξ⁰) + J(x, ζ¹)ᵀ(y + β_j c(x, ζ²)),  three independent samples at every t
    v_0 = g_0(x_0);   v_t = g_t(x_t) + (1 − b_{t−1})(v_{t−1} − g_t(x_{t−1}))
    x_{t+1} = P_X(x_t − a_t v_t)
    a_t = 4^{1/3}/(8 L_j) (t + 4)^{-1/3},   b_t = (1 + 24 a_t² L_j² − a_{t+1}/a_t)/(1 + 4 a_t² L_j²),   L_j = L_f + β_j L_c

and then takes a step in the multipliers, with ĉ = c(x_{T_j}, ζ³) on a sample of its own:

    y ← y + min{β_j, γ/‖ĉ‖} ĉ

Rounds follow from the step's number k: round j has the steps k with ⌈S_j⌉ < k ≤ ⌈S_{j+1}⌉, S_j = T_0 + … + T_{j−1}.

| symbol | name | symbol | name |
|---|---|---|---|
| x_t, x_{t−1}, v | `x`, `previous`, `gradient` | y, γ | `multipliers`, `max_dual_step` |
| β0, σ, T0 | `penalty`, `penalty_growth`, `inner_steps` | L_f, L_c | `smoothness`, `penalty_smoothness` |
| a, b | `step_size`, `weight` | ξ⁰, ζ¹, ζ², ζ³ | roles `objective`, `jacobian`, `value`, `dual` |

Guaranteed with the paper's inner budget: an ε-KKT point in O(ε^{-5}) samples if the Jacobian's rows stay independent.
Output: the last iterate, with the multipliers y.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..arguments import positive_int
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper
from .shared.constants import local_constants
from .shared.momentum import recursive_momentum
from .shared.penalty_gradient import PENALTY_ROLES, penalty_cost, penalty_gradient


class State(NamedTuple):
    """Iterates x_t and x_{t−1}, momentum, and multipliers."""

    x: Float[Array, " n"]
    previous: Float[Array, " n"]
    gradient: Float[Array, " n"]
    multipliers: Float[Array, " rows"]


class InexactALM(Method):
    """Rounds of growing length and penalty, with recursive momentum inside and a bounded multiplier step after each.

    Args:
        penalty: β0; None: 4 L_f/σ², with σ² the largest eigenvalue of JᵀJ at the start: normal to the feasible set it is four
            times as curved as the objective.
        penalty_growth: σ, the factor of the penalty from round to round; rounds grow by its square.
        max_dual_step: γ, the most that the multipliers move after a round; None: 10 ‖∇f‖/‖J‖ near the start. It is meant to
            stop divergence, not to shorten ordinary steps.
        smoothness: L_f, Lipschitz constant of ∇f; None: estimated near the start.
        penalty_smoothness: L_c, Lipschitz constant of the gradient of ½‖c‖²; None: estimated on the way to c = 0.
        inner_steps: T0, the steps of the first round.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.ones(2), tr.methods.InexactALM(), steps=20_000)
        >>> bool(abs(result.x @ result.x - 1.0) < 0.05)
        True
    """

    penalty: Hyper = hyper(None)
    penalty_growth: Hyper = hyper(2.0, low=1.0)
    max_dual_step: Hyper = hyper(None)
    smoothness: Hyper = hyper(None)
    penalty_smoothness: Hyper = hyper(None)
    inner_steps: int = eqx.field(default=100, static=True)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="slacks", needs="projection")
    reference: ClassVar[str] = "Li, Chen, Liu, Lu, Xu 2023 (Stoc-iALM) [inner budget reconstructed]"
    guarantee: ClassVar[str] = "ε-KKT in O(ε⁻⁵) samples if Jacobians keep full rank"
    cost: ClassVar[str] = "2 ∇f, 4 c (2 if exact), 2 Jᵀy; 1 more c after a round"

    def __check_init__(self) -> None:
        positive_int("InexactALM", "inner_steps", self.inner_steps)

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return PENALTY_ROLES | {"dual": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        flat = jnp.finfo(x.dtype).eps * s.step_smoothness  # without constraints: positive, without effect on L_j
        return self.with_defaults(
            penalty=4.0 * s.balanced_penalty,
            max_dual_step=10.0 * s.multiplier_size,
            smoothness=s.step_smoothness,
            penalty_smoothness=jnp.maximum(s.path_penalty_smoothness, flat),
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        return State(x, x, jnp.zeros_like(x), oracle.multipliers)

    def steps_before(self, j: Float[Array, ""]) -> Int[Array, ""]:
        """The number of steps before round j: ⌈S_j⌉ up to rounding, limited to an int32."""
        ratio = self.penalty_growth**2
        total = self.inner_steps * (ratio**j - 1.0) / (ratio - 1.0)
        return jnp.ceil(jnp.minimum(total * (1.0 - 4.0 * jnp.finfo(total.dtype).eps), 2e9)).astype(jnp.int32)

    def locate(self, k: Int[Array, ""]) -> tuple[Array, Array, Array]:
        """The round j and the inner step t of step k, and whether it is the last step of the round."""
        done, ratio = k - 1, self.penalty_growth**2
        guess = jnp.floor(jnp.log1p(done * (ratio - 1.0) / self.inner_steps) / jnp.log(ratio))  # rounding: off by one
        j = guess + (done >= self.steps_before(guess + 1.0)) - (done < self.steps_before(guess))
        return j, done - self.steps_before(j), k == self.steps_before(j + 1.0)

    def schedule(self, t: Float[Array, ""], smoothness: Float[Array, ""]) -> tuple[Array, Array]:
        """Step size a_t and momentum weight b_{t−1}, which is 1 at t = 0: v restarts."""
        step_size, previous = ((4.0 / (t + shift)) ** (1 / 3) / (8.0 * smoothness) for shift in (4.0, 3.0))
        square = (previous * smoothness) ** 2
        weight = (1.0 + 24.0 * square - step_size / previous) / (1.0 + 4.0 * square)
        return step_size, jnp.where(t == 0, 1.0, weight)

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, samples, y = state.x, draw.samples, state.multipliers
        j, t, last = self.locate(draw.k)
        penalty = self.penalty * self.penalty_growth**j
        step_size, weight = self.schedule(t.astype(x.dtype), self.smoothness + penalty * self.penalty_smoothness)
        _, here = penalty_gradient(oracle, x, samples, y, penalty)
        _, before = penalty_gradient(oracle, state.previous, samples, y, penalty)
        gradient = recursive_momentum(state.gradient, here, before, weight)
        new = oracle.project(x - step_size * gradient)
        multipliers = jax.lax.cond(last, lambda: self._ascend(y, penalty, oracle.c(new, samples["dual"])), lambda: y)
        cost = penalty_cost(oracle, samples, 2)
        dual = oracle.count_examples("constraints", samples["dual"])
        cost = cost._replace(constraint_values=cost.constraint_values + last, samples=cost.samples + dual * last)
        return State(new, x, gradient, multipliers), cost

    def _ascend(self, y: Array, penalty: Array, c: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """The multipliers after the step min{β, γ/‖c‖} c; β c if c = 0."""
        norm = jnp.linalg.norm(c)
        return y + jnp.where(norm * penalty > self.max_dual_step, self.max_dual_step / norm, penalty) * c

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.multipliers
