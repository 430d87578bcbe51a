"""The problem: an objective, constraints, a simple convex set, and the data of its functions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..arguments import check_callable, check_type
from ..domains import Domain, Reals
from ..tables import Table
from .constraints import Constraint, relation
from .data import Batches, Source, check_source

RESERVED = ("step", "samples", "epochs", "seconds", "objective", "violation", "stationarity")
"""Reserved names: columns of every history."""

CacheKey = tuple[str, *tuple[Hashable, ...]]
"""A name, and everything else that tells one cached value of this name from another."""


class Problem:
    """Minimize `E objective(x)` subject to constraints and `x ∈ domain`.

    Args:
        objective: `objective(params, batch) -> scalar`, a MEAN over the batch's examples; `objective(params)` if `data` is
            None, and then it is deterministic. With a third argument `key=None` it gets a random key in the steps of a method
            (for dropout, say), and None where answers are evaluated. With an argument `state` it gets the model state
            and returns `(value, new_state)`: see `WithState`.
        constraints: one constraint or a sequence, made by `equals`, `at_most`, `at_least`, `between` or `affine`.
        domain: a set of `tightrope.domains` that x must stay in; None: everywhere.
        data: the source of the objective's samples: a `Dataset`, `Sampler`, `Stream` or `Batches`.
        smooth: False if the objective or a constraint has kinks; certificates then judge near-stationarity too.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), [tr.equals(jnp.sum, 1.0)])
        >>> problem
        Problem(objective '<lambda>', constraints: sum (equals), domain Reals)
    """

    def __init__(
        self,
        objective: Callable[..., Any],
        constraints: Constraint | Sequence[Constraint] = (),
        *,
        domain: Domain | None = None,
        data: Source | None = None,
        smooth: bool = True,
    ):
        check_callable("Problem", "objective", objective, "a function of the parameters")
        makers = "made by tightrope.equals, at_most, at_least, between or affine"
        listed = (constraints,) if isinstance(constraints, Constraint) else constraints
        check_type(
            "Problem", "constraints", listed, (Sequence, Iterator), f"a constraint or a sequence of them, {makers}"
        )
        constraints = tuple(listed)
        for constraint in constraints:
            check_type("Problem", "constraints", constraint, Constraint, makers)
        if isinstance(domain, type) and issubclass(domain, Domain):
            raise TypeError(f"Problem: domain must be a set, not its class: write {domain.__name__}(…)")
        check_type("Problem", "domain", domain, (Domain, type(None)), "one of tightrope.domains")
        check_source("Problem", "data", data)
        check_type("Problem", "smooth", smooth, bool, "True or False")
        self.objective = objective
        self.constraints = _unique_names(constraints)
        self.domain: Domain = Reals() if domain is None else domain
        self.data = data
        self.smooth = smooth
        self._cache: dict[CacheKey, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in another process or in this one, starts with an empty cache."""
        return self.__dict__ | {"_cache": {}}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The distinct sources of samples, the objective's first."""
        listed = [self.data, *(constraint.data for constraint in self.constraints)]
        return tuple({id(source): source for source in listed if source is not None}.values())

    @property
    def needs_batches(self) -> bool:
        """Whether a source is a `Stream` or `Batches`: there is nothing to draw from."""
        return any(isinstance(source, Batches) for source in self.sources)

    def _table(self) -> Table:
        """The objective, the constraints, the set and the data, as a table."""

        def on(data: Source | None) -> str:
            return "deterministic" if data is None else f"mean over {data!r}"

        rows = [("minimize", getattr(self.objective, "__name__", "objective"), on(self.data))]
        rows += [("subject to" * (i == 0), relation(c), on(c.data)) for i, c in enumerate(self.constraints)]
        return Table("Problem", [*rows, ("over", f"x in {type(self.domain).__name__}", "")])

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def __repr__(self) -> str:
        constraints = ", ".join(f"{c.name} ({c.kind})" for c in self.constraints) or "none"
        name = getattr(self.objective, "__name__", "objective")
        return f"Problem(objective {name!r}, constraints: {constraints}, domain {type(self.domain).__name__})"


def on_sources(problem: Problem, sources: dict[int, Source]) -> Problem:
    """The problem with other sources in place of some, which are named by their ids."""
    constraints = [replace(c, data=sources.get(id(c.data), c.data)) for c in problem.constraints]
    data = sources.get(id(problem.data), problem.data)
    return Problem(problem.objective, constraints, domain=problem.domain, data=data, smooth=problem.smooth)


def cached_on_problem(problem: Problem, key: CacheKey, make: Callable[[], Any]) -> Any:
    """The value of `make()`, computed once per key and kept as long as the problem: a compiled program, say."""
    if key not in problem._cache:
        problem._cache[key] = make()
    return problem._cache[key]


def with_bounds(problem: Problem, name: str, low: float, high: float) -> Problem:
    """The problem with other bounds of one constraint, the same for all of its entries.

    Problems with the same rows share their programs: those whose bounds are finite, and equal, in the same places.
    """
    place = [constraint.name for constraint in problem.constraints].index(name)
    old = problem.constraints[place]
    new = replace(old, low=np.full_like(old.low, low), high=np.full_like(old.high, high))
    constraints = [*problem.constraints[:place], new, *problem.constraints[place + 1 :]]
    return variant(problem, constraints, problem.data, ("bounds", name, rows_of(new)))


def rows_of(constraint: Constraint) -> bytes:
    """Which bounds of a constraint are finite, and which are equal: what decides on the rows."""
    low, high = constraint.low, constraint.high
    return np.stack([np.isfinite(low), np.isfinite(high), low == high]).tobytes()


def variant(
    problem: Problem, constraints: Sequence[Constraint], data: Source | None, kind: tuple[Hashable, ...]
) -> Problem:
    """The problem with other bounds or data; all variants of one kind share their programs.

    They may differ in numbers alone: in finite bounds, and in the values of data of the same shapes.
    """
    made = Problem(problem.objective, constraints, domain=problem.domain, data=data, smooth=problem.smooth)
    return sharing_programs(problem, made, ("variants", *kind))


def sharing_programs(problem: Problem, made: Problem, kind: CacheKey) -> Problem:
    """A problem that was made from another one, with the programs of all that are made so from it and from its variants.

    Only programs may be kept in the cache of a problem: what has bounds or data would be that of another variant.
    """
    made._cache = cached_on_problem(problem, kind, dict)
    return made


def _unique_names(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The constraints with distinct names: functions that share a name are numbered; two equal names given are an error."""
    counts: dict[str, int] = {name: 1 for name in RESERVED}
    unique = []
    for constraint in constraints:
        count = counts[constraint.name] = counts.get(constraint.name, 0) + 1
        if count > 1 and constraint._named_by_user:
            why = "is a column of every history" if constraint.name in RESERVED else "is the name of two constraints"
            raise ValueError(f"Problem: {constraint.name!r} {why}; give the constraint another name")
        unique.append(constraint if count == 1 else replace(constraint, name=f"{constraint.name}-{count}"))
    return tuple(unique)
