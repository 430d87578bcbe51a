"""Checks of what the user gave, before anything is compiled.

Errors name the argument, what came and what was expected.
"""

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

from .data import Source, batch_shape
from .parameters import Parameters
from .problem import Constraint, Problem, cached_on_problem


def number(owner: str, argument: str, value: Any, *, low: float, high: float = math.inf, strict: bool = True) -> float:
    """`value` as a float above `low` (at least, if not strict) and below `high`, or an error."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{owner}: {argument} must be a number, got {value!r} ({type(value).__name__})")
    if not ((value > low if strict else value >= low) and value < high):
        sign = ">" if strict else "≥"
        limit = "" if high == math.inf else f" and < {high:g}"
        raise ValueError(f"{owner}: {argument} must be {sign} {low:g}{limit}, got {value}")
    return float(value)


def check_seed(owner: str, seed: Any) -> int:
    """`seed` as an int that fits a key, or an error."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"{owner}: seed must be an integer, got {seed!r} ({type(seed).__name__})")
    if not 0 <= seed < 2**32:
        raise ValueError(f"{owner}: seed must be between 0 and 2**32 - 1, got {seed}")
    return int(seed)


def check_functions(problem: Problem, parameters: Parameters) -> list[tuple[int, ...]]:
    """The shape that each constraint returns, () or (k,), from tracing every function on the shape of a batch.

    Functions are traced once for each structure of the parameters. An error says what a function must return.
    """
    return cached_on_problem(problem, ("shapes", parameters.key), lambda: _traced_shapes(problem, parameters))


def _traced_shapes(problem: Problem, parameters: Parameters) -> list[tuple[int, ...]]:
    params = parameters.unravel(parameters.start)
    try:
        problem.domain.check(parameters.unravel_arrays(parameters.start))
    except ValueError as error:
        raise ValueError(f"the domain {type(problem.domain).__name__} does not match x0: {error}") from error
    shape = _returned("the objective", problem.objective, params, problem.data)
    if shape != ():
        raise ValueError(f"the objective must return a scalar, the mean over the batch, got an array of shape {shape}")
    return [_constraint_shape(params, constraint) for constraint in problem.constraints]


def _constraint_shape(params: Any, constraint: Constraint) -> tuple[int, ...]:
    what = f"the constraint {constraint.name!r}"
    shape = _returned(what, constraint.fn, params, constraint.data)
    if len(shape) > 1:
        raise ValueError(f"{what} must return a scalar or a vector, got an array of shape {shape}")
    size = math.prod(shape)
    if constraint.low.size not in (1, size):
        raise ValueError(f"{what} returns {size} numbers but has {constraint.low.size} bounds; they must match")
    ends = constraint.sample_range or ()
    if any(end.size not in (1, size) for end in ends):
        given = [end.size for end in ends]
        raise ValueError(f"{what} returns {size} numbers but its sample_range has {given} ends; they must match")
    return shape


def _returned(what: str, fn: Callable[..., Any], params: Any, source: Source | None) -> tuple[int, ...]:
    """The shape of what fn returns, which must be floats."""
    batch = () if source is None else (batch_shape(source),)
    try:
        value = eqx.filter_eval_shape(fn, params, *batch)
    except KeyError as error:
        has = f"its batch has {list(batch[0])}" if batch and isinstance(batch[0], dict) else "its batch has no keys"
        raise ValueError(f"{what} asks for the key {error}, which is not there; {has}") from error
    except Exception as error:
        error.add_note(f"This came up while tracing {what} with the parameters x0{' and a batch' if batch else ''}.")
        raise
    if not eqx.is_array_like(value) and not isinstance(value, jax.ShapeDtypeStruct):
        raise TypeError(f"{what} must return a number or an array of floats, got {type(value).__name__}")
    dtype = jnp.result_type(value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{what} must return floats, got {dtype}: it cannot be differentiated")
    return jnp.shape(value)


def check_values(what: str, whole: Float[Array, " raw"], halves: Float[Array, " raw"], rows: int) -> None:
    """An error where a first evaluation is not finite, a warning where it is not a mean over the rows of its batch."""
    if not np.isfinite(whole).all():
        raise ValueError(f"{what} is {whole} at x0; expected finite numbers: start where every function is defined")
    size = float(np.max(np.abs(whole), initial=1e-6))
    if rows > 1 and not np.allclose(whole, halves, rtol=1e-2, atol=1e-3 * size):
        warnings.warn(
            f"{what} is not a mean over the rows of its batch: {whole} on {rows} rows, but {halves} as the mean of its two "
            "halves. A sum, or a ratio of batch sums, is estimated with bias; write it as a mean.",
            UserWarning,
            stacklevel=4,
        )
