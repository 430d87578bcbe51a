r"""Cooperative stochastic approximation: switching subgradients with an averaged output (Lan, Zhou 2020).

min f(x), g(x) ≤ 0, x in X, all convex, with g the largest of all constraint rows; affine equalities enter as ±(Ax − b).
Algorithm 1 of the paper with its variable steps, for t = 1, 2, …:

    x_{t+1} = P_X(x_t − η_t ζ),   ζ a subgradient of f if ĝ(x_t) ≤ ε_t (then t joins B), of g otherwise
    η_t = step_size / √t,   ε_t = tolerance / √t

ĝ is the mean over a sample independent of the subgradient's, or over all data if these are few: its error has to be below
ε_t. `shared.switching` decides and computes ζ, as for `SwitchingSubgradient`; the difference is the output,

    x̄ = Σ η_t x_t / Σ η_t  over t in B with t − 1 ≥ K/2   (the x_t before the step)

| symbol | name | symbol | name |
|---|---|---|---|
| η_t | `step_size` | ε_t | `tolerance` |
| x̄ | `average` | Σ η_t over t in B | `weight` |

Guaranteed for convex f and g and bounded X: E f(x̄) − f* and E g(x̄) of order K^{-1/2}. If B stays empty, the output is the
last iterate and the result's message says so. Multipliers: steps along each row over the steps along f.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..arguments import positive_int
from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import local_constants
from .shared.switching import (
    default_step_and_tolerance,
    multipliers_from_steps,
    switching_roles,
    switching_subgradient,
)


class State(NamedTuple):
    """Iterate, the average so far with its weight, and the total step size along each row."""

    x: Float[Array, " n"]
    average: Float[Array, " n"]
    weight: Float[Array, ""]
    row_weights: Float[Array, " rows"]


class CooperativeApproximation(Method):
    """Step along the objective where a sample finds x nearly feasible, else along the worst constraint; average the former.

    Args:
        step_size: scale of η_t; None: D/M, with D the set's diameter, or max(1, ‖x‖) if that is smaller, and M the larger norm
            of the two gradients at the start.
        tolerance: scale of ε_t, the violation that counts as feasible; None: ½ MD.
        values: how g is evaluated for the decision if constraints have data: 'sampled', 'exact' (all data), or 'auto':
            'exact' if all data are data sets of at most 10,000 examples and no `value_batch_size` is given.
        value_batch_size: size of the deciding sample; None: the source's batch size.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(
        ...     lambda x: jnp.sum(jnp.abs(x - 1.0)), tr.at_most(jnp.sum, 1.0), domain=tr.domains.L2Ball(3.0)
        ... )
        >>> result = tr.solve(problem, jnp.zeros(2), tr.methods.CooperativeApproximation(), steps=2000)
        >>> bool(result.violation < 0.05)
        True
    """

    step_size: Hyper = hyper(None)
    tolerance: Hyper = hyper(None, closed="[")
    values: str = choice("auto", "auto", "sampled", "exact")
    value_batch_size: int | None = eqx.field(default=None, static=True)

    accepts: ClassVar[Accepts] = Accepts("affine", inequalities=True, stochastic=True, form="pairs", needs="projection")
    reference: ClassVar[str] = "Lan, Zhou 2020, Algorithm 1"
    guarantee: ClassVar[str] = "convex: objective gap and violation of the average at K^(-1/2)"
    cost: ClassVar[str] = "1 c, then 1 ∇f or 1 ∇g"

    def __check_init__(self) -> None:
        if self.value_batch_size is not None:
            positive_int("CooperativeApproximation", "value_batch_size", self.value_batch_size)

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return switching_roles(oracle, self.values, self.value_batch_size)

    def needs_beyond_batches(self, oracle: Oracle) -> str | None:
        return "values='exact' evaluates the constraints on all data" if self.values == "exact" else None

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        step_size, tolerance = default_step_and_tolerance(s, 1.0)
        return self.with_defaults(step_size=step_size, tolerance=tolerance)

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        return State(x, x, jnp.zeros((), x.dtype), jnp.zeros_like(oracle.multipliers))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x = state.x
        decay = jnp.sqrt(draw.k.astype(x.dtype))
        step_size = self.step_size / decay
        decision, direction, info = switching_subgradient(oracle, x, draw, self.tolerance / decay)
        new = oracle.project(x - step_size * direction)
        recorded = jnp.where(2 * (draw.k - 1) >= draw.steps, step_size, 0.0)
        share = jnp.where(decision.feasible, recorded, 0.0)
        weight = state.weight + share
        state = State(
            new,
            state.average + share / positive_or_one(weight) * (x - state.average),
            weight,
            state.row_weights + (recorded - share) * decision.worst,
        )
        return state, info

    def output(self, state: State) -> Float[Array, " n"]:
        return jnp.where(state.weight > 0, state.average, state.x)

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return multipliers_from_steps(state.row_weights, state.weight)

    def note(self, state: State) -> str | None:
        if state.weight > 0:
            return None
        return "no iterate in the second half was nearly feasible; the output is the last iterate"
