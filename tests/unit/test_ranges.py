"""Multipliers of penalties on ranges: optimality to rounding, against enumeration, SciPy's solvers and least squares."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from tightrope.domains import Box, L2Ball, Simplex
from tightrope.numerics.prox_linear import ProxLinearModel
from tightrope.numerics.ranges import RangePenalty, range_multipliers, range_multipliers_on_set, solve_active_rows

DTYPES = ["float32", "float64"]
WIDE = np.longdouble
INF = np.inf

solve_active = jax.jit(solve_active_rows)


@jax.jit
def solve(gram, value, low, high, penalty, start):
    return range_multipliers(gram, value, RangePenalty(low, high, penalty), start)


def compute(fn, dtype: str, *arrays):
    """Return fn of the arrays in this precision, and the arrays as given, all in extended precision."""
    with jax.enable_x64(dtype == "float64"):
        asked = [jnp.asarray(a) if np.asarray(a).dtype == bool else jnp.asarray(a, dtype) for a in arrays]
        y = fn(*asked)
        assert y.dtype == dtype
    return [np.asarray(a, WIDE) for a in (y, *asked)]


# ---- optimality --------------------------------------------------------------------------------------------------------


def outside(z, low, high):
    return np.maximum(z - high, 0) + np.maximum(low - z, 0)


def misplaced(y, gram, value, low, high, penalty) -> np.ndarray:
    """The distance of each row z = r − Gy from the place that its y_i requires, relative to the terms of z_i.

    y = ρ requires a row above the range, 0 < y < ρ one at the upper end, 0 one inside, and so on; no row fits |y| > ρ.
    """
    z = value - gram @ y
    least = np.where(y > 0, high, np.where(y > -penalty, low, -INF))
    most = np.where(y < 0, low, np.where(y < penalty, high, INF))
    ends = np.where(np.isfinite(least), np.abs(least), 0) + np.where(np.isfinite(most), np.abs(most), 0)
    away = np.where(np.abs(y) <= penalty, outside(z, least, most), INF)
    size = np.abs(value) + np.abs(gram) @ np.abs(y) + ends
    return away / np.where(size > 0, size, 1)


def rounding_off(dtype: str, *problem) -> float:
    """The distance of the multipliers from optimality, in units of rounding."""
    y, *given_ = compute(solve, dtype, *problem)
    assert np.isfinite(y).all()
    return float(np.max(misplaced(y, *given_[:-1]))) / np.finfo(dtype).eps


def dual(y, gram, value, low, high):
    ends = np.where(y > 0, np.where(y > 0, high, 0), np.where(y < 0, low, 0))
    return (value - 0.5 * gram @ y) @ y - np.where(y == 0, 0, ends) @ y


# ---- instances -----------------------------------------------------------------------------------------------------------

KINDS = ["plain", "zero row", "scaled rows", "deficient", "repeated row", "nearly dependent", "scaled columns",
         "contradicting"]  # fmt: skip
PENALTIES = [1e-6, 1e-2, 0.3, 1.0, 30.0, 1e3, 1e6]


def jacobian_of(kind: str, rng: np.random.Generator, m: int) -> np.ndarray:
    n, rank = m + 3, max(1, m // 2)
    rows = rng.normal(size=(m, n))
    return {
        "plain": rows,
        "zero row": rows * (np.arange(m) > 0)[:, None],
        "scaled rows": rows * 10.0 ** rng.uniform(-4, 4, size=(m, 1)),
        "deficient": rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n)),
        "repeated row": np.vstack([rows[:-1], rows[:1]]),
        "nearly dependent": rows[:1] + 1e-3 * rows,
        "scaled columns": rows * np.logspace(0, -4, n),
        "contradicting": np.outer(rng.choice([-1.0, 1.0], size=m), rows[0]),
    }[kind]


def ranges_of(rng: np.random.Generator, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Random equalities, upper bounds, lower bounds and ranges."""
    m = len(sizes)
    middle, below, above = rng.normal(size=m), rng.exponential(size=m), rng.exponential(size=m)
    kind = rng.integers(4, size=m)
    low = np.select([kind == 0, kind == 1], [middle, -INF], middle - below)
    high = np.select([kind == 0, kind == 2], [middle, INF], middle + above)
    return low * sizes, high * sizes


