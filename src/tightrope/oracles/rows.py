"""Constraint rows: the user's constraint values in one of the four forms that methods take.

Everything here is linear in the raw values h, so x, violations and multipliers of the ORIGINAL problem come back exactly.

- native: rows `c = h − target = 0`, `g = h − high ≤ 0`, `g = low − h ≤ 0`.
- pairs: inequalities only; an equality becomes `h − target ≤ 0` and `target − h ≤ 0`, whose maximum is `|h − target|`.
- slacks: equalities only; an inequality becomes `h − s = 0` with `low ≤ s ≤ high`, so `between` needs one slack, not two.
- ranges: the raw values themselves, `low ≤ h ≤ high`, one row per value whatever its kind.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..problems.constraints import Constraint

Form = Literal["native", "pairs", "slacks", "ranges"]


class Rows(eqx.Module):
    """The map from raw values h to a method's rows: `sign · (h[index] − bound)`, with slacks in place of some bounds.

    A row must lie between `low` and `high`: both 0 for an equality, −∞ and 0 for an inequality, the user's bounds in the
    form 'ranges'.
    """

    sign: Float[Array, " rows"]
    bound: Float[Array, " rows"]
    low: Float[Array, " rows"]
    high: Float[Array, " rows"]
    slack_low: Float[Array, " slacks"]
    slack_high: Float[Array, " slacks"]
    index: tuple[int, ...] = eqx.field(static=True)
    is_equality: tuple[bool, ...] = eqx.field(static=True)
    slack_rows: tuple[int, ...] = eqx.field(static=True)
    raw_size: int = eqx.field(static=True)

    def of(self, raw: Float[Array, " raw"], slacks: Float[Array, " slacks"]) -> Float[Array, " rows"]:
        """The rows at these raw values."""
        bound = self.bound.at[np.array(self.slack_rows)].set(slacks) if self.slack_rows else self.bound
        identity = self.index == tuple(range(self.raw_size))
        return self.sign * ((raw if identity else raw[np.array(self.index, int)]) - bound)

    def violation(self, rows: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """The distance of each row to its range."""
        return jnp.maximum(rows - self.high, 0.0) + jnp.maximum(self.low - rows, 0.0)

    def to_raw(self, multipliers: Float[Array, " rows"]) -> Float[Array, " raw"]:
        """The multipliers of the raw values: one signed number each, positive if an upper bound is active."""
        return jnp.zeros(self.raw_size, multipliers.dtype).at[np.array(self.index, int)].add(self.sign * multipliers)

    def from_raw(self, multipliers: Float[np.ndarray, " raw"]) -> Float[np.ndarray, " rows"]:
        """The multipliers of the rows that `to_raw` maps back to these."""
        rows = np.asarray(self.sign) * multipliers[np.array(self.index, int)]
        least, greatest = np.where(np.isinf(self.low), 0.0, -np.inf), np.where(np.isinf(self.high), 0.0, np.inf)
        return np.clip(rows, least, greatest).astype(rows.dtype)


class _Row(NamedTuple):
    """One row: the index of its raw value, its sign and bound, its least and greatest value, and whether it has a slack."""

    raw_index: int
    sign: float
    bound: float
    low: float
    high: float
    slack: bool = False


def bounds(constraints: tuple[Constraint, ...], shapes: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper bounds of all raw values, equal for equalities; `shapes` are those that the constraints return."""
    if not constraints:
        return np.zeros(0), np.zeros(0)
    pairs = [
        (np.broadcast_to(c.low.ravel(), size), np.broadcast_to(c.high.ravel(), size))
        for c, size in zip(constraints, map(math.prod, shapes), strict=True)
    ]
    return np.concatenate([low for low, _ in pairs]), np.concatenate([high for _, high in pairs])


def rows_in_form(constraints: tuple[Constraint, ...], shapes: list[tuple[int, ...]], form: Form, dtype: Any) -> Rows:
    """The rows of all constraints in this form."""
    low, high = bounds(constraints, shapes)
    equality = [
        c.kind == "equals" for c, shape in zip(constraints, shapes, strict=True) for _ in range(math.prod(shape))
    ]
    rows = [row for i in range(low.size) for row in _rows_of(i, low[i], high[i], equality[i], form)]
    slack_rows = tuple(i for i, row in enumerate(rows) if row.slack)
    slack_index = [rows[i].raw_index for i in slack_rows]

    def array(values: Any) -> Array:
        return jnp.asarray(np.asarray(values, dtype))

    return Rows(
        sign=array([row.sign for row in rows]),
        bound=array([row.bound for row in rows]),
        low=array([row.low for row in rows]),
        high=array([row.high for row in rows]),
        slack_low=array(low[slack_index]),
        slack_high=array(high[slack_index]),
        index=tuple(row.raw_index for row in rows),
        is_equality=tuple(bool(row.low == row.high) for row in rows),
        slack_rows=slack_rows,
        raw_size=low.size,
    )


def _rows_of(raw_index: int, low: float, high: float, equality: bool, form: Form) -> list[_Row]:
    """The rows of one raw value."""
    if form == "ranges":
        return [_Row(raw_index, 1.0, 0.0, low, high)]
    if equality and form != "pairs":
        return [_Row(raw_index, 1.0, high, 0.0, 0.0)]
    if form == "slacks":
        return [_Row(raw_index, 1.0, 0.0, 0.0, 0.0, slack=True)]
    ends = ((1.0, high), (-1.0, low))
    return [_Row(raw_index, sign, bound, -np.inf, 0.0) for sign, bound in ends if np.isfinite(bound)]
