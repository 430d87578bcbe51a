"""Statuses: nothing feasible is called infeasible, nothing unbounded either, and the certificate confirms 'converged'."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr


def cantilever(bays):
    """Squares in a row with both diagonals, fixed at one end and loaded at the other; modulus, density, side and load are 1.

    Variables are the areas of the bars and the displacements of the joints; returns the problem and the number of each.
    """
    joints = np.array([(i, j) for i in range(bays + 1) for j in range(2)], float)
    bars = []
    for i in range(bays):
        left, right = (2 * i, 2 * i + 1), (2 * i + 2, 2 * i + 3)
        bars += [(a, b) for a in left for b in right] + [right]
    first, second = np.array(bars).T
    sides = joints[second] - joints[first]
    lengths = np.linalg.norm(sides, axis=1)
    cosines = np.zeros((len(bars), len(joints), 2))
    cosines[np.arange(len(bars)), second] += sides / lengths[:, None]
    cosines[np.arange(len(bars)), first] -= sides / lengths[:, None]
    cosines = cosines[:, 2:].reshape(len(bars), -1)
    load = np.zeros(cosines.shape[1])
    load[-3] = -1.0
    m, n = cosines.shape

    def strain(x):
        return (cosines @ x[m:]) / lengths

    problem = tr.Problem(
        lambda x: lengths @ x[:m],
        [
            tr.equals(lambda x: (x[:m] * strain(x)) @ cosines - load, name="equilibrium"),
            tr.between(strain, -0.1, 0.1, name="stress"),
        ],
        domain=tr.domains.Box(np.repeat([0.01, -3.0], [m, n]), np.repeat([100.0, 3.0], [m, n])),
    )
    return problem, m, n


@pytest.mark.full
def test_a_truss_is_designed_from_zero_displacements():
    """At 1% of the violation or less, progress was taken for none: weight came first, and the truss was called infeasible."""
    with jax.enable_x64(True):
        problem, m, n = cantilever(4)
        result = tr.solve(problem, jnp.append(jnp.full(m, 5.0), jnp.zeros(n)), steps=500)
    assert result.status != "infeasible"
    assert result.certificate.verdict == "feasible"
    assert result.success


def test_a_root_beyond_a_local_minimum_of_the_violation_is_not_denied():
    """x³ − 3x = 10 has a root at 2.6; from −1.5 the violation is stationary at −1."""
    root = tr.equals(lambda x: x[0] ** 3 - 3.0 * x[0], 10.0, name="root")
    result = tr.solve(tr.Problem(lambda x: x[0] ** 2, root), jnp.array([-1.5]), steps=300)
    assert result.status != "infeasible"


LINE = tr.equals(lambda x: x[0] - x[1], 0.0, name="line")
CURVE = tr.equals(lambda x: x[1] - jnp.sqrt(1.0 + x[0] ** 2), 1.0, name="curve")


@pytest.mark.parametrize(
    ("objective", "constraints"),
    [
        (lambda x: -1e-6 * x[0], []),
        (lambda x: -1e6 * x[0], LINE),
        (lambda x: -x[0] - x[1], CURVE),
    ],
    ids=["no constraints, in small units", "along a line, in large units", "along a curve that rounding leaves"],
)
def test_what_is_unbounded_is_called_so_early_and_with_numbers_one_can_read(objective, constraints):
    with jax.enable_x64(True):
        result = tr.solve(tr.Problem(objective, constraints), jnp.array([1.0, 0.0]), steps=30_000)
    assert result.status == "unbounded"
    assert not result.success
    assert result.steps < 3_000
    assert np.abs(np.asarray(result.x)).max() < 1e50


@pytest.mark.parametrize(
    "objective",
    [lambda x: jnp.exp(-x[0]) + x[1] ** 2, lambda x: 1e-9 * (x[0] - 1e5) ** 2 + 1e-9 * x[1] ** 2],
    ids=["a limit that is not attained", "a minimum far away"],
)
def test_what_is_bounded_is_not_called_unbounded(objective):
    result = tr.solve(tr.Problem(objective), jnp.array([0.0, 1.0]), steps=500)
    assert result.status in ("budget", "converged")


BALL = tr.at_most(lambda x: x @ x, 4.0, name="ball")


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize(
    ("problem", "x0", "minima"),
    [
        (tr.zoo.hs.available()["s338"]()[0], [0.0, 0.0, 0.0], (-10.992806, -7.205294)),
        (tr.zoo.hs.available()["s338"]()[0], [1e-9, 0.0, 0.0], (-10.992806, -7.205294)),
        (tr.Problem(lambda x: -(x[0] ** 2) - 2.0 * x[1] ** 2, BALL), [1e-5, 1e-5], (-8.0,)),
        (tr.Problem(lambda x: (x @ x - 1.0) ** 2), [1e-10, 0.0], (0.0,)),
    ],
    ids=["s338, gradient 0", "s338, gradient almost 0", "a ball from its middle", "a ring from its middle"],
)
def test_what_starts_where_the_gradient_vanishes_is_not_called_unbounded(problem, x0, minima, every):
    """Any fall is many times the first gradient there."""
    with jax.enable_x64(True):
        result = tr.solve(problem, jnp.array(x0), "AdaptivePenalty", steps=1000, record=every)
    assert result.status in ("budget", "converged")
    assert result.success
    assert min(abs(float(result.objective) - value) for value in minima) < 1e-2


def test_what_falls_ever_faster_is_called_unbounded_also_from_a_stationary_start():
    fall = tr.Problem(lambda x: -((x[0] + x[1]) ** 2), LINE)
    shifted = tr.Problem(lambda x: -(x[0] ** 4), tr.equals(lambda x: x[0] - x[1], 1.0, name="shifted"))
    with jax.enable_x64(True):
        assert tr.solve(fall, jnp.array([1e-3, 0.0]), steps=1000).status == "unbounded"
        assert tr.solve(shifted, jnp.zeros(2), steps=1000).status == "unbounded"


def test_a_method_that_says_converged_is_not_believed_where_the_certificate_contradicts_it():
    """√(1 + x²) ≥ 50 from 1: ExactPenalty ended at x = 1, which is infeasible, and said converged."""
    wall = tr.at_least(lambda x: jnp.sqrt(1.0 + x @ x), 50.0, name="wall")
    result = tr.solve(tr.Problem(lambda x: jnp.sum(x**2), wall), jnp.array([1.0]), "ExactPenalty", steps=300)
    assert result.status != "converged" or result.success
