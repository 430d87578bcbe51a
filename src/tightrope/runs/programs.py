"""The programs that run a method on a problem.

Data and all other numbers are arguments, functions are closed over. A program is traced once for a structure of x; a new
seed, hyperparameter, horizon or recording interval is a new argument. See `problems.compiling` for what is compiled.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
from jaxtyping import Array

from ..methods.base import Method
from ..oracles.build import definition_of
from ..oracles.oracle import Oracle
from ..problems.compiling import Effort, Program
from ..problems.partition import pad_split, unpadded
from ..problems.problem import Problem, cached_on_problem
from .fitting import Fitted
from .loop import LoopShape, run_steps
from .stepper import AXES, StepperState, start_on_streams

FEW_PARAMETERS = 256
"""With so few, the steps of simple methods are fused (see `compiling`)."""


class RunPrograms:
    """The programs of one run, or of many runs as lanes, for one structure of x and one form of the constraints."""

    def __init__(self, problem: Problem, oracle: Oracle, lanes: bool):
        self._oracle, self._lanes = jax.tree.structure(oracle), lanes
        self._definition = definition_of(problem, oracle)
        self.start = Program(partial(_start, self._oracle, lanes), "little", self._definition)
        self.output = Program(partial(_output, self._oracle, lanes), "little", self._definition)
        self._effort: Effort = "fused" if oracle.parameters.size <= FEW_PARAMETERS else "full"
        self._loops: dict[int, Program] = {}

    def timed_start(self, *arguments: Any) -> tuple[StepperState, float]:
        """The state before step 1, and the seconds that took, without compilation."""
        self.start.wait(*arguments)
        began = time.perf_counter()
        return jax.block_until_ready(self.start(*arguments)), time.perf_counter() - began

    def loop(self, records: int) -> Program:
        """The compiled loop with room for this many records in a call."""
        if records not in self._loops:
            loop = partial(run_steps, LoopShape(self._oracle, self._lanes, records))
            self._loops[records] = Program(loop, self._effort, self._definition)
        return self._loops[records]


def _start(
    oracle: Any, lanes: bool, leaves: list[Array], first: Any, method: Method, x: Array, key: Array, steps: Array
) -> StepperState:
    whole = jax.tree.unflatten(oracle, leaves)
    begin = partial(start_on_streams, whole, first)
    if not lanes:
        return pad_split(whole.partition, begin(method, x, key, steps))
    axes = StepperState(**AXES, parameters=whole.parameters)  # pyright: ignore[reportArgumentType]
    return jax.vmap(begin, in_axes=(0, None, 0, None), out_axes=axes)(method, x, key, steps)


def _output(oracle: Any, lanes: bool, leaves: list[Array], method: Method, state: Any) -> tuple[Array, Array | None]:
    """The method's output, and its own multipliers of the raw values (None: it has none)."""
    rows, state = jax.tree.unflatten(oracle, leaves).rows, unpadded(state)

    def one(method: Method, state: Any) -> tuple[Array, Array | None]:
        multipliers = method.multipliers(state)
        return method.output(state), None if multipliers is None else rows.to_raw(multipliers)

    return (jax.vmap(one) if lanes else one)(method, state)


def run_programs_for(fitted: Fitted, lanes: bool) -> RunPrograms:
    """The problem's programs for this structure of x and this form of the constraints."""
    key = ("run", fitted.method.accepts.form, fitted.parameters.key, lanes, fitted.oracle.partition)
    return cached_on_problem(fitted.problem, key, lambda: RunPrograms(fitted.problem, fitted.oracle, lanes))
