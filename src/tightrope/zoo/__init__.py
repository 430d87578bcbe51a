"""Problems with known solutions: each function returns the problem, a starting point, and the solution.

Example:
    >>> import tightrope as tr
    >>> problem, x0, solution = tr.zoo.linear_on_circle()
    >>> problem
    Problem(objective 'height', constraints: circle (equals), domain Reals)
    >>> solution.objective, solution.multipliers
    (-5.0, {'circle': 2.5})
    >>> len(tr.zoo.available()) >= 16
    True

There are four more collections: `hs`, classical small nonlinear programs; `design`, trusses and other problems of engineering
design; `infeasible`, problems without a solution; and `learning`, constrained models on real and generated data.
"""

from collections.abc import Callable

from . import design as design
from . import hs as hs
from . import infeasible as infeasible
from . import learning as learning
from .base import Case, Solution
from .classifiers import fair_logistic_regression, neyman_pearson
from .degenerate import circle_and_wall, complementarity, flat_power, repeated_row
from .equalities import ellipse_of_data, least_eigenvector, linear_on_circle, noisy_sphere, projection_on_plane
from .inequalities import lens, outside_the_ball, saddle_in_disc, three_bands
from .nonsmooth import l1_budget, sparse_mean, weighted_medians
from .programs import mean_variance, newsvendor, tail_risk
from .sets import ball_and_box, line_in_l1_ball, regression_in_box

__all__ = [
    "Solution",
    "available",
    "ball_and_box",
    "circle_and_wall",
    "complementarity",
    "ellipse_of_data",
    "fair_logistic_regression",
    "flat_power",
    "l1_budget",
    "least_eigenvector",
    "lens",
    "line_in_l1_ball",
    "linear_on_circle",
    "mean_variance",
    "newsvendor",
    "neyman_pearson",
    "noisy_sphere",
    "outside_the_ball",
    "projection_on_plane",
    "regression_in_box",
    "repeated_row",
    "saddle_in_disc",
    "sparse_mean",
    "tail_risk",
    "three_bands",
    "weighted_medians",
]


def available() -> dict[str, Callable[..., Case]]:
    """All problems by name, from the simplest to the degenerate.

    Example:
        >>> import tightrope as tr
        >>> next(iter(tr.zoo.available()))
        'projection_on_plane'
    """
    problems = (
        projection_on_plane,
        linear_on_circle,
        least_eigenvector,
        noisy_sphere,
        ellipse_of_data,
        lens,
        saddle_in_disc,
        outside_the_ball,
        three_bands,
        sparse_mean,
        l1_budget,
        weighted_medians,
        newsvendor,
        tail_risk,
        mean_variance,
        line_in_l1_ball,
        regression_in_box,
        ball_and_box,
        fair_logistic_regression,
        neyman_pearson,
        repeated_row,
        complementarity,
        flat_power,
        circle_and_wall,
    )
    return {problem.__name__: problem for problem in problems}
