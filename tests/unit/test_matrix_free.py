"""Multipliers from products with a Jacobian that is never formed: against the dense functions, SciPy and NumPy."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear, minimize
from test_ranges import INF, KINDS, dual, instance, misplaced

import tightrope as tr
from tightrope.certificates.evaluation import evaluate
from tightrope.domains import Box, Simplex
from tightrope.methods.base import Draw, as_arrays
from tightrope.numerics import products as matrix_free
from tightrope.numerics.kkt import kkt_multipliers
from tightrope.numerics.products import (
    Linear,
    kkt_multipliers_by_products,
    linearize,
    range_multipliers_by_products,
    range_multipliers_on_set_by_products,
    row_squares,
)
from tightrope.numerics.prox_linear import ProxLinearModel
from tightrope.numerics.ranges import RangePenalty, range_multipliers, range_multipliers_on_set
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters
from tightrope.runs.stepper import draw_samples

FIXED = 1e-13
"""A share of the first slope that leaves only rounding."""


@jax.jit
def _by_products(gram, value, low, high, penalty, start, size, tolerance, products):
    ranges = RangePenalty(low, high, penalty)
    return range_multipliers_by_products(
        lambda y: gram @ y, value, ranges, start, size, tolerance=tolerance, products=products
    )


def by_products(problem, *, tolerance=FIXED, products=20_000, dtype="float64", size=None):
    """Return the multipliers and whether they converged; sizes are exact unless given."""
    size = np.sqrt(np.diag(problem[0])) if size is None else size
    with jax.enable_x64(dtype == "float64"):
        arrays = (jnp.asarray(a, dtype) for a in (*problem, size, tolerance))
        y, near = _by_products(*arrays, jnp.int32(products))
        assert y.dtype == dtype
        return np.asarray(y, float), bool(near)


@jax.jit
def _dense(gram, value, low, high, penalty, start):
    return range_multipliers(gram, value, RangePenalty(low, high, penalty), start)


def dense(problem):
    with jax.enable_x64(True):
        return np.asarray(_dense(*(jnp.asarray(a) for a in problem)))


def clipped(problem):
    """The start, clipped to the admissible multipliers."""
    _, _, low, high, rho, start = problem
    return np.clip(start, np.where(np.isinf(low), 0.0, -rho), np.where(np.isinf(high), 0.0, rho))


def slopes(y, problem, size):
    """The slope of the dual function at y in each row that can still increase it, in units of the rows' sizes."""
    gram, value, low, high, rho, _ = problem
    z = value - gram @ y
    rise = np.where(y < rho, np.maximum(z - np.where(y >= 0, high, low), 0.0), 0.0)
    fall = np.where(y > -rho, np.maximum(np.where(y > 0, high, low) - z, 0.0), 0.0)
    return (rise + fall) / np.where(size > 0, size, 1.0)


# ---- the multipliers -------------------------------------------------------------------------------------------------------

EASY, LARGE = [1e-6, 1e-2, 0.3, 1.0, 30.0], 1e3
INDEPENDENT = {"plain", "zero row", "scaled rows", "repeated row"}
"""Kinds whose rows do not force multipliers up to a large penalty along directions without curvature, which takes long."""


@pytest.mark.by_default("12-4")
@pytest.mark.parametrize(("m", "instances"), [(3, 6), (12, 4), (300, 1)])
def test_many_products_give_the_optimal_multipliers(m, instances):
    """For all kinds of rows: each z_i is where its y_i requires, |y| ≤ ρ, and the dual function is maximal."""
    violated = 0
    for kind in KINDS:
        for penalty in [*EASY, *([LARGE] if kind in INDEPENDENT else [])]:
            for random in range(instances):
                problem = instance(random, m, kind, penalty)
                gram, value, low, high, rho, _ = problem
                y, near = by_products(problem)
                case = (kind, penalty, random)
                assert near, case
                assert (np.abs(y) <= rho).all(), case
                assert np.max(misplaced(y, *problem[:-1])) < 1e-10, case
                z, terms = value - gram @ y, np.abs(value) + np.abs(gram) @ np.abs(y)
                above, below = z > high + 1e-9 * terms, z < low - 1e-9 * terms
                np.testing.assert_array_equal(y[above], rho[above])
                np.testing.assert_array_equal(y[below], -rho[below])
                violated += np.sum(above | below)
                best = dual(dense(problem), *problem[:4])
                assert abs(dual(y, *problem[:4]) - best) <= 1e-10 * rho @ terms, case
    assert violated > 30


