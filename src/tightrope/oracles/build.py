"""Builds the oracle of a problem, with the constraints in the form that a method takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..problems.checks import check_functions
from ..problems.data import Source
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from ..problems.tracing import takes_key
from .oracle import Oracle, Term
from .rows import Form, rows_in_form


def oracle_for(problem: Problem, parameters: Parameters, form: Form = "native") -> Oracle:
    """The oracle of a problem, with its constraint rows in this form (see `rows`)."""
    shapes, sources = check_functions(problem, parameters), problem.sources
    rows = rows_in_form(problem.constraints, shapes, form, parameters.dtype)

    def place(data: Source | None) -> int | None:
        return None if data is None else [source is data for source in sources].index(True)

    def terms(functions: list[Callable[..., Any]]) -> tuple[Term, ...]:
        listed = zip(problem.constraints, functions, shapes, strict=True)
        return tuple(Term(c.name, fn, place(c.data), shape, takes_key(fn)) for c, fn, shape in listed)

    certified = [c.certified_fn or c.fn for c in problem.constraints]
    return Oracle(
        data=tuple(source.arrays for source in sources),
        domain=problem.domain,
        rows=rows,
        multipliers=jnp.asarray(np.zeros(len(rows.index), parameters.dtype)),
        objective=Term("objective", problem.objective, place(problem.data), (), takes_key(problem.objective)),
        constraints=terms([c.fn for c in problem.constraints]),
        sources=sources,
        parameters=parameters,
        certified=terms(certified) if any(c.certified_fn for c in problem.constraints) else (),
    )
