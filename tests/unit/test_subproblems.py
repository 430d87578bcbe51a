"""Bounded quadratics and KKT multipliers, against SciPy's and cvxpy's solvers."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear, nnls

from tightrope.domains import Box, L2Ball
from tightrope.numerics.kkt import kkt_multipliers
from tightrope.numerics.quadratic import bounded_quadratic

quadratic = jax.jit(bounded_quadratic)
PRECISION = {"float64": 1e-9, "float32": 2e-4}


def compute(fn, dtype: str, *arrays):
    """Return fn of the arrays in this precision (booleans stay booleans), converted to float64."""
    with jax.enable_x64(dtype == "float64"):
        given = [jnp.asarray(a) if np.asarray(a).dtype == bool else jnp.asarray(a, dtype) for a in arrays]
        return jax.tree.map(lambda a: np.asarray(a, np.float64), fn(*given))


# ---- bounded quadratics ------------------------------------------------------------------------------------------------


def exact_minimizer(matrix: np.ndarray, linear: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Minimize ½‖Rᵀy + R⁻¹b‖² with K = RRᵀ, by bounded least squares (an active-set method, exact)."""
    root = np.linalg.cholesky(matrix)
    bounds = (np.where(free, -np.inf, 0.0), np.inf)
    return lsq_linear(root.T, -np.linalg.solve(root, linear), bounds=bounds, method="bvls", tol=1e-15).x


def value(matrix, linear, y) -> float:
    return 0.5 * y @ matrix @ y + linear @ y


def excess(matrix, linear, free, y) -> float:
    """The relative excess of the objective at y over its minimum."""
    best = value(matrix, linear, exact_minimizer(matrix, linear, free))
    return (value(matrix, linear, y) - best) / max(abs(best), 1e-12)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.by_default("3-*", "12-float64")
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("m", [1, 3, 12])
def test_random_quadratics_are_minimized(m, dtype):
    rng = np.random.default_rng(m)
    for _ in range(20):
        rows = unit_rows(rng.normal(size=(m, 2 * m + 1)))
        matrix, linear, free = rows @ rows.T, rows @ rng.normal(size=2 * m + 1), rng.random(m) < 0.3
        y = compute(quadratic, dtype, matrix, linear, free)
        assert (y[~free] >= 0).all()
        np.testing.assert_allclose(y, exact_minimizer(matrix, linear, free), rtol=0, atol=10 * PRECISION[dtype])


def test_a_convex_solver_agrees():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6, 8))
    matrix, linear, free = rows @ rows.T, rng.normal(size=6), np.arange(6) < 2
    y = cp.Variable(6)
    cp.Problem(cp.Minimize(0.5 * cp.sum_squares(rows.T @ y) + linear @ y), [y[2:] >= 0]).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(compute(quadratic, "float64", matrix, linear, free), y.value, rtol=0, atol=1e-6)


@pytest.mark.by_default("float64")
@pytest.mark.parametrize("dtype", PRECISION)
def test_all_free_is_a_linear_solve_and_a_diagonal_matrix_is_clipped(dtype):
    rng = np.random.default_rng(2)
    rows, linear = rng.normal(size=(5, 9)), rng.normal(size=5)
    y = compute(quadratic, dtype, rows @ rows.T, linear, np.ones(5, bool))
    np.testing.assert_allclose(y, -np.linalg.solve(rows @ rows.T, linear), rtol=1e-3 if dtype == "float32" else 1e-9)
    diagonal = np.array([1.0, 2.0, 3.0, 4.0])
    y = compute(quadratic, dtype, np.diag(diagonal), np.array([-1.0, 2.0, 0.0, -4.0]), np.zeros(4, bool))
    np.testing.assert_allclose(y, [1.0, 0.0, 0.0, 1.0], atol=1e-6)


