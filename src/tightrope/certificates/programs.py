"""Compiled programs that evaluate points of a problem. The problem keeps them, so they are freed with it.

Data and all other numbers are arguments of a program; functions are closed over. A program is compiled once per structure of x.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from ..oracles.oracle import Oracle, Sample
from ..problems.problem import Problem, cached_on_problem
from .evaluation import Evaluation, evaluate

GROUP_SIZE, MAX_GROUP_ROWS, MAX_GROUP_NUMBERS = 8, 64, 2**18
"""Points evaluated at once, in one pass over the data. Points are evaluated one at a time if there are more constraint values
(LAPACK's own threads slow down several factorizations at once) or if gradient and Jacobian have more numbers."""


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
        small = rows <= MAX_GROUP_ROWS and (1 + rows) * columns <= MAX_GROUP_NUMBERS
        self._group_size = GROUP_SIZE if small else 1
        self._evaluate = jax.jit(evaluate_points)

    def evaluate(
        self, leaves: list[Array], points: Float[np.ndarray, "points n"], sample: Sample, products: int
    ) -> list[Evaluation]:
        """Evaluate each point; the last group is padded, so that one program evaluates all groups."""
        found, count = [], self._group_size
        for first in range(0, len(points), count):
            group = points[first : first + count]
            padded = np.concatenate([group, np.repeat(group[-1:], count - len(group), axis=0)])
            columns = jax.device_get(self._evaluate(leaves, padded, sample, np.int32(products)))
            found += [Evaluation(*(column[i] for column in columns)) for i in range(len(group))]
        return found


def programs_for(problem: Problem, original: Oracle) -> Programs:
    """The problem's programs for this structure of x."""
    return cached_on_problem(problem, ("original", original.parameters.key), lambda: Programs(original))
