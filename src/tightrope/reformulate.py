"""Fits a problem to a method: checks that the method takes it, and writes the constraints in the form it wants.

Everything here is linear in the raw values, so x, violations and multipliers of the ORIGINAL problem come back exactly.

- native: rows `c = h − target = 0`, `g = h − high ≤ 0`, `g = low − h ≤ 0`.
- pairs: inequalities only; an equality becomes `h − target ≤ 0` and `target − h ≤ 0`, whose maximum is `|h − target|`.
- slacks: equalities only; an inequality becomes `h − s = 0` with `low ≤ s ≤ high`, so `between` needs one slack, not two.
- ranges: the raw values themselves, `low ≤ h ≤ high`, one row each whatever its kind.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from .domains import Reals
from .methods import Method, every
from .oracle import Oracle, Rows, Term
from .parameters import Parameters
from .problem import Constraint, Problem


def oracle_for(problem: Problem, parameters: Parameters, sizes: list[int], form: str = "native") -> Oracle:
    """The oracle of a problem whose constraints return `sizes` numbers each, with its rows in this form."""
    sources = problem.sources
    number = {id(source): i for i, source in enumerate(sources)}

    def where(data: Any) -> int | None:
        return None if data is None else number[id(data)]

    rows = _rows(problem.constraints, sizes, form, parameters.dtype)
    return Oracle(
        data=tuple(source.arrays for source in sources),
        domain=problem.domain,
        rows=rows,
        multipliers=jnp.asarray(np.zeros(len(rows.index), parameters.dtype)),
        objective=Term("objective", problem.objective, where(problem.data), 1),
        constraints=tuple(
            Term(c.name, c.fn, where(c.data), size) for c, size in zip(problem.constraints, sizes, strict=True)
        ),
        sources=sources,
        parameters=parameters,
    )


def bounds(constraints: tuple[Constraint, ...], sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of all raw values; equal for equalities."""
    if not constraints:
        return np.zeros(0), np.zeros(0)
    pairs = [
        (np.broadcast_to(c.low.ravel(), size), np.broadcast_to(c.high.ravel(), size))
        for c, size in zip(constraints, sizes, strict=True)
    ]
    return np.concatenate([low for low, _ in pairs]), np.concatenate([high for _, high in pairs])


def _rows(constraints: tuple[Constraint, ...], sizes: list[int], form: str, dtype: Any) -> Rows:
    low, high = bounds(constraints, sizes)
    equality = np.concatenate(
        [np.full(size, c.kind == "equals") for c, size in zip(constraints, sizes, strict=True)] or [[]]
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


def refusal(problem: Problem, method: type[Method]) -> str | None:
    """Why this method cannot take the problem; None where it can."""
    accepts = method.accepts
    for c in problem.constraints:
        if c.data is not None and not accepts.stochastic:
            return f"its constraints must be deterministic, and {c.name!r} has data"
        if c.kind == "equals" and (
            accepts.equalities == "none" or (accepts.equalities == "affine" and c.matrix is None)
        ):
            only = "only affine equalities" if accepts.equalities == "affine" else "no equalities"
            return f"it takes {only}, and {c.name!r} is an equality"
        if c.kind != "equals" and not accepts.inequalities:
            return f"it takes no inequalities, and {c.name!r} is one"
    if accepts.needs == "everywhere":
        return None if isinstance(problem.domain, Reals) else "x must be free, and the problem has a domain"
    able = problem.domain.can_project if accepts.needs == "projection" else problem.domain.can_minimise
    if not able:
        return f"it needs a {accepts.needs} of the set, and {type(problem.domain).__name__} has none"
    return None


def check_accepts(problem: Problem, method: Method) -> None:
    """A ValueError that says why, and which methods could, where the method cannot take the problem."""
    reason = refusal(problem, type(method))
    if reason:
        able = [name for name, cls in every().items() if refusal(problem, cls) is None]
        raise ValueError(
            f"method {type(method).__name__} cannot take this problem: {reason}; "
            f"{'methods that can: ' + ', '.join(able) if able else 'no method here can'}"
        )