def test_one_sided_rows_and_equalities_are_bounded_least_squares():
    """With r − end = Jq the dual is −½‖Jᵀy − q‖² over bounds, which SciPy solves."""
    rng = np.random.default_rng(0)
    for random, penalty in enumerate((0.03, 0.3, 3.0, 300.0)):
        rows, q, end = rng.normal(size=(12, 20)), rng.normal(size=20), rng.normal(size=12)
        equality, rho = rng.random(12) < 0.3, np.full(12, penalty)
        problem = (rows @ rows.T, rows @ q + end, np.where(equality, end, -INF), end, rho, np.zeros(12))
        expected = lsq_linear(rows.T, q, (np.where(equality, -rho, 0.0), rho), method="bvls", tol=1e-14).x
        y, near = by_products(problem)
        assert near
        np.testing.assert_allclose(y, expected, atol=1e-9, err_msg=str(random))


@pytest.mark.parametrize("kind", ["plain", "scaled rows", "repeated row"])
def test_every_start_leads_to_the_same_maximum(kind):
    """From zero, the solution, the wrong ends and outside the limits; with estimated row norms."""
    rng = np.random.default_rng(1)
    for random in range(4):
        *problem, _ = instance(random, 12, kind, 1.0)
        rho, size = problem[4], np.sqrt(np.diag(problem[0]))
        best = dense((*problem, np.zeros(12)))
        for start in (np.zeros(12), best, -rho * np.sign(best), 100 * rho * rng.normal(size=12)):
            y, near = by_products((*problem, start), size=size * rng.uniform(0.6, 1.6, size=12))
            assert near
            assert np.max(misplaced(y, *problem)) < 1e-11
            assert (np.abs(y) <= rho).all()


def test_the_dual_function_never_decreases_with_more_products():
    """And y stays within the limits; without products y is zero, and the first product leads to the start."""
    for kind in KINDS:
        for penalty in (0.3, 30.0):
            for random in range(2):
                problem = instance(random, 12, kind, penalty)
                gram, value, *_, rho, start = problem
                path = [by_products(problem, products=k)[0] for k in range(30)]
                assert not path[0].any()
                if start.any():
                    np.testing.assert_array_equal(path[1], clipped(problem))
                assert (np.abs(path) <= rho).all()
                heights = [dual(y, *problem[:4]) for y in path[1 if start.any() else 0 :]]
                rounding = 1e-13 * rho @ (np.abs(value) + np.abs(gram) @ rho)
                assert np.diff(heights).min() >= -rounding, (kind, penalty, random)
                assert heights[-1] > heights[0]


def test_it_reports_convergence_only_where_the_slopes_are_small_enough():
    seen = set()
    for random in range(4):
        for kind in ("plain", "scaled rows", "deficient"):
            problem = instance(random, 12, kind, 1.0)
            size = np.sqrt(np.diag(problem[0]))
            first, at_zero = (np.sum(slopes(y, problem, size)) for y in (clipped(problem), np.zeros(12)))
            for tolerance in (0.5, 0.1, 1e-3):
                for products in (1, 3, 6, 10, 20, 60):
                    y, near = by_products(problem, tolerance=tolerance, products=products)
                    left = np.sum(slopes(y, problem, size))
                    assert near <= (left <= tolerance * first), (random, kind, tolerance, products, left / first)
                    assert near >= (left <= tolerance * min(first, at_zero)), (
                        random,
                        kind,
                        tolerance,
                        products,
                        left / first,
                    )
                    seen.add(near)
    assert seen == {True, False}


def test_single_precision_does_as_well_as_it_can():
    for kind in KINDS:
        for penalty in EASY:
            problem = [np.float32(a) for a in instance(0, 12, kind, penalty)]
            y, _ = by_products(problem, tolerance=1e-6, products=2000, dtype="float32")
            assert (np.abs(y) <= problem[4]).all()
            assert np.max(misplaced(y, *(np.float64(a) for a in problem[:-1]))) < 1e-4, (kind, penalty)


