"""The choice of a method for a problem, with the reason in one line."""

from __future__ import annotations

from .methods import GradientDescentAscent, Method, TruncatedMomentum
from .problem import Problem


def choose(problem: Problem) -> tuple[Method, str]:
    """The method for this problem and why."""
    if problem.constraints:
        return GradientDescentAscent(), "there are constraints, so descent-ascent on the Lagrangian"
    return TruncatedMomentum(), "there are no constraints, so recursive momentum on the objective"
