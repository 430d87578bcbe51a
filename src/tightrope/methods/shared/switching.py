"""Switching between the objective and the worst constraint: which one a subgradient step follows.

With g the largest constraint row, a step at x follows a subgradient of the objective where g(x) ≤ tolerance, and one of g
elsewhere. Only the subgradient that is used is computed. The value of g is taken on a *deciding* sample, independent of the
subgradient's sample, or on all data. The largest row on the deciding sample is the one whose subgradient is taken: on the
other sample that subgradient is unbiased, which the subgradient of that sample's own largest row is not.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample
from ...problems.data import Dataset
from ..base import Draw, Info
from .constants import LocalConstants

FEW_EXAMPLES = 10_000
"""Largest data set that is evaluated in full at every step; for long runs Theorem A.14 of Huang, Lin 2023 asks for more."""


class Decision(NamedTuple):
    """The outcome of the test g(x) ≤ tolerance.

    Attributes:
        feasible: whether x passed, so that the step follows the objective.
        value: g(x), the largest row.
        worst: the unit vector of that row.
    """

    feasible: Bool[Array, ""]
    value: Float[Array, ""]
    worst: Float[Array, " rows"]


def switching_roles(oracle: Oracle, values: str, value_batch_size: int | None) -> dict[str, int | None]:
    """The subgradient's sample and the deciding one; only the former where all data decide."""
    few = all(isinstance(source, Dataset) and source.size <= FEW_EXAMPLES for source in oracle.sources)
    exact = values == "exact" or (values == "auto" and value_batch_size is None and few)
    return {"subgradient": None} if exact else {"subgradient": None, "value": value_batch_size}


def switching_subgradient(
    oracle: Oracle, x: Float[Array, " n"], draw: Draw, tolerance: Array | float
) -> tuple[Decision, Float[Array, " n"], Info]:
    """The decision at x, the subgradient it selects, and their cost."""
    sample = draw.samples["subgradient"]
    deciding = draw.samples["value"] if "value" in draw.samples else oracle.everything()
    decision = _decide(oracle, x, deciding, tolerance)
    direction = jax.lax.cond(
        decision.feasible, lambda: oracle.grad(x, sample), lambda: oracle.vjp(x, sample)[1](decision.worst)
    )
    direction = jnp.where(decision.value < jnp.inf, direction, jnp.nan)  # no decision: the step is undefined
    return decision, direction, _cost(oracle, deciding, sample, decision)


def default_step_and_tolerance(s: LocalConstants, root: Array | float) -> tuple[Array, Array]:
    """Step size D/(M · root) and tolerance ½ MD/root, with D the length scale and M the larger gradient norm.

    `root` is √steps for constant steps and 1 for steps that shrink like 1/√t themselves.
    """
    largest = jnp.maximum(s.gradient_norm, s.jacobian_norm)
    return s.length / (largest * root), 0.5 * s.length * largest / root


def multipliers_from_steps(
    row_weights: Float[Array, " rows"], objective_weight: Float[Array, ""]
) -> Float[Array, " rows"]:
    """Multipliers: the total step size along each row over that along the objective; 0 if there was none of the latter."""
    return jnp.where(objective_weight > 0, row_weights / positive_or_one(objective_weight), 0.0)


def _decide(oracle: Oracle, x: Float[Array, " n"], deciding: Sample, tolerance: Array | float) -> Decision:
    rows = oracle.c(x, deciding)
    value = jnp.max(rows, initial=-jnp.inf)
    worst = jnp.zeros_like(rows).at[jnp.argmax(rows)].set(1.0) if rows.size else rows
    return Decision(value <= tolerance, value, worst)


def _cost(oracle: Oracle, deciding: Sample, sample: Sample, decision: Decision) -> Info:
    on_objective, on_constraints = decision.feasible.astype(jnp.int32), (~decision.feasible).astype(jnp.int32)
    return Info(
        on_objective,
        1 + on_constraints,
        on_constraints,
        oracle.count_examples("constraints", deciding)
        + on_objective * oracle.count_examples("objective", sample)
        + on_constraints * oracle.count_examples("constraints", sample),
    )
