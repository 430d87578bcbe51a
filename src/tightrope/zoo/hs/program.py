"""A small nonlinear program as printed in a book, and its conversion to a problem with noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...arguments import number
from ...domains import Box
from ...problems.constraints import Constraint, at_least, between, equals
from ...problems.data import Sampler
from ...problems.problem import Problem
from ..base import Case, Solution, gaussian

Vector = Float[Array, " n"]


@dataclass(frozen=True, eq=False)
class Program:
    """Minimize `objective` subject to `equalities` = 0, 0 ≤ `inequalities` ≤ `limits` and `low` ≤ x ≤ `high`.

    The functions take the entries of x as separate arguments, so that formulas read as printed.

    Attributes:
        objective: f(x1, x2, …).
        start: the published starting point, feasible or not.
        x: a minimizer.
        value: the minimum of the objective.
        equalities: returns a tuple with the value of each equation.
        inequalities: returns a tuple with the value of each inequality.
        limits: upper limits of the inequalities; None if there are none.
        low: lower bounds of the entries of x, a number or one per entry.
        high: upper bounds.
        unique: whether `x` is the only minimizer.
    """

    objective: Callable[..., Any]
    start: Sequence[float]
    x: Sequence[float]
    value: float
    equalities: Callable[..., tuple[Any, ...]] | None = None
    inequalities: Callable[..., tuple[Any, ...]] | None = None
    limits: Sequence[float] | None = None
    low: float | Sequence[float] = -math.inf
    high: float | Sequence[float] = math.inf
    unique: bool = True

    def case(self, name: str, noise: float = 0.0, constraint_noise: float = 0.0) -> Case:
        """The problem, its starting point and its solution.

        Args:
            name: name of the objective.
            noise: variance of a sampled gradient, E‖g − ∇f‖², split evenly over the coordinates; values are exact.
            constraint_noise: variance of the sampled constraints, E‖ĉ − c‖², and of their Jacobian, E‖Ĵ − J‖²_F.
        """
        noise = number(name, "noise", noise, low=0.0, closed="[")
        constraint_noise = number(name, "constraint_noise", constraint_noise, low=0.0, closed="[")
        start = jnp.asarray(self.start, float)

        def objective(x: Vector) -> Float[Array, ""]:
            return jnp.asarray(self.objective(*x), x.dtype)

        def sampled_objective(x: Vector, batch: Float[Array, "examples n"]) -> Float[Array, ""]:
            return objective(x) + _zero_with_slope(jnp.mean(batch, 0), x)

        objective.__name__ = sampled_objective.__name__ = name
        bounded = np.isfinite(self.low).any() or np.isfinite(self.high).any()
        problem = Problem(
            sampled_objective if noise else objective,
            self._constraints(start, constraint_noise),
            domain=Box(np.asarray(self.low, float), np.asarray(self.high, float)) if bounded else None,
            data=gaussian(np.zeros(start.size), math.sqrt(noise / start.size), batch_size=1) if noise else None,
        )
        return problem, start, Solution(jnp.asarray(self.x, float), self.value, None, unique=self.unique)

    def _constraints(self, start: Vector, noise: float) -> list[Constraint]:
        both = (self.equalities, self.inequalities)
        sizes = [0 if entries is None else len(jax.eval_shape(entries, *start)) for entries in both]
        data = _errors(sum(sizes), start.size, noise) if noise and sum(sizes) else None

        def function(entries: Callable[..., tuple[Any, ...]], rows: slice) -> Callable[..., Float[Array, " m"]]:
            return _stacked(entries) if data is None else _sampled(_stacked(entries), rows)

        constraints = []
        if self.equalities is not None:
            fn = function(self.equalities, slice(sizes[0]))
            constraints.append(equals(fn, data=data, name="equalities"))
        if self.inequalities is not None:
            fn = function(self.inequalities, slice(sizes[0], None))
            make = partial(at_least, fn) if self.limits is None else partial(between, fn, 0.0, self.limits)
            constraints.append(make(data=data, name="inequalities"))
        return constraints


def _stacked(entries: Callable[..., tuple[Any, ...]]) -> Callable[[Vector], Float[Array, " m"]]:
    return lambda x: jnp.stack(entries(*x))


def _zero_with_slope(slope: Float[Array, "*m n"], x: Vector) -> Float[Array, "*m"]:
    """A term that is 0 at every x and has the derivative `slope` at every x."""
    return slope @ (x - jax.lax.stop_gradient(x))


def _sampled(fn: Callable[[Vector], Float[Array, " m"]], rows: slice) -> Callable[..., Float[Array, " m"]]:
    """`fn` plus its rows of the errors drawn by `_errors`."""

    def sampled(x: Vector, batch: dict[str, Array]) -> Float[Array, " m"]:
        values, jacobian = (jnp.mean(batch[part][:, rows], 0) for part in ("values", "jacobian"))
        return fn(x) + values + _zero_with_slope(jacobian, x)

    return sampled


def _errors(m: int, n: int, variance: float) -> Sampler:
    """Independent errors of m constraint values and of their Jacobian, each of this total variance."""

    def errors(key: Array, count: int) -> dict[str, Array]:
        first, second = jax.random.split(key)
        return {
            "values": math.sqrt(variance / m) * jax.random.normal(first, (count, m)),
            "jacobian": math.sqrt(variance / (m * n)) * jax.random.normal(second, (count, m, n)),
        }

    return Sampler(errors, batch_size=1)
