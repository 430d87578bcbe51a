"""The smallest unfairness over all thresholds at almost no cost in accuracy: problem (15) of paper 4.

    min R(x)   subject to   L(x) ≤ L* + κ,   ‖x‖ ≤ 5 ‖x_ERM‖,       κ = 0.001 L*

    L(x) = mean of (1 − b_i xᵀa_i)₊ over D
    R(x) = max over θ of |mean of σ(xᵀa − θ) over D_p − mean of σ(xᵀa − θ) over D_u|

Everything is deterministic, so objective and constraint are functions of x alone, without `data=`: a `Dataset` draws examples
with replacement, and even a batch as large as the data would not be the data. The arrays are constants of the compiled
programs; at 2 MB they are small enough for that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse
from jaxtyping import Array, Float

from ...datasets import load
from ...datasets import split as divide
from ...domains import L2Ball
from ...problems.constraints import at_most
from ...problems.problem import Problem, cached_on_problem
from . import config
from .near import AtRecords, NearStationarity

SLACK, LEAST = 0.001, 0.01
"""κ / L*, and a lower bound on the L* in κ: separable data have L* = 0."""
RADIUS = 5.0
"""The radius of X over ‖x_ERM‖."""
CURVATURE = 1 / (6 * 3**0.5)
"""The largest |σ''|."""


class Split(NamedTuple):
    """The examples of D with their labels, and the examples of the two groups."""

    x: Float[np.ndarray, "examples d"]
    y: Float[np.ndarray, " examples"]
    protected: Float[np.ndarray, "protected d"]
    unprotected: Float[np.ndarray, "unprotected d"]

    @property
    def modulus(self) -> float:
        """β of (77), an upper bound on the modulus of weak convexity of R."""
        return sum(float(np.mean(np.sum(group**2, axis=1))) / 4 for group in self[2:])

    @property
    def curvature(self) -> float:
        """A sharper bound on the same modulus: the largest |σ''| is 0.096, not ¼, and ‖Aᵀ diag(s) A‖ ≤ max |s| ‖AᵀA‖."""
        return sum(CURVATURE * float(np.linalg.norm(group, 2)) ** 2 / len(group) for group in self[2:])


@cache
def split_data(name: str, examples: int) -> Split:
    """At most `examples` examples of a data set, drawn with a fixed seed: two thirds are D, the others form the groups."""
    data = load(name).all()
    examples = min(examples, len(data["y"]))
    large, small = divide(data, round(2 * examples / 3), examples - round(2 * examples / 3))
    inside = small["group"] == 1
    return Split(large["x"], large["y"], small["x"][inside], small["x"][~inside])


def hinge_loss(split: Split) -> Callable[[Array], Array]:
    """L."""
    signed = jnp.asarray(split.y[:, None] * split.x)
    return lambda x: jnp.mean(jnp.maximum(1.0 - signed @ x, 0.0))


def unfairness(split: Split, thresholds: Float[np.ndarray, " thresholds"]) -> Callable[[Array], Array]:
    """R.

    The largest gap is found first, without derivatives, from σ(s − θ) = 1/(1 + e^θ e^−s): one exponential per example instead
    of one per example and threshold. The gradient of that gap is a subgradient of R.
    """
    features = jnp.asarray(np.concatenate(split[2:]))
    signs = np.concatenate(
        [np.full(len(group), sign / len(group)) for group, sign in zip(split[2:], (1, -1), strict=True)]
    )
    weights, levels = jnp.asarray(signs, jnp.float32), jnp.asarray(thresholds, jnp.float32)

    def measure(x: Array) -> Array:
        scores = features @ x
        fixed = jax.lax.stop_gradient(scores)
        gaps = jnp.sum(weights[:, None] / (1.0 + jnp.exp(-fixed)[:, None] * jnp.exp(levels)), axis=0)
        worst = levels[jnp.argmax(jnp.abs(gaps))]
        return jnp.abs(weights @ jax.nn.sigmoid(scores - worst))

    return measure


def smallest_hinge(x: Float[np.ndarray, "examples d"], y: Float[np.ndarray, " examples"]) -> tuple[np.ndarray, float]:
    """x_ERM and L*, from the linear program, exactly.

    x_ERM is the shortest of the minimizers with the scores found. The paper runs a subgradient method; on a9a the loss is still
    1% above L* after 20,000 steps, ten times κ.
    """
    count, d = x.shape
    signed = y[:, None].astype(float) * x
    found = scipy.optimize.linprog(
        np.append(np.zeros(d), np.full(count, 1 / count)),
        A_ub=scipy.sparse.hstack([-scipy.sparse.csr_array(signed), -scipy.sparse.eye_array(count)]),
        b_ub=-np.ones(count),
        bounds=[(None, None)] * d + [(0, None)] * count,
    )
    return np.linalg.lstsq(signed, signed @ found.x[:d], rcond=None)[0], float(found.fun)


def thresholds_around(scores: Float[np.ndarray, " examples"], count: int) -> Float[np.ndarray, " count"]:
    """Equally spaced thresholds that extend the range of the scores by half of it on both sides."""
    low, high = float(scores.min()), float(scores.max())
    reach = 0.5 * (high - low)
    return np.linspace(low - reach, high + reach, count)


@cache
def make(name: str, examples: int, thresholds: int) -> tuple[Problem, Float[np.ndarray, " d"], float]:
    """Problem (15) on examples of a data set, x_ERM and κ; cached, since a problem keeps its compiled programs."""
    split = split_data(name, examples)
    start, least = smallest_hinge(split.x, split.y)
    slack = SLACK * max(least, LEAST)
    levels = thresholds_around(np.concatenate([split.x, *split[2:]]) @ start, thresholds)
    problem = Problem(
        unfairness(split, levels),
        at_most(hinge_loss(split), least + slack, name="loss"),
        domain=L2Ball(RADIUS * float(np.linalg.norm(start))),
    )
    return problem, start.astype(np.float32), slack


def metrics(name: str, examples: int, thresholds: int) -> dict[str, Callable[[Any, Any], Any]]:
    """The violation divided by κ."""
    problem, _, slack = make(name, examples, thresholds)
    return {"excess": excess(problem, slack)}


def near_stationarity(
    name: str, examples: int, thresholds: int, *, records: tuple[int, ...]
) -> dict[str, Callable[[Any, Any], Any]]:
    """The near-stationarity ‖x̂ − x‖ at these records."""
    (problem, _, _), split = make(name, examples, thresholds), split_data(name, examples)
    weight = config.NEAR_WEIGHT * max(split.modulus, 1.0)
    near = NearStationarity(problem, weight, split.curvature, convex=True)
    return {"near_stationarity": AtRecords(near, records)}


def excess(problem: Problem, slack: float) -> Callable[[Any, Any], Any]:
    """The violation of the only constraint divided by κ, as a metric."""
    (constraint,) = problem.constraints

    def over(x: Array, batch: Any) -> Array:
        return jnp.maximum(constraint.fn(x) - float(constraint.high), 0.0) / slack

    return cached_on_problem(problem, ("excess",), lambda: jax.jit(over))
