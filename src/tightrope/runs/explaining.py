"""`explain`: what is detected in a problem, which method `solve` would take and why, and what is assumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import PyTree

from ..certificates.judging import passed_in_full
from ..methods.base import Method
from ..methods.registry import available
from ..methods.selection import refusal
from ..oracles.build import oracle_for
from ..oracles.oracle import Oracle, Term
from ..problems.constraints import relation
from ..problems.data import Batches, Dataset, Sampler, Source
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from ..problems.stream import Stream
from ..tables import Table
from .batches import BatchPlan
from .fitting import check_problem, resolve

Rows = list[tuple[str, str]]


@dataclass(frozen=True, repr=False)
class Explanation:
    """What `explain` returns; it prints as a table.

    Attributes:
        method: the method that `solve` chooses; None if no method takes the problem.
        reason: why.
        applies: the methods that take the problem, with the cost of a step in calls of the oracle.
        refused: the methods that do not, with the reason.
        found: what was detected, and what a step costs: pairs of a label and a text.
        assumed: what is taken for granted, and not checked.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), tr.at_least(jnp.sum, 1.0, name="supply"))
        >>> explanation = tr.explain(problem, jnp.zeros(2))
        >>> explanation.method, explanation.refused["StochasticSQP"]
        ('AdaptivePenalty', "it takes no inequalities, but 'supply' is one")
    """

    method: str | None
    reason: str
    applies: dict[str, str]
    refused: dict[str, str]
    found: Rows
    assumed: tuple[str, ...]

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        reasons: dict[str, list[str]] = {}
        for name, reason in self.refused.items():
            reasons.setdefault(reason, []).append(name)
        refused = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
        others = [name for name in self.applies if name != self.method]
        rows = [*self.found, *_listed("others that take it", [", ".join(others)] if others else [])]
        rows += [*_listed("do not take it", refused), *_listed("assumed", self.assumed)]
        return Table("Tightrope explanation", rows)


def explain(problem: Problem, x0: PyTree[Any]) -> Explanation:
    """Tell what is detected in a problem, which methods apply, what is assumed, and what a step costs.

    The functions are traced, as at the beginning of `solve`; nothing is compiled or run.

    Args:
        problem: the problem.
        x0: the start.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> print(tr.explain(problem, jnp.ones(3)))
        Tightrope explanation
          parameters         3 in 1 array, float32
          objective          <lambda>: deterministic, smooth
          constraint         circle = 1: deterministic, 1 row
          domain             Reals: projection
          ...
    """
    check_problem("explain", problem)
    parameters = Parameters(x0, owner="explain")
    oracle = oracle_for(problem, parameters)
    method, reason = resolve("explain", problem, oracle, None)
    reasons = {name: _refusal(problem, oracle, cls) for name, cls in available().items()}
    applies = {name: available()[name].cost for name, why in reasons.items() if why is None}
    name = type(method).__name__
    found = [("parameters", _parameters(parameters)), *_functions(problem, oracle), ("domain", _domain(problem))]
    if name in applies:
        fitted = oracle_for(problem, parameters, method.accepts.form)
        found += [("method", str(reason)), ("a step", _step(problem, fitted, method)), ("guarantee", method.guarantee)]
    else:
        reason = "no method takes this problem"
        found += [("method", reason)]
    refused = {name: why for name, why in reasons.items() if why is not None}
    return Explanation(
        name if name in applies else None, str(reason), applies, refused, found, tuple(_assumed(problem))
    )


def _listed(label: str, texts: Any) -> Rows:
    """One row for each text, of which the first has the label."""
    return [(label if i == 0 else "", text) for i, text in enumerate(texts)]


def _refusal(problem: Problem, oracle: Oracle, cls: type[Method]) -> str | None:
    """Why a method does not take the problem; None if it does."""
    why = refusal(problem, cls)
    if why is not None or not problem.needs_batches:
        return why
    need = cls().needs_beyond_batches(oracle)
    return None if need is None else f"it needs more than batches: {need}"


def _parameters(parameters: Parameters) -> str:
    arrays = len(jax.tree.leaves(parameters.unravel_arrays(parameters.start)))
    state = f", and {parameters.size - parameters.trained.size:,} of model state" if parameters.has_state else ""
    return f"{parameters.trained.size:,} in {arrays} array{'s' * (arrays > 1)}, {parameters.dtype}{state}"


def _functions(problem: Problem, oracle: Oracle) -> Rows:
    """The objective and the constraints: data, kinks, rows, random keys."""

    def about(term: Term, *more: str) -> str:
        key = ["takes a random key in steps"] if term.takes_key else []
        if term.source is None:
            return ", ".join(["deterministic", *more, *key])
        source = oracle.sources[term.source]
        return ", ".join([f"mean over {source!r}", _certified(source), *more, *key])

    smooth = "smooth" if problem.smooth else "non-smooth"
    rows = [("objective", f"{_name(problem)}: {about(oracle.objective, smooth)}")]
    constraints = [
        f"{relation(c)}: {about(term, f'{term.size:,} row' + 's' * (term.size > 1))}{', affine' * (c.matrix is not None)}"
        for c, term in zip(problem.constraints, oracle.constraints, strict=True)
    ]
    return rows + _listed("constraint" + "s" * (len(constraints) > 1), constraints)


def _certified(source: Source) -> str:
    if isinstance(source, Stream):
        return "certified as streamed"
    if isinstance(source, Batches):
        return "certified on the data given to Stepper.answer"
    return "certified on all of them" if passed_in_full(source) else "certified from samples, with intervals"


def _name(problem: Problem) -> str:
    return getattr(problem.objective, "__name__", type(problem.objective).__name__)


def _domain(problem: Problem) -> str:
    domain = problem.domain
    has = ["projection"] * domain.can_project + ["linear minimization"] * domain.can_minimize
    return f"{type(domain).__name__}: {', '.join(has)}"


def _step(problem: Problem, oracle: Oracle, method: Method) -> str:
    """What a step of the method costs, and the examples that it draws."""
    plan = BatchPlan(problem, oracle, method)
    sizes = [f"{size:,} for {name}" for name, size in zip(plan.names, plan.batch_sizes, strict=True)]
    return f"{method.cost}{'; examples: ' * bool(sizes)}{', '.join(sizes)}"


def _assumed(problem: Problem) -> list[str]:
    """What is not checked, or only at x0."""
    found = []
    if problem.smooth:
        found.append("the functions have no kinks (smooth=True)")
    if problem.sources:
        found.append("functions with data are means over the examples of a batch (checked at x0)")
    if any(c.data is None for c in problem.constraints):
        found.append("constraints without data are deterministic and known exactly")
    if any(isinstance(source, Dataset) for source in problem.sources):
        found.append("the examples of a Dataset are all there is: expectations are means over them")
    if any(isinstance(source, Sampler) for source in problem.sources):
        found.append("the batches of a Sampler are independent, each with its own key")
    if problem.needs_batches:
        found.append("batches from outside come from one distribution; nothing tells whether they are independent")
    return [
        *found,
        "nothing is known of convexity: answers are stationary points, and the gap to the optimum is an estimate",
    ]
