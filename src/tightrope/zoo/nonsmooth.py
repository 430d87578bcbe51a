"""Problems with kinks at their solutions: l1 norms and medians."""

import jax.numpy as jnp
import numpy as np

from ..problems.constraints import at_most, equals
from ..problems.data import Dataset
from ..problems.problem import Problem
from .base import Case, Solution, gaussian, half_square_distance


def sparse_mean(noise: float = 0.5, batch_size: int = 8) -> Case:
    """A soft-thresholded mean on a plane: sampled l1 objective, linear equality.

    Minimize E ½‖x − ξ‖² + ½‖x‖₁ with ξ ~ N(m, noise² I), m = (2, 1, 0.3, −0.1), subject to Σx = 1.5. For a given λ the
    minimizer of the Lagrangian is m − λ, with each entry soft-thresholded by ½; λ = 0.25 makes it
    x = (1.25, 0.25, 0, 0), which has the right sum. F = 1.3625 + 2 noise².
    """

    def penalized_distance(x, batch):
        return half_square_distance(x, batch) + 0.5 * jnp.sum(jnp.abs(x))

    data = gaussian([2.0, 1.0, 0.3, -0.1], noise, batch_size)
    problem = Problem(penalized_distance, equals(jnp.sum, 1.5, name="total"), data=data, smooth=False)
    solution = Solution(jnp.asarray([1.25, 0.25, 0.0, 0.0]), 1.3625 + 2 * noise**2, {"total": 0.25})
    return problem, jnp.asarray([0.0, 0.0, 1.0, 1.0]), solution


def l1_budget(noise: float = 0.5, batch_size: int = 8) -> Case:
    """The point within an l1 budget closest to a mean: nonsmooth inequality, sampled objective.

    Minimize E ½‖x − ξ‖² with ξ ~ N(m, noise² I), m = (2, −1, 0.25), subject to ‖x‖₁ ≤ 2. Soft-thresholding m by μ = 0.5
    uses the whole budget: x = (1.5, −0.5, 0). F = 0.28125 + 1.5 noise².
    """

    def budget(x):
        return jnp.sum(jnp.abs(x))

    data = gaussian([2.0, -1.0, 0.25], noise, batch_size)
    problem = Problem(half_square_distance, at_most(budget, 2.0), data=data, smooth=False)
    solution = Solution(jnp.asarray([1.5, -0.5, 0.0]), 0.28125 + 1.5 * noise**2, {"budget": 0.5})
    return problem, jnp.asarray([0.0, 1.0, 1.0]), solution


def weighted_medians(batch_size: int = 2) -> Case:
    """Two medians that share a budget: nonsmooth objective on a `Dataset` of five examples.

    Minimize the mean of |x₀ − a| + 2|x₁ − b| over a = (−2, −1, 0, 1, 7), b = (1, 2, 3, 4, 10), subject to x₀ + x₁ ≤ 2.5.
    The medians (0, 3) need 3. Lowering x₀ costs 0.2 per unit down to −1, lowering x₁ below 3 costs 0.4, so x₀ is lowered:
    x = (−0.5, 3), μ = 0.2, F = 6.7.
    """
    arrays = {"a": np.array([-2.0, -1.0, 0.0, 1.0, 7.0]), "b": np.array([1.0, 2.0, 3.0, 4.0, 10.0])}

    def deviation(x, batch):
        return jnp.mean(jnp.abs(x[0] - batch["a"]) + 2.0 * jnp.abs(x[1] - batch["b"]))

    problem = Problem(deviation, at_most(jnp.sum, 2.5, name="budget"), data=Dataset(arrays, batch_size), smooth=False)
    return problem, jnp.asarray([2.0, 2.0]), Solution(jnp.asarray([-0.5, 3.0]), 6.7, {"budget": 0.2})
