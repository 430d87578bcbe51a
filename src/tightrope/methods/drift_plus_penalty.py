r"""Drift plus penalty for expectation constraints (G-OCO: Yu, Neely, Wei 2017).

min E f(x, θ), E g(x, θ) ≤ 0, x in X, all convex. Each row has a queue Q that accumulates its violation:

    d       = V ∇f(x_t, θ_t) + Σ_k Q_{k,t} ∇g_k(x_t, θ_t)
    x_{t+1} = P_X(x_t − d / (2α))
    Q_{t+1} = max{Q_t + g(x_t, θ_t) + ∇g(x_t, θ_t)ᵀ(x_{t+1} − x_t), 0}
    α = proximal_weight · T,   V = objective_weight · √T

| symbol | name | symbol | name |
|---|---|---|---|
| Q | `queues` | V/√T | `objective_weight` |
| Q/V | `multipliers` | α/T | `proximal_weight` |

Convex: objective gap and violation of the mean of x_1 … x_T are of order T^{-1/2}. The mean may violate the constraints.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper
from .shared.constants import local_constants


class State(NamedTuple):
    """Iterate, queues, the multipliers Q/V (kept because V depends on the horizon), and the average so far."""

    x: Float[Array, " n"]
    queues: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    average: Float[Array, " n"]


class DriftPlusPenalty(Method):
    """Weigh the objective against queues of accumulated violation.

    Hyperparameters that are None are estimated at the start from the length D to go, the norm G of ∇f, the norm J of the
    Jacobian and the norm h of the rows. They make the step of the objective alone V/(2α) = D/(G√T), and the step of the
    multipliers Q/V, which should reach Λ = G/J, 1/V = Λ/(h√T).

    Args:
        proximal_weight: scale of α; None: `objective_weight` · G/(2D).
        objective_weight: scale of V; None: h/Λ.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(
        ...     lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0), domain=tr.domains.Box(-2.0, 2.0)
        ... )
        >>> result = tr.solve(problem, jnp.zeros(2), tr.methods.DriftPlusPenalty(), steps=5000)
        >>> bool(result.violation < 0.05)
        True
    """

    proximal_weight: Hyper = hyper(None)
    objective_weight: Hyper = hyper(None)

    accepts: ClassVar[Accepts] = Accepts("none", inequalities=True, stochastic=True, form="native", needs="projection")
    reference: ClassVar[str] = "Yu, Neely, Wei 2017, Algorithm 1"
    guarantee: ClassVar[str] = "convex: objective and violation of the average at K^(-1/2)"
    cost: ClassVar[str] = "1 ∇f, 1 c, 1 J (for Jᵀy and Jd)"

    @property
    def uses_horizon(self) -> bool:
        return True

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"joint": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        jacobian = jnp.maximum(s.jacobian_norm, 0.1 * s.length * s.jacobian_smoothness)
        expected = (s.constraint_norm + s.constraint_noise) * jacobian / s.gradient_norm
        method = self.with_defaults(objective_weight=positive_or_one(expected))
        return method.with_defaults(
            proximal_weight=method.objective_weight * (s.gradient_norm + s.gradient_noise) / (2.0 * s.length)
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        weight = self.objective_weight * jnp.sqrt(steps.astype(x.dtype))
        return State(x, weight * oracle.multipliers, oracle.multipliers, x)

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, queues, sample = state.x, state.queues, draw.samples["joint"]
        steps = draw.steps.astype(x.dtype)
        proximal, weight = self.proximal_weight * steps, self.objective_weight * jnp.sqrt(steps)
        values, pullback = jax.vjp(lambda point: oracle.value_and_rows(point, sample), x)
        (direction,) = pullback(jnp.concatenate([weight[None], queues]))
        new = oracle.project(x - direction / (2.0 * proximal))
        (changes,) = jax.linear_transpose(pullback, values)((new - x,))  # with the rows J (x_{t+1} − x_t)
        queues = jnp.maximum(queues + (values + changes)[1:], 0.0)
        average = state.average + (x - state.average) / draw.k.astype(x.dtype)
        return State(new, queues, queues / weight, average), Info(1, 1, 1, oracle.count_examples("both", sample))

    def output(self, state: State) -> Float[Array, " n"]:
        return state.average

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.multipliers
