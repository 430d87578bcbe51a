"""Trusses of least weight, with the areas of the bars and the displacements of the joints as variables.

Minimize the weight Σ γ l_b a_b subject to the equilibrium K(a)u = p for every load, to limits of the stresses E (Bu)_b/l_b, and
to bounds of areas and displacements. B has a row of direction cosines for every bar, and K(a) = Bᵀ diag(E a_b/l_b) B. At the
start all displacements are zero, so the equations do not depend on the areas to first order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...arguments import number
from ...domains import Box
from ...problems.constraints import between, equals
from ...problems.problem import Problem
from ..base import Case, Solution

Vector = Float[Array, " n"]


@dataclass(frozen=True, eq=False)
class Truss:
    """A truss, its loads and its limits, in any consistent units.

    Attributes:
        joints: the coordinates of every joint.
        bars: the two joints of every bar.
        supports: the joints that do not move.
        loads: for every load case, the force at each loaded joint.
        modulus: Young's modulus E.
        density: the weight γ of a unit of volume.
        tension: the largest stress.
        compression: the largest stress of a bar in compression, a number or one per bar.
        reach: the largest displacement of a joint along each axis.
        areas: the least and the largest area.
        start: the areas at the start.
        best: the areas of the lightest truss known, one per group.
        weight: its weight.
        groups: the bars that share an area; None: each bar has its own.
    """

    joints: Sequence[Sequence[float]]
    bars: Sequence[tuple[int, int]]
    supports: Sequence[int]
    loads: Sequence[Mapping[int, Sequence[float]]]
    modulus: float
    density: float
    tension: float
    compression: float | Sequence[float]
    reach: float
    areas: tuple[float, float]
    start: float
    best: Sequence[float]
    weight: float
    groups: Sequence[int] | None = None

    def case(self, name: str, areas: float | None = None) -> Case:
        """The problem, its starting point and its solution.

        Args:
            name: name of the objective.
            areas: the area of every bar at the start, within the bounds; None: the customary one.
        """
        low, high = self.areas
        areas = self.start if areas is None else number(name, "areas", areas, low=low, high=high, closed="[]")
        lengths, elongation, forces = self._geometry()
        group = np.arange(len(self.bars)) if self.groups is None else np.asarray(self.groups)
        designs, moves = group.max() + 1, forces.size
        stiffness = self.modulus / lengths

        def weight(x: Vector) -> Float[Array, ""]:
            return self.density * jnp.sum(lengths * x[group])

        def strains(x: Vector) -> Float[Array, "cases bars"]:
            return x[designs:].reshape(forces.shape) @ elongation.T / lengths

        def equilibrium(x: Vector) -> Float[Array, " moves"]:
            return ((self.modulus * x[group] * strains(x)) @ elongation - forces).reshape(-1)

        def stress(x: Vector) -> Float[Array, " rows"]:
            return self.modulus * strains(x).reshape(-1)

        weight.__name__ = name
        problem = Problem(
            weight,
            [
                equals(equilibrium),
                between(stress, -np.tile(np.broadcast_to(self.compression, lengths.shape), len(forces)), self.tension),
            ],
            domain=Box(
                np.append(np.full(designs, low), np.full(moves, -self.reach)),
                np.append(np.full(designs, high), np.full(moves, self.reach)),
            ),
        )
        best = np.asarray(self.best, float)
        matrix = elongation.T @ ((stiffness * best[group])[:, None] * elongation)
        displacements = np.clip(np.linalg.solve(matrix, forces.T).T, -self.reach, self.reach)
        start = jnp.asarray(np.append(np.full(designs, areas), np.zeros(moves)))
        solution = Solution(jnp.asarray(np.append(best, displacements)), self.weight, None)
        return problem, start, solution

    def _geometry(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The lengths of the bars, the matrix B, and the forces of every load case, both without the supports."""
        joints, bars = np.asarray(self.joints, float), np.asarray(self.bars)
        count, axes = joints.shape
        sides = joints[bars[:, 1]] - joints[bars[:, 0]]
        lengths = np.linalg.norm(sides, axis=1)
        ends = np.eye(count)[bars[:, 1]] - np.eye(count)[bars[:, 0]]
        free = np.setdiff1d(np.arange(count), self.supports)
        elongation = np.einsum("bj,ba->bja", ends, sides / lengths[:, None])[:, free].reshape(len(bars), -1)
        forces = np.zeros((len(self.loads), count, axes))
        for number_of_case, load in enumerate(self.loads):
            for joint, force in load.items():
                forces[number_of_case, joint] = force
        return lengths, elongation, forces[:, free].reshape(len(self.loads), -1)
