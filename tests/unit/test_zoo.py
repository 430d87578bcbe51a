"""The zoo: every stated solution is feasible, stationary with the stated multipliers, and the best there is.

Expectations are exact in every test but the one that samples. Finite data is passed over in full. For samplers this file
states each law a second time, independently of the zoo: Gaussian rows are replaced by the 2n points mean ± √n·root·eᵢ,
which have the same mean and covariance, so that the mean over them is the expectation of any function of the rows that is
quadratic in them, as all of these are; uniform demands, which enter through a kink, by the integrals written out.
`test_samples_agree_with_the_exact_expectations` then holds these laws against large samples of the zoo's own samplers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from jax.flatten_util import ravel_pytree

import tightrope as tr
from tightrope import zoo
from tightrope.domains import Box, L1Ball, L2Ball, NonNegative, Product, Reals, Simplex

NAMES = tuple(zoo.available())
INFEASIBLE = ("circle_and_wall",)
FEASIBLE = tuple(name for name in NAMES if name not in INFEASIBLE)
WITHOUT_MULTIPLIERS = ("flat_power",)
NONSMOOTH = ("sparse_mean", "l1_budget", "weighted_medians")
TWINS = ("least_eigenvector", "saddle_in_disc")
"""Problems that x and −x solve."""


# ---- exact expectations ---------------------------------------------------------------------------------------------


def cubature(mean: list[float], root: Any) -> np.ndarray:
    """2n rows with this mean and the covariance root·rootᵀ."""
    center, root = np.asarray(mean, float), np.asarray(root, float)
    steps = np.sqrt(center.size) * (root * np.eye(center.size) if root.ndim == 0 else root).T
    return np.concatenate([center + steps, center - steps])


REFLECTION = np.array([[1.0, -2.0, -2.0], [-2.0, 1.0, -2.0], [-2.0, -2.0, 1.0]]) / 3
LAWS = {
    "projection_on_plane": [cubature([0.5, 1.5, 1.0, 1.0], 0.5)],
    "least_eigenvector": [cubature([0.0, 0.0, 0.0], REFLECTION @ np.diag([0.5, 1.0, 1.5]))],
    "noisy_sphere": [cubature([2.0, -1.0, 2.0], 0.5), cubature([0.0, 0.0, 0.0], 0.3)],
    "outside_the_ball": [cubature([0.3, 0.4], 0.3)],
    "three_bands": [cubature([1.75, 0.25, -1.5], 0.5), cubature([0.0, 0.0, 0.0], 0.5)],
    "sparse_mean": [cubature([2.0, 1.0, 0.3, -0.1], 0.5)],
    "l1_budget": [cubature([2.0, -1.0, 0.25], 0.5)],
    "mean_variance": [cubature([0.35, 0.4, 0.5, 0.05], np.sqrt(np.diag([0.5, 1.0, 2.0, 1.0])))],
    "line_in_l1_ball": [cubature([3.0, 1.0, 0.2], 0.5)],
    "ball_and_box": [cubature([0.7, 2.1, 0.9, 2.0], 0.5)],
}
"""Rows that stand for each sampler's law, in the order of `problem.sources`."""


def mean_shortage(stock: Any) -> Any:
    """E max(D − stock, 0) for D uniform on [0, 1]."""
    within = jnp.clip(stock, 0.0, 1.0)
    return 0.5 * (1.0 - within) ** 2 + jnp.maximum(-stock, 0.0)


INTEGRALS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "newsvendor": {"shortage": lambda x: mean_shortage(x) @ jnp.asarray([1.0, 4.0, 0.25])},
    "tail_risk": {"risk": lambda x: x["threshold"] + mean_shortage(x["stock"] + x["threshold"]) / 0.5},
}
"""Expectations of the constraints whose samples enter through a kink."""


