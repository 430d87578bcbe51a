"""Full passes over finite data: when they are due, and what they teach.

A pass makes the estimates exact, as the snapshots of SVRG do (Johnson and Zhang, NeurIPS 2013). It also shows the true penalty
function, and with it errors that the noise filter cannot see: errors of Ĵ add up along steps that the same Ĵ has chosen.
Where the penalty function rises from one pass to the next, by more than rounding, κ ← 2κ; else κ ← max(0.9κ, 1). The
least damping is multiplied by κ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...oracles.oracle import Oracle, Sample
from ...oracles.rows import Rows
from ...problems.data import Dataset
from ..base import Info
from .constants import FALL_FACTOR, MAX_PASS_EXAMPLES, PASS_COST, REDUCTION_ROUNDING, RISE_FACTOR


class FullPass(NamedTuple):
    """Objective and rows on all data at the last full pass, and the factor κ ≥ 1 of the least damping."""

    objective: Float[Array, ""]
    value: Float[Array, " rows"]
    damping_factor: Float[Array, ""]

    @classmethod
    def none(cls, value: Float[Array, " rows"]) -> FullPass:
        """Return the record before the first pass; that one cannot be a rise."""
        return cls(jnp.asarray(jnp.inf, value.dtype), jnp.zeros_like(value), jnp.ones((), value.dtype))

    def update(
        self, objective: Float[Array, ""], value: Float[Array, " rows"], penalty: Float[Array, " rows"], rows: Rows
    ) -> FullPass:
        """Return the record of the next pass."""
        before = self.objective + penalty @ rows.violation(self.value)
        now = objective + penalty @ rows.violation(value)
        rounding = REDUCTION_ROUNDING * jnp.finfo(value.dtype).eps * (jnp.abs(objective) + penalty @ jnp.abs(value))
        lower = jnp.maximum(FALL_FACTOR * self.damping_factor, 1.0)
        factor = jnp.where(now > before + rounding, RISE_FACTOR * self.damping_factor, lower)
        return FullPass(objective, value, factor)


def full_pass_period(oracle: Oracle) -> int | None:
    """Return the number of steps from one full pass to the next; None where the data are endless or too many, or none."""
    sources = [s for s in oracle.sources if isinstance(s, Dataset) and s.size <= MAX_PASS_EXAMPLES]
    if not sources or len(sources) < len(oracle.sources):
        return None
    return max(-(-s.size // (PASS_COST * s.batch_size)) for s in sources)


class Passes(NamedTuple):
    """The cost of the full passes of a step: how many (0 or 1), and the examples they read."""

    done: Int[Array, ""] | int = 0
    examples: Int[Array, ""] | int = 0

    def cost(self, oracle: Oracle, sample: Sample, values: int) -> Info:
        """Return the cost of a step on a sample: gradients and Jacobians at two points, and `values` of the rows."""
        examples = oracle.count_examples("both", sample) + self.examples
        return Info(2 + self.done, values + self.done, 2 + self.done, examples)


def refresh(
    oracle: Oracle, state: Any, on_all_data: Callable[[Sample], tuple[Array, Array, Any]], k: Int[Array, ""]
) -> tuple[Any, Passes]:
    """Return the state with exact estimates where a pass is due at step k, and the cost.

    `on_all_data` returns the objective, the rows and the estimates at x on a sample.
    """
    period = full_pass_period(oracle)
    if period is None:
        return state, Passes()
    everything, due = oracle.everything(), (k - 1) % period == 0
    last_pass, penalty = state.tuning.last_pass, state.tuning.penalty

    def full() -> tuple[Any, FullPass]:
        objective, value, exact = on_all_data(everything)
        return exact, last_pass.update(objective, value, penalty, oracle.rows)

    estimates, last_pass = jax.lax.cond(due, full, lambda: (state.estimates, last_pass))
    noise = tuple(n._replace(error=jnp.where(due, 0.0, n.error)) for n in state.noise)
    state = state._replace(estimates=estimates, noise=noise, tuning=state.tuning._replace(last_pass=last_pass))
    done = due.astype(jnp.int32)
    return state, Passes(done, done * oracle.count_examples("both", everything))
