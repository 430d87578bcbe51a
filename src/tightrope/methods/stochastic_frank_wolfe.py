r"""Stochastic Frank-Wolfe with averaged gradients (SCGD: Mokhtari, Hassani, Karbasi 2020), constraints as a weighted sum.

min E f(x, θ) + τ Σ_i E g_i(x, θ) over a set X that only has to minimize linear functions; no projection:

    d_t     = (1 − ρ_t) d_{t−1} + ρ_t (∇f(x_t, θ_t) + τ Σ_i ∇g_i(x_t, θ_t)),   d_0 = 0,   ρ_t = 4/(t + 8)^{2/3}
    s_t     = argmin ⟨d_t, s⟩ over s in X
    x_{t+1} = x_t + γ_t (s_t − x_t),   γ_t = 2/(t + 8)

| symbol | name | symbol | name |
|---|---|---|---|
| d | `direction` | τ | `penalty` |

Smooth and convex: F + τ ΣG at T^{-1/3}. The weight τ is a fixed multiplier of every row and nothing enforces the constraints:
this is a baseline for projection-free methods.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper
from .shared.momentum import polyak_momentum


class State(NamedTuple):
    """Iterate and averaged gradient."""

    x: Float[Array, " n"]
    direction: Float[Array, " n"]


class StochasticFrankWolfe(Method):
    """Move toward the point of X that is best for an average of past gradients.

    Args:
        penalty: τ, the weight of every constraint row; None: a tenth of the norm of ∇f over that of Σ∇g_i at the start.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> target = jnp.array([0.2, 0.5, 0.3])
        >>> problem = tr.Problem(lambda x: jnp.sum((x - target) ** 2), domain=tr.domains.Simplex())
        >>> result = tr.solve(problem, jnp.ones(3) / 3, tr.methods.StochasticFrankWolfe(), steps=2000)
        >>> bool(jnp.abs(result.x - target).max() < 0.01)
        True
    """

    penalty: Hyper = hyper(None, closed="[")

    accepts: ClassVar[Accepts] = Accepts("none", inequalities=True, stochastic=True, form="native", needs="lmo")
    reference: ClassVar[str] = "Mokhtari, Hassani, Karbasi 2020, Algorithm 1; constraints as Akhtar, Bedi, Rajawat 2021"
    guarantee: ClassVar[str] = "smooth, convex: objective plus weighted constraints at K^(-1/3); no feasibility"
    cost: ClassVar[str] = "1 ∇f, 1 c, 1 Jᵀy, 1 linear minimization"

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"joint": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        sample = draw.samples["joint"]
        rows, pullback = oracle.vjp(x, sample)
        objective, constraints = (jnp.linalg.norm(v) for v in (oracle.grad(x, sample), pullback(jnp.ones_like(rows))))
        known = (objective > 0) & (constraints > 0)
        return self.with_defaults(penalty=jnp.where(known, 0.1 * objective / jnp.where(known, constraints, 1.0), 1.0))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        return State(x, jnp.zeros_like(x))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, sample = state.x, draw.samples["joint"]
        later = draw.k.astype(x.dtype) + 8.0
        rows, pullback = oracle.lagrangian_vjp(x, sample)
        gradient = pullback(self.penalty * jnp.ones_like(rows))
        direction = polyak_momentum(state.direction, gradient, 4.0 * later ** (-2 / 3))
        new = x + 2.0 / later * (oracle.lmo(direction) - x)
        return State(new, direction), Info(1, 1, 1, oracle.count_examples("both", sample))
