"""The compiled programs that evaluate points of a problem. They live on the problem, so that they die with it.

Data and all other numbers are arguments, functions are closed over. A program is made once for a structure of x.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..oracles.oracle import Oracle, Sample
from ..problems.problem import Problem, cached_on_problem
from .evaluation import Evaluation, evaluate


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
threads get in the way of several factorizations at once) or a Jacobian has more numbers."""


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


def programs_for(problem: Problem, original: Oracle) -> Programs:
    """The problem's programs for this structure of x."""
    return cached_on_problem(problem, ("original", original.parameters.key), lambda: Programs(original))
