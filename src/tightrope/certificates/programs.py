"""Compiled programs that evaluate points of a problem. The problem keeps them, so they are freed with it.

Data and all other numbers are arguments of a program; functions are closed over. A program is compiled once per structure of x.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ..oracles.oracle import Oracle, Sample
from ..problems.problem import Problem, cached_on_problem
from .evaluation import Evaluation, evaluate
from .gap import curvature_at

GROUP_SIZE, MAX_GROUP_ROWS, MAX_GROUP_NUMBERS = 8, 64, 2**18
"""Points evaluated at once, in one pass over the data. Points are evaluated one at a time if there are more constraint values
(LAPACK's own threads slow down several factorizations at once) or if gradient and Jacobian have more numbers."""


class Programs:
    """The programs that evaluate points of the original problem."""

    def __init__(self, original: Oracle):
        structure = jax.tree.structure(original)

        def evaluate_points(
            leaves: list[Array], points: Float[Array, "points n"], shifts: Float[Array, "points 1+raw"], *rest: Any
        ) -> Evaluation:
            oracle = jax.tree.unflatten(structure, leaves)
            return jax.vmap(lambda x, shift: evaluate(oracle, x, shift, *rest))(points, shifts)

        rows, columns = original.rows.raw_size, original.parameters.size
        small = rows <= MAX_GROUP_ROWS and (1 + rows) * columns <= MAX_GROUP_NUMBERS
        self._group_size, self._raw_size = GROUP_SIZE if small else 1, rows
        self._evaluate = jax.jit(evaluate_points)
        self.curvature = jax.jit(
            lambda leaves, *point_and_sample: curvature_at(jax.tree.unflatten(structure, leaves), *point_and_sample)
        )

    def evaluate(
        self,
        data: tuple[list[Array], Sample],
        points: Float[np.ndarray, "points n"],
        start: Float[Array, " n"],
        products: int,
        shifts: Float[np.ndarray, "points 1+raw"] | None = None,
    ) -> list[Evaluation]:
        """Evaluate each point; the last group is padded, so that one program evaluates all groups.

        Args:
            data: the numbers of the oracle, and the sample.
            points: the points.
            start: x0.
            products: see `evaluate`.
            shifts: added to the objective and the raw values of each point; None: nothing.
        """
        (leaves, sample), found, count = data, [], self._group_size
        if shifts is None:
            shifts = np.zeros((len(points), 1 + self._raw_size), points.dtype)
        for first in range(0, len(points), count):
            group, moved = (a[first : first + count] for a in (points, shifts))
            filling = [(0, count - len(group)), (0, 0)]
            padded, moved = (np.pad(a, filling, mode="edge") for a in (group, moved))
            columns = jax.device_get(self._evaluate(leaves, padded, moved, start, sample, np.int32(products)))
            found += [jax.tree.map(lambda column, i=i: column[i], columns) for i in range(len(group))]
        return found


def programs_for(problem: Problem, original: Oracle) -> Programs:
    """The problem's programs for this structure of x."""
    return cached_on_problem(problem, ("original", original.parameters.key), lambda: Programs(original))
