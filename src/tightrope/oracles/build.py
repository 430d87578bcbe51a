"""Builds the oracle of a problem, with the constraints in the form that a method wants.

Everything here is linear in the raw values, so x, violations and multipliers of the ORIGINAL problem come back exactly.

- native: rows `c = h − target = 0`, `g = h − high ≤ 0`, `g = low − h ≤ 0`.
- pairs: inequalities only; an equality becomes `h − target ≤ 0` and `target − h ≤ 0`, whose maximum is `|h − target|`.
- slacks: equalities only; an inequality becomes `h − s = 0` with `low ≤ s ≤ high`, so `between` needs one slack, not two.
- ranges: the raw values themselves, `low ≤ h ≤ high`, one row each whatever its kind.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..problems.checks import check_functions
from ..problems.constraints import Constraint
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from .oracle import Oracle, Rows, Term


def oracle_for(problem: Problem, parameters: Parameters, form: str = "native") -> Oracle:
    """The oracle of a problem, with its rows in this form."""
    shapes, sources = check_functions(problem, parameters), problem.sources
    number = {id(source): i for i, source in enumerate(sources)}

    def where(data: Any) -> int | None:
        return None if data is None else number[id(data)]

    rows = _rows(problem.constraints, shapes, form, parameters.dtype)
    return Oracle(
        data=tuple(source.arrays for source in sources),
        domain=problem.domain,
        rows=rows,
        multipliers=jnp.asarray(np.zeros(len(rows.index), parameters.dtype)),
        objective=Term("objective", problem.objective, where(problem.data), ()),
        constraints=tuple(
            Term(c.name, c.fn, where(c.data), shape) for c, shape in zip(problem.constraints, shapes, strict=True)
        ),
        sources=sources,
        parameters=parameters,
    )


def bounds(constraints: tuple[Constraint, ...], shapes: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of all raw values; equal for equalities."""
    if not constraints:
        return np.zeros(0), np.zeros(0)
    pairs = [
        (np.broadcast_to(c.low.ravel(), size), np.broadcast_to(c.high.ravel(), size))
        for c, size in zip(constraints, map(math.prod, shapes), strict=True)
    ]
    return np.concatenate([low for low, _ in pairs]), np.concatenate([high for _, high in pairs])


def _rows(constraints: tuple[Constraint, ...], shapes: list[tuple[int, ...]], form: str, dtype: Any) -> Rows:
    low, high = bounds(constraints, shapes)
    equality = np.concatenate(
        [np.full(math.prod(shape), c.kind == "equals") for c, shape in zip(constraints, shapes, strict=True)] or [[]]
    )
    rows: list[
        tuple[int, float, float, float, float]
    ] = []  # raw index, sign, bound; least and greatest value of the row
    slack_rows: list[int] = []
    for i in range(low.size):
        if form == "ranges":
            rows.append((i, 1.0, 0.0, low[i], high[i]))
        elif equality[i] and form != "pairs":
            rows.append((i, 1.0, high[i], 0.0, 0.0))
        elif form == "slacks":
            slack_rows.append(len(rows))
            rows.append((i, 1.0, 0.0, 0.0, 0.0))
        else:
            rows += [(i, sign, b, -np.inf, 0.0) for sign, b in ((1.0, high[i]), (-1.0, low[i])) if np.isfinite(b)]
    index, sign, bound, least, greatest = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    slack_raw = [index[row] for row in slack_rows]
    return Rows(
        sign=jnp.asarray(np.asarray(sign, dtype)),
        bound=jnp.asarray(np.asarray(bound, dtype)),
        low=jnp.asarray(np.asarray(least, dtype)),
        high=jnp.asarray(np.asarray(greatest, dtype)),
        slack_low=jnp.asarray(low[slack_raw].astype(dtype)),
        slack_high=jnp.asarray(high[slack_raw].astype(dtype)),
        index=tuple(index),
        is_equality=tuple(bool(a == b) for a, b in zip(least, greatest, strict=True)),
        slack_rows=tuple(slack_rows),
        raw_size=low.size,
    )
