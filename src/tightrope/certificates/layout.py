"""Where the raw values of each constraint are, and the units of each: what all points of a problem have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..oracles.oracle import Oracle
from ..problems.problem import Problem
from .scales import ConstraintScales


class Layout(NamedTuple):
    """The raw values of a problem by constraint.

    Attributes:
        slices: the entries of each constraint, by name.
        scalars: the names of the constraints whose function returns a scalar.
        signs: −1 for the raw values of `at_least`, whose multipliers are for low − h ≤ 0, else 1.
        scale: the rule for the scale of each raw value.
    """

    slices: dict[str, slice]
    scalars: frozenset[str]
    signs: Float[np.ndarray, " raw"]
    scale: ConstraintScales

    @classmethod
    def of(cls, problem: Problem, oracle: Oracle) -> Layout:
        """Return the layout of a problem whose oracle is in native form."""
        slices, signs = oracle.slices(), np.ones(oracle.rows.raw_size)
        for constraint, entries in zip(problem.constraints, slices.values(), strict=True):
            signs[entries] = -1.0 if constraint.kind == "at_least" else 1.0
        scalars = frozenset(term.name for term in oracle.constraints if not term.shape)
        return cls(slices, scalars, signs, ConstraintScales.of(problem, oracle))

    def by_constraint(self, values: Float[np.ndarray, " raw"]) -> dict[str, Any]:
        """Raw values by name: a float for a function that returns a scalar, an array for one that returns a vector."""
        parts = self.slices.items()
        return {name: float(values[part][0]) if name in self.scalars else values[part] for name, part in parts}

    def multipliers(self, raw: Float[np.ndarray, " raw"]) -> dict[str, Any]:
        """Raw multipliers by name; those of `at_least` are for low − h ≤ 0."""
        return self.by_constraint(raw * self.signs.astype(raw.dtype))
