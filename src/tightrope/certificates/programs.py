"""Programs that evaluate points of a problem.

Data and all other numbers are arguments of a program; functions are closed over. A program is traced once per structure of x.
See `problems.compiling` for what is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ..oracles.build import definition_of
from ..oracles.oracle import Oracle, Sample
from ..problems.canonical import primitives
from ..problems.compiling import Effort, Program
from ..problems.problem import Problem, cached_on_problem
from .evaluation import Evaluation, evaluate, examples_for_records
from .gap import Curvature, curvature_at

GROUP_SIZE, LARGE_GROUP = 8, 64
"""Points evaluated at once, in one pass over the data: large groups for more points than they hold. The last one is padded.
The program for large groups is optimized in full: it is worth that for the many points of a sweep."""
MAX_GROUP_ROWS, MAX_GROUP_NUMBERS, MAX_LARGE_NUMBERS = 64, 2**18, 2**12
"""Points are evaluated one at a time if there are more constraint values (LAPACK's own threads slow down several factorizations
at once) or if gradient and Jacobian have more numbers, and never in large groups if they have more than the last: what
functions need on the way takes memory too, and grows with the parameters."""


LITTLE_WORK = 2**18
"""Numbers of the data, and of the parameters for every row, below which a program is not worth much optimization."""


def effort_for(oracle: Oracle) -> Effort:
    """The effort for programs that pass over the data a few times."""
    examples = sum(examples_for_records(source) for source in oracle.sources)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(oracle.data)) + examples * oracle.parameters.size
    return "little" if numbers + (1 + oracle.rows.raw_size) * oracle.parameters.size <= LITTLE_WORK else "full"


def slow_together(oracle: Oracle) -> bool:
    """Whether functions are slower at several points at once: on CPUs, convolutions with several kernels are."""

    def values(x: Float[Array, " n"], key: Array) -> tuple[Array, Array]:
        held, trained = oracle.hold_state(x)
        sample = held.draw(key, 2)
        return held.f(trained, sample), held.raw(trained, sample)

    if jax.default_backend() != "cpu":
        return False
    jaxpr = jax.make_jaxpr(values)(oracle.parameters.start, jax.random.key(0))
    return any(primitive.name == "conv_general_dilated" for primitive in primitives(jaxpr))


class Programs:
    """The programs that evaluate points of the original problem."""

    def __init__(self, problem: Problem, original: Oracle):
        structure = jax.tree.structure(original)

        def evaluate_points(
            leaves: list[Array], points: Float[Array, "points n"], shifts: Float[Array, "points 1+raw"], *rest: Any
        ) -> Evaluation:
            oracle = jax.tree.unflatten(structure, leaves)
            return jax.vmap(lambda x, shift: evaluate(oracle, x, shift, *rest))(points, shifts)

        def curvatures(leaves: list[Array], start: Float[Array, " n"], sample: Sample, *points: Any) -> Curvature:
            oracle = jax.tree.unflatten(structure, leaves)
            return jax.vmap(lambda *point: curvature_at(oracle, start, sample, *point))(*points)

        rows, columns = original.rows.raw_size, original.parameters.size
        numbers = (1 + rows) * columns if rows <= MAX_GROUP_ROWS else np.inf
        self._raw_size, self._large = rows, numbers <= MAX_LARGE_NUMBERS
        together = numbers <= MAX_GROUP_NUMBERS and (self._large or not slow_together(original))
        self._group, self._trained = GROUP_SIZE if together else 1, original.parameters.trained.size
        effort = effort_for(original)
        definition = definition_of(problem, original)
        self._evaluate = Program(evaluate_points, effort, definition)
        self._evaluate_many = Program(evaluate_points, "full", definition)
        self._curvatures = Program(curvatures, effort, definition)

    def begin(self, leaves: list[Array], sample: Sample, start: Float[Array, " n"], lanes: int) -> None:
        """Trace the programs for this sample and this many runs; they are compiled in threads."""

        def zeros(*shape: int) -> np.ndarray:
            return np.zeros(shape, start.dtype)

        program, size = self._for_points(2 * lanes)
        program.begin(leaves, zeros(size, start.size), zeros(size, 1 + self._raw_size), start, sample, np.int32(0))
        size = self._lanes_at_once(lanes)
        point = zeros(size, start.size), zeros(size, self._trained), zeros(size), zeros(size, self._raw_size)
        self._curvatures.begin(leaves, start, sample, *point)

    def evaluate(
        self,
        data: tuple[list[Array], Sample],
        points: Float[np.ndarray, "points n"],
        start: Float[Array, " n"],
        products: int,
        shifts: Float[np.ndarray, "points 1+raw"] | None = None,
    ) -> Evaluation:
        """Evaluate each point; the arrays of the evaluation have an axis for the points.

        Args:
            data: the numbers of the oracle, and the sample.
            points: the points.
            start: x0.
            products: see `evaluate`.
            shifts: added to the objective and the raw values of each point; None: nothing.
        """
        leaves, sample = data
        if shifts is None:
            shifts = np.zeros((len(points), 1 + self._raw_size), points.dtype)
        program, size = self._for_points(len(points))
        return over_groups(
            lambda *group: program(leaves, *group, start, sample, np.int32(products)), size, points, shifts
        )

    def curvatures(self, data: tuple[list[Array], Sample], start: Float[Array, " n"], *points: np.ndarray) -> Curvature:
        """The predicted decrease at each point; `points` are what `curvature_at` takes of each, one array for each argument."""
        leaves, sample = data
        size = self._lanes_at_once(len(points[0]))
        return over_groups(lambda *group: self._curvatures(leaves, start, sample, *group), size, *points)

    def _for_points(self, count: int) -> tuple[Program, int]:
        """The program that evaluates this many points, and the size of its groups."""
        if self._large and count > LARGE_GROUP:
            return self._evaluate_many, LARGE_GROUP
        return self._evaluate, self._group

    def _lanes_at_once(self, lanes: int) -> int:
        """How many answers the curvature is measured at together."""
        if lanes == 1 or not self._large:
            return 1
        return GROUP_SIZE if lanes <= GROUP_SIZE else LARGE_GROUP


def over_groups(program: Callable[..., Any], size: int, *columns: np.ndarray) -> Any:
    """What the program gives for all rows of the columns, a pytree of NumPy arrays; it takes groups of this many rows.

    Groups wait for no other, but single points do: several of them at once may need too much memory.
    """
    count, answers = len(columns[0]), []
    for first in range(0, count, size):
        groups = [column[first : first + size] for column in columns]
        missing = size - len(groups[0])
        answer = program(*(np.concatenate([group, np.repeat(group[-1:], missing, axis=0)]) for group in groups))
        answers.append(answer if size > 1 else jax.block_until_ready(answer))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *jax.device_get(answers))


def programs_for(problem: Problem, original: Oracle) -> Programs:
    """The problem's programs for this structure of x."""
    return cached_on_problem(problem, ("original", original.parameters.key), lambda: Programs(problem, original))
