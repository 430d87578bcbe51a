"""Builds the oracle of a problem, with the constraints in the form that a method takes."""

from __future__ import annotations

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

    return Oracle(
        data=tuple(source.arrays for source in sources),
        domain=problem.domain,
        rows=rows,
        multipliers=jnp.asarray(np.zeros(len(rows.index), parameters.dtype)),
        objective=Term("objective", problem.objective, place(problem.data), (), takes_key(problem.objective)),
        constraints=tuple(
            Term(c.name, c.fn, place(c.data), shape, takes_key(c.fn))
            for c, shape in zip(problem.constraints, shapes, strict=True)
        ),
        sources=sources,
        parameters=parameters,
    )