class Exact(NamedTuple):
    """A problem of the zoo with its expectations, on flat vectors."""

    problem: tr.Problem
    start: jax.Array
    unravel: Callable[[jax.Array], Any]
    solution: zoo.Solution
    x: jax.Array
    objective: Callable[[jax.Array], jax.Array]
    constraints: dict[str, Callable[[jax.Array], jax.Array]]

    def project(self, point: jax.Array) -> jax.Array:
        return ravel_pytree(self.problem.domain.project(self.unravel(point)))[0]

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of the entries of `values`."""
        pairs = [
            np.broadcast_arrays(c.low, c.high, np.empty(jax.eval_shape(self.constraints[c.name], self.start).shape))[:2]
            for c in self.problem.constraints
        ]
        low, high = (np.concatenate([np.ravel(end) for end in ends]) for ends in zip(*pairs, strict=True))
        return low, high

    def values(self, point: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.ravel(h(point)) for h in self.constraints.values()])

    def violation(self, point: jax.Array) -> jax.Array:
        (low, high), values = self.bounds(), self.values(point)
        return jnp.max(jnp.maximum(values - high, low - values), initial=0.0)

    def signed_multipliers(self) -> np.ndarray:
        """One number for each entry of `values`, positive where an upper bound holds x back."""
        stated = self.solution.multipliers
        assert stated is not None
        return np.concatenate(
            [(-1.0 if c.kind == "at_least" else 1.0) * np.ravel(stated[c.name]) for c in self.problem.constraints]
        )

    def lagrangian(self, point: jax.Array, multipliers: Any) -> jax.Array:
        return self.objective(point) + jnp.asarray(multipliers) @ self.values(point)


@functools.cache
def exact(name: str) -> Exact:
    """The problem of this name in float64; call it under `enable_x64`."""
    problem, x0, solution = zoo.available()[name]()
    start, unravel = ravel_pytree(x0)
    laws = iter(LAWS.get(name, []))
    rows = {id(s): s.arrays if isinstance(s, tr.Dataset) else next(laws, None) for s in problem.sources}

    def expectation(fn: Callable[..., Any], data: Any) -> Callable[[jax.Array], jax.Array]:
        if data is None:
            return jax.jit(lambda point: fn(unravel(point)))
        assert rows[id(data)] is not None, f"{name}: state the law of {data}"
        return jax.jit(lambda point: fn(unravel(point), jax.tree.map(jnp.asarray, rows[id(data)])))

    def constraint(c: tr.Constraint) -> Callable[[jax.Array], jax.Array]:
        integral = INTEGRALS.get(name, {}).get(c.name)
        return expectation(c.fn, c.data) if integral is None else lambda point: integral(unravel(point))

    x = start if solution.x is None else ravel_pytree(solution.x)[0]
    constraints = {c.name: constraint(c) for c in problem.constraints}
    return Exact(problem, start, unravel, solution, x, expectation(problem.objective, problem.data), constraints)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# ---- the collection -------------------------------------------------------------------------------------------------


def test_names_and_count():
    assert len(NAMES) >= 16
    assert {*NAMES, "every", "Solution"} == set(zoo.__all__)
    assert all(getattr(zoo, name) is make for name, make in zoo.available().items())
    assert tuple(zoo.available()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_is_documented(name):
    first, *rest = inspect.cleandoc(zoo.available()[name].__doc__ or "").splitlines()
    assert first.endswith(".")
    assert len(first) <= 90
    assert "inimise" in " ".join(rest), "the docstring must state what is minimized"


def test_the_kinds_of_problem_that_methods_must_face_are_there():
    problems = [zoo.available()[name]()[0] for name in NAMES]
    constraints = [c for problem in problems for c in problem.constraints]
    assert {c.kind for c in constraints} == {"equals", "at_most", "at_least", "between"}
    assert any(c.matrix is not None for c in constraints)
    assert {type(c.data) for c in constraints} == {type(None), tr.Dataset, tr.Sampler}
    assert {type(p.data) for p in problems} == {type(None), tr.Dataset, tr.Sampler}
    assert any(p.data is not None and c.data not in (None, p.data) for p in problems for c in p.constraints)
    assert {type(p.domain) for p in problems} >= {Reals, NonNegative, Box, L1Ball, L2Ball, Simplex, Product}


@pytest.mark.by_default("lens-*", "fair_logistic_regression-*")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_functions_keep_the_precision_of_the_session(name, double):
    with jax.enable_x64(double):
        problem, x0, solution = zoo.available()[name]()
        problem.domain.check(x0)
        terms = [(problem.objective, problem.data), *((c.fn, c.data) for c in problem.constraints)]

        def everything(x, key):
            batches = {id(s): s.batch(s.arrays, s.draw(key, s.batch_size)) for s in problem.sources}
            arguments = [(x,) if data is None else (x, batches[id(data)]) for _, data in terms]
            jacobians = [jax.jacrev(fn)(*args) for (fn, _), args in zip(terms, arguments, strict=True)]
            return batches, [fn(*args) for (fn, _), args in zip(terms, arguments, strict=True)], jacobians

        made = jax.eval_shape(everything, x0, jax.random.key(0))
        assert {leaf.dtype for leaf in jax.tree.leaves((x0, solution.x, made))} == {
            np.dtype(np.float64 if double else np.float32)
        }
        if not double:
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(everything)(x0, jax.random.key(0))))


@pytest.mark.parametrize("name", FEASIBLE)
def test_solution_looks_like_the_start_and_is_not_the_start(name):
    _, x0, solution = zoo.available()[name]()
    assert jax.tree.structure(x0) == jax.tree.structure(solution.x)
    assert [leaf.shape for leaf in jax.tree.leaves(x0)] == [leaf.shape for leaf in jax.tree.leaves(solution.x)]
    assert np.linalg.norm(ravel_pytree(x0)[0] - ravel_pytree(solution.x)[0]) > 0.1


# ---- samples --------------------------------------------------------------------------------------------------------

BATCHES, ROWS = 100, 400


def value_and_slope(fn: Callable[..., Any], point: jax.Array, *batch: Any) -> jax.Array:
    """The value and the Jacobian of `fn` at a point, as one vector."""
    return jnp.concatenate([jnp.ravel(fn(point, *batch)), jnp.ravel(jax.jacrev(fn)(point, *batch))])


@pytest.mark.by_default("noisy_sphere", "tail_risk")
@pytest.mark.parametrize("name", [*LAWS, *INTEGRALS])
def test_samples_agree_with_the_exact_expectations(name):
    case = exact(name)
    pairs = [(case.problem.objective, case.problem.data, case.objective)]
    pairs += [(c.fn, c.data, case.constraints[c.name]) for c in case.problem.constraints]
    for fn, data, expectation in pairs:
        if data is None:
            continue
        rows = data.draw(jax.random.key(0), BATCHES * ROWS)
        batches = jax.tree.map(lambda leaf: leaf.reshape(BATCHES, ROWS, *leaf.shape[1:]), rows)
        sampled = jax.jit(
            jax.vmap(lambda p, b, fn=fn: value_and_slope(lambda p, b: fn(case.unravel(p), b), p, b), (None, 0))
        )
        exactly = jax.jit(functools.partial(value_and_slope, expectation))
        for point in (case.x, case.start):
            means = sampled(point, batches)
            error = np.std(means, axis=0, ddof=1) / np.sqrt(BATCHES)
            gap = np.abs(np.mean(means, axis=0) - exactly(point))
            assert (gap <= 5 * error + 1e-12).all(), f"{gap} against standard errors {error}"


# ---- the solutions --------------------------------------------------------------------------------------------------


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
    """The same where functions have kinks, without a domain: the least norm in the hull of the gradients nearby.

    Close enough to x every limit of gradients is met, and their hull is the subdifferential. The weights of the hull are
    those of a non-negative least squares problem whose last row asks that they sum to one.
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
    """How far the solution is from stationary with these multipliers."""
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
def test_multipliers_are_unique_where_the_zoo_says_so(name):
    """Multipliers form a convex set; a unique one admits no move along the null space of the active rows, nor ±eᵢ."""
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
def test_twins(name):
    case = exact(name)
    assert not case.solution.unique
    assert case.violation(-case.x) <= 1e-7
    assert float(case.objective(-case.x)) == pytest.approx(case.solution.objective, abs=1e-10)


