"""The compiled programs of a problem. They live on the problem, so that they die with it.

Data and all other numbers are arguments, functions are closed over. A program is made once for a structure of x; a new
seed, hyper-parameter, horizon or cadence is a new argument.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .evaluation import Evaluation, evaluate
from .loop import Carry, advance, info_shape, start
from .methods.base import Draw, Method
from .oracle import Oracle, Sample
from .problem import Problem, made_once


class Probe(NamedTuple):
    """The first look at a problem: every function at x0 on a first batch and on its two halves, and x0 in the domain."""

    whole: Float[Array, " 1+raw"]
    halves: Float[Array, " 1+raw"]
    inside: Bool[Array, ""]
    projected: Float[Array, " n"]


def probe(oracle: Oracle, x: Float[Array, " n"]) -> Probe:
    """The first look, at x."""

    def values(sample: Sample) -> Float[Array, " 1+raw"]:
        return jnp.concatenate([oracle.f(x, sample)[None], oracle.raw(x, sample)])

    first = oracle.first()
    parts = [jax.tree.map(lambda a, i=i: a[i * (len(a) // 2) : (i + 1) * (len(a) // 2)], first) for i in (0, 1)]
    cut = jax.tree.map(lambda a: a[: len(a) // 2 * 2], first)
    single = any(len(a) < 2 for a in jax.tree.leaves(first))
    params = oracle.parameters.unravel_arrays(x)
    return Probe(
        values(first if single else cut),
        values(first) if single else (values(parts[0]) + values(parts[1])) / 2.0,
        oracle.domain.contains(params),
        oracle.project(x) if oracle.domain.can_project else x,
    )


TOGETHER, FEW_ROWS, JACOBIAN_NUMBERS = 8, 64, 2**18
"""Points evaluated at once, in one pass over the data; one at a time where there are more constraint values (LAPACK's own
threads get in the way of several factorisations at once) or a Jacobian has more numbers."""


class Programs:
    """The programs that evaluate points of the original problem."""

    def __init__(self, original: Oracle):
        structure = jax.tree.structure(original)

        def evaluate_points(
            leaves: list[Array], points: Float[Array, "points n"], sample: Sample, products: Int[Array, ""]
        ) -> Evaluation:
            oracle = jax.tree.unflatten(structure, leaves)
            return jax.vmap(lambda x: evaluate(oracle, x, sample, products))(points)

        rows, columns = original.rows.raw_size, original.parameters.size
        self._together = TOGETHER if rows <= FEW_ROWS and (1 + rows) * columns <= JACOBIAN_NUMBERS else 1
        self._evaluate = jax.jit(evaluate_points)
        self.probe = jax.jit(lambda leaves, x: probe(jax.tree.unflatten(structure, leaves), x))

    def evaluate(
        self, leaves: list[Array], points: Float[np.ndarray, "points n"], sample: Sample, products: int
    ) -> list[Evaluation]:
        """The evaluation of each point; the last group is filled up, so that all are evaluated by one program."""
        found, count = [], self._together
        for first in range(0, len(points), count):
            group = points[first : first + count]
            filled = np.concatenate([group, np.repeat(group[-1:], count - len(group), axis=0)])
            columns = jax.device_get(self._evaluate(leaves, filled, sample, np.int32(products)))
            found += [Evaluation(*(column[i] for column in columns)) for i in range(len(group))]
        return found


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


def programs_for(problem: Problem, original: Oracle) -> Programs:
    """The problem's programs for this structure of x."""
    return made_once(problem, ("original", original.parameters.key), lambda: Programs(original))


def run_programs_for(problem: Problem, fitted: Oracle, form: str, lanes: bool) -> RunPrograms:
    """The problem's programs for this structure of x and this form of the constraints."""
    return made_once(problem, ("run", form, fitted.parameters.key, lanes), lambda: RunPrograms(fitted, lanes))


def constant_counts(problem: Problem, oracle: Oracle, method: Method, carry: Carry, lanes: bool) -> dict[str, int]:
    """The counts of a step's Info that never vary."""

    def count() -> dict[str, int]:
        one, state = (jax.tree.map(lambda a: a[0], (method, carry.state))) if lanes else (method, carry.state)
        samples = jax.eval_shape(lambda: {n: oracle.draw(jax.random.key(0), r) for n, r in one.roles(oracle).items()})
        samples = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), samples)
        draw = Draw(samples, jnp.float32(0), jax.random.key(0), jnp.int32(0), jnp.int32(0))
        info = info_shape(oracle, one, state, draw)
        return {name: count for name, count in info._asdict().items() if isinstance(count, int)}

    return made_once(problem, ("counts", oracle.parameters.key, jax.tree.structure(method), lanes), count)