def instance(random: int, m: int, kind: str, penalty: float):
    """Return G, r, low, high, ρ and a start; penalties are in units of the multiplier that a row alone needs."""
    rng = np.random.default_rng(random)
    rows = jacobian_of(kind, rng, m)
    sizes = np.linalg.norm(rows, axis=1)
    sizes = np.where(sizes > 0, sizes, 1.0)
    low, high = ranges_of(rng, sizes)
    rho = penalty * 10.0 ** rng.uniform(-0.5, 0.5, size=m) / sizes
    start = rho * rng.uniform(-1, 1, size=m) * (rng.random() < 0.5)
    return rows @ rows.T, rng.normal(size=m) * sizes, low, high, rho, start


def worst(dtype: str, m: int, kind: str, penalty: float, instances: int) -> float:
    return max(rounding_off(dtype, *instance(random, m, kind, penalty)) for random in range(instances))


# ---- optimal to rounding -----------------------------------------------------------------------------------------------


@pytest.mark.by_default("2-12-*", "30-6-float64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "instances"), [(1, 12), (2, 12), (3, 12), (12, 12), (30, 6), (100, 3)])
def test_multipliers_are_optimal_to_rounding(m, instances, dtype):
    """For all kinds of rows, and for penalties from so small that all rows are violated to so large that none is."""
    for kind in KINDS:
        for penalty in PENALTIES:
            assert worst(dtype, m, kind, penalty, instances) <= 30, (kind, penalty)


@pytest.mark.by_default("float64")
@pytest.mark.parametrize("dtype", DTYPES)
@seed(1)
@settings(max_examples=300, deadline=None, database=None)
@given(
    random=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    penalty=st.floats(-6.0, 6.0),
    placed=st.lists(st.sampled_from([None, -1.0, 0.0, 1.0]), min_size=5, max_size=5),
)
def test_degenerate_problems_are_solved_to_rounding(dtype, random, kind, penalty, placed):
    """The solution is known, and any of its rows may be on the boundary of the place that its multiplier requires."""
    gram, _, low, high, rho, start = instance(random, 5, kind, 10.0**penalty)
    y = np.array([0.5 if p is None else p for p in placed]) * rho
    y = np.where(np.isinf(high), -np.abs(y), np.where(np.isinf(low), np.abs(y), y))
    value = gram @ y + np.where(y > 0, high, np.where(np.isinf(low), high, low))
    assert rounding_off(dtype, gram, value, low, high, rho, start) <= 30


@pytest.mark.by_default("float64")
@pytest.mark.parametrize("dtype", DTYPES)
@seed(0)
@settings(max_examples=150, deadline=None, database=None)
@given(
    random=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    penalty=st.floats(-6.0, 6.0),
)
def test_no_start_is_made_worse(dtype, random, kind, penalty):
    """The dual function never ends lower than it began, and |y| ≤ ρ."""
    y, gram, value, low, high, rho, start = compute(solve, dtype, *instance(random, 4, kind, 10.0**penalty))
    start = np.clip(start, np.where(np.isinf(low), 0, -rho), np.where(np.isinf(high), 0, rho))
    size = rho @ (np.abs(value) + np.abs(gram) @ rho + np.where(np.isinf(low), 0, np.abs(low)))
    assert (np.abs(y) <= rho).all()
    assert dual(y, gram, value, low, high) >= dual(start, gram, value, low, high) - 100 * np.finfo(dtype).eps * size


def two_equalities():
    """From a run: G has condition number 1400, and the multiplier of the second row changes its sign."""
    gram = np.array([[7.832945, 6.95665815], [6.95665815, 6.19662941]])
    ends = np.array([1.5, 0.2])
    return gram, np.array([529.25792263, 469.28000541]), ends, ends, np.array([75.3, 23.3]), np.array([-27.1, -23.3])


def test_a_multiplier_that_must_change_its_sign_does():
    assert rounding_off("float64", *two_equalities()) <= 30
    assert rounding_off("float32", *two_equalities()) <= 30


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_solution_is_returned_unchanged(dtype):
    """A start that is optimal to rounding is returned bit for bit."""
    for random in range(12):
        *problem, start = instance(random, 12, "plain", 1.0)
        y, *_ = compute(solve, dtype, *problem, start)
        again, *_ = compute(solve, dtype, *problem, y)
        np.testing.assert_array_equal(again, y)


# ---- known answers and other solvers -------------------------------------------------------------------------------------


def test_one_row_is_solved_in_closed_form():
    """G = 2: z = r − 2y is moved to the nearest end of [−1, 1] if |y| ≤ 3 allows it."""
    for value, expected in [(0.5, 0.0), (1.0, 0.0), (5.0, 2.0), (9.0, 3.0), (-4.0, -1.5), (-11.0, -3.0)]:
        y, *_ = compute(solve, "float64", [[2.0]], [value], [-1.0], [1.0], [3.0], [0.7])
        assert float(y[0]) == expected


@pytest.mark.parametrize("rows", [1, 2])
def test_a_row_without_a_gradient_gets_its_whole_penalty_or_nothing(rows):
    for value, expected in [(0.5, 0.0), (1.5, 3.0), (-1.5, -3.0)]:
        gram = np.diag([0.0, 1.0])[:rows, :rows]
        ends = np.ones(rows)
        y, *_ = compute(solve, "float64", gram, np.full(rows, value), -ends, ends, 3 * ends, 0.5 * ends)
        assert float(y[0]) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bound_on_one_side_never_gets_a_multiplier_of_the_other_sign(dtype):
    rng = np.random.default_rng(4)
    for _ in range(30):
        gram, value, _, high, rho, _ = instance(int(rng.integers(1000)), 12, "plain", 10.0 ** rng.uniform(-3, 1))
        high = np.where(np.isfinite(high), high, 0.0)
        y, *_ = compute(solve, dtype, gram, value, np.full(12, -INF), high, rho, -rho)
        assert (y >= 0).all()
        y, *_ = compute(solve, dtype, gram, value, high, np.full(12, INF), rho, rho)
        assert (y <= 0).all()


def by_enumeration(gram, value, low, high, penalty) -> np.ndarray:
    """Try y_i = −ρ, 0, ρ, or the y_i that puts its row at an end; return the combination that is least misplaced."""
    best, least, m = np.zeros(len(value)), np.inf, len(value)
    for fixed in itertools.product((-1, 0, 1, None), repeat=m):
        rows = [i for i in range(m) if fixed[i] is None]
        for ends in itertools.product((low, high), repeat=len(rows)):
            y = np.array([0.0 if f is None else f * rho for f, rho in zip(fixed, penalty, strict=True)])
            target = np.array([end[i] for end, i in zip(ends, rows, strict=True)])
            block = gram[np.ix_(rows, rows)]
            if not np.isfinite(target).all() or (rows and np.linalg.cond(block) > 1e10):
                continue
            y[rows] = np.linalg.solve(block, value[rows] - target - gram[rows] @ y)
            if np.any(np.abs(y) > penalty * (1 + 1e-9)):
                continue
            away = np.max(misplaced(np.clip(y, -penalty, penalty), gram, value, low, high, penalty))
            if away < least:
                best, least = y, away
    assert least < 1e-12
    return best


@pytest.mark.parametrize("m", [2, 3])
def test_enumeration_of_all_combinations_agrees(m):
    kinds = set()
    for random in range(12):
        problem = instance(100 + random, m, "plain", 10.0 ** (random % 4 - 2))
        y, *_ = compute(solve, "float64", *problem)
        expected = by_enumeration(*problem[:-1])
        np.testing.assert_allclose(np.asarray(y, float), expected, rtol=1e-9, atol=1e-12)
        kinds |= set(np.where(expected == 0, "0", np.where(np.abs(expected) < problem[4], "held", "full")))
    assert kinds == {"0", "held", "full"}


def by_slsqp(gradient, value, jacobian, low, high, penalty, step_size, limits=(), bounds=None) -> np.ndarray:
    """Return the step d that minimizes vᵀd + ‖d‖²/(2γ) + Σ ρ_i t_i with the rows at most t_i outside their ranges."""
    m, n = jacobian.shape
    bounded = np.isfinite(high), np.isfinite(low)
    rows = np.block([[-jacobian[bounded[0]], np.eye(m)[bounded[0]]], [jacobian[bounded[1]], np.eye(m)[bounded[1]]]])
    ends = np.concatenate([(high - value)[bounded[0]], (value - low)[bounded[1]]])
    found = minimize(
        lambda u: gradient @ u[:n] + u[:n] @ u[:n] / (2 * step_size) + penalty @ u[n:],
        np.concatenate([np.zeros(n), outside(value, low, high)]),
        jac=lambda u: np.concatenate([gradient + u[:n] / step_size, penalty]),
        bounds=[*(bounds if bounds is not None else [(None, None)] * n), *[(0, None)] * m],
        constraints=[{"type": "ineq", "fun": lambda u: rows @ u + ends, "jac": lambda u: rows}, *limits],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return found.x[:n]


def test_the_step_is_that_of_a_solver_of_the_primal_problem():
    rng = np.random.default_rng(11)
    for random in range(8):
        jacobian, gradient, value = rng.normal(size=(5, 8)), rng.normal(size=8), rng.normal(size=5)
        low, high = ranges_of(rng, np.ones(5))
        penalty = 10.0 ** rng.uniform(-1, 0.5, size=5)
        y, *_ = compute(
            solve, "float64", jacobian @ jacobian.T, value - jacobian @ gradient, low, high, penalty, np.zeros(5)
        )
        step = -(gradient + np.asarray(y, float) @ jacobian)
        expected = by_slsqp(gradient, value, jacobian, low, high, penalty, 1.0)
        np.testing.assert_allclose(step, expected, atol=1e-5, err_msg=str(random))


def test_a_bounded_solver_of_the_dual_problem_finds_nothing_better():
    """L-BFGS-B on y = a − b with 0 ≤ a, b ≤ ρ, zero where the range has no end."""
    for random in range(5):
        gram, value, low, high, rho, start = instance(random, 12, "plain", 1.0)
        ends = [np.where(np.isfinite(end), end, 0.0) for end in (high, low)]

        def fall(u, gram=gram, value=value, ends=ends):
            slope = gram @ (u[:12] - u[12:]) - value
            return 0.5 * (slope - value) @ (u[:12] - u[12:]) + ends[0] @ u[:12] - ends[1] @ u[12:], np.concatenate(
                [slope + ends[0], -slope - ends[1]]
            )

        bounds = [(0, rho[i % 12] * np.isfinite((high, low)[i // 12][i % 12])) for i in range(24)]
        options = {"maxiter": 5000, "maxfun": 50000, "ftol": 1e-16, "gtol": 1e-12}
        found = minimize(fall, np.zeros(24), jac=True, bounds=bounds, method="L-BFGS-B", options=options)
        y, *_ = compute(solve, "float64", gram, value, low, high, rho, start)
        ours = dual(np.asarray(y, float), gram, value, low, high)
        assert -found.fun <= ours + 1e-12 * abs(ours)
        assert -found.fun >= ours - 1e-5 * abs(ours)


def test_the_answer_does_not_depend_on_the_start_or_on_vmap():
    problems = [instance(random, 4, "plain", 1.0) for random in range(6)]
    batch = [np.stack(parts) for parts in zip(*problems, strict=True)]
    together, *_ = compute(jax.jit(jax.vmap(solve)), "float64", *batch)
    for y, problem in zip(together, problems, strict=True):
        for start in (np.zeros(4), problem[4], -problem[4]):
            alone, *_ = compute(solve, "float64", *problem[:-1], start)
            np.testing.assert_allclose(np.asarray(y, float), np.asarray(alone, float), rtol=1e-9, atol=1e-13)


# ---- active rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_active_rows_are_solved_for_and_the_others_get_zero(dtype):
    rng = np.random.default_rng(20)
    precision = {"float64": 1e-9, "float32": 1e-3}[dtype]
    for kind in ("plain", "scaled rows"):
        for _ in range(10):
            rows = jacobian_of(kind, rng, 6)
            gram, value, active = rows @ rows.T, rng.normal(size=6) * np.linalg.norm(rows, axis=1), rng.random(6) < 0.6
            q = np.asarray(compute(solve_active, dtype, gram, value, active)[0], float)
            size = np.linalg.norm(rows, axis=1)
            expected = np.linalg.lstsq(
                (rows / size[:, None])[active] @ (rows / size[:, None])[active].T, (value / size)[active]
            )
            np.testing.assert_allclose((q * size)[active], expected[0], rtol=precision, atol=precision)
            np.testing.assert_array_equal(q[~active], 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["deficient", "repeated row", "zero row"])
def test_dependent_active_rows_are_solved_if_they_are_consistent(kind, dtype):
    """Gq = value for a value in the range of G; a row without a gradient gets zero."""
    rng = np.random.default_rng(21)
    for _ in range(10):
        rows = jacobian_of(kind, rng, 6)
        gram = np.asarray(rows @ rows.T, dtype)
        value = gram @ rng.normal(size=6)
        q = np.asarray(compute(solve_active, dtype, gram, value, np.ones(6, bool))[0], float)
        size = np.sqrt(np.diag(gram))
        assert np.max(np.abs(gram @ q - value)) <= 1000 * np.finfo(dtype).eps * np.max(size) * (size @ np.abs(q) + 1)
        assert (q[size == 0] == 0).all()


def test_no_active_row_gives_zero():
    q, *_ = compute(solve_active, "float64", np.eye(3), np.ones(3), np.zeros(3, bool))
    np.testing.assert_array_equal(np.asarray(q, float), 0.0)


# ---- on a set ------------------------------------------------------------------------------------------------------------

SETS = {"box": Box(-1.0, 1.0), "ball": L2Ball(2.0), "simplex": Simplex()}


def solver_on(domain):
    @jax.jit
    def solve(gradient, value, jacobian, low, high, penalty, step_size, x, start):
        model = ProxLinearModel(gradient, value, jacobian, step_size, x, domain.project)
        return range_multipliers_on_set(model, RangePenalty(low, high, penalty), start)

    return solve


@cache
def solve_on(name: str):
    return solver_on(SETS[name])


def instance_on(random: int, name: str, m: int, penalty: float):
    """v, h, J, low, high, ρ, γ, x, start."""
    rng = np.random.default_rng([random, m])
    low, high = ranges_of(rng, np.ones(m))
    rho = penalty * 10.0 ** rng.uniform(-0.5, 0.5, size=m)
    x = np.asarray(SETS[name].project(jnp.asarray(rng.normal(size=8))), float)
    gradient, value, jacobian = rng.normal(size=8), rng.normal(size=m), rng.normal(size=(m, 8))
    return gradient, value, jacobian, low, high, rho, 10.0 ** rng.uniform(-1.5, 1), x, rng.uniform(-1, 1, size=m) * rho


def step_on(name: str, y, gradient, jacobian, step_size, x) -> np.ndarray:
    with jax.enable_x64(True):
        center = np.asarray(x - step_size * (gradient + y @ jacobian), float)
        return np.asarray(SETS[name].project(jnp.asarray(center)), WIDE) - x


def gap_on(name: str, dtype: str, *problem) -> float:
    """The duality gap relative to the sizes of its terms, in units of rounding."""
    y, gradient, value, jacobian, low, high, rho, step_size, x, _ = compute(solve_on(name), dtype, *problem)
    assert (np.abs(y) <= rho * (1 + 4 * np.finfo(dtype).eps)).all()
    d = step_on(name, y, gradient, jacobian, step_size, x)
    rows = value + jacobian @ d
    ends = np.where(y > 0, np.where(y > 0, high, 0), np.where(y < 0, low, 0))
    gap = rho @ outside(rows, low, high) - np.where(y == 0, 0, y * (rows - ends)).sum()
    size = (
        np.abs(gradient @ d)
        + d @ d / (2 * step_size)
        + rho @ (np.abs(value) + np.abs(jacobian) @ (np.abs(x) + np.abs(d)))
    )
    return float(gap / size) / np.finfo(dtype).eps


def worst_gap(name: str, dtype: str, penalty: float, instances: int = 15) -> float:
    return max(gap_on(name, dtype, *instance_on(k, name, m, penalty)) for m in (1, 3, 6) for k in range(instances))


@pytest.mark.by_default("box-float64", "ball-float32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_on_a_set_there_is_no_duality_gap(name, dtype):
    """To rounding; if penalties are large, to rounding of the point that is projected, which is then far away."""
    for penalty in (1e-3, 0.1, 1.0, 10.0, 100.0, *[1e4] * (dtype == "float64")):
        assert worst_gap(name, dtype, penalty) <= max(200.0, penalty), penalty


@pytest.mark.by_default("box-float64", "ball-float32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
def test_on_a_set_the_multiplier_of_a_violated_row_is_exactly_its_penalty(name, dtype):
    """Steering compares |y| with ρ."""
    full = []
    for random in range(40):
        y, *_, rho, _, _, _ = compute(solve_on(name), dtype, *instance_on(random, name, 3, 0.01))
        full += list(np.abs(y / rho)[np.abs(y / rho) > 0.999])
    assert len(full) > 20
    assert set(full) == {1.0}


def set_limits(name: str, x: np.ndarray):
    """The set x + d in X for SLSQP, u = (d, t)."""
    zeros = np.zeros(3)
    if name == "box":
        return (), [(-1 - a, 1 - a) for a in x]
    if name == "ball":
        inside = {"fun": lambda u: 4 - (x + u[:8]) @ (x + u[:8]), "jac": lambda u: np.append(-2 * (x + u[:8]), zeros)}
        return ({"type": "ineq", **inside},), None
    total = {"fun": lambda u: np.sum(x + u[:8]) - 1, "jac": lambda u: np.append(np.ones(8), zeros)}
    return ({"type": "eq", **total},), [(-a, None) for a in x]


@pytest.mark.by_default("box")
@pytest.mark.parametrize("name", SETS)
def test_on_a_set_the_step_is_that_of_a_solver_of_the_primal_problem(name):
    bound = 0
    for random in range(8):
        problem = instance_on(random, name, 3, 1.0)
        y, *_ = compute(solve_on(name), "float64", *problem)
        gradient, value, jacobian, low, high, rho, step_size, x, _ = problem
        d = np.asarray(step_on(name, y, gradient, jacobian, step_size, x), float)
        expected = by_slsqp(gradient, value, jacobian, low, high, rho, step_size, *set_limits(name, x))
        np.testing.assert_allclose(d, expected, atol=2e-5)
        bound += np.linalg.norm(d + step_size * (gradient + np.asarray(y, float) @ jacobian)) > 1e-3
    assert bound >= 4


def test_on_a_set_that_does_not_bind_it_is_the_problem_without():
    far = solver_on(Box(-1e4, 1e4))
    for random in range(6):
        problem = instance_on(random, "box", 3, 1.0)
        gradient, value, jacobian, low, high, rho, step_size, _, start = problem
        y, *_ = compute(far, "float64", *problem)
        gram, reach = step_size * jacobian @ jacobian.T, value - step_size * jacobian @ gradient
        expected, *_ = compute(solve, "float64", gram, reach, low, high, rho, start)
        np.testing.assert_allclose(np.asarray(y, float), np.asarray(expected, float), rtol=1e-8, atol=1e-10)


def test_on_a_set_without_rows_there_are_no_multipliers():
    problem = instance_on(0, "box", 0, 1.0)
    y, *_ = compute(solve_on("box"), "float64", *problem)
    assert y.shape == (0,)
