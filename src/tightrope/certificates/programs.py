"""Compiled programs that evaluate points of a problem. The problem keeps them, so they are freed with it.

Data and all other numbers are arguments of a program; functions are closed over. A program is compiled once per structure of x.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..oracles.oracle import Oracle, Sample
from ..problems.problem import Problem, cached_on_problem
from .evaluation import Evaluation, evaluate
from .gap import curvature_at

GROUP_SIZE, MAX_GROUP_ROWS, MAX_GROUP_NUMBERS = 8, 64, 2**18
"""Points evaluated at once, in one pass over the data. Points are evaluated one at a time if there are more constraint values
(LAPACK's own threads slow down several factorizations at once) or if gradient and Jacobian have more numbers."""


class Probe(NamedTuple):
    """All functions at a point on a first batch and on its two halves, and the point's place in the domain.

    Attributes:
        whole: objective and constraint values on the batch, cut to an even number of examples.
        halves: the means of their values on the two halves.
        inside: whether the point is in the domain.
        projected: its projection onto the domain.
    """

    whole: Float[Array, " 1+raw"]
    halves: Float[Array, " 1+raw"]
    inside: Bool[Array, ""]
    projected: Float[Array, " n"]


def probe(oracle: Oracle, x: Float[Array, " n"]) -> Probe:
    """Probe the functions and the domain at x."""

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
        self.probe = jax.jit(lambda leaves, x: probe(jax.tree.unflatten(structure, leaves), x))

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
