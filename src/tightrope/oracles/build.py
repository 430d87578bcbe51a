"""Builds the oracle of a problem, with the constraints in the form that a method takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..problems.checks import check_functions
from ..problems.constraints import Constraint
from ..problems.data import Source
from ..problems.definition import Definition
from ..problems.parameters import Parameters
from ..problems.problem import Problem, cached_on_problem
from ..problems.tracing import takes_key, with_arguments_of
from .oracle import Oracle, Term
from .rows import Form, rows_in_form


def oracle_for(problem: Problem, parameters: Parameters, form: Form = "native", *, training: bool = False) -> Oracle:
    """The oracle of a problem, with its constraint rows in this form (see `rows`).

    If `training`, functions that take a random key are given one, and surrogates are in the place of their functions.
    Otherwise these functions have their own values, and the derivatives of their surrogates.
    """
    shapes, sources = check_functions(problem, parameters), problem.sources
    constraints = tuple(map(_in_training if training else _in_evaluation, problem.constraints))
    rows = rows_in_form(constraints, shapes, form, parameters.dtype)

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
            for c, shape in zip(constraints, shapes, strict=True)
        ),
        sources=sources,
        parameters=parameters,
        training=training,
    )


def definition_of(problem: Problem, oracle: Oracle) -> Definition:
    """What a program is made of that closes over this oracle, and over nothing else of the user's."""
    digests = cached_on_problem(problem, ("digests", oracle.parameters.key), dict)
    terms = [
        (t.fn, None if t.source is None else oracle.sources[t.source]) for t in (oracle.objective, *oracle.constraints)
    ]
    return Definition(terms, oracle.sources, oracle.parameters, digests)


def _in_training(constraint: Constraint) -> Constraint:
    return constraint if constraint.surrogate is None else replace(constraint, fn=constraint.surrogate)


def _in_evaluation(constraint: Constraint) -> Constraint:
    if constraint.surrogate is None:
        return constraint
    return replace(constraint, fn=_with_derivative_of(constraint.surrogate, constraint.fn))


def _with_derivative_of(surrogate: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """The value of fn, exactly, and the derivative of the surrogate."""

    def value(x: Any, *batch: Any, **given: Any) -> Any:
        smooth, exact = (each(x, *batch, **given) for each in (surrogate, fn))
        return smooth - jax.lax.stop_gradient(smooth) + jax.lax.stop_gradient(exact)

    return with_arguments_of(fn, value)
