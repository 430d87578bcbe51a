"""The zoo's solutions: feasible, stationary with the stated multipliers, and optimal, by exact expectations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from exact_zoo import FEASIBLE, INFEASIBLE, NAMES, exact

from tightrope import zoo
from tightrope.domains import Box, L1Ball, L2Ball, NonNegative, Product, Reals, Simplex

WITHOUT_MULTIPLIERS = ("flat_power",)
NONSMOOTH = ("sparse_mean", "l1_budget", "weighted_medians")
TWINS = ("least_eigenvector", "saddle_in_disc")
"""Problems with the solutions x and −x."""


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", FEASIBLE)
def test_solution_is_feasible_and_has_the_stated_value(name):
    case = exact(name)
    assert case.solution.feasible
    assert case.solution.violation == 0.0

    @jax.jit
    def judge(point):
        return case.violation(point), case.problem.domain.contains(case.unravel(point)), case.objective(point)

    violation, inside, objective = judge(case.x)
    assert violation <= 1e-7
    assert inside
    assert float(objective) == pytest.approx(case.solution.objective, abs=1e-10)


@functools.cache
def distance_of(name: str) -> Callable[[Any], jax.Array]:
    """The distance of 0 to ∇F + Σ multipliers ∇h + N_X at the solution, as a function of the multipliers."""
    case = exact(name)

    def distance(multipliers):
        slope = jax.grad(case.lagrangian)(case.x, multipliers)
        return case.problem.domain.normal_cone_distance(case.unravel(case.x), case.unravel(slope))

    return jax.jit(distance)


@functools.cache
def distance_at_kinks_of(name: str) -> Callable[[Any], float]:
    """The same for functions with kinks, without a domain: the smallest norm in the convex hull of nearby gradients.

    Close enough to x every limit of gradients occurs, and their convex hull is the subdifferential. The weights of the
    smallest element solve a nonnegative least-squares problem whose last row makes them sum to one.
    """
    case = exact(name)
    assert isinstance(case.problem.domain, Reals)
    nearby = case.x + 1e-9 * np.random.default_rng(0).uniform(-1, 1, (256, case.x.size))
    slopes = jax.jit(jax.vmap(jax.grad(case.lagrangian), (0, None)))

    def distance(multipliers):
        gradients = np.unique(np.round(slopes(nearby, multipliers), 8), axis=0)
        system = np.vstack([gradients.T, np.ones(len(gradients))])
        weights, _ = scipy.optimize.nnls(system, [*np.zeros(case.x.size), 1.0])
        return np.linalg.norm(weights @ gradients) / weights.sum()

    return distance


def residual(name: str, multipliers: Any) -> float:
    """The stationarity residual of the solution with these multipliers."""
    return float((distance_at_kinks_of if name in NONSMOOTH else distance_of)(name)(np.asarray(multipliers)))


WITH_MULTIPLIERS = tuple(name for name in FEASIBLE if name not in WITHOUT_MULTIPLIERS)


@pytest.mark.by_default("lens", "noisy_sphere", "regression_in_box", "fair_logistic_regression", "weighted_medians")
@pytest.mark.parametrize("name", WITH_MULTIPLIERS)
def test_multipliers_cancel_the_gradient(name):
    case = exact(name)
    assert case.solution.multipliers is not None
    assert set(case.solution.multipliers) == {c.name for c in case.problem.constraints}
    assert residual(name, case.signed_multipliers()) <= 1e-6


@pytest.mark.by_default("lens", "noisy_sphere", "regression_in_box", "fair_logistic_regression", "weighted_medians")
@pytest.mark.parametrize("name", WITH_MULTIPLIERS)
def test_multipliers_have_their_signs_and_are_complementary(name):
    case = exact(name)
    values, (low, high) = np.asarray(case.values(case.x)), case.bounds()
    pushes = case.signed_multipliers()
    assert np.allclose(values[pushes > 0], high[pushes > 0], rtol=0, atol=1e-7)
    assert np.allclose(values[pushes < 0], low[pushes < 0], rtol=0, atol=1e-7)
    for c in case.problem.constraints:
        if c.kind in ("at_most", "at_least"):
            assert np.min(case.solution.multipliers[c.name]) >= 0


@pytest.mark.by_default("lens", "noisy_sphere", "regression_in_box", "fair_logistic_regression")
@pytest.mark.parametrize("name", WITH_MULTIPLIERS)
def test_multipliers_are_unique_if_the_zoo_says_so(name):
    """Multipliers form a convex set; if unique, moves along the null space of the active rows or ±eᵢ leave it."""
    case = exact(name)
    multipliers, (low, high) = case.signed_multipliers(), case.bounds()
    values = np.asarray(case.values(case.x))
    active = np.minimum(np.abs(values - low), np.abs(values - high)) < 1e-7
    directions = [sign * row for row in np.eye(values.size)[active] for sign in (1, -1)]
    jacobian = np.asarray(jax.jit(jax.jacrev(case.values))(case.x))[active]
    for null in scipy.linalg.null_space(jacobian.T).T:
        directions.append(np.zeros(values.size))
        directions[-1][active] = null
    residuals = [residual(name, multipliers + 1e-3 * direction) for direction in directions]
    assert (min(residuals) > 1e-5) == case.solution.multipliers_unique


@pytest.mark.parametrize("name", TWINS)
def test_minus_x_is_a_solution_too(name):
    case = exact(name)
    assert not case.solution.unique
    assert case.violation(-case.x) <= 1e-7
    assert float(case.objective(-case.x)) == pytest.approx(case.solution.objective, abs=1e-10)


def test_all_other_solutions_are_unique():
    assert {name for name in NAMES if not exact(name).solution.unique} == {*TWINS, *INFEASIBLE}


# ---- optimality -----------------------------------------------------------------------------------------------------


@pytest.mark.by_default("lens", "weighted_medians")
@pytest.mark.parametrize("name", FEASIBLE)
def test_no_feasible_point_nearby_is_better(name):
    """Random points are made feasible by Newton steps on violated rows, each followed by a projection on the set."""
    case = exact(name)
    low, high = (jnp.asarray(end) for end in case.bounds())

    def restore(_, point):
        values = case.values(point)
        excess = jnp.maximum(values - high, 0.0) - jnp.maximum(low - values, 0.0)
        rows = jnp.where(excess[:, None] != 0, jax.jacrev(case.values)(point), 0.0)
        return case.project(point - jnp.linalg.pinv(rows, rtol=1e-9) @ excess)

    def outcome(point):
        restored = jax.lax.fori_loop(0, 400, restore, point)
        return restored, case.objective(restored), case.violation(restored)

    radii = np.repeat([0.01, 0.3], 64)[:, None]
    points = case.x + radii * np.random.default_rng(0).normal(size=(128, case.x.size))
    restored, objectives, violations = jax.jit(jax.vmap(outcome))(points)
    feasible = np.asarray(violations) <= 1e-11
    moved = np.linalg.norm(restored - case.x, axis=1) > 1e-4
    assert (feasible & moved).sum() >= 32
    assert np.min(np.asarray(objectives)[feasible]) >= case.solution.objective - 1e-9


def set_inequalities(domain: Any, size: int) -> list[Callable[[jax.Array], jax.Array]]:
    """Functions that are nonnegative exactly on the set, for a solver without sets."""
    match domain:
        case Reals():
            return []
        case NonNegative():
            return [lambda x: x]
        case Box():
            return [lambda x: x - domain.low, lambda x: domain.high - x]
        case Simplex():
            return [lambda x: x]  # the caller adds the equation
        case L2Ball():
            return [lambda x: domain.radius**2 - x @ x]
        case L1Ball():
            signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * size)).reshape(size, -1).T
            return [lambda x: domain.radius - signs @ x]
        case Product():  # the only one: leaves in the order in which a dict is flattened
            offsets, weights = (set_inequalities(domain.parts[part], 2) for part in ("offsets", "weights"))
            return [lambda x, w=w: w(x[:2]) for w in offsets] + [lambda x, w=w: w(x[2:]) for w in weights]
    raise AssertionError(f"no inequalities for {domain}")


SOLVED_BY_SLSQP = tuple(n for n in FEASIBLE if n not in (*NONSMOOTH, "repeated_row", "flat_power"))


@pytest.mark.by_default("lens", "noisy_sphere")
@pytest.mark.parametrize("name", SOLVED_BY_SLSQP)
def test_slsqp_finds_the_same_solution_from_the_start(name):
    case = exact(name)
    low, high = case.bounds()
    equal = low == high

    below, above = np.isfinite(high) & ~equal, np.isfinite(low) & ~equal
    sides = set_inequalities(case.problem.domain, case.x.size)

    def equations(x):
        total = [jnp.sum(x) - 1.0] if isinstance(case.problem.domain, Simplex) else []
        return jnp.append((case.values(x) - low)[equal], jnp.asarray(total))

    def inequalities(x):
        values = case.values(x)
        return jnp.concatenate([(high - values)[below], (values - low)[above], *(jnp.ravel(side(x)) for side in sides)])

    def constraint(kind: str, fn: Callable[[Any], Any]) -> dict[str, Any]:
        return {"type": kind, "fun": jax.jit(fn), "jac": jax.jit(jax.jacrev(fn))}

    kinds = [("eq", equations), ("ineq", inequalities)]
    constraints = [constraint(kind, fn) for kind, fn in kinds if jax.eval_shape(fn, case.start).size]
    found = scipy.optimize.minimize(
        jax.jit(case.objective),
        case.start,
        jac=jax.jit(jax.grad(case.objective)),
        method="SLSQP",
        constraints=constraints,
        options={"ftol": 1e-13, "maxiter": 300},
    )
    assert float(case.violation(found.x)) <= 1e-7
    assert found.fun == pytest.approx(case.solution.objective, abs=1e-7)
    gap = min(np.linalg.norm(found.x - sign * case.x) for sign in ((1, -1) if name in TWINS else (1,)))
    assert gap <= 2e-4


def convex_model(name: str) -> tuple[cp.Variable, cp.Expression, list[cp.Constraint], float]:
    """The problem in CVXPY, from its docstring; the last number is the constant part of F."""
    x = cp.Variable({"sparse_mean": 4, "l1_budget": 3, "weighted_medians": 2, "repeated_row": 3}[name])
    match name:
        case "sparse_mean":
            distance = cp.sum_squares(x - np.array([2.0, 1.0, 0.3, -0.1])) / 2
            return x, distance + cp.norm1(x) / 2, [cp.sum(x) == 1.5], 0.5
        case "l1_budget":
            return x, cp.sum_squares(x - np.array([2.0, -1.0, 0.25])) / 2, [cp.norm1(x) <= 2.0], 0.375
        case "weighted_medians":
            a, b = np.array([-2.0, -1.0, 0.0, 1.0, 7.0]), np.array([1.0, 2.0, 3.0, 4.0, 10.0])
            return x, cp.sum(cp.abs(x[0] - a) + 2 * cp.abs(x[1] - b)) / 5, [x[0] + x[1] <= 2.5], 0.0
        case _:
            return x, cp.sum_squares(x - np.array([1.0, 1.0, 0.5])) / 2, [cp.sum(x) == 1, 2 * cp.sum(x) == 2], 0.0


@pytest.mark.by_default("weighted_medians")
@pytest.mark.parametrize("name", [*NONSMOOTH, "repeated_row"])
def test_a_convex_solver_finds_the_same_solution(name):
    solution = exact(name).solution
    x, objective, constraints, constant = convex_model(name)
    value = cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)
    assert value + constant == pytest.approx(solution.objective, abs=1e-6)
    assert np.allclose(x.value, solution.x, atol=1e-4)


# ---- degenerate problems ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "another"), [("repeated_row", [0.5, 0.0]), ("complementarity", [7.0])])
def test_other_multipliers_are_stationary_too(name, another):
    assert residual(name, another) <= 1e-6


@pytest.mark.parametrize("multiplier", [-1e6, -1.0, 0.0, 1.0, 1e6])
def test_a_flat_constraint_has_no_multiplier(multiplier):
    assert exact("flat_power").solution.multipliers is None
    assert residual("flat_power", [multiplier]) == pytest.approx(1.0)


@pytest.mark.parametrize(("power", "exponent"), [(2, 1.5), (3, 5 / 3), (5, 1.8)])
def test_error_bound_exponent_of_a_flat_constraint(power, exponent):
    """The logarithm of ‖Jᵀc‖ grows with that of |c| at the rate θ = 2 − 1/p."""
    problem, _, _ = zoo.flat_power(power=power)
    value_and_slope = jax.vmap(jax.value_and_grad(problem.constraints[0].fn))
    value, slope = value_and_slope(jnp.stack([jnp.geomspace(1e-3, 1e-1, 50), jnp.full(50, 2.0)], axis=1))
    length = np.linalg.norm(np.asarray(slope) * np.asarray(value)[:, None], axis=1)
    rate, _ = np.polyfit(np.log(np.abs(value)), np.log(length), 1)
    assert rate == pytest.approx(exponent, abs=1e-8)


def test_the_infeasible_problem_has_the_stated_minimal_violation():
    case = exact("circle_and_wall")
    solution = case.solution
    assert (solution.feasible, solution.x, solution.objective) == (False, None, np.inf)
    grid = jnp.linspace(-3, 3, 1201)
    points = jnp.stack(jnp.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    violations = jax.jit(jax.vmap(case.violation))(points)
    assert solution.violation <= float(jnp.min(violations)) <= solution.violation + 0.02
    best = jnp.asarray([(np.sqrt(13) - 1) / 2, 0.0])
    assert float(case.violation(best)) == pytest.approx(solution.violation, abs=1e-12)


def test_the_constraints_of_the_classifiers_are_active():
    """Without its constraint the fair classifier would exceed the upper bound."""
    case = exact("fair_logistic_regression")
    free = scipy.optimize.minimize(jax.jit(case.objective), case.start, jac=jax.jit(jax.grad(case.objective)))
    assert float(case.values(free.x)[0]) > 0.05
    assert exact("neyman_pearson").solution.multipliers["false_alarms"] > 0
