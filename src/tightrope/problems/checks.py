"""Checks of the user's functions, traced before anything is compiled: what they return, and whether they stay the same."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from .constraints import Constraint
from .data import Source, batch_shape
from .model_state import call, takes_state
from .parameters import Parameters
from .problem import Problem, cached_on_problem
from .tracing import changes, takes_key, trace, unjitted

LONGEST = 200
"""Characters of the shapes of x, or of a batch, in a message."""


def check_functions(problem: Problem, parameters: Parameters) -> list[tuple[int, ...]]:
    """The shape that each constraint returns, () or (k,), from tracing every function on the shape of a batch.

    Functions are traced for each structure of the parameters: twice on a batch, and on a batch of twice the size. Any other
    result of a function, and a function that changes from one trace to the next, is an error.
    """
    return cached_on_problem(problem, ("shapes", parameters.key), lambda: _traced_shapes(problem, parameters))


def _traced_shapes(problem: Problem, parameters: Parameters) -> list[tuple[int, ...]]:
    try:
        problem.domain.check(parameters.trained.unravel_arrays(parameters.trained.start))
    except ValueError as error:
        raise ValueError(f"the domain does not match {parameters.argument}: {error}") from error
    objective = Function("the objective", problem.objective, parameters, problem.data, carries=parameters.has_state)
    shape = objective.checked_shape()
    if shape != ():
        raise ValueError(f"the objective must return a scalar, the mean over the batch, got an array of shape {shape}")
    objective.check_traces()
    return [_constraint_shape(parameters, constraint) for constraint in problem.constraints]


def _constraint_shape(parameters: Parameters, constraint: Constraint) -> tuple[int, ...]:
    name = f"the constraint {constraint.name!r}"
    function = Function(name, constraint.fn, parameters, constraint.data)
    shape = function.checked_shape()
    if len(shape) > 1:
        raise ValueError(f"{name} must return a scalar or a vector, got an array of shape {shape}")
    function.check_traces()
    size = math.prod(shape)
    if constraint.low.size not in (1, size):
        returned = f"{size} number{'s' * (size != 1)}"
        raise ValueError(f"{name} returns {returned} but has {constraint.low.size} bounds; they must match")
    ends = constraint.sample_range or ()
    if any(end.size not in (1, size) for end in ends):
        given = [end.size for end in ends]
        raise ValueError(f"{name} returns {size} numbers but its sample_range has {given} ends; they must match")
    return shape


class Function:
    """A function of the user's to be traced, with the shapes of its arguments; an error unless it takes them.

    Args:
        name: what error messages call it.
        fn: the function.
        parameters: the structure of x.
        source: its data, if it has any.
        carries: whether it must return the model state.

    Attributes:
        name: what error messages call it.
        batch: the shapes of a batch; empty if the function has no data.
    """

    def __init__(
        self, name: str, fn: Callable[..., Any], parameters: Parameters, source: Source | None, carries: bool = False
    ):
        self.name, self._fn, self._parameters, self._carries = name, unjitted(fn), parameters, carries
        self.batch = () if source is None else (batch_shape(source),)
        self._check_takes_state()

    def traced(self, *batch: Any) -> tuple[ClosedJaxpr, jax.ShapeDtypeStruct]:
        """The jaxpr on a batch of these shapes, and what it returns."""
        return trace(self._call, self._parameters.start, *batch)

    def _call(self, vector: Any, *batch: Any, **random: Any) -> Any:
        """The value of the function; an error unless it is made of floats, with a model state if there must be one."""
        x = self._parameters.unravel(vector)
        value, state = call(self._fn, x, *batch, **random)
        _check_returned(self.name, value)
        if self._carries:
            _check_state(self.name, f"{self._parameters.argument}.state", state, x.state)
        return value

    def _check_takes_state(self) -> None:
        takes, x0 = takes_state(self._fn, 1 + len(self.batch)), self._parameters.argument
        if takes and not self._parameters.has_state:
            raise ValueError(f"{self.name} takes `state`, but {x0} has none; pass tightrope.WithState(params, state)")
        if self._carries and not takes:
            arguments = "params, batch, state" if self.batch else "params, state"
            raise ValueError(
                f"{x0} has model state, but {self.name} does not take it; expected fn({arguments}) -> (value, new_state), "
                "with an argument of the name `state` and without a default"
            )

    def checked_shape(self) -> tuple[int, ...]:
        """The shape of the floats that the function returns, which must be the same with a random key."""
        try:
            shape = self.traced(*self.batch)[1].shape
            if self.batch and takes_key(self._fn):
                self._check_with_key(shape)
            return shape
        except KeyError as error:
            has = "no keys" if not self.batch or not isinstance(self.batch[0], dict) else list(self.batch[0])
            raise ValueError(f"{self.name} uses the key {error}, which does not exist; its batch has {has}") from error
        except Exception as error:
            parameters = self._parameters
            x = parameters.unravel_arrays(parameters.start)
            shown, batch = (textwrap.shorten(_shapes(tree), LONGEST, placeholder=" …") for tree in (x, self.batch))
            data = f"a batch: {batch}" if self.batch else "no batch, as it has no data"
            given = f"the parameters {parameters.argument}: {shown}, and {data}"
            error.add_note(f"Raised while tracing {self.name} with {given}.")
            raise

    def _check_with_key(self, shape: tuple[int, ...]) -> None:
        found = trace(partial(self._call, key=jax.random.key(0)), self._parameters.start, *self.batch)[1].shape
        if found != shape:
            raise ValueError(f"{self.name} returns an array of shape {shape} without a key and {found} with one")

    def check_traces(self) -> None:
        """An error if the function changes from one trace to the next, or depends on the size of its batch."""
        first, returned = self.traced(*self.batch)
        if changes(first, lambda: self.traced(*self.batch)[0]):
            raise ValueError(
                f"{self.name} changes from call to call: two traces of it differ. It is traced once, so what it reads while "
                "traced (NumPy's random numbers, the time, a counter, an iterator, a variable that changes) would stay as it "
                "was then. Draw random numbers in a tightrope.Sampler, pass examples in the batch, and keep the rest constant"
            )
        if not self.batch:
            return
        examples = jax.tree.leaves(self.batch)[0].shape[0]
        double = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((2 * examples, *leaf.shape[1:]), leaf.dtype), self.batch
        )
        try:
            shape = self.traced(*double)[1].shape
        except Exception as error:
            raise ValueError(
                f"{self.name} takes {examples} examples but not {2 * examples}: {error}; "
                "it must take a batch of any number of examples"
            ) from error
        if shape != returned.shape:
            raise ValueError(
                f"{self.name} returns an array of shape {returned.shape} for {examples} examples and {shape} for "
                f"{2 * examples}; expected the mean over the examples: jnp.mean(…, axis=0)"
            )


def _check_state(function: str, name: str, state: Any, given: Any) -> None:
    """An error unless the model state that a function returns is like the one it was given."""
    if state is None:
        raise TypeError(f"{function} takes `state` and must return a pair (value, new_state), got a value alone")
    found, expected = (_shapes(eqx.filter(tree, eqx.is_inexact_array)) for tree in (state, given))
    if found != expected:
        raise ValueError(
            f"{function} returns a state {found}; expected arrays of floats like those of {name}: {expected}"
        )


def _shapes(tree: Any) -> str:
    """A pytree in one line, with the dtype and the shape of each array."""
    return " ".join(eqx.tree_pformat(tree, struct_as_array=True).split())


def _check_returned(function: str, value: Any) -> None:
    if not eqx.is_array_like(value):
        raise TypeError(f"{function} must return a number or an array of floats, got {type(value).__name__}")
    dtype = jnp.result_type(value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{function} must return floats, got {dtype}: it cannot be differentiated")
    if dtype.itemsize < 4:
        raise TypeError(
            f"{function} must return float32 or float64, got {dtype}, which keeps three digits or fewer: "
            "take the mean in float32, jnp.mean(values.astype(jnp.float32))"
        )
