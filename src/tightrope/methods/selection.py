"""The choice of a method for a problem, with the reason in one line; docs/choosing.md has it as a table."""

from __future__ import annotations

from ..domains import Reals
from ..oracles.oracle import too_large
from ..problems.problem import Problem
from .adaptive_penalty import AdaptivePenalty, MatrixFreePenalty
from .base import Method
from .conservative_frank_wolfe import ConservativeFrankWolfe
from .registry import available
from .stochastic_frank_wolfe import StochasticFrankWolfe


def choose(problem: Problem, rows: int, parameters: int) -> tuple[Method, str]:
    """The method for this problem, given the number of constraint values and of parameters, and why."""
    candidates = (
        (
            not problem.domain.can_project,
            (ConservativeFrankWolfe, StochasticFrankWolfe),
            "the set has no projection, only linear minimization",
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


def refusal(problem: Problem, method: type[Method]) -> str | None:
    """Why this method cannot take the problem; None where it can."""
    accepts = method.accepts
    for c in problem.constraints:
        if c.data is not None and not accepts.stochastic:
            return f"its constraints must be deterministic, and {c.name!r} has data"
        if c.kind == "equals" and (
            accepts.equalities == "none" or (accepts.equalities == "affine" and c.matrix is None)
        ):
            only = "only affine equalities" if accepts.equalities == "affine" else "no equalities"
            return f"it takes {only}, and {c.name!r} is an equality"
        if c.kind != "equals" and not accepts.inequalities:
            return f"it takes no inequalities, and {c.name!r} is one"
    if accepts.needs == "everywhere":
        return None if isinstance(problem.domain, Reals) else "x must be free, and the problem has a domain"
    able = problem.domain.can_project if accepts.needs == "projection" else problem.domain.can_minimize
    if not able:
        return f"it needs a {accepts.needs} of the set, and {type(problem.domain).__name__} has none"
    return None


def check_accepts(problem: Problem, method: Method) -> None:
    """A ValueError that says why, and which methods could, where the method cannot take the problem."""
    reason = refusal(problem, type(method))
    if reason:
        able = [name for name, cls in available().items() if refusal(problem, cls) is None]
        raise ValueError(
            f"method {type(method).__name__} cannot take this problem: {reason}; "
            f"{'methods that can: ' + ', '.join(able) if able else 'no method here can'}"
        )
