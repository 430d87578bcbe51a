"""A second opinion on infeasibility: least squares of the violations, from several points.

Before a problem is called infeasible, the sum of the squared violations is minimized over X by the method of Levenberg and
Marquardt. It is smooth where a sum of violations has kinks, so it leaves points at which the latter is stationary but not
minimal. With weights w_i that are one over the length of the row's gradient at the start, a step is

    d = argmin ½ Σ w_i² dist(h_i + J_i d, [low_i, high_i])² + ½ c‖d‖²  over x + d in X

which is a prox-linear step with a slack in every row. It is taken if it decreases the sum; c falls after such a step, and
grows otherwise.

Reference:
    J. Nocedal and S. J. Wright. Numerical Optimization, 2nd edition, Springer 2006, Section 10.3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..numerics.prox_linear import ProxLinearModel
from ..numerics.ranges import RangePenalty, range_multipliers_on_set
from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle, Sample
from ..problems.compiling import Program
from ..problems.problem import Problem, cached_on_problem

STEPS = 200
"""Steps of each minimization; near a feasible point it converges quadratically."""
RANDOM_STARTS = 4
"""Random starts at each distance from the answer, besides x0 and the answer."""
DISTANCES = (1.0, 10.0, 100.0)
"""How far from the answer they are, in units of its distance from x0."""
MUCH_LESS = 0.1
"""A sum of violations below this share of the answer's: the answer is not where constraints are violated least."""
LESS, MORE = 0.2, 4.0
"""Factors of c after a step that decreases the sum, and after one that does not."""
FIRST_DAMPING = 1e-2
"""The first c: the curvature of the sum is about one for every row that is violated."""


class _Point(NamedTuple):
    """A point, its rows and their Jacobian, the sum of squares, and c."""

    x: Float[Array, " n"]
    rows: Float[Array, " m"]
    jacobian: Float[Array, "m n"]
    square: Float[Array, ""]
    damping: Float[Array, ""]


def can_be_reduced(
    problem: Problem, oracle: Oracle, sample: Sample, start: Float[np.ndarray, " n"], answer: Float[np.ndarray, " n"]
) -> bool:
    """Return whether a point is found with less than a tenth of the answer's sum of violations.

    The minimizations begin at the answer, at the start, and at random points around the answer.
    """
    oracle, answer, start = oracle.hold_state(answer, start)
    rng, distance = np.random.default_rng(0), np.linalg.norm(answer - start) or np.linalg.norm(answer) or 1.0
    steps = rng.normal(size=(RANDOM_STARTS * len(DISTANCES), answer.size))
    lengths = distance * np.repeat(DISTANCES, RANDOM_STARTS)
    steps *= (lengths / np.linalg.norm(steps, axis=1))[:, None]
    points = np.concatenate([[answer, start], answer + steps]).astype(answer.dtype)
    key = ("restoration", oracle.parameters.key, jax.tree.structure(sample))
    program = cached_on_problem(problem, key, lambda: _restoration_program(oracle))
    before, after = jax.device_get(program(oracle.leaves(), sample, points))
    return bool(np.any(after < MUCH_LESS * before))


def _restoration_program(oracle: Oracle) -> Any:
    """The compiled minimization from many points, of which the first is the answer.

    It returns the sum of violations at the answer and at the end of each minimization, in units of the gradients at the answer.
    """
    structure = jax.tree.structure(oracle)

    def program(leaves: list[Array], sample: Sample, points: Float[Array, "points n"]) -> tuple[Array, Array]:
        here = jax.tree.unflatten(structure, leaves)
        weights = 1.0 / positive_or_one(jnp.linalg.norm(here.first_order(points[0], sample)[3], axis=1))

        def total(x: Float[Array, " n"]) -> Float[Array, ""]:
            return weights @ _misses(here, here.c(x, sample))

        ends = jax.vmap(lambda x: _minimize(here, sample, here.project(x)).x)(points)
        return total(points[0]), jax.lax.map(total, ends)

    return Program(program)


def _misses(oracle: Oracle, rows: Float[Array, " m"]) -> Float[Array, " m"]:
    return jnp.where(jnp.asarray(oracle.equality), jnp.abs(rows), jnp.maximum(rows, 0.0))


def _minimize(oracle: Oracle, sample: Sample, x: Float[Array, " n"]) -> _Point:
    equality = jnp.asarray(oracle.equality)
    weights = 1.0 / positive_or_one(jnp.linalg.norm(oracle.first_order(x, sample)[3], axis=1))

    def at(x: Float[Array, " n"], damping: Array) -> _Point:
        _, _, rows, jacobian = oracle.first_order(x, sample)
        rows, jacobian = weights * rows, weights[:, None] * jacobian
        return _Point(x, rows, jacobian, jnp.sum(_misses(oracle, rows) ** 2), damping)

    def step(now: _Point) -> Float[Array, " n"]:
        slacks = jnp.sqrt(now.damping) * jnp.eye(now.rows.size, dtype=x.dtype)

        def project(both: Float[Array, " n+m"]) -> Float[Array, " n+m"]:
            return jnp.append(oracle.project(both[: x.size]), both[x.size :])

        jacobian, zero = jnp.concatenate([now.jacobian, slacks], axis=1), jnp.zeros_like(now.rows)
        model = ProxLinearModel(
            jnp.zeros(x.size + zero.size, x.dtype),
            now.rows,
            jacobian,
            1.0 / now.damping,
            jnp.append(now.x, zero),
            project,
        )
        infinite = jnp.full_like(zero, jnp.inf)
        y = range_multipliers_on_set(model, RangePenalty(jnp.where(equality, 0.0, -infinite), zero, infinite), zero)
        return oracle.project(now.x - y @ now.jacobian / now.damping)

    def again(_: int, now: _Point) -> _Point:
        new = at(step(now), LESS * now.damping)
        return jax.tree.map(
            lambda a, b: jnp.where(new.square < now.square, a, b), new, now._replace(damping=MORE * now.damping)
        )

    return jax.lax.fori_loop(0, STEPS, again, at(x, jnp.asarray(FIRST_DAMPING, x.dtype)))
