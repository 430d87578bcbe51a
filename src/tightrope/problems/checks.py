"""Checks of the user's functions: their shapes, traced before anything is compiled, and their first values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .constraints import Constraint
from .data import Source, batch_shape
from .parameters import Parameters
from .problem import Problem, cached_on_problem


def check_functions(problem: Problem, parameters: Parameters) -> list[tuple[int, ...]]:
    """The shape that each constraint returns, () or (k,), from tracing every function on the shape of a batch.

    Functions are traced once for each structure of the parameters. Any other result of a function is an error.
    """
    return cached_on_problem(problem, ("shapes", parameters.key), lambda: _traced_shapes(problem, parameters))


def _traced_shapes(problem: Problem, parameters: Parameters) -> list[tuple[int, ...]]:
    try:
        problem.domain.check(parameters.unravel_arrays(parameters.start))
    except ValueError as error:
        raise ValueError(f"the domain does not match {parameters.argument}: {error}") from error
    shape = _traced_shape("the objective", problem.objective, parameters, problem.data)
    if shape != ():
        raise ValueError(f"the objective must return a scalar, the mean over the batch, got an array of shape {shape}")
    return [_constraint_shape(parameters, constraint) for constraint in problem.constraints]


def _constraint_shape(parameters: Parameters, constraint: Constraint) -> tuple[int, ...]:
    function = f"the constraint {constraint.name!r}"
    shape = _traced_shape(function, constraint.fn, parameters, constraint.data)
    if len(shape) > 1:
        raise ValueError(f"{function} must return a scalar or a vector, got an array of shape {shape}")
    size = math.prod(shape)
    if constraint.low.size not in (1, size):
        raise ValueError(f"{function} returns {size} numbers but has {constraint.low.size} bounds; they must match")
    ends = constraint.sample_range or ()
    if any(end.size not in (1, size) for end in ends):
        given = [end.size for end in ends]
        raise ValueError(f"{function} returns {size} numbers but its sample_range has {given} ends; they must match")
    return shape


def _traced_shape(
    function: str, fn: Callable[..., Any], parameters: Parameters, source: Source | None
) -> tuple[int, ...]:
    """The shape of the floats that fn returns."""
    params, batch = parameters.unravel(parameters.start), () if source is None else (batch_shape(source),)
    try:
        value = eqx.filter_eval_shape(fn, params, *batch)
    except KeyError as error:
        has = f"its batch has {list(batch[0])}" if batch and isinstance(batch[0], dict) else "its batch has no keys"
        raise ValueError(f"{function} uses the key {error}, which does not exist; {has}") from error
    except Exception as error:
        given = f"the parameters {parameters.argument}{' and a batch' if batch else ''}"
        error.add_note(f"Raised while tracing {function} with {given}.")
        raise
    if not eqx.is_array_like(value) and not isinstance(value, jax.ShapeDtypeStruct):
        raise TypeError(f"{function} must return a number or an array of floats, got {type(value).__name__}")
    dtype = jnp.result_type(value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{function} must return floats, got {dtype}: it cannot be differentiated")
    return jnp.shape(value)


def check_values(function: str, whole: Float[Array, " raw"], halves: Float[Array, " raw"], examples: int) -> None:
    """Raise if a first value is not finite; warn if it is not the mean of the values on the two halves of its batch."""
    if not np.isfinite(whole).all():
        raise ValueError(f"{function} is {whole} at x0; expected finite numbers: start where every function is defined")
    size = float(np.max(np.abs(whole), initial=1e-6))
    if examples > 1 and not np.allclose(whole, halves, rtol=1e-2, atol=1e-3 * size):
        warnings.warn(
            f"{function} is not a mean over the examples of its batch: {whole} on {examples} examples, but {halves} as the "
            "mean of its two halves. A sum, or a ratio of batch sums, is estimated with bias; write it as a mean.",
            UserWarning,
            stacklevel=4,
        )
