"""A sparse classifier that treats two groups alike: problem (17) of paper 4.

    min L(x) + λ SCAD(x)   subject to   R0(x) ≤ κ,       R0(x) = |mean of σ(xᵀa) over D_p − the same over D_u|

from x = 0, where R0 = 0. L, the split and how data enter are those of `roc_fairness`; R0 is its R with the one threshold 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...problem import Problem, at_most
from ..roc_fairness.near import NearStationarity
from ..roc_fairness.problem import Split, excess, hinge_loss, split_data, unfairness
from . import config


def scad(x: Float[Array, " d"]) -> Float[Array, ""]:
    """The smoothly clipped absolute deviation (18), whose middle piece is −x² + 4|x| − 1: with the +1 of print it jumps."""
    size = jnp.abs(x)
    middle = -(size**2) + 4.0 * size - 1.0
    return jnp.sum(jnp.where(size <= 1.0, 2.0 * size, jnp.where(size <= 2.0, middle, 3.0)))


def modulus(split: Split) -> float:
    """ρ = max{2λ, β}."""
    return max(2.0 * config.PENALTY, split.modulus)


@cache
def made(label: str, rows: int) -> tuple[Problem, Float[np.ndarray, " d"], float]:
    """Problem (17), where it starts, and κ; made once."""
    split, slack = split_data(config.DATA[label], rows), config.SLACK[label]
    loss = hinge_loss(split)
    problem = Problem(
        lambda x: loss(x) + config.PENALTY * scad(x),
        at_most(unfairness(split, np.zeros(1)), slack, name="parity"),
    )
    return problem, np.zeros(split.x.shape[1], np.float32), slack


def make(label: str, rows: int) -> tuple[Problem, Float[np.ndarray, " d"], float]:
    """The problem on rows of a data set, the start 0, and κ."""
    return made(label, rows)


def metrics(label: str, rows: int, points: int) -> dict[str, Callable[[Any, Any], Any]]:
    """Near-stationarity, and the violation over κ."""
    (problem, _, slack), split = made(label, rows), split_data(config.DATA[label], rows)
    weight = config.NEAR_WEIGHT * max(modulus(split), 1.0)
    return {
        "near_stationarity": NearStationarity(problem, weight, 2.0 * config.PENALTY, convex=False, points=points),
        "excess": excess(problem, slack),
    }
