"""Scales: the units in which violations, stationarity and the optimality gap are compared with their tolerances.

They are measured at the point that is judged, so they do not depend on where a run started. Multiplying the objective, a
constraint with its bounds, or x by a number multiplies them likewise, so no verdict depends on units.

    x           s_j = root mean square of the leaf that x_j belongs to
    constraint  max(|low|, |high|, high − low, spread) over its finite bounds; if they are all 0, max(spread, ‖∇h ∘ s‖)
    objective   max(|F|, spread, ‖∇F ∘ s‖)
    gradient    max(‖∇F‖, ‖λ_i ∇h_i‖, ‖∇²L x‖)

`spread` is the standard deviation of a function over single examples, from a pilot sample; it is 0 without data. ‖∇h ∘ s‖ is
the typical change of h if each entry of x changes by its own size. For a bound other than 0 it is left out: the bound is the
user's own unit, and far from a solution x says nothing about it.

Where a solution is 0 in all its entries, nothing at the point has a unit; then the way from x0, times `MIN_LENGTH`, is the
least size of x.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..numerics.products import Linear, row_squares
from ..oracles.oracle import Oracle
from ..oracles.rows import bounds
from ..problems.problem import Problem

PILOT_BATCHES, PILOT_EXAMPLES = 16, 32
"""The pilot sample: this many batches of this many examples."""
MIN_LENGTH = 1e-6
"""The least size of x, relative to its distance from x0."""


class Sizes(NamedTuple):
    """Sizes at a point, from which scales are computed.

    Attributes:
        spread: the standard deviations of the objective and of each raw value over single examples.
        objective: ‖∇F ∘ s‖.
        rows: ‖∇h_i ∘ s‖ of each raw value.
        gradient: the larger of ‖∇F‖ and all ‖λ_i ∇h_i‖.
    """

    spread: Any
    objective: Any
    rows: Any
    gradient: Any


def sizes(
    oracle: Oracle,
    x: Float[Array, " n"],
    start: Float[Array, " n"],
    gradient: Float[Array, " n"],
    jacobian: Array | Linear,
    multipliers: Float[Array, " rows"],
) -> Sizes:
    """Return the sizes at x, for an oracle in native form; `start` is x0, or x if there is none."""
    lengths = leaf_lengths(oracle, x, start)
    if isinstance(jacobian, Linear):
        norms, pushes = _row_norms(jacobian, lengths), _row_norms(jacobian, jnp.ones_like(x)) * jnp.abs(multipliers)
    else:
        norms = jnp.linalg.norm(jacobian * lengths, axis=1)
        pushes = jnp.linalg.norm(jacobian, axis=1) * jnp.abs(multipliers)
    place = np.array(oracle.rows.index, int)
    return Sizes(
        spread=pilot_spread(oracle, x),
        objective=jnp.linalg.norm(gradient * lengths),
        rows=jnp.zeros(oracle.rows.raw_size, x.dtype).at[place].max(norms),
        gradient=jnp.max(pushes, initial=jnp.linalg.norm(gradient)),
    )


def leaf_lengths(oracle: Oracle, x: Float[Array, " n"], start: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return s: for each entry of x the root mean square of its leaf, at least `MIN_LENGTH` times that of x − x0."""

    def rms(leaf: Array) -> Array:
        return jnp.full(leaf.shape, jnp.sqrt(jnp.mean(leaf**2)))

    unravel, ravel = oracle.parameters.unravel_arrays, oracle.parameters.ravel
    own, moved = (ravel(jax.tree.map(rms, unravel(vector))) for vector in (x, x - start))
    return jnp.maximum(own, MIN_LENGTH * moved)


def pilot_spread(oracle: Oracle, x: Float[Array, " n"]) -> Float[Array, " 1+raw"]:
    """Return the standard deviations of the objective and the raw values over single examples, from small batches."""
    if not oracle.sources:
        return jnp.zeros(1 + oracle.rows.raw_size, x.dtype)

    def values(key: Array) -> Float[Array, " 1+raw"]:
        sample = oracle.draw(key, PILOT_EXAMPLES)
        return jnp.concatenate([oracle.f(x, sample)[None], oracle.raw(x, sample)])

    found = jax.lax.map(values, jax.random.split(jax.random.key(0), PILOT_BATCHES))
    return jnp.std(found, axis=0, ddof=1) * np.sqrt(PILOT_EXAMPLES)


def _row_norms(jacobian: Linear, lengths: Float[Array, " n"]) -> Float[Array, " rows"]:
    """Return an estimate of the norm of each row times `lengths`."""
    scaled = jacobian._replace(push=lambda d: jacobian.push(lengths * d))
    return jnp.sqrt(row_squares(scaled, lengths, jax.random.key(0)))


class ConstraintScales(NamedTuple):
    """The rule for the scale of each raw value, at any point.

    Attributes:
        bound: the largest finite bound, or the distance between the bounds; 0 if they are all 0.
        given: the user's scale; NaN: it is estimated.
    """

    bound: Float[np.ndarray, " raw"]
    given: Float[np.ndarray, " raw"]

    @classmethod
    def of(cls, problem: Problem, oracle: Oracle) -> ConstraintScales:
        """Return the rule of a problem."""
        low, high = bounds(problem.constraints, [term.shape for term in oracle.constraints])
        width = np.where(np.isfinite(low) & np.isfinite(high), high - low, 0.0)
        size = np.max([np.where(np.isfinite(end), np.abs(end), 0.0) for end in (low, high)], axis=0)
        given = np.full(low.size, np.nan)
        for constraint, entries in zip(problem.constraints, oracle.slices().values(), strict=True):
            if constraint.scale is not None:
                given[entries] = constraint.scale
        return cls(np.maximum(size, width), given)

    def at(self, found: Sizes) -> Float[np.ndarray, "... raw"]:
        """Return the scales at a point, or at many: the user's, or the estimates; 1 if those are 0."""
        spread, rows = np.asarray(found.spread, float)[..., 1:], np.asarray(found.rows, float)
        estimated = np.maximum(spread, np.where(self.bound > 0, self.bound, rows))
        usable = np.where((estimated > 0) & np.isfinite(estimated), estimated, 1.0)
        return np.where(np.isnan(self.given), usable, self.given)


def objective_scale(objective: Any, found: Sizes) -> Any:
    """Return the scale of the objective at a point, or at many; 1 if that is 0."""
    spread = np.asarray(found.spread, float)[..., 0]
    scale = np.max([np.abs(np.asarray(objective, float)), spread, np.asarray(found.objective, float)], axis=0)
    return np.where((scale > 0.0) & (scale < np.inf), scale, 1.0)
