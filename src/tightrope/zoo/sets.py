"""Problems with active set constraints: l1 ball, box, and a product of sets over a dict."""

import jax.numpy as jnp
import numpy as np

from ..domains import Box, L1Ball, L2Ball, Product
from ..problems.constraints import affine, at_least, equals
from ..problems.data import Dataset
from ..problems.problem import Problem
from .base import Case, Solution, gaussian, half_square_distance


def line_in_l1_ball(noise: float = 0.5, batch_size: int = 8) -> Case:
    """The point of a plane in an l1 ball closest to a mean: L1Ball, `affine`, sparse solution.

    Minimize E ½‖x − ξ‖² with ξ ~ N(m, noise² I), m = (3, 1, 0.2), over ‖x‖₁ ≤ 2 subject to x₀ − x₁ = 1. With x₂ = 0 both are
    active at x = (1.5, 0.5, 0); x − m + λ(1, −1, 0) = −(1, 1, 0.2) with λ = 0.5 is minus a normal of the ball.
    F = 1.27 + 1.5 noise².
    """
    problem = Problem(
        half_square_distance,
        affine([[1.0, -1.0, 0.0]], [1.0], name="difference"),
        domain=L1Ball(2.0),
        data=gaussian([3.0, 1.0, 0.2], noise, batch_size),
    )
    solution = Solution(jnp.asarray([1.5, 0.5, 0.0]), 1.27 + 1.5 * noise**2, {"difference": 0.5})
    return problem, jnp.asarray([0.0, 0.0, 1.0]), solution


def regression_in_box(batch_size: int = 4) -> Case:
    """Least squares in a box with a lower bound on a correlation: Box, one `Dataset` for both.

    Minimize the mean of ½(a·x − b)² over the eight sign vectors a, b = 2a₀ − a₁ + 0.5a₂ + 0.5a₀a₁a₂, with x in [−1, 1]³ and the
    mean of (a₁ + a₂)(a·x) at least 0.25. The entries of a being uncorrelated, these are ½‖x − (2, −1, 0.5)‖² + 0.125 and
    x₁ + x₂: x₀ is at its bound 1, the other two rise by μ = 0.375 each, x = (1, −0.625, 0.875), F = 0.765625.
    """
    signs = np.array(np.meshgrid([-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0])).reshape(3, -1).T
    arrays = {"a": signs, "b": signs @ [2.0, -1.0, 0.5] + 0.5 * signs.prod(axis=1)}
    data = Dataset(arrays, batch_size)

    def half_square_error(x, batch):
        return 0.5 * jnp.mean((batch["a"] @ x - batch["b"]) ** 2)

    def correlation(x, batch):
        return jnp.mean((batch["a"][:, 1] + batch["a"][:, 2]) * (batch["a"] @ x))

    problem = Problem(half_square_error, at_least(correlation, 0.25, data=data), domain=Box(-1.0, 1.0), data=data)
    solution = Solution(jnp.asarray([1.0, -0.625, 0.875]), 0.765625, {"correlation": 0.375})
    return problem, jnp.asarray([0.0, 0.0, 0.0]), solution


def ball_and_box(noise: float = 0.5, batch_size: int = 8) -> Case:
    """Weights in a ball and offsets in a box, tied by an equation: Product over dict parameters.

    Minimize E ½‖(w, b) − ξ‖² with ξ ~ N(m, noise² I), m = (0.7, 2.1, 0.9, 2), over ‖w‖ ≤ 1 and b ∈ [0, 1]² subject to
    w₁ − w₀ + b₀ = 0.6. At w = (0.6, 0.8), b = (0.4, 1) with λ = 0.5 the Lagrangian's gradient is −(w, 0, 1), minus a normal
    of the ball and one of the box. F = 1.475 + 2 noise².
    """

    def half_distance(params, batch):
        return half_square_distance(jnp.concatenate([params["weights"], params["offsets"]]), batch)

    def tie(params):
        return params["weights"][1] - params["weights"][0] + params["offsets"][0]

    problem = Problem(
        half_distance,
        equals(tie, 0.6),
        domain=Product({"weights": L2Ball(1.0), "offsets": Box(0.0, 1.0)}),
        data=gaussian([0.7, 2.1, 0.9, 2.0], noise, batch_size),
    )
    x = {"weights": jnp.asarray([0.6, 0.8]), "offsets": jnp.asarray([0.4, 1.0])}
    x0 = {"weights": jnp.asarray([0.0, 0.0]), "offsets": jnp.asarray([0.5, 0.5])}
    return problem, x0, Solution(x, 1.475 + 2 * noise**2, {"tie": 0.5})
