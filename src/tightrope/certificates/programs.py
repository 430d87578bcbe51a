"""Programs that evaluate points of a problem.

Data and all other numbers are arguments of a program; functions are closed over. A program is traced once per structure of x.
See `problems.compiling` for what is compiled.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ..oracles.oracle import Oracle, Sample
from ..problems.compiling import Effort, Program
from ..problems.problem import Problem, cached_on_problem
from .evaluation import Evaluation, evaluate, examples_for_records
from .gap import Curvature, curvature_at

GROUP_SIZE, MAX_GROUP_ROWS, MAX_GROUP_NUMBERS = 8, 64, 2**18
"""Points evaluated at once, in one pass over the data. Points are evaluated one at a time if there are more constraint values
(LAPACK's own threads slow down several factorizations at once) or if gradient and Jacobian have more numbers."""


LITTLE_WORK = 2**18
"""Numbers of the data, and of the parameters for every row, below which a program is not worth much optimization."""


def effort_for(oracle: Oracle) -> Effort:
    """The effort for programs that pass over the data a few times."""
    examples = sum(examples_for_records(source) for source in oracle.sources)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(oracle.data)) + examples * oracle.parameters.size
    return "little" if numbers + (1 + oracle.rows.raw_size) * oracle.parameters.size <= LITTLE_WORK else "full"


class Programs:
    """The programs that evaluate points of the original problem."""

    def __init__(self, original: Oracle):
        structure = jax.tree.structure(original)

        def evaluate_points(
            leaves: list[Array], points: Float[Array, "points n"], shifts: Float[Array, "points 1+raw"], *rest: Any
        ) -> Evaluation:
            oracle = jax.tree.unflatten(structure, leaves)
            return jax.vmap(lambda x, shift: evaluate(oracle, x, shift, *rest))(points, shifts)

        def curvature(leaves: list[Array], *point_and_sample: Any) -> Curvature:
            return curvature_at(jax.tree.unflatten(structure, leaves), *point_and_sample)

        rows, columns = original.rows.raw_size, original.parameters.size
        small = rows <= MAX_GROUP_ROWS and (1 + rows) * columns <= MAX_GROUP_NUMBERS
        self._group_size, self._raw_size = GROUP_SIZE if small else 1, rows
        self._rows, self._trained = len(original.rows.index), original.parameters.trained.size
        effort = effort_for(original)
        self._evaluate = Program(evaluate_points, effort)
        self.curvature = Program(curvature, effort)

    def begin(self, leaves: list[Array], sample: Sample, start: Float[Array, " n"]) -> None:
        """Trace the programs for this sample; they are compiled in threads."""
        vector = np.zeros(self._trained, start.dtype)
        points, shifts = np.zeros((self._group_size, start.size)), np.zeros((self._group_size, 1 + self._raw_size))
        points, shifts = (array.astype(start.dtype) for array in (points, shifts))
        self._evaluate.begin(leaves, points, shifts, start, sample, np.int32(0))
        multipliers = np.zeros(self._rows, start.dtype)
        self.curvature.begin(leaves, start, start, vector, start.dtype.type(0), multipliers, sample)

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