def test_no_rows_have_no_multipliers():
    nothing = np.zeros(0)
    y, near = by_products((np.zeros((0, 0)), *[nothing] * 5))
    assert y.shape == (0,)
    assert near


# ---- on a set ------------------------------------------------------------------------------------------------------------

SETS = {"box": Box(-0.5, 0.7), "simplex": Simplex()}


def on_set(domain, steep, instances=12, m=8, n=14):
    """Yield the distance of y and of the rows it leads to from the dense solver's, and the number of active rows."""

    @jax.jit
    def both(v, h, jacobian, low, high, penalty, x, start):
        size, ranges = jnp.linalg.norm(jacobian, axis=1), RangePenalty(low, high, penalty)
        model = ProxLinearModel(v, h, jacobian, jnp.float64(0.5), x, domain.project)
        linear = Linear(lambda d: jacobian @ d, lambda y: y @ jacobian)
        y, near = range_multipliers_on_set_by_products(model._replace(jacobian=linear), ranges, start, size, rounds=60)
        expected = range_multipliers_on_set(model, ranges, start)
        end = lambda y: h + jacobian @ (domain.project(x - 0.5 * (v + y @ jacobian)) - x)
        off = jnp.max(size * jnp.abs(y - expected)), jnp.max(jnp.abs(end(y) - end(expected)) / size)
        return y, near, jnp.maximum(*off)

    for random in range(instances):
        rng = np.random.default_rng([3, random])
        jacobian = rng.normal(size=(m, n)) * 10.0 ** rng.uniform(-1, 1, size=(m, 1))
        size = np.linalg.norm(jacobian, axis=1)
        x = np.asarray(domain.project(jnp.asarray(rng.normal(size=n))))
        inside = np.asarray(domain.project(jnp.asarray(rng.normal(size=n))))
        kind, h = rng.integers(3, size=m), (jacobian @ (x - inside) if steep else rng.normal(size=m) * size)
        low = np.select([kind == 0, kind == 1], [0.0, -INF], -0.3) * size
        high = np.select([kind == 0, kind == 1], [0.0, 0.2], 0.3) * size
        rho = (1e8 if steep else rng.choice([0.1, 1.0, 10.0])) / size
        start = rho * rng.uniform(-2, 2, size=m) * (random % 2 and not steep)
        y, near, off = map(np.asarray, both(rng.normal(size=n), h, jacobian, low, high, rho, x, start))
        assert near
        assert (np.abs(y) <= rho).all()
        yield float(off), int(np.sum((np.abs(y) < rho) & (y != 0)))


@pytest.fixture
def _to_the_end(monkeypatch):
    exact = partial(range_multipliers_by_products, tolerance=FIXED, products=5000)
    monkeypatch.setattr(matrix_free, "range_multipliers_by_products", exact)


@pytest.mark.by_default("box")
@pytest.mark.usefixtures("_to_the_end")
@pytest.mark.parametrize("name", list(SETS))
def test_multipliers_on_a_set_are_those_of_the_dense_solver(name):
    """Up to the length of a last short step, and mostly exactly: a full Newton step on one piece is exact."""
    with jax.enable_x64(True):
        off, held = np.array(list(on_set(SETS[name], steep=False))).T
    assert off.max() <= 1e-2
    assert np.sum(off <= 1e-9) >= 10
    assert held.sum() > 5


@pytest.mark.by_default("box")
@pytest.mark.usefixtures("_to_the_end")
@pytest.mark.parametrize("name", list(SETS))
def test_very_large_penalties_are_solved_on_a_set(name):
    """As in a step that only restores feasibility: the multipliers are tiny compared with ρ."""
    with jax.enable_x64(True):
        off, held = np.array(list(on_set(SETS[name], steep=True))).T
    assert off.max() <= 1e-2
    assert np.sum(off <= 1e-6) >= 9
    assert held.sum() > 30


# ---- certificates --------------------------------------------------------------------------------------------------------


