"""The estimated optimality gap and the scales of certificates, against quadratic programs with known solutions."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import tightrope as tr


def quadratic(seed: int, size: int = 6):
    """A convex quadratic function: ½(x − t)ᵀH(x − t) + 1, with its H and t."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    return root @ root.T + 0.1 * np.eye(size), rng.normal(size=size)


def problem_of(hessian, target, *constraints, domain=None):
    hessian, target = jnp.asarray(hessian, jnp.float32), jnp.asarray(target, jnp.float32)
    return tr.Problem(
        lambda x: 0.5 * (x - target) @ hessian @ (x - target) + 1.0,
        list(constraints),
        domain=domain or tr.domains.Reals(),
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_of_a_feasible_point_of_a_quadratic_program_is_exact(seed):
    """Equality constraints Ax = Ax₁: the minimum follows from the KKT system, the gap at x₁ from F(x₁)."""
    hessian, target = quadratic(seed)
    rng = np.random.default_rng(seed + 10)
    matrix, x = rng.normal(size=(2, 6)), rng.normal(size=6)
    system = np.block([[hessian, matrix.T], [matrix, np.zeros((2, 2))]])
    solution = np.linalg.solve(system, np.concatenate([hessian @ target, matrix @ x]))[:6]
    value = [0.5 * (y - target) @ hessian @ (y - target) for y in (x, solution)]
    certificate = tr.certify(problem_of(hessian, target, tr.affine(matrix, matrix @ x)), jnp.asarray(x, jnp.float32))
    assert certificate.gap == pytest.approx(value[0] - value[1], rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_in_a_box_is_near_the_true_one_where_the_active_bounds_are_those_of_the_solution(seed):
    hessian, target = quadratic(seed)
    function = lambda y: 0.5 * (y - target) @ hessian @ (y - target)
    best = minimize(function, np.zeros(6), bounds=[(-0.5, 0.5)] * 6, tol=1e-12)
    free = np.abs(best.x) < 0.499
    x = best.x + 0.02 * free * np.random.default_rng(seed).normal(size=6)
    domain = tr.domains.Box(-0.5, 0.5)
    x = np.asarray(domain.project(jnp.asarray(x, jnp.float32)), float)
    certificate = tr.certify(problem_of(hessian, target, domain=domain), jnp.asarray(x, jnp.float32))
    assert certificate.gap == pytest.approx(function(x) - best.fun, rel=0.05, abs=1e-5)


def test_slack_and_violation_enter_the_gap_by_their_multipliers():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
    for offset in (-0.01, 0.01):
        certificate = tr.certify(problem, jnp.full(2, 0.5 + offset))
        multiplier = certificate.multipliers["budget"]
        assert certificate.gap == pytest.approx(multiplier * 2 * abs(offset), rel=0.05)


def test_no_curvature_and_a_slope_give_a_large_gap_unless_the_set_bounds_it():
    slope = jnp.array([1.0, 2.0])
    open_set = tr.certify(tr.Problem(lambda x: slope @ x, domain=tr.domains.NonNegative()), jnp.array([0.5, 0.5]))
    assert open_set.relative_gap > 0.5
    simplex = tr.certify(tr.Problem(lambda x: slope @ x, domain=tr.domains.Simplex()), jnp.array([0.9, 0.1]))
    assert simplex.gap <= 0.1 + 1e-5


def test_scales_are_those_of_the_page():
    data = tr.Dataset({"z": np.linspace(-3.0, 3.0, 4096, dtype=np.float32)}, batch_size=32)
    x = jnp.array([3.0, 4.0])
    constraints = [
        tr.at_most(lambda x: x[0], 7.0, name="bound"),
        tr.between(lambda x: x[0], -2.0, 5.0, name="width"),
        tr.equals(lambda x: 2.0 * x[1], 0.0, name="zero"),
        tr.at_most(lambda x, b: jnp.mean(b["z"]), 0.5, data=data, name="spread"),
        tr.at_most(lambda x: x, 1.0, name="given", scale=[10.0, 20.0]),
    ]
    scale = tr.certify(tr.Problem(jnp.sum, constraints), x).scale
    assert (scale["bound"], scale["width"]) == (7.0, 7.0)
    assert scale["zero"] == pytest.approx(2.0 * np.sqrt(12.5))
    assert scale["spread"] == pytest.approx(np.sqrt(3.0), rel=0.5)
    assert scale["given"].tolist() == [10.0, 20.0]


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, "big", [[1.0]]])
def test_a_bad_scale_is_an_error_that_names_it(scale):
    with pytest.raises((TypeError, ValueError), match="scale"):
        tr.at_most(jnp.sum, 1.0, scale=scale)
