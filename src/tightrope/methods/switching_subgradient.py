r"""Switching subgradients for non-smooth, weakly convex problems (Huang, Lin 2023).

min f(x), g(x) ≤ 0, x in X, with g the largest of all constraint rows; affine equalities enter as ±(Ax − b) (Remark A.2).

    x_{t+1} = P_X(x_t − η_t ζ),   ζ a subgradient of f where g(x_t) ≤ ε_t (t joins I), of g elsewhere (t joins J)

Only the subgradient that is used is computed. Rules:

    static (4.3, case I):       ε_t = E1, η_t = E2                                       recording from S = 0
    diminishing (case II):      ε_t = E1/√(t+1), η_t = E2/√(t+1)                          recording from S = T/2
    switching (Prop. 5.5):      ε_t = E1; η_t = E2 on I, Polyak's g(x_t)/‖ζ_g‖² on J        recording from S = 0

| symbol | name | symbol | name |
|---|---|---|---|
| E1, ε_t | `tolerance` | η_t, E2 | `step_size` |
| ζ | `direction` | Σ η over recorded t | `weight` |

Of several rows the largest at the deciding sample is the one to step along: its subgradient on the other sample is
then unbiased, which that of the largest row on its own sample is not. Where constraints have data, the value that decides
is the mean over a sample drawn independently of the subgradients'
(Algorithm 2, whose else-branch adds t to J, not to I as printed); `values='exact'` passes over all data instead (A.6).

Output I is an x_t with t in I, Output II with t in I ∪ J, each with probability ∝ η_t over recorded t, kept on line: x_t
replaces the pick with probability η_t / Σ_{recorded ≤ t} η. Where I stays empty the iterate with the least g is returned.
Multipliers: Σ_{t in J, row i the largest} η_t / Σ_{t in I} η_t, the weights that make the recorded steps add up to zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..data import positive_int
from ..estimators import scales
from ..oracle import Oracle
from ..schedules import picks
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper


class State(NamedTuple):
    """What the next step needs, the sampled output and the least violated iterate."""

    x: Float[Array, " n"]
    picked: Float[Array, " n"]
    weight: Float[Array, ""]
    objective_weight: Float[Array, ""]
    row_weights: Float[Array, " rows"]
    least: Float[Array, " n"]
    least_value: Float[Array, ""]


class SwitchingSubgradient(Method):
    """Step along the objective's subgradient where x is nearly feasible, along the worst constraint's elsewhere.

    Args:
        step_size: E2; None: estimated at the start, as is `tolerance`.
        tolerance: E1, the violation that counts as feasible.
        rule: 'diminishing', 'static' or 'switching'.
        output_rule: 'I' (nearly feasible iterates) or 'II' (all).
        values: 'sampled' or 'exact': how the value of g that decides is found where constraints have data.
        value_batch: rows of the sample that decides; None: the source's batch size.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(
        ...     lambda x: jnp.sum(jnp.abs(x - 1.0)), tr.at_most(jnp.sum, 1.0), domain=tr.domains.L2Ball(3.0)
        ... )
        >>> result = tr.solve(problem, jnp.zeros(2), tr.methods.SwitchingSubgradient(), steps=2000)
        >>> bool(result.violation < 0.05)
        True
    """

    step_size: Hyper = hyper(None)
    tolerance: Hyper = hyper(None, strict=False)
    rule: str = choice("diminishing", "diminishing", "static", "switching")
    output_rule: str = choice("I", "I", "II")
    values: str = choice("sampled", "sampled", "exact")
    value_batch: int | None = eqx.field(default=None, static=True)

    accepts: ClassVar[Accepts] = Accepts("affine", inequalities=True, stochastic=True, form="pairs", needs="projection")
    reference: ClassVar[str] = "Huang, Lin 2023, Algorithms 1 and 2"
    guarantee: ClassVar[str] = "nearly ε-stationary and ε²-feasible in O(ε⁻⁴) steps; f, g weakly convex, non-smooth"
    cost: ClassVar[str] = "1 c, then 1 ∇f or 1 ∇g"

    def __check_init__(self) -> None:
        if self.value_batch is not None:
            positive_int("SwitchingSubgradient", "value_batch", self.value_batch)

    @property
    def uses_horizon(self) -> bool:
        return self.rule != "diminishing" and (self.step_size is None or self.tolerance is None)

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"subgradient": None} | ({"value": self.value_batch} if self.values == "sampled" else {})

    def fill(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        if all(value is not None for value in (self.step_size, self.tolerance)):
            return self
        s = scales(oracle, x, draw.samples["subgradient"], draw.key)
        largest = jnp.maximum(s.gradient, s.constraint_gradient)
        horizon = 1.0 if self.rule == "diminishing" else jnp.sqrt(draw.steps.astype(x.dtype))
        return replace(
            self,
            step_size=s.length / (largest * horizon) if self.step_size is None else self.step_size,
            tolerance=0.5 * s.length * largest / horizon if self.tolerance is None else self.tolerance,
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        zero = jnp.zeros((), x.dtype)
        return State(x, x, zero, zero, jnp.zeros_like(oracle.multipliers), x, jnp.asarray(jnp.inf, x.dtype))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, sample = state.x, draw.samples["subgradient"]
        decay = jnp.sqrt(draw.k.astype(x.dtype)) if self.rule == "diminishing" else 1.0  # k = t + 1
        deciding = draw.samples["value"] if self.values == "sampled" else oracle.everything()
        rows = oracle.c(x, deciding)
        value = jnp.max(rows, initial=-jnp.inf)
        feasible = value <= self.tolerance / decay
        worst = jnp.zeros_like(rows).at[jnp.argmax(rows)].set(1.0) if rows.size else rows
        direction = jax.lax.cond(feasible, lambda: oracle.grad(x, sample), lambda: oracle.vjp(x, sample)[1](worst))
        step_size = self.step_size / decay
        if self.rule == "switching":
            square = direction @ direction
            polyak = jnp.where(square > 0, value / jnp.where(square > 0, square, 1.0), 0.0)  # a zero subgradient: stay
            step_size = jnp.where(feasible, step_size, polyak)
        new = oracle.project(x - step_size * direction)
        state = self._record(state, draw, step_size, feasible, worst, value)
        info = Info(
            feasible.astype(jnp.int32),
            1 + (~feasible).astype(jnp.int32),
            (~feasible).astype(jnp.int32),
            oracle.count(deciding, objective=False, constraints=True)
            + jnp.where(
                feasible,
                oracle.count(sample, objective=True, constraints=False),
                oracle.count(sample, objective=False, constraints=True),
            ),
        )
        return state._replace(x=new), info

    def _record(self, state: State, draw: Draw, step_size: Hyper, feasible: Array, worst: Array, value: Array) -> State:
        """The on-line sampling of Outputs I and II over the pre-step x_t, t ≥ S; before S all weights are zero."""
        x = state.x
        recorded = 2 * (draw.k - 1) >= draw.steps if self.rule == "diminishing" else jnp.bool_(True)
        on_objective, on_constraints = jnp.where(feasible, step_size, 0.0), jnp.where(feasible, 0.0, step_size)
        chosen = on_objective if self.output_rule == "I" else on_objective + on_constraints
        weight = jnp.where(recorded, state.weight + chosen, 0.0)
        take = recorded & picks(draw.uniform, chosen, weight)
        less = value < state.least_value
        return State(
            x,
            jnp.where(take, x, state.picked),
            weight,
            jnp.where(recorded, state.objective_weight + on_objective, 0.0),
            jnp.where(recorded, state.row_weights + on_constraints * worst, 0.0),
            jnp.where(less, x, state.least),
            jnp.where(less, value, state.least_value),
        )

    def output(self, state: State) -> Float[Array, " n"]:
        return jnp.where(state.weight > 0, state.picked, state.least)

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        total = state.objective_weight
        return jnp.where(total > 0, state.row_weights / jnp.where(total > 0, total, 1.0), 0.0)

    def remark(self, state: State) -> str | None:
        if state.weight > 0:
            return None
        return "no recorded iterate was nearly feasible: the output is the one with the least violation"
