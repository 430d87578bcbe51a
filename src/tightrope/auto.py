"""The choice of a method for a problem, with the reason in one line; docs/choosing.md has it as a table."""

from __future__ import annotations

from .methods import (
    AdaptivePenalty,
    ConservativeFrankWolfe,
    MatrixFreePenalty,
    Method,
    StochasticFrankWolfe,
)
from .oracle import too_large
from .problem import Problem
from .reformulate import refusal


def choose(problem: Problem, sizes: list[int], parameters: int) -> tuple[Method, str]:
    """The method for this problem, whose constraints return `sizes` numbers each, and why."""
    rows = sum(sizes)
    candidates = (
        (
            not problem.domain.can_project,
            (ConservativeFrankWolfe, StochasticFrankWolfe),
            "the set has no projection, only linear minimisation",
        ),
        (
            too_large(rows, parameters),
            (MatrixFreePenalty,),
            f"{rows:,} constraint values of {parameters:,} parameters are too many for a Jacobian: products with it alone",
        ),
        (True, (AdaptivePenalty,), _reason(problem, rows)),
    )
    for applies, methods, reason in candidates:
        able = [method for method in methods if refusal(problem, method) is None]
        if applies and able:
            return able[0](), reason
    return AdaptivePenalty(), "no method here takes this problem"


def _reason(problem: Problem, rows: int) -> str:
    kind = "smooth" if problem.smooth else "non-smooth"
    if not rows:
        return f"a {kind} problem without constraints: quasi-Newton steps on averaged gradients"
    noisy = any(c.data is not None for c in problem.constraints)
    which = f"{rows} {'sampled' if noisy else 'deterministic'} constraint{'s' * (rows > 1)}"
    return f"a {kind} problem with {which}: exact penalty with quasi-Newton steps"
