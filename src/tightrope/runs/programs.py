"""The compiled programs that run a method on a problem. They live on the problem, so that they die with it.

Data and all other numbers are arguments, functions are closed over. A program is made once for a structure of x; a new
seed, hyperparameter, horizon or recording interval is a new argument.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..methods.base import Draw, Info, Method
from ..oracles.oracle import Oracle
from ..problems.problem import cached_on_problem
from .batches import streams_of
from .fitting import Fitted
from .loop import LoopShape, run_steps
from .stepper import AXES, StepperState, draw_samples, start_on_streams


class RunPrograms:
    """The programs of one run, or of many runs as lanes, for one structure of x and one form of the constraints."""

    def __init__(self, oracle: Oracle, lanes: bool):
        self._oracle, self._lanes = jax.tree.structure(oracle), lanes
        self._start = jax.jit(partial(_start, self._oracle, lanes))
        self.output = jax.jit(partial(_output, self._oracle, lanes))
        self._loops: dict[int, Any] = {}

    def timed_start(self, *arguments: Any) -> tuple[StepperState, float]:
        """The state before step 1, and the seconds that took: of a second call, if the first one compiled."""

        def timed() -> tuple[Any, float]:
            began = time.perf_counter()
            return jax.block_until_ready(self._start(*arguments)), time.perf_counter() - began

        compiled = self._start._cache_size()  # pyright: ignore[reportAttributeAccessIssue]
        started, seconds = timed()
        compiles = self._start._cache_size() > compiled  # pyright: ignore[reportAttributeAccessIssue]
        return timed() if compiles else (started, seconds)

    def loop(self, records: int) -> Any:
        """The compiled loop with room for this many records in a call."""
        shape = LoopShape(self._oracle, self._lanes, records)
        return self._loops.setdefault(records, jax.jit(partial(run_steps, shape)))


def _start(
    oracle: Any, lanes: bool, leaves: list[Array], first: Any, method: Method, x: Array, key: Array, steps: Array
) -> StepperState:
    whole = jax.tree.unflatten(oracle, leaves)
    begin = partial(start_on_streams, whole, first)
    if not lanes:
        return begin(method, x, key, steps)
    axes = StepperState(**AXES, parameters=whole.parameters)  # pyright: ignore[reportArgumentType]
    return jax.vmap(begin, in_axes=(0, None, 0, None), out_axes=axes)(method, x, key, steps)


def _output(oracle: Any, lanes: bool, leaves: list[Array], method: Method, state: Any) -> tuple[Array, Array | None]:
    """The method's output, and its own multipliers of the raw values (None: it has none)."""
    rows = jax.tree.unflatten(oracle, leaves).rows

    def one(method: Method, state: Any) -> tuple[Array, Array | None]:
        multipliers = method.multipliers(state)
        return method.output(state), None if multipliers is None else rows.to_raw(multipliers)

    return (jax.vmap(one) if lanes else one)(method, state)


def run_programs_for(fitted: Fitted, lanes: bool) -> RunPrograms:
    """The problem's programs for this structure of x and this form of the constraints."""
    key = ("run", fitted.method.accepts.form, fitted.parameters.key, lanes)
    return cached_on_problem(fitted.problem, key, lambda: RunPrograms(fitted.oracle, lanes))


def step_info(fitted: Fitted, method: Method) -> Info:
    """The Info of a step: Python ints for counts that never vary, shapes for those that do."""

    def info() -> Info:
        oracle, key, k = fitted.oracle, jax.random.key(0), jnp.int32(1)
        streams = streams_of(oracle.sources).values()
        batches = tuple(jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), stream.shapes) for stream in streams)
        run = start_on_streams(oracle, batches, method, fitted.parameters.start, key, k)
        draw = Draw(*draw_samples(oracle, run.method.roles(oracle), key, k, batches), key, k, k)
        return run.method.step(oracle, run.state, draw)[1]

    key = ("info", fitted.parameters.key, jax.tree.structure(method))
    return cached_on_problem(fitted.problem, key, partial(eqx.filter_eval_shape, info))