def test_no_variables_and_one_variable():
    empty = compute(quadratic, "float64", np.zeros((0, 0)), np.zeros(0), np.zeros(0, bool))
    assert empty.shape == (0,)
    for b, free, expected in [(3.0, False, 0.0), (-3.0, False, 1.5), (3.0, True, -1.5)]:
        y = compute(quadratic, "float64", np.array([[2.0]]), np.array([b]), np.array([free]))
        np.testing.assert_allclose(y, [expected], atol=1e-12)


@pytest.mark.parametrize("dtype", PRECISION)
def test_active_bounds_with_zero_multipliers_are_solved(dtype):
    """The gradient vanishes at a solution on the boundary: strict complementarity fails."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        rows = rng.normal(size=(6, 9))
        solution = np.maximum(rng.normal(size=6), 0.0)
        matrix = rows @ rows.T
        y = compute(quadratic, dtype, matrix, -matrix @ solution, np.zeros(6, bool))
        np.testing.assert_allclose(y, solution, atol=1e-9 if dtype == "float64" else 1e-2)
    zero = compute(quadratic, dtype, matrix, np.zeros(6), np.zeros(6, bool))
    np.testing.assert_array_equal(zero, 0.0)


def test_an_ill_conditioned_linear_solve_is_exact_to_rounding():
    rng = np.random.default_rng(5)
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    matrix, solution = rotation @ np.diag(np.logspace(0, -8, 6)) @ rotation.T, rng.normal(size=6)
    y = compute(quadratic, "float64", matrix, -matrix @ solution, np.ones(6, bool))
    np.testing.assert_allclose(y, solution, atol=1e-6)


@pytest.mark.by_default("20")
@pytest.mark.parametrize("m", [3, 20])
def test_ill_conditioned_bounded_quadratics_are_minimized(m):
    """Condition numbers up to 1e8; only the objective is compared."""
    rng = np.random.default_rng(40 + m)
    worst = 0.0
    for _ in range(150):
        rows = unit_rows(rng.normal(size=(m, m + 2)) * np.logspace(0, -4, m + 2))
        matrix, linear, free = rows @ rows.T + 1e-15 * np.eye(m), rows @ rng.normal(size=m + 2), rng.random(m) < 0.3
        worst = max(worst, excess(matrix, linear, free, compute(quadratic, "float64", matrix, linear, free)))
    assert worst < 1e-4


# ---- multipliers -------------------------------------------------------------------------------------------------------


def joint_least_squares(gradient, jacobian, rows, equality, normals=()) -> tuple[np.ndarray, np.ndarray, float]:
    """Return λ, residual and minimum of ‖∇F + Jᵀλ + Σtn‖² + Σ(λ min(c, 0))² over λ, t ≥ 0: one bounded least-squares problem.

    `normals` are the generators n of the normal cone.
    """
    m, cone = len(rows), np.reshape(normals, (-1, len(gradient)))
    slack = np.where(equality, 0.0, np.minimum(rows, 0.0))
    columns = np.block([[jacobian.T, cone.T], [np.diag(slack), np.zeros((m, len(cone)))]])
    target = -np.concatenate([gradient, np.zeros(m)])
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    free = np.concatenate([equality, np.zeros(len(cone), bool)])
    bounds = (np.where(free, -np.inf, 0.0), np.inf)
    found = lsq_linear(columns / scale, target, bounds=bounds, method="bvls", tol=1e-15, max_iter=5000)
    unknowns = found.x / scale
    residual = gradient + jacobian.T @ unknowns[:m] + cone.T @ unknowns[m:]
    return unknowns[:m], residual, 2 * found.cost


def objective(gradient, jacobian, rows, equality, multipliers) -> float:
    slack = np.where(equality, 0.0, np.minimum(rows, 0.0))
    return np.sum((gradient + jacobian.T @ multipliers) ** 2) + np.sum((multipliers * slack) ** 2)


@jax.jit
def without_set(gradient, jacobian, rows, equality):
    return kkt_multipliers(gradient, jacobian, rows, equality, None)


def instance(rng, m: int, n: int):
    """Some equalities, some active, some violated and some slack inequalities, on very different scales."""
    scale = 10.0 ** rng.uniform(-3, 3, size=m)
    jacobian = rng.normal(size=(m, n)) * scale[:, None]
    rows = scale * rng.choice([0.0, -0.01, -1.0, -30.0, 0.5], size=m)
    return rng.normal(size=n), jacobian, rows, rng.random(m) < 0.3


@pytest.mark.by_default("3-4-*", "8-20-float64")
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize(("m", "n"), [(1, 4), (3, 4), (8, 20)])
def test_multipliers_solve_the_least_squares_problem_of_the_docstring(m, n, dtype):
    rng = np.random.default_rng(m)
    for _ in range(10):
        gradient, jacobian, rows, equality = instance(rng, m, n)
        expected, residual, _ = joint_least_squares(gradient, jacobian, rows, equality)
        got, left = compute(without_set, dtype, gradient, jacobian, rows, equality)
        scale = np.linalg.norm(jacobian, axis=1)
        atol = 1e-8 if dtype == "float64" else 5e-3
        np.testing.assert_allclose(got * scale, expected * scale, rtol=0, atol=atol)
        np.testing.assert_allclose(left, residual, rtol=0, atol=atol)
        assert (got[~equality] >= 0).all()


def test_nonnegative_least_squares_agrees_where_all_rows_are_active_inequalities():
    rng = np.random.default_rng(8)
    gradient, jacobian = rng.normal(size=9), rng.normal(size=(5, 9))
    got, left = compute(without_set, "float64", gradient, jacobian, np.zeros(5), np.zeros(5, bool))
    expected, distance = nnls(jacobian.T, -gradient)
    np.testing.assert_allclose(got, expected, atol=1e-10)
    np.testing.assert_allclose(np.linalg.norm(left), distance, atol=1e-10)
    assert 0 < np.count_nonzero(expected) < 5


def test_a_stationary_point_has_its_multipliers_and_no_residual():
    rng = np.random.default_rng(9)
    jacobian, equality = rng.normal(size=(4, 10)), np.array([True, True, False, False])
    multipliers = np.array([-2.0, 0.7, 1.3, 0.0])
    got, left = compute(without_set, "float64", -jacobian.T @ multipliers, jacobian, np.zeros(4), equality)
    np.testing.assert_allclose(got, multipliers, atol=1e-10)
    np.testing.assert_allclose(left, 0.0, atol=1e-10)


def outside_cone(domain, point):
    """The part of a vector that the normal cone at a point does not contain."""
    return lambda v: v - domain.project_normal_cone(point, v)


@pytest.mark.by_default("everywhere")
@pytest.mark.parametrize("domain", [None, Box(-10.0, 10.0)], ids=["everywhere", "in a box"])
def test_in_float32_a_long_chain_of_equations_leaves_no_spurious_residual(domain):
    """Rows x_i − x_{i−1} are nearly dependent (least singular value 0.016): a ridge would leave 1e-2 of the gradient; rounding
    of multipliers with norm 15 leaves 15 eps / 0.016, or 1e-4.
    """
    jacobian = jnp.eye(100, dtype=jnp.float32) - jnp.eye(100, k=-1, dtype=jnp.float32)
    gradient = -jnp.linspace(1.0, 2.0, 100, dtype=jnp.float32) @ jacobian
    mapping = None if domain is None else outside_cone(domain, jnp.zeros(100))
    _, residual = kkt_multipliers(gradient, jacobian, jnp.zeros(100), jnp.ones(100, bool), mapping)
    assert jnp.linalg.norm(residual) <= 1e-4 * jnp.linalg.norm(gradient)


def test_no_constraints_leave_the_gradient():
    gradient = np.array([1.0, -2.0])
    got, left = compute(without_set, "float64", gradient, np.zeros((0, 2)), np.zeros(0), np.zeros(0, bool))
    assert got.shape == (0,)
    np.testing.assert_array_equal(left, gradient)


def test_a_constraint_far_from_active_gets_no_multiplier_and_multipliers_are_continuous():
    gradient, jacobian, flags = np.array([-1.0, 0.0]), np.array([[1.0, 0.0]]), np.zeros(1, bool)
    distances = np.array([0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3])
    found = [compute(without_set, "float64", gradient, jacobian, np.array([-d]), flags)[0][0] for d in distances]
    np.testing.assert_allclose(found, 1 / (1 + distances**2), rtol=1e-9)


def test_a_row_with_zero_gradient_gets_no_multiplier():
    jacobian = np.array([[0.0, 0.0], [1.0, 1.0]])
    for equality in (np.array([True, True]), np.array([False, False])):
        got, left = compute(without_set, "float64", np.array([-1.0, -1.0]), jacobian, np.array([0.3, 0.0]), equality)
        np.testing.assert_allclose(got, [0.0, 1.0], atol=1e-12)
        np.testing.assert_allclose(left, 0.0, atol=1e-12)


SETS = {
    "box": (Box(-1.0, 1.0), np.array([1.0, -1.0, 0.3, 0.0, 1.0, -0.5, 0.2, 0.9, -0.7, 0.1])),
    "ball": (L2Ball(2.0), np.array([1.0, -1.0, 0.5, 0.5, 1.0, 0.5, 0.0, 0.5, 0.0, 0.0])),
    "ball inside": (L2Ball(2.0), np.full(10, 0.1)),
}


def generators(name: str) -> np.ndarray:
    """Generators of the normal cone, by hand: outward axes at the bounds of a box, the outward ray on a sphere."""
    point = SETS[name][1]
    if name == "box":
        return np.diag(np.sign(point))[np.abs(point) == 1.0]
    return point[None] / 2.0 if name == "ball" else np.zeros((0, 10))


def on_set(name: str):
    domain, point = SETS[name]

    def solve(gradient, jacobian, rows, equality):
        return kkt_multipliers(
            gradient, jacobian, rows, equality, outside_cone(domain, jnp.asarray(point, gradient.dtype))
        )

    return jax.jit(solve)


@pytest.mark.parametrize("name", SETS)
def test_with_a_set_multipliers_and_normal_are_found_jointly(name):
    rng = np.random.default_rng(12)
    solve, used = on_set(name), 0
    for _ in range(12):
        gradient, jacobian, rows, equality = instance(rng, 2, 10)
        expected, residual, _ = joint_least_squares(gradient, jacobian, rows, equality, generators(name))
        got, left = compute(solve, "float64", gradient, jacobian, rows, equality)
        scale = np.linalg.norm(jacobian, axis=1)
        np.testing.assert_allclose(got * scale, expected * scale, rtol=0, atol=1e-4)
        np.testing.assert_allclose(left, residual, rtol=0, atol=1e-4)
        used += not np.allclose(residual, gradient + jacobian.T @ expected)
    assert (used > 3) == (name != "ball inside")


@pytest.mark.parametrize("n", [10, 50])
def test_a_budget_with_a_sparse_solution_is_stationary(n):
    """Min −aᵀx, Σx ≤ 1, x ≥ 0: x = e_1 is the solution, with multiplier a_1 = 1."""
    point = jnp.zeros(n).at[0].set(1.0)
    mapping = outside_cone(Box(0.0, 1e6), point)
    solve = jax.jit(lambda *arguments: kkt_multipliers(*arguments, mapping))
    gradient = -np.linspace(1.0, 0.0, n)
    got, left = compute(solve, "float32", gradient, np.ones((1, n)), np.zeros(1), np.zeros(1, bool))
    np.testing.assert_allclose(got, [1.0], atol=1e-3)
    np.testing.assert_allclose(left, 0.0, atol=1e-3)


def test_newtons_method_on_a_set_ends_with_a_step_that_gains_nothing():
    """In a ball that is far away the first step solves the problem, and the second gains nothing; a step maps twice."""
    calls = []

    def counted(v):
        calls.append(v)
        return v - L2Ball(10.0).project_normal_cone(jnp.zeros(5), v)

    gradient, jacobian = jnp.arange(5.0), jnp.eye(2, 5)
    with jax.disable_jit():
        multipliers, _ = kkt_multipliers(gradient, jacobian, jnp.zeros(2), np.ones(2, bool), counted)
    np.testing.assert_allclose(multipliers, [0.0, -1.0], atol=1e-5)
    assert len(calls) == 2 * 2 + 1


@pytest.mark.parametrize("name", ["none", "box"])
def test_scaling_a_row_scales_its_multiplier_and_nothing_else(name):
    rng = np.random.default_rng(13)
    solve = without_set if name == "none" else on_set(name)
    for _ in range(5):
        gradient, jacobian, rows, equality = instance(rng, 3, 10)
        factor = np.array([1e4, 1.0, 1e-3])
        got, left = compute(solve, "float64", gradient, jacobian, rows, equality)
        scaled, same = compute(solve, "float64", gradient, jacobian * factor[:, None], rows * factor, equality)
        np.testing.assert_allclose(scaled * factor, got, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(same, left, atol=1e-9)


@jax.jit
def of_equations(gradient, jacobian, rows, equality):
    return kkt_multipliers(gradient, jacobian, rows, equality, None, only_equalities=True)


@pytest.mark.by_default("float64-*")
@pytest.mark.parametrize("solve", [without_set, of_equations], ids=["any rows", "equations alone"])
@pytest.mark.parametrize("dtype", PRECISION)
def test_dependent_equalities_leave_the_distance_to_their_span(dtype, solve):
    rng = np.random.default_rng(14)
    for _ in range(10):
        basis = rng.normal(size=(3, 8))
        jacobian = np.vstack([basis, basis[0] + basis[1], -2 * basis[2]])
        gradient = rng.normal(size=8)
        got, left = compute(solve, dtype, gradient, jacobian, np.zeros(5), np.ones(5, bool))
        distance = gradient - basis.T @ np.linalg.lstsq(basis.T, gradient, rcond=None)[0]
        np.testing.assert_allclose(left, distance, atol=1e-8 if dtype == "float64" else 1e-3)
        assert np.isfinite(got).all()


@pytest.mark.parametrize("dtype", PRECISION)
def test_the_two_sides_of_a_range_are_distinguished(dtype):
    """Opposite rows: only the active side has a multiplier."""
    rng = np.random.default_rng(15)
    for _ in range(10):
        half = rng.normal(size=(3, 8))
        jacobian, rows = np.vstack([half, -half]), np.concatenate([np.zeros(3), np.full(3, -0.2)])
        gradient = rng.normal(size=8)
        got, left = compute(without_set, dtype, gradient, jacobian, rows, np.zeros(6, bool))
        expected, residual, _ = joint_least_squares(gradient, jacobian, rows, np.zeros(6, bool))
        atol = 1e-7 if dtype == "float64" else 5e-3
        np.testing.assert_allclose(got, expected, atol=atol)
        np.testing.assert_allclose(left, residual, atol=atol)


@pytest.mark.by_default("10-4-float64")
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize(("m", "n"), [(10, 4)])
def test_more_inequalities_than_variables_are_solved(m, n, dtype):
    rng = np.random.default_rng(16)
    worst = 0.0
    for _ in range(60):
        gradient, jacobian = rng.normal(size=n), rng.normal(size=(m, n))
        rows = np.minimum(0.0, 0.1 * rng.normal(size=m))
        got, _ = compute(without_set, dtype, gradient, jacobian, rows, np.zeros(m, bool))
        least = joint_least_squares(gradient, jacobian, rows, np.zeros(m, bool))[2]
        found = objective(gradient, jacobian, rows, np.zeros(m, bool), got)
        worst = max(worst, np.sqrt(max(found - least, 0.0)) / np.linalg.norm(gradient))
    assert worst < (1e-6 if dtype == "float64" else 1e-2)
