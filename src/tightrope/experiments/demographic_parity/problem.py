"""A sparse classifier under demographic parity: problem (17) of paper 4.

    min L(x) + λ SCAD(x)   subject to   R0(x) ≤ κ,       R0(x) = |mean of σ(xᵀa) over D_p − mean of σ(xᵀa) over D_u|

L and the split of the data are those of `roc_fairness`; R0 is its R with the single threshold 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...problems.constraints import at_most
from ...problems.problem import Problem
from ..roc_fairness.near import AtRecords, NearStationarity
from ..roc_fairness.problem import excess, hinge_loss, smallest_hinge, split_data, unfairness
from . import config


def scad(x: Float[Array, " d"]) -> Float[Array, ""]:
    """The smoothly clipped absolute deviation (18), with −x² + 4|x| − 1 in the middle: the printed +1 is discontinuous."""
    size = jnp.abs(x)
    middle = -(size**2) + 4.0 * size - 1.0
    return jnp.sum(jnp.where(size <= 1.0, 2.0 * size, jnp.where(size <= 2.0, middle, 3.0)))


@cache
def make(label: str, examples: int) -> tuple[Problem, Float[np.ndarray, " d"], float]:
    """Problem (17) on examples of a data set, the start and κ; cached, since a problem keeps its compiled programs."""
    split, slack = split_data(config.DATA[label], examples), config.SLACK[label]
    loss, gap = hinge_loss(split), unfairness(split, np.zeros(1))
    problem = Problem(lambda x: loss(x) + config.PENALTY * scad(x), at_most(gap, slack, name="parity"))
    start = np.zeros(split.x.shape[1])
    if label in config.FROM_ERM:
        start = smallest_hinge(split.x, split.y)[0]
        while gap(jnp.asarray(start)) > slack:
            start = start / 2
    return problem, start.astype(np.float32), slack


def metrics(label: str, examples: int) -> dict[str, Callable[[Any, Any], Any]]:
    """The violation divided by κ."""
    problem, _, slack = make(label, examples)
    return {"excess": excess(problem, slack)}


def near_stationarity(label: str, examples: int, *, records: tuple[int, ...]) -> dict[str, Callable[[Any, Any], Any]]:
    """The near-stationarity ‖x̂ − x‖ at these records."""
    (problem, _, _), split = make(label, examples), split_data(config.DATA[label], examples)
    weight = config.NEAR_WEIGHT * max(config.modulus(split.modulus), 1.0)
    near = NearStationarity(problem, weight, 2.0 * config.PENALTY, convex=False)
    return {"near_stationarity": AtRecords(near, records)}
