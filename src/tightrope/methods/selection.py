"""Choose a method for a problem and check that a method takes it; docs/choosing.md has the choice as a table."""

from __future__ import annotations

from ..domains import Reals
from ..oracles.oracle import too_large
from ..problems.model_state import takes_state
from ..problems.problem import Problem
from .adaptive_lagrangian import AdaptiveLagrangian
from .adaptive_penalty import AdaptivePenalty, MatrixFreePenalty
from .base import Method
from .conservative_frank_wolfe import ConservativeFrankWolfe
from .registry import available
from .stochastic_frank_wolfe import StochasticFrankWolfe

NETWORK_PARAMETERS, MANY_PARAMETERS = 500, 20_000
"""The fewest parameters of a network, which has two weight matrices or more, and of any other problem on data that gets the
first-order method: AdaptivePenalty keeps twenty gradients and the Jacobian. First choices, not measured."""


def choose(problem: Problem, rows: int, parameters: int, matrices: int = 0) -> tuple[Method, str]:
    """The method for a problem with this many constraint rows, parameters, and matrices among them, and the reason."""
    is_network, rule = (
        matrices > 1 and parameters >= NETWORK_PARAMETERS,
        "Adam on the Lagrangian with self-tuned multipliers",
    )
    candidates = (
        (
            not problem.domain.can_project,
            (ConservativeFrankWolfe, StochasticFrankWolfe),
            "the set has no projection, only linear minimization",
        ),
        (_carries_state(problem), (AdaptiveLagrangian,), f"an objective with model state: {rule}"),
        (
            problem.data is not None and (is_network or parameters >= MANY_PARAMETERS),
            (AdaptiveLagrangian,),
            f"a {'network' if is_network else 'problem'} with {parameters:,} parameters on batches of data: {rule}",
        ),
        (
            too_large(rows, parameters),
            (MatrixFreePenalty,),
            f"{rows:,} constraint rows and {parameters:,} parameters are too many for dense linear algebra: "
            "exact penalty with Jacobian products",
        ),
        (True, (AdaptivePenalty,), _reason(problem, rows)),
    )
    for applies, methods, reason in candidates:
        able = [method for method in methods if refusal(problem, method) is None]
        if applies and able:
            return able[0](), reason
    return AdaptivePenalty(), "no method takes this problem"


def _reason(problem: Problem, rows: int) -> str:
    kind = "smooth" if problem.smooth else "non-smooth"
    if not rows:
        return f"a {kind} problem without constraints: quasi-Newton steps on averaged gradients"
    noisy = any(c.data is not None for c in problem.constraints)
    which = f"{rows} {'sampled' if noisy else 'deterministic'} constraint{'s' * (rows > 1)}"
    return f"a {kind} problem with {which}: exact penalty with quasi-Newton steps"


def refusal(problem: Problem, method: type[Method]) -> str | None:
    """The reason why this method cannot take the problem; None if it can."""
    accepts = method.accepts
    if _carries_state(problem) and not accepts.model_state:
        return "it carries no model state, but the objective takes `state`"
    for c in problem.constraints:
        if c.data is not None and not accepts.stochastic:
            return f"it takes only deterministic constraints, but {c.name!r} has data"
        if c.kind == "equals" and (
            accepts.equalities == "none" or (accepts.equalities == "affine" and c.matrix is None)
        ):
            only = "only affine equalities" if accepts.equalities == "affine" else "no equalities"
            return f"it takes {only}, but {c.name!r} is an equality"
        if c.kind != "equals" and not accepts.inequalities:
            return f"it takes no inequalities, but {c.name!r} is one"
    if accepts.needs == "everywhere":
        return None if isinstance(problem.domain, Reals) else "it takes no domain, but the problem has one"
    able = problem.domain.can_project if accepts.needs == "projection" else problem.domain.can_minimize
    if not able:
        needed = "a projection" if accepts.needs == "projection" else "linear minimization"
        return f"it needs {needed}, but {type(problem.domain).__name__} has none"
    return None


def _carries_state(problem: Problem) -> bool:
    return takes_state(problem.objective, 1 if problem.data is None else 2)


def check_accepts(problem: Problem, method: Method) -> None:
    """Raise a ValueError with the reason, and the methods that can, if the method cannot take the problem."""
    reason = refusal(problem, type(method))
    if reason:
        able = [name for name, cls in available().items() if refusal(problem, cls) is None]
        raise ValueError(
            f"method {type(method).__name__} cannot take this problem: {reason}; "
            f"{'methods that can: ' + ', '.join(able) if able else 'no method can'}"
        )
