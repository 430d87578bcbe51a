"""Fits a problem to a method: checks the arguments, chooses the method, and builds the oracles.

`solve`, `sweep` and `Stepper` all begin here. Nothing is compiled and nothing is run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from ..arguments import check_type, step_count
from ..methods.base import Method
from ..methods.registry import available, by_name
from ..methods.selection import check_accepts, choose, refusal
from ..oracles.build import oracle_for
from ..oracles.oracle import Oracle
from ..problems.data import Batches
from ..problems.lifting import lift
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from ..problems.stream import Stream
from .batches import check_shares, streams_of
from .result import Result

logger = logging.getLogger("tightrope")


@dataclass(frozen=True, eq=False)
class Fitted:
    """A problem and a method that fit each other.

    Attributes:
        problem: the user's problem, with the variables that its constraints need (see `lifting`).
        parameters: the structure of x, with these variables.
        method: the method, as the user gave it or as it was chosen.
        reason: why it was chosen; None if the user gave it.
        original: the oracle of the problem with its constraints as they are, for evaluation.
        oracle: the oracle with the constraints in the form that the method takes.
        steps: the horizon.
    """

    problem: Problem
    parameters: Parameters
    method: Method
    reason: str | None
    original: Oracle
    oracle: Oracle
    steps: int

    @property
    def name(self) -> str:
        """The method's name."""
        return type(self.method).__name__

    @property
    def mesh(self) -> Mesh | None:
        """The devices that data and batches are split over; None if they are not split."""
        return next((source.mesh for source in self.oracle.sources), None)


def check_problem(owner: str, problem: Any) -> None:
    """A TypeError unless this is a problem."""
    if isinstance(problem, list | tuple) and problem and isinstance(problem[0], Problem):
        several = all(isinstance(each, Problem) for each in problem)
        instead = f"[tightrope.{owner}(each, …) for each in problems]" if several else "problem, x0 = …"
        raise TypeError(
            f"{owner}: problem must be one tightrope.Problem, got a {type(problem).__name__} of {len(problem)}; "
            f"{'call it for each' if several else 'unpack it first'}: {instead}"
        )
    check_type(owner, "problem", problem, Problem, "a tightrope.Problem")


def check_can_draw(owner: str, problem: Problem) -> None:
    """A ValueError if the problem's data are batches that only the user has."""
    if any(isinstance(source, Batches) and not isinstance(source, Stream) for source in problem.sources):
        raise ValueError(
            f"{owner}: problem has tightrope.Batches for data, which have nothing to draw from; "
            "step it in a loop of your own with tightrope.Stepper, or give it a Dataset, a Sampler or a Stream"
        )


def check_no_streams(owner: str, problem: Problem) -> None:
    """A ValueError if the problem's data are streams, which only `solve` reads."""
    if streams_of(problem.sources):
        raise ValueError(
            f"{owner}: problem has a tightrope.Stream for data, which cannot be drawn anew for each run; "
            "call tightrope.solve, or give it a Dataset or a Sampler"
        )


def fit(
    owner: str, problem: Problem, x0: PyTree[Any], method: Any, steps: Any, warm_start: Result | None = None
) -> Fitted:
    """Check the arguments and fit the problem to the method, which is chosen if it is None."""
    check_problem(owner, problem)
    steps = step_count(owner, "steps", steps)
    if warm_start is not None:
        check_type(owner, "warm_start", warm_start, Result, "a Result")
        x0 = _same_structure(owner, x0, warm_start.x)
    problem, parameters = lift(problem, Parameters(x0, owner=owner), owner)
    original = oracle_for(problem, parameters)
    method, reason = resolve(owner, problem, original, method)
    check_accepts(problem, method)
    oracle = oracle_for(problem, parameters, method.accepts.form, training=True)
    if problem.needs_batches:
        _check_steps_on_batches(owner, problem, oracle, method)
        check_shares(owner, oracle, method)
    if warm_start is not None:
        oracle = _start_dual(owner, oracle, problem, warm_start)
    return Fitted(problem, parameters, method, reason, original, oracle, steps)


def resolve(owner: str, problem: Problem, oracle: Oracle, method: Any) -> tuple[Any, str | None]:
    """The method that was asked for, or the chosen one and the reason."""
    if method is None:
        parameters = oracle.parameters
        method, reason = choose(problem, oracle.rows.raw_size, parameters.size, parameters.matrices)
        logger.info("%s: %s", type(method).__name__, reason)
        return method, f"{type(method).__name__} was chosen: {reason}"
    if isinstance(method, str):
        method = by_name(method)
    if isinstance(method, type) and issubclass(method, Method):
        method = method()
    check_type(owner, "method", method, Method, "one of tightrope.methods or its name")
    return method, None


def _same_structure(owner: str, x0: PyTree[Any], x: PyTree[Any]) -> PyTree[Any]:
    if Parameters(x0, owner=owner).key != Parameters(x, owner=owner).key:
        raise ValueError(f"{owner}: warm_start has parameters of another structure or shape than x0")
    return x


def _check_steps_on_batches(owner: str, problem: Problem, oracle: Oracle, method: Method) -> None:
    need = method.needs_beyond_batches(oracle)
    if need is not None:
        others = [name for name, cls in available().items() if _steps_on_batches(problem, oracle, cls)]
        raise ValueError(
            f"{owner}: {type(method).__name__} needs more than batches: {need}; give the problem a Dataset or a Sampler, "
            f"or use a method that steps on batches alone: {', '.join(others)}"
        )


def _steps_on_batches(problem: Problem, oracle: Oracle, cls: type[Method]) -> bool:
    return refusal(problem, cls) is None and cls().needs_beyond_batches(oracle) is None


def _start_dual(owner: str, oracle: Oracle, problem: Problem, warm: Result) -> Oracle:
    """The oracle with dual variables that start at the multipliers of a result."""
    missing = [c.name for c in problem.constraints if c.name not in warm.multipliers]
    if missing:
        raise ValueError(f"{owner}: warm_start has no multipliers for {missing}; it is the result of another problem")
    signed = [(-1.0 if c.kind == "at_least" else 1.0, warm.multipliers[c.name]) for c in problem.constraints]
    raw = np.concatenate([sign * np.atleast_1d(value) for sign, value in signed] or [np.zeros(0)])
    rows = oracle.rows.from_raw(jnp.asarray(raw, oracle.parameters.dtype))
    return eqx.tree_at(lambda o: o.multipliers, oracle, rows)
