"""What the problems of the zoo share: the record of a solution, Gaussian samples, and the distance to them."""

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
    """What is known about a problem's global minimum.

    Attributes:
        x: the minimizer, a pytree like the starting point; None where there is none, or it is not stated.
        objective: the least value of E objective; ∞ where no point is feasible, −∞ where it is unbounded below,
            nan where it is not stated.
        multipliers: by constraint name a number, or one for each entry, in the signs of `tightrope.problem`; together
            with a normal of the domain they cancel the objective's gradient. None where none exist, or none are stated.
        feasible: whether any point is.
        unique: whether `x` is the only minimizer.
        multipliers_unique: whether `multipliers` are the only ones at `x`.
        violation: the least possible value of the largest violation of the constraints: 0 where a point is feasible.
    """

    x: Any
    objective: float
    multipliers: Mapping[str, Any] | None
    feasible: bool = True
    unique: bool = True
    multipliers_unique: bool = True
    violation: float = 0.0


Case = tuple[Problem, Any, Solution]
"""What every function of the zoo returns: the problem, where to start, and what is to be found."""


def gaussian(mean: Any, deviation: float, batch_size: int) -> Sampler:
    """Independent rows N(mean, deviation² I)."""
    center = jnp.asarray(mean)

    def normal(key: Array, rows: int) -> Float[Array, "rows size"]:
        return center + deviation * jax.random.normal(key, (rows, center.size))

    return Sampler(normal, batch_size)


def half_square_distance(x: Float[Array, " size"], batch: Float[Array, "rows size"]) -> Float[Array, ""]:
    """½‖x − ξ‖², in the mean over the rows ξ: ½‖x − m‖² + ½nσ² for rows N(m, σ²I) with n entries."""
    return 0.5 * jnp.mean(jnp.sum((x - batch) ** 2, axis=-1))
