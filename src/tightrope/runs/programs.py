"""The compiled programs that run a method on a problem. They live on the problem, so that they die with it.

Data and all other numbers are arguments, functions are closed over. A program is made once for a structure of x; a new
seed, hyper-parameter, horizon or cadence is a new argument.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..methods.base import Draw, Method
from ..oracles.oracle import Oracle
from ..problems.problem import Problem, cached_on_problem
from .loop import Carry, advance, info_shape, start


class RunPrograms:
    """The programs that run a method, with the constraints in its form: one run, or many as lanes."""

    def __init__(self, fitted: Oracle, lanes: bool):
        structure = jax.tree.structure(fitted)

        def start_run(leaves: list[Array], method: Method, x: Array, key: Array, steps: Array) -> tuple[Method, Carry]:
            self._traced = True
            begin = partial(start, jax.tree.unflatten(structure, leaves))
            return (jax.vmap(begin, in_axes=(0, None, 0, None)) if lanes else begin)(method, x, key, steps)

        def output_of(method: Method, state: Any) -> tuple[Array, Array | None]:
            """The method's output, and its own multipliers of the raw values (None: it has none)."""

            def one(method: Method, state: Any) -> tuple[Array, Array | None]:
                multipliers = method.multipliers(state)
                return method.output(state), None if multipliers is None else fitted.rows.to_raw(multipliers)

            return (jax.vmap(one) if lanes else one)(method, state)

        self.start, self.output = jax.jit(start_run), jax.jit(output_of)
        self._oracle, self._lanes = structure, lanes
        self._advance: dict[Any, Any] = {}

    def timed_start(self, *arguments: Any) -> tuple[tuple[Method, Carry], float]:
        """The method with its constants and the carry before step 1, and the seconds that took: of a second time, where the
        first compiled.
        """

        def timed() -> tuple[Any, float]:
            began = time.perf_counter()
            return jax.block_until_ready(self.start(*arguments)), time.perf_counter() - began

        self._traced = False
        started, seconds = timed()
        return timed() if self._traced else (started, seconds)

    def advance(self, method: Method, carry: Carry, records: int) -> Any:
        """The loop for a method and a carry of this structure, with room for this many records in a call.

        It maps the numbers of the oracle, the method and the carry, the key and four ints (first and last step, horizon,
        cadence) to the carry's numbers, the snapshots and the next step. Flat lists, because it is called often and
        pytrees of modules cost more to take apart than the call itself.
        """
        method_structure, carry_structure = jax.tree.structure((method,)), jax.tree.structure(carry)

        def go(oracle: list[Array], numbers: list[Array], state: list[Array], key: Array, steps: Array) -> Any:
            (one,) = jax.tree.unflatten(method_structure, numbers)
            arguments = one, jax.tree.unflatten(carry_structure, state), key, *steps
            whole = jax.tree.unflatten(self._oracle, oracle)
            advanced, snapshots, k = advance(whole, *arguments, lanes=self._lanes, records=records)
            return jax.tree.leaves(advanced), snapshots, k

        return self._advance.setdefault((method_structure, carry_structure, records), jax.jit(go))


def run_programs_for(problem: Problem, fitted: Oracle, form: str, lanes: bool) -> RunPrograms:
    """The problem's programs for this structure of x and this form of the constraints."""
    return cached_on_problem(problem, ("run", form, fitted.parameters.key, lanes), lambda: RunPrograms(fitted, lanes))


def constant_counts(problem: Problem, oracle: Oracle, method: Method, carry: Carry, lanes: bool) -> dict[str, int]:
    """The counts of a step's Info that never vary."""

    def count() -> dict[str, int]:
        one, state = (jax.tree.map(lambda a: a[0], (method, carry.state))) if lanes else (method, carry.state)
        samples = jax.eval_shape(lambda: {n: oracle.draw(jax.random.key(0), r) for n, r in one.roles(oracle).items()})
        samples = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), samples)
        draw = Draw(samples, jnp.float32(0), jax.random.key(0), jnp.int32(0), jnp.int32(0))
        info = info_shape(oracle, one, state, draw)
        return {name: count for name, count in info._asdict().items() if isinstance(count, int)}

    return cached_on_problem(problem, ("counts", oracle.parameters.key, jax.tree.structure(method), lanes), count)
