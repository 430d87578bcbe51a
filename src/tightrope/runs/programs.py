"""The compiled programs that run a method on a problem. They live on the problem, so that they die with it.

Data and all other numbers are arguments, functions are closed over. A program is made once for a structure of x; a new
seed, hyperparameter, horizon or cadence is a new argument.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
from jaxtyping import Array

from ..methods.base import Method
from ..oracles.oracle import Oracle
from ..problems.problem import cached_on_problem
from .fitting import Fitted
from .loop import Carry, LoopShape, one_lane, run_steps, start_carry, step_info
from .stepper import AXES, StepperState


class RunPrograms:
    """The programs of one run, or of many runs as lanes, for one structure of x and one form of the constraints."""

    def __init__(self, oracle: Oracle, lanes: bool):
        self._oracle, self._lanes = jax.tree.structure(oracle), lanes
        self._start = jax.jit(partial(_start, self._oracle, lanes))
        self.output = jax.jit(partial(_output, self._oracle, lanes))
        self._loops: dict[LoopShape, Any] = {}

    def timed_start(self, *arguments: Any) -> tuple[Carry, float]:
        """The carry before step 1, and the seconds that took: of a second call, if the first one compiled."""

        def timed() -> tuple[Any, float]:
            began = time.perf_counter()
            return jax.block_until_ready(self._start(*arguments)), time.perf_counter() - began

        compiled = self._start._cache_size()  # pyright: ignore[reportAttributeAccessIssue]
        started, seconds = timed()
        compiles = self._start._cache_size() > compiled  # pyright: ignore[reportAttributeAccessIssue]
        return timed() if compiles else (started, seconds)

    def loop(self, carry: Carry, records: int) -> Any:
        """The compiled loop for a carry of this structure, with room for this many records in a call."""
        shape = LoopShape(self._oracle, jax.tree.structure(carry), self._lanes, records)
        return self._loops.setdefault(shape, jax.jit(partial(run_steps, shape)))


def _start(oracle: Any, lanes: bool, leaves: list[Array], method: Method, x: Array, key: Array, steps: Array) -> Carry:
    begin = partial(start_carry, jax.tree.unflatten(oracle, leaves))
    if not lanes:
        return begin(method, x, key, steps)
    parameters = jax.tree.unflatten(oracle, leaves).parameters
    axes = Carry(StepperState(**AXES, parameters=parameters), 0, 0)  # pyright: ignore[reportArgumentType]
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


def constant_counts(fitted: Fitted, carry: Carry, lanes: bool) -> dict[str, int]:
    """The counts of a step's Info that never vary."""

    def count() -> dict[str, int]:
        info = step_info(fitted.oracle, one_lane(carry.run, 0) if lanes else carry.run)
        return {name: each for name, each in info._asdict().items() if isinstance(each, int)}

    key = ("counts", fitted.parameters.key, jax.tree.structure(carry.run.method), lanes)
    return cached_on_problem(fitted.problem, key, count)