@pytest.mark.by_default("no set", "box")
@pytest.mark.parametrize("name", ["no set", *SETS])
def test_stationarity_is_that_of_the_dense_solver(name):
    """The objective is nearly as small as the dense solver's, never smaller; the residual belongs to the multipliers returned.

    Except on a simplex: there the dense solver may get stuck, and products may do better.
    """
    m, n = 9, 15
    domain = SETS.get(name)

    def both(gradient, jacobian, rows, equality, x):
        outside_cone = None if domain is None else lambda v: v - domain.project_normal_cone(x, v)
        linear = Linear(lambda d: jacobian @ d, lambda y: y @ jacobian)
        found = kkt_multipliers_by_products(gradient, linear, rows, equality, outside_cone)
        expected = kkt_multipliers(gradient, jacobian, rows, equality, outside_cone)

        def left(y):
            push = -(gradient + y @ jacobian)
            return push if outside_cone is None else outside_cone(push)

        return *found, -left(found[0]), *expected

    with jax.enable_x64(True):
        both = jax.jit(both)
        for random in range(12):
            rng = np.random.default_rng([5, random])
            jacobian = rng.normal(size=(m, n)) * 10.0 ** rng.uniform(-2, 2, size=(m, 1))
            if random % 3 == 0:
                jacobian[1] = 0.0
            if random % 3 == 1:
                jacobian[2] = -3 * jacobian[3]
            size, x = np.linalg.norm(jacobian, axis=1), 0.4 * rng.normal(size=n)
            x = x if domain is None else np.asarray(domain.project(jnp.asarray(x)))
            equality = rng.random(m) < 0.3
            rows = np.where(rng.random(m) < 0.5, 0.0, -rng.exponential(size=m)) * size * 10.0 ** rng.uniform(-3, 1)
            noise = rng.choice([0.0, 1.0]) * rng.normal(size=n)
            gradient = noise - np.where(equality, 1, rng.random(m) < 0.5) / np.where(size > 0, size, 1) @ jacobian
            y, residual, of_these, best, best_residual = map(np.asarray, both(gradient, jacobian, rows, equality, x))
            np.testing.assert_allclose(residual, of_these, atol=1e-12 * np.linalg.norm(gradient))
            assert (y[~equality] >= 0).all()
            slack = np.where(equality, 0.0, np.minimum(rows, 0.0))
            found, least = (
                np.hypot(np.linalg.norm(r), np.linalg.norm(slack * z))
                for z, r in ((y, residual), (best, best_residual))
            )
            unit = np.linalg.norm(gradient)
            assert found <= least + 1e-2 * unit, (random, found / unit, least / unit)
            assert found >= least - 1e-9 * unit or name == "simplex", (random, found / unit, least / unit)


def test_estimates_of_row_norms_are_unbiased():
    """Each mean is within five standard errors; a row with one entry is exact, and a row without entries is zero."""
    rng = np.random.default_rng(2)
    rows = np.vstack(
        [rng.normal(size=(5, 7)) * [[1], [10], [100], [0.1], [1e-3]], 3.0 * np.eye(7)[:1], np.zeros((1, 7))]
    )
    with jax.enable_x64(True):
        x, probes = jnp.zeros(7), 2000
        value, linear = linearize(lambda x: jnp.asarray(rows) @ (x + 1.0), x)
        found = np.asarray(row_squares(linear, x, jax.random.key(4), probes))
        few = np.asarray(row_squares(linear, x, jax.random.key(4)))
    squares = np.sum(rows**2, axis=1)
    np.testing.assert_allclose(value, rows.sum(axis=1), atol=1e-12)
    assert (np.abs(found - squares) <= 5 * np.sqrt(2 / probes) * squares + 1e-12).all()
    np.testing.assert_allclose(found[-2:], [9.0, 0.0])
    assert (np.abs(few - squares) <= 5 * np.sqrt(2 / 16) * squares).all()


def test_a_linearization_multiplies_from_both_sides():
    with jax.enable_x64(True):
        fn = lambda x: jnp.stack([x @ x, x[0] * x[2], jnp.sin(x[1])])
        x = jnp.array([0.5, -1.0, 2.0, 0.3])
        jacobian = np.array([[1.0, -2.0, 4.0, 0.6], [2.0, 0, 0.5, 0], [0, np.cos(1.0), 0, 0]])
        value, linear = linearize(fn, x)
        np.testing.assert_allclose(value, [0.25 + 1 + 4 + 0.09, 1.0, -np.sin(1.0)], rtol=1e-14)
        np.testing.assert_allclose(linear.push(jnp.arange(4.0)), jacobian @ np.arange(4.0), rtol=1e-14)
        np.testing.assert_allclose(linear.pull(jnp.array([1.0, 2.0, -3.0])), [1.0, 2.0, -3.0] @ jacobian, rtol=1e-14)


