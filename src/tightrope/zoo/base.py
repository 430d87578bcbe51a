"""Shared parts of the zoo: the record of a solution, Gaussian samples, and the distance to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..problems.data import Sampler
from ..problems.problem import Problem


@dataclass(frozen=True, eq=False)
class Solution:
    """The known facts about a problem's global minimum.

    Attributes:
        x: the minimizer, a pytree like the starting point; None if there is none or it is not stated.
        objective: the minimum of the expected objective; ∞ if no point is feasible, −∞ if it is unbounded below, nan if it is
            not stated.
        multipliers: by constraint name, a number or an array like the constraint's value, with the signs of `Result`; together
            with a normal of the domain they cancel the objective's gradient. None if there are none or they are not stated.
        feasible: whether a feasible point exists.
        unique: whether `x` is the only minimizer.
        multipliers_unique: whether `multipliers` are the only ones at `x`.
        violation: the minimum over x of the largest constraint violation; 0 if a feasible point exists.
    """

    x: Any
    objective: float
    multipliers: Mapping[str, Any] | None
    feasible: bool = True
    unique: bool = True
    multipliers_unique: bool = True
    violation: float = 0.0


Case = tuple[Problem, Any, Solution]
"""The return value of every function of the zoo: problem, starting point and solution."""


def gaussian(mean: Any, deviation: float, batch_size: int) -> Sampler:
    """Independent examples N(mean, deviation² I)."""
    center = jnp.asarray(mean)

    def normal(key: Array, count: int) -> Float[Array, "count size"]:
        return center + deviation * jax.random.normal(key, (count, center.size))

    return Sampler(normal, batch_size)


def half_square_distance(x: Float[Array, " size"], batch: Float[Array, "examples size"]) -> Float[Array, ""]:
    """The mean of ½‖x − ξ‖² over the examples ξ; its expectation is ½‖x − m‖² + ½nσ² for ξ ~ N(m, σ²I) in Rⁿ."""
    return 0.5 * jnp.mean(jnp.sum((x - batch) ** 2, axis=-1))
