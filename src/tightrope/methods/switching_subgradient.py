r"""Switching subgradients for non-smooth, weakly convex problems (Huang, Lin 2023).

min f(x), g(x) ≤ 0, x in X, with g the largest of all constraint rows; affine equalities enter as ±(Ax − b) (Remark A.2).

    x_{t+1} = P_X(x_t − η_t ζ),   ζ a subgradient of f if g(x_t) ≤ ε_t (t joins I), of g otherwise (t joins J)

Only the subgradient that is used is computed. Rules:

    static (4.3, case I):       ε_t = E1, η_t = E2                                       recording from S = 0
    diminishing (case II):      ε_t = E1/√(t+1), η_t = E2/√(t+1)                          recording from S = T/2
    switching (Prop. 5.5):      ε_t = E1; η_t = E2 on I, Polyak's g(x_t)/‖ζ_g‖² on J        recording from S = 0
    strongly_convex (A.10, II): ε_t = 0, η_t = E2/√(t+1)                                  recording from S = T/2
    unbounded (Prop. A.18):     ε_t = E1; η_t = E2 on I, polyak_factor · g(x_t)/‖ζ_g‖² on J recording from S = 0

The first two are for convex g and bounded X, 'switching' for weakly convex g from a feasible start, 'strongly_convex' for
strongly convex g, 'unbounded' for convex g with a bounded feasible set in an unbounded X, from a feasible start. Case I of
Theorem A.10 is `rule='static', tolerance=0, output_rule='II'`.

| symbol | name | symbol | name |
|---|---|---|---|
| E1, ε_t | `tolerance` | η_t, E2 | `step_size` |
| ζ | `direction` | Σ η over recorded t | `weight` |
| ν'/(2M), ν' = −g(x_feas)/D | `polyak_factor` | | |

`shared.switching` says how the value of g and its subgradient are sampled (Algorithm 2, whose else-branch adds t to J, not to I
as printed); `values='exact'` evaluates all data instead (A.6). Theorem A.14 asks for B ~ T σ²/(MD)² examples in the deciding
sample, because its error has to be below ε_t. A smaller data set is better evaluated in full, and `values='auto'` does so up to
10,000 examples. With a smaller sample, such as one batch of an endless source, g(x_t) for t in I is below ε_t plus that
sample's error only.

Output I is an x_t with t in I, Output II one with t in I ∪ J, each with probability ∝ η_t over recorded t, by reservoir
sampling: x_t replaces the pick with probability η_t / Σ_{recorded ≤ t} η. Output II belongs to 'switching' and
'strongly_convex', Output I to the other rules. If nothing can be picked (Output I: I stays empty), the output is the iterate
with the least g. Multipliers: Σ_{t in J, row i the largest} η_t / Σ_{t in I} η_t, the weights with which the recorded steps add
up to zero.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from ..arguments import positive_int
from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import local_constants
from .shared.schedules import reservoir_replaces
from .shared.switching import (
    Decision,
    default_step_and_tolerance,
    multipliers_from_steps,
    switching_roles,
    switching_subgradient,
)


class State(NamedTuple):
    """Iterate, the sampled output with its total weight, total step sizes, and the iterate with the least g.

    `objective_weight` and `row_weights` are the recorded step sizes along the objective and along each row.
    """

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
        step_size: E2; None: D/M, divided by √steps if it stays constant, with D the set's diameter, or max(1, ‖x‖) if that is
            smaller, and M the larger norm of the two gradients at the start.
        tolerance: E1, the violation that counts as feasible; None: ½ MD, divided by √steps if it stays constant. Under
            'strongly_convex' it is 0 and cannot be set.
        rule: 'diminishing', 'static', 'switching', 'strongly_convex' or 'unbounded'.
        output_rule: 'I' (nearly feasible iterates), 'II' (all iterates) or 'auto': the one in the rule's theorem.
        values: how g is evaluated for the decision if constraints have data: 'sampled', 'exact' (all data), or 'auto':
            'exact' if all data are data sets of at most 10,000 examples and no `value_batch_size` is given.
        value_batch_size: size of the deciding sample; None: the source's batch size.
        polyak_factor: the factor of Polyak's step under 'unbounded', at most ½ in theory; None: −g(x0)/(2MD), with x0 as
            the Slater point, clipped to [0.1, 0.5].

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
    tolerance: Hyper = hyper(None, closed="[")
    rule: str = choice("diminishing", "diminishing", "static", "switching", "strongly_convex", "unbounded")
    output_rule: str = choice("auto", "auto", "I", "II")
    values: str = choice("auto", "auto", "sampled", "exact")
    value_batch_size: int | None = eqx.field(default=None, static=True)
    polyak_factor: Hyper = hyper(None, high=2.0)

    accepts: ClassVar[Accepts] = Accepts("affine", inequalities=True, stochastic=True, form="pairs", needs="projection")
    reference: ClassVar[str] = "Huang, Lin 2023, Algorithms 1 and 2"
    guarantee: ClassVar[str] = "nearly ε-stationary and ε²-feasible in O(ε⁻⁴) steps; f, g weakly convex, non-smooth"
    cost: ClassVar[str] = "1 c, then 1 ∇f or 1 ∇g"

    def __check_init__(self) -> None:
        if self.value_batch_size is not None:
            positive_int("SwitchingSubgradient", "value_batch_size", self.value_batch_size)
        fixed = isinstance(self.rule, str) and self.rule == "strongly_convex" and self.tolerance is not None
        if fixed and not isinstance(self.tolerance, Tracer) and np.any(np.asarray(self.tolerance) != 0):
            raise ValueError(
                "SwitchingSubgradient: tolerance must be 0 under rule='strongly_convex' (Theorem A.10), "
                f"got {self.tolerance}; omit it, or use rule='diminishing'"
            )

    @property
    def uses_horizon(self) -> bool:
        return not self._diminishing and (self.step_size is None or self.tolerance is None)

    @property
    def _rule_hyperparameters(self) -> tuple[str, ...]:
        """The names of the numbers that the rule uses."""
        if self.rule == "strongly_convex":
            return ("step_size",)
        return ("step_size", "tolerance", "polyak_factor") if self.rule == "unbounded" else ("step_size", "tolerance")

    @property
    def _diminishing(self) -> bool:
        return self.rule in ("diminishing", "strongly_convex")

    @property
    def _samples_all(self) -> bool:
        """Whether the output is Output II, sampled from all iterates."""
        return self.output_rule == "II" or (
            self.output_rule == "auto" and self.rule in ("switching", "strongly_convex")
        )

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return switching_roles(oracle, self.values, self.value_batch_size)

    def needs_beyond_batches(self, oracle: Oracle) -> str | None:
        return "values='exact' evaluates the constraints on all data" if self.values == "exact" else None

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        sample = draw.samples["subgradient"]
        s = local_constants(oracle, x, draw.key)
        step_size, tolerance = default_step_and_tolerance(
            s, 1.0 if self._diminishing else jnp.sqrt(draw.steps.astype(x.dtype))
        )
        steepness = -jnp.max(oracle.c(x, sample), initial=-jnp.inf) / s.length
        polyak_factor = jnp.clip(0.5 * steepness / jnp.maximum(s.gradient_norm, s.jacobian_norm), 0.1, 0.5)
        found = {"step_size": step_size, "tolerance": tolerance, "polyak_factor": polyak_factor}
        return self.with_defaults(**{name: found[name] for name in self._rule_hyperparameters})

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        zero = jnp.zeros((), x.dtype)
        return State(x, x, zero, zero, jnp.zeros_like(oracle.multipliers), x, jnp.asarray(jnp.inf, x.dtype))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x = state.x
        decay = jnp.sqrt(draw.k.astype(x.dtype)) if self._diminishing else 1.0  # k = t + 1
        tolerance = 0.0 if self.rule == "strongly_convex" else self.tolerance / decay
        decision, direction, info = switching_subgradient(oracle, x, draw, tolerance)
        step_size = self.step_size / decay
        if self.rule in ("switching", "unbounded"):
            square = direction @ direction
            polyak = jnp.where(square > 0, decision.value / positive_or_one(square), 0.0)  # zero subgradient: no step
            factor = self.polyak_factor if self.rule == "unbounded" else 1.0
            step_size = jnp.where(decision.feasible, step_size, factor * polyak)
        new = oracle.project(x - step_size * direction)
        state = self._record(state, draw, step_size, decision)
        return state._replace(x=new), info

    def _record(self, state: State, draw: Draw, step_size: Hyper, decision: Decision) -> State:
        """Reservoir sampling of Outputs I and II over the x_t before each step, t ≥ S; before S all weights are zero."""
        x, (feasible, value, worst) = state.x, decision
        recorded = 2 * (draw.k - 1) >= draw.steps if self._diminishing else jnp.bool_(True)
        on_objective, on_constraints = jnp.where(feasible, step_size, 0.0), jnp.where(feasible, 0.0, step_size)
        chosen = on_objective + on_constraints if self._samples_all else on_objective
        weight = jnp.where(recorded, state.weight + chosen, 0.0)
        take = recorded & reservoir_replaces(draw.uniform, chosen, weight)
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
        return multipliers_from_steps(state.row_weights, state.objective_weight)

    def note(self, state: State) -> str | None:
        if state.weight > 0:
            return None
        return "no recorded iterate was nearly feasible; the output is the one with the least violation"