# ---- whole runs ----------------------------------------------------------------------------------------------------------

STAGES, STEP, CAP = 300, 0.05, 0.5
TARGET = np.sin(np.arange(1, STAGES + 1) * 4 * np.pi / STAGES)


def tracking(x):
    state, control = x[:STAGES], x[STAGES:]
    return STEP * jnp.sum((state - TARGET) ** 2 + 0.1 * control**2)


def dynamics(x):
    state, control = x[:STAGES], x[STAGES:]
    before = jnp.concatenate([jnp.zeros(1, x.dtype), state[:-1]])
    return state - before - STEP * (control - before**3)


@cache
def control_problem():
    """Cubic drag and bounded controls: 300 equalities and 300 inequalities in 600 variables, about two entries per row."""
    rows = [tr.equals(dynamics, 0.0, name="dynamics"), tr.at_most(lambda x: x[STAGES:], CAP, name="thrust")]
    return tr.Problem(tracking, rows)


def best_control():
    """The states follow from the controls: SciPy optimizes the controls alone, with gradients by the adjoint recursion."""

    def cost(control):
        state = np.zeros(STAGES + 1)
        for k in range(STAGES):
            state[k + 1] = state[k] + STEP * (control[k] - state[k] ** 3)
        adjoint = np.zeros(STAGES + 2)
        for k in range(STAGES, 0, -1):
            adjoint[k] = 2 * STEP * (state[k] - TARGET[k - 1]) + adjoint[k + 1] * (1 - 3 * STEP * state[k] ** 2)
        value = STEP * np.sum((state[1:] - TARGET) ** 2 + 0.1 * control**2)
        return value, STEP * (0.2 * control + adjoint[1:-1])

    found = minimize(
        cost, np.zeros(STAGES), jac=True, method="L-BFGS-B", bounds=[(None, CAP)] * STAGES,
        options={"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-15, "gtol": 1e-10},
    )  # fmt: skip
    return found.fun, found.x


@pytest.mark.full
def test_six_hundred_constraint_values_are_solved_by_products():
    result = tr.solve(control_problem(), jnp.zeros(2 * STAGES), steps=200)
    value, control = best_control()
    assert "MatrixFreePenalty was chosen" in result.message
    assert result.violation < 1e-4
    assert abs(result.objective - value) < 1e-3 * value
    np.testing.assert_allclose(result.x[STAGES:], control, atol=0.01)
    assert np.isfinite(result.stationarity)
    assert np.isfinite(result.certificate.stationarity.value)


def sizes_in(jaxpr):
    """The size of each intermediate array, including those of inner programs."""
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars if hasattr(v.aval, "size"))
        for value in jax.tree.leaves(equation.params, is_leaf=lambda a: hasattr(a, "jaxpr") or hasattr(a, "eqns")):
            if hasattr(value, "jaxpr") or hasattr(value, "eqns"):
                yield from sizes_in(getattr(value, "jaxpr", value))


def test_no_jacobian_is_ever_formed():
    """It would have 600 rows and 600 columns: no array in the start, a step or an evaluation is nearly as large."""
    n, method = 2 * STAGES, as_arrays(tr.methods.MatrixFreePenalty(), jnp.float32)
    oracles = {
        form: oracle_for(control_problem(), Parameters(jnp.zeros(n)), form=form) for form in ("ranges", "native")
    }
    oracle = oracles["ranges"]

    def start_and_step(x, key):
        draw = Draw(*draw_samples(oracle, method.roles(oracle), key, jnp.int32(1)), key, jnp.int32(1), jnp.int32(9))
        return method.step(oracle, method.init(oracle, x, draw, draw.steps), draw)

    def evaluation(x):
        return evaluate(oracles["native"], x, jnp.zeros(1 + n), x, (), jnp.int32(50))

    for fn, arguments in ((start_and_step, (jnp.zeros(n), jax.random.key(0))), (evaluation, (jnp.zeros(n),))):
        assert n <= max(sizes_in(jax.make_jaxpr(fn)(*arguments).jaxpr)) <= 25 * n
    dense_step = jax.make_jaxpr(lambda x: oracle.jac(x, ()))(jnp.zeros(n)).jaxpr
    assert max(sizes_in(dense_step)) >= n * n
