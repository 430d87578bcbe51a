"""Steering: how penalties are raised, after Byrd, Nocedal and Waltz.

The restoration step ignores the objective, and its penalties are very large: it shows how much of the violation a step can
remove. If the model's step removes less than a share of what a restoration step of the same length would, penalties are
raised and the model is solved again.

Candidates are the rows at the limit of their penalty, |y_i| = ρ_i. Among them those with the lowest scaled penalties ρ_i‖∇h_i‖
are raised, to a common level. So rows that exclude each other end with equal scaled penalties, at the least sum of
violations; raised each from its own level, they would take turns forever. Violations are added up in units of the rows'
gradients: weighted by the penalties instead, a violation moved to a row with a low penalty would count as progress.

‖∇h_i‖ is the largest so far, in both. If penalties were equal in other units than those in which violations are added up, the
restoration step would gain by moving violation from one row to another where the model's step, with equal penalties, does
not: penalties of rows that compete would be raised forever, all alike and to no effect.

Where no step leads nearer to the constraints, no penalty is raised. This is so if the restoration step removes next to
nothing of the linearized violation; or if the model's step removes next to nothing, and the rows themselves, evaluated
after parts of the restoration step, show no progress either.

Reference:
    R. H. Byrd, J. Nocedal and R. A. Waltz. Steering exact penalty methods for nonlinear programming. Optimization Methods
    and Software 23, 2008.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ...numerics.scaling import positive_or_one
from ...oracles.rows import Rows
from .constants import (
    MAX_SUBPROBLEMS,
    NEGLIGIBLE_SAMPLED_SHARE,
    NEGLIGIBLE_SHARE,
    RAISE_FACTOR,
    RESTORATION_EXPONENT,
    RESTORATION_FACTOR,
    VIOLATION_ROUNDING,
)
from .model import ModelStep, PenaltyModel, Steering
from .tuning import Tuning


class Violation(NamedTuple):
    """The violation before a step, with the unit in which rows are added up."""

    rows: Rows
    before: Float[Array, " rows"]
    weights: Float[Array, " rows"]
    total: Float[Array, ""]
    rounding: Float[Array, " rows"]

    @classmethod
    def of(cls, model: PenaltyModel) -> Violation:
        """Return the violation at x."""
        rows, value = model.oracle.rows, model.value
        before, weights = rows.violation(value), 1.0 / positive_or_one(model.largest_row_norm)
        rounding = VIOLATION_ROUNDING * jnp.finfo(value.dtype).eps * jnp.abs(value)
        return cls(rows, before, weights, weights @ before, rounding)

    def removed(self, value: Float[Array, " rows"]) -> Float[Array, ""]:
        """Return by how much the sum of violations is smaller at these rows."""
        return self.weights @ (self.before - self.rows.violation(value))


class Restoration(NamedTuple):
    """The restoration step: its multipliers, Jd, dᵀMd, whether it is nearly solved for, and whether it is of no use."""

    multipliers: Float[Array, " rows"]
    change: Float[Array, " rows"]
    square: Float[Array, ""]
    solved: Bool[Array, ""]
    useless: Bool[Array, ""]

    @classmethod
    def none(cls, model: PenaltyModel) -> Restoration:
        """Return the restoration step before it is found, or where nothing is violated."""
        zero, false = jnp.zeros_like(model.value), jnp.bool_(False)
        return cls(zero, zero, jnp.ones((), zero.dtype), false, false)


class Subproblem(NamedTuple):
    """The model with a weight of the objective and with penalties, and the multipliers from which it is solved."""

    weight: Float[Array, ""]
    penalty: Float[Array, " rows"]
    start: Float[Array, " rows"]


class Search(NamedTuple):
    """The search for penalties between two subproblems; `solved` counts them."""

    steering: Steering
    restoration: Restoration
    next: Subproblem
    restoring: Bool[Array, ""]
    """Whether the next subproblem is the restoration step."""
    unfinished: Bool[Array, ""]
    solved: Int[Array, ""]


def steer(model: PenaltyModel, tuning: Tuning, min_share: Float[Array, ""]) -> Steering:
    """Return penalties with which the step removes its share of the violation, and the model's multipliers with them.

    One loop solves all subproblems, so that the solver is compiled once. They begin with multipliers of the last step.

    Args:
        model: the model around x.
        tuning: the penalties so far, and the multipliers.
        min_share: the least part of the violation to be removed, relative to what a restoration step of this length removes.
    """
    steering = Steering(tuning.penalty, tuning.multipliers, tuning.restoration, jnp.bool_(False), jnp.int32(0))
    if not tuning.penalty.size:
        return steering
    violation = Violation.of(model)
    violated = jnp.any(violation.before > violation.rounding)
    first = jax.tree.map(
        lambda a, b: jnp.where(violated, a, b),
        restoration_subproblem(model, violation, tuning.restoration),
        model_subproblem(steering),
    )

    def again(c: Search) -> Search:
        step = model.minimize(*c.next)
        return jax.lax.cond(
            c.restoring,
            lambda: keep_restoration(model, violation, c, step),
            lambda: raise_penalties(model, violation, c, step, min_share),
        )

    start = Search(steering, Restoration.none(model), first, violated, jnp.bool_(True), jnp.int32(0))
    return jax.lax.while_loop(lambda c: c.unfinished & (c.solved < MAX_SUBPROBLEMS), again, start).steering


def restoration_subproblem(model: PenaltyModel, violation: Violation, shares: Float[Array, " rows"]) -> Subproblem:
    """Return the subproblem of the restoration step: no objective, and penalties that no objective could match.

    It is solved from multipliers that are these shares of the penalties.
    """
    norm = positive_or_one(model.row_norm)
    distance = jnp.max(violation.before / norm, initial=0.0)
    penalty = jnp.finfo(norm.dtype).eps ** RESTORATION_EXPONENT * model.curvature * distance / norm
    return Subproblem(jnp.zeros((), norm.dtype), penalty, shares * penalty)


def model_subproblem(steering: Steering) -> Subproblem:
    """Return the subproblem of a step with these penalties."""
    return Subproblem(jnp.ones((), steering.penalty.dtype), steering.penalty, steering.multipliers)


def keep_restoration(model: PenaltyModel, violation: Violation, search: Search, step: ModelStep) -> Search:
    """Return the search after the restoration step."""
    useless = step.solved & (violation.removed(step.rows) < negligible_share(model) * violation.total)
    change = jnp.where(step.solved, step.rows - model.value, 0.0)
    restoration = Restoration(step.multipliers, change, step.square, jnp.asarray(step.solved), useless)
    shares = step.multipliers / positive_or_one(search.next.penalty)
    steering = search.steering._replace(restoration=shares, no_feasible_descent=useless)
    return Search(
        steering, restoration, model_subproblem(steering), jnp.bool_(False), jnp.bool_(True), search.solved + 1
    )


def raise_penalties(
    model: PenaltyModel, violation: Violation, search: Search, step: ModelStep, min_share: Float[Array, ""]
) -> Search:
    """Return the search after a step of the model, with higher penalties if it removes too little and raising can help."""
    penalty, restoration, removed = search.steering.penalty, search.restoration, violation.removed(step.rows)
    possible = possible_removal(model, violation, restoration, step.square)
    stalled = removed < negligible_share(model) * violation.total
    doubtful = stalled & (search.solved == 1) & restoration.solved & ~restoration.useless
    helps = jax.lax.cond(doubtful, lambda: some_part_helps(model, violation, restoration), lambda: jnp.bool_(True))
    no_descent = search.steering.no_feasible_descent | ~helps
    rounding = violation.weights @ jnp.where(violation.before > 0, violation.rounding, 0.0)
    raisable = (removed < min_share * possible - rounding) & step.solved & ~no_descent
    at_limit = raisable & (jnp.abs(step.multipliers) >= penalty) & (model.row_norm > 0)
    scaled = penalty / violation.weights
    level = RAISE_FACTOR * jnp.min(jnp.where(at_limit, scaled, jnp.inf))
    raised = at_limit & (scaled < level)
    steering = Steering(
        penalty=jnp.where(raised, level * violation.weights, penalty),
        multipliers=step.multipliers,
        restoration=search.steering.restoration,
        no_feasible_descent=no_descent,
        extra_evaluations=search.steering.extra_evaluations + jnp.where(doubtful, len(restoration_parts(model)), 0),
    )
    following = model_subproblem(steering)
    return search._replace(steering=steering, next=following, unfinished=jnp.any(raised), solved=search.solved + 1)


def possible_removal(
    model: PenaltyModel, violation: Violation, restoration: Restoration, square: Float[Array, ""]
) -> Float[Array, ""]:
    """Return how much of the violation the restoration step removes, cut to the length of a step with dᵀMd = square.

    A step counts as at least as long as the gradient step.
    """
    square = jnp.maximum(square, model.gradient_sq / model.curvature)
    fraction = jnp.sqrt(jnp.minimum(1.0, square / positive_or_one(restoration.square)))
    return violation.removed(model.value + fraction * restoration.change)


def some_part_helps(model: PenaltyModel, violation: Violation, restoration: Restoration) -> Bool[Array, ""]:
    """Return whether the rows themselves show progress after a part of the restoration step."""
    step = model.restoration(restoration.multipliers)
    parts = jnp.asarray(restoration_parts(model), model.value.dtype)
    removed = jax.lax.map(lambda part: violation.removed(model.rows_after(part * step)), parts)
    return jnp.any(removed >= negligible_share(model) * violation.total)


def negligible_share(model: PenaltyModel) -> float:
    """Return the share of the violation that does not count as progress if a step removes less."""
    if model.oracle.stochastic_constraints:
        return NEGLIGIBLE_SAMPLED_SHARE
    return max(NEGLIGIBLE_SHARE, VIOLATION_ROUNDING * float(jnp.finfo(model.value.dtype).eps))


def restoration_parts(model: PenaltyModel) -> Float[np.ndarray, " parts"]:
    """Return the parts of a restoration step after which the rows are evaluated, from the whole step down."""
    return RESTORATION_FACTOR ** np.arange(1 + math.floor(math.log(negligible_share(model), RESTORATION_FACTOR)))
