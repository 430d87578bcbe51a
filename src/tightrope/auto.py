"""The choice of a method for a problem, with the reason in one line."""

from __future__ import annotations

from .methods import GradientDescentAscent, Method, TruncatedMomentum
from .problem import Problem


def choose(problem: Problem) -> tuple[Method, str]:
    """The method for this problem and why."""
    if any(constraint.data is not None for constraint in problem.constraints):
        return (
            GradientDescentAscent(),
            "constraints have data, so descent-ascent on the Lagrangian, which needs no exact values",
        )
    kind = "constraints are deterministic" if problem.constraints else "there are no constraints"
    return TruncatedMomentum(), f"{kind}, so truncated momentum with an exact penalty"