def test_only_twins_and_the_infeasible_are_not_unique():
    assert {name for name in NAMES if not exact(name).solution.unique} == {*TWINS, *INFEASIBLE}


# ---- nothing is better ----------------------------------------------------------------------------------------------


@pytest.mark.by_default("lens", "weighted_medians")
@pytest.mark.parametrize("name", FEASIBLE)
def test_no_feasible_point_nearby_is_better(name):
    """Random points are brought back to feasibility by Newton steps on violated rows, projecting on the set each time."""
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


def walls(domain: Any, size: int) -> list[Callable[[jax.Array], jax.Array]]:
    """Functions that are non-negative on the set alone, for a solver that knows no sets."""
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
            offsets, weights = (walls(domain.parts[part], 2) for part in ("offsets", "weights"))
            return [lambda x, w=w: w(x[:2]) for w in offsets] + [lambda x, w=w: w(x[2:]) for w in weights]
    raise AssertionError(f"no walls for {domain}")


SOLVED_BY_SLSQP = tuple(n for n in FEASIBLE if n not in (*NONSMOOTH, "repeated_row", "flat_power"))


@pytest.mark.by_default("lens", "noisy_sphere")
@pytest.mark.parametrize("name", SOLVED_BY_SLSQP)
def test_a_deterministic_solver_finds_the_same_solution_from_the_start(name):
    case = exact(name)
    low, high = case.bounds()
    equal = low == high

    below, above = np.isfinite(high) & ~equal, np.isfinite(low) & ~equal
    sides = walls(case.problem.domain, case.x.size)

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
    """The problem in a modeling language, from its docstring; the last number is the part of F that is constant."""
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


# ---- the degenerate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "another"), [("repeated_row", [0.5, 0.0]), ("complementarity", [7.0])])
def test_other_multipliers_serve_as_well(name, another):
    assert residual(name, another) <= 1e-6


@pytest.mark.parametrize("multiplier", [-1e6, -1.0, 0.0, 1.0, 1e6])
def test_no_multiplier_serves_a_flat_constraint(multiplier):
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


def test_the_infeasible_problem_has_the_stated_least_violation():
    case = exact("circle_and_wall")
    solution = case.solution
    assert (solution.feasible, solution.x, solution.objective) == (False, None, np.inf)
    grid = jnp.linspace(-3, 3, 1201)
    points = jnp.stack(jnp.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    violations = jax.jit(jax.vmap(case.violation))(points)
    assert solution.violation <= float(jnp.min(violations)) <= solution.violation + 0.02
    best = jnp.asarray([(np.sqrt(13) - 1) / 2, 0.0])
    assert float(case.violation(best)) == pytest.approx(solution.violation, abs=1e-12)


def test_the_classifiers_hold_their_constraints_at_the_bound():
    """Without its constraint the fair classifier would leave the band at the top, and nothing else holds it back."""
    case = exact("fair_logistic_regression")
    free = scipy.optimize.minimize(jax.jit(case.objective), case.start, jac=jax.jit(jax.grad(case.objective)))
    assert float(case.values(free.x)[0]) > 0.05
    assert exact("neyman_pearson").solution.multipliers["false_alarms"] > 0
