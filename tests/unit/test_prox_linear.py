"""Prox-linear steps: optimality to rounding in every hard case, against a convex solver, and the size of their arrays."""

from functools import cache

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from tightrope.domains import Box, L2Ball, Simplex
from tightrope.numerics.prox_linear import ball_multiplier, prox_linear, prox_linear_on_set

SHAPES = [(1, 1), (1, 6), (3, 8), (4, 4), (6, 3)]
DTYPES = ["float32", "float64"]
WIDE = np.longdouble

solve = jax.jit(prox_linear)


def compute(fn, dtype: str, *arrays):
    """Return fn of the arrays in this precision, and the arrays as given, all in extended precision."""
    with jax.enable_x64(dtype == "float64"):
        asked = [jnp.asarray(a, dtype) for a in arrays]
        d, y = fn(*asked)
        assert d.dtype == y.dtype == dtype
    return [np.asarray(a, WIDE) for a in (d, y, *asked)]


def norm(a) -> np.longdouble:
    return np.sqrt(np.sum(np.asarray(a, WIDE) ** 2))


def spectral(jacobian) -> np.longdouble:
    size = np.max(np.abs(jacobian), initial=0.0)
    return size * WIDE(np.linalg.norm(np.asarray(jacobian / size, float), 2)) if size > 0 else WIDE(0)


def violations(d, y, gradient, value, jacobian, penalty, step_size, eps) -> dict[str, float]:
    """The distance of (d, y) from optimality, in units of rounding.

    Optimality is v + Jᵀy + d/γ = 0, ‖y‖ ≤ ρ, and y a subgradient of ρ‖·‖ at c + Jd. Where c + Jd should be zero, it is
    rounding of c and of Jd for every computed d, and its direction means nothing. So the last condition is checked at the point
    nearest to c + Jd at which y is a subgradient, or for ρ(c + Jd)/‖c + Jd‖ in place of y.
    """
    largest = spectral(jacobian)
    scale, rows = norm(gradient) + penalty * largest + norm(d) / step_size, norm(value) + largest * norm(d)
    left = value + jacobian @ d
    inside = norm(y) < penalty * (1 - 20 * eps)
    unit = y / norm(y) if norm(y) > 0 else y
    nearest = 0.0 if inside else max(unit @ left, 0.0) * unit
    mismatch = norm(left - nearest) / rows if rows > 0 else WIDE(0)
    if not inside and norm(left) > 0 and scale > 0:
        mismatch = min(mismatch, norm(jacobian.T @ (penalty * left / norm(left) - y)) / scale)
    stationarity = norm(gradient + jacobian.T @ y + d / step_size) / scale if scale > 0 else WIDE(0)
    found = {"stationarity": stationarity, "norm of y": norm(y) / penalty - 1, "subgradient": mismatch}
    return {name: float(number / eps) for name, number in found.items()}


def assert_optimal(dtype: str, gradient, value, jacobian, penalty, step_size):
    d, y, *problem = compute(solve, dtype, gradient, value, jacobian, penalty, step_size)
    assert np.isfinite(d).all()
    assert np.isfinite(y).all()
    found = violations(d, y, *problem, WIDE(np.finfo(dtype).eps))
    assert found["stationarity"] <= 100, found
    assert found["norm of y"] <= 20, found
    assert found["subgradient"] <= 200, found


# ---- every hard case ---------------------------------------------------------------------------------------------------


def jacobian_of(kind: str, rng: np.random.Generator, m: int, n: int) -> np.ndarray:
    rows = rng.normal(size=(m, n))
    return {
        "plain": rows,
        "zero": 0.0 * rows,
        "rank one": rng.normal(size=(m, 1)) @ rng.normal(size=(1, n)),
        "repeated row": np.vstack([rows[:1], rows[:-1]]),
        "zero row": rows * (np.arange(m) > 0)[:, None],
        "scaled rows": rows * 10.0 ** rng.uniform(-6, 6, size=(m, 1)),
        "scaled columns": rows * 10.0 ** rng.uniform(-6, 6, size=n),
        "large": 1e5 * rows,
        "small": 1e-5 * rows,
        "nearly dependent": rows[:1] + 1e-5 * rows,
    }[kind]


KINDS = ["plain", "zero", "rank one", "repeated row", "zero row", "scaled rows", "scaled columns", "large", "small",
         "nearly dependent"]  # fmt: skip
VALUES = ["plain", "zero", "in the range", "in the range, large", "tiny", "huge", "out of the range"]
GRADIENTS = ["plain", "zero", "in the range", "tiny", "huge", "just canceled"]


def instance(random: int, shape: tuple[int, int], kind: str, c: str, v: str, penalty: float, step_size: float):
    rng = np.random.default_rng(random)
    m, n = shape
    jacobian = jacobian_of(kind, rng, m, n)
    plain, step = rng.normal(size=m), rng.normal(size=n)
    off = plain - jacobian @ np.linalg.lstsq(jacobian, plain, rcond=None)[0]
    value = {"plain": plain, "zero": 0.0 * plain, "in the range": jacobian @ step, "tiny": 1e-6 * plain,
             "in the range, large": 1e3 * jacobian @ step, "huge": 1e6 * plain, "out of the range": off}[c]  # fmt: skip
    along, push = jacobian.T @ rng.normal(size=m), rng.normal(size=n)
    gradient = {"plain": push, "zero": 0.0 * push, "in the range": along, "tiny": 1e-6 * push, "huge": 1e6 * push,
                "just canceled": -penalty * jacobian.T @ (plain / np.linalg.norm(plain))}[v]  # fmt: skip
    return gradient, value, jacobian, penalty, step_size


LOGARITHM = st.sampled_from([-12.0, -6.0, 0.0, 6.0, 9.0]) | st.floats(-6.0, 6.0)


@pytest.mark.by_default("(1, 1)-float64", "(3, 8)-float64", "(6, 3)-float32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@seed(0)
@settings(max_examples=80, deadline=None, database=None)
@given(
    random=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    c=st.sampled_from(VALUES),
    v=st.sampled_from(GRADIENTS),
    penalty=LOGARITHM,
    step_size=LOGARITHM,
)
@example(random=0, kind="plain", c="zero", v="in the range", penalty=6.0, step_size=6.0)
@example(random=0, kind="repeated row", c="in the range", v="huge", penalty=6.0, step_size=-6.0)
@example(random=0, kind="scaled rows", c="plain", v="in the range", penalty=0.0, step_size=6.0)
@example(random=0, kind="zero", c="zero", v="zero", penalty=0.0, step_size=0.0)
def test_the_step_is_optimal_to_rounding(shape, dtype, random, kind, c, v, penalty, step_size):
    assert_optimal(dtype, *instance(random, shape, kind, c, v, 10.0**penalty, 10.0**step_size))


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_of_every_size_are_solved(dtype):
    """Singular values over twelve decades and a matching right side: each becomes relevant at another multiplier."""
    rng = np.random.default_rng(3)
    m, n = 30, 40
    left, right = np.linalg.qr(rng.normal(size=(m, m)))[0], np.linalg.qr(rng.normal(size=(n, m)))[0]
    spread = np.logspace(0, -12, m)
    jacobian = left @ np.diag(spread) @ right.T
    for penalty in 10.0 ** np.arange(-3, 12, 2.0):
        assert_optimal(dtype, np.zeros(n), left @ np.sqrt(spread), jacobian, penalty, 1.0)


def test_without_rows_it_is_a_gradient_step():
    gradient = np.array([1.0, -2.0])
    d, y, *_ = compute(solve, "float32", gradient, np.zeros(0), np.zeros((0, 2)), 3.0, 0.5)
    np.testing.assert_array_equal(d, -0.5 * gradient)
    assert y.shape == (0,)
    inside = jax.jit(lambda *a: prox_linear_on_set(*a, jnp.zeros(2), Box(-0.1, 0.1).project))
    d, y, *_ = compute(inside, "float32", gradient, np.zeros(0), np.zeros((0, 2)), 3.0, 0.5)
    np.testing.assert_allclose(np.asarray(d, float), [-0.1, 0.1], rtol=1e-6)


def test_known_steps():
    """One row x: soft thresholding. min vd + ρ|c + d| + d²/2."""
    for v, c, penalty, d, y in [
        (0.0, 3.0, 1.0, -1.0, 1.0),
        (0.0, 0.5, 1.0, -0.5, 0.5),
        (2.0, 0.5, 1.0, -1.0, -1.0),
        (-0.5, -3.0, 1.0, 1.5, -1.0),
    ]:
        got = compute(solve, "float64", [v], [c], [[1.0]], penalty, 1.0)
        np.testing.assert_allclose(np.asarray(got[0], float), [d], atol=1e-14)
        np.testing.assert_allclose(np.asarray(got[1], float), [y], atol=1e-14)


def test_multipliers_of_repeated_rows_are_the_shortest():
    rng = np.random.default_rng(5)
    row, gradient = rng.normal(size=6), rng.normal(size=6)
    single = compute(solve, "float64", gradient, [0.1], row[None], 1e3, 0.5)
    double = compute(solve, "float64", gradient, [0.1, 0.1], np.stack([row, row]), 1e3, 0.5)
    np.testing.assert_allclose(np.asarray(double[0], float), np.asarray(single[0], float), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(double[1], float), np.repeat(np.asarray(single[1], float) / 2, 2), rtol=1e-12)


def test_the_step_is_the_same_in_a_batch():
    rng = np.random.default_rng(6)
    batch = [rng.normal(size=(5, 8)), rng.normal(size=(5, 3)), rng.normal(size=(5, 3, 8)), 10.0 ** np.arange(-2, 3)]
    together, _, *_ = compute(jax.jit(jax.vmap(prox_linear, (0, 0, 0, 0, None))), "float64", *batch, 0.7)
    for i, d in enumerate(together):
        alone = compute(solve, "float64", *(a[i] for a in batch), 0.7)[0]
        np.testing.assert_allclose(np.asarray(d, float), np.asarray(alone, float), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_multiplier_of_the_ball_is_found_from_any_spectrum(dtype):
    rng = np.random.default_rng(7)
    find = jax.jit(ball_multiplier)
    inside = outside = 0
    for trial in range(200):
        curvature = 10.0 ** rng.uniform(-12, 3, size=8) * (rng.random(8) < 0.8)
        linear = 10.0 ** rng.uniform(-9, 6, size=8) * rng.normal(size=8) * (1.0 if trial % 2 else 1e-6 * curvature)
        with jax.enable_x64(dtype == "float64"):
            given_ = [jnp.asarray(a, dtype) for a in (curvature, linear, 10.0 ** rng.uniform(-3, 3))]
            curvature, linear, radius = (np.asarray(a, WIDE) for a in given_)
            shift = np.asarray(find(*given_), WIDE)
        total = curvature + shift
        length = norm(linear / np.where(total > 0, total, 1.0)) / radius
        assert shift >= 0
        assert length <= 1 + 20 * np.finfo(dtype).eps
        if shift > 0:
            assert length >= 1 - 20 * np.finfo(dtype).eps
        inside, outside = inside + (shift == 0), outside + (shift > 0)
    assert min(inside, outside) > 10


# ---- against a convex solver -------------------------------------------------------------------------------------------

SETS = {
    "box": (Box(-1.0, 1.0), lambda z: [z <= 1, z >= -1]),
    "ball": (L2Ball(2.0), lambda z: [cp.norm(z) <= 2]),
    "simplex": (Simplex(), lambda z: [cp.sum(z) == 1, z >= 0]),
}


@cache
def solve_on(name: str):
    domain = SETS[name][0]
    return jax.jit(lambda *problem: prox_linear_on_set(*problem, domain.project))


def by_cone_solver(gradient, value, jacobian, penalty, step_size, x=None, name=None) -> np.ndarray:
    d = cp.Variable(len(gradient))
    cost = gradient @ d + penalty * cp.norm(value + jacobian @ d) + cp.sum_squares(d) / (2 * step_size)
    limits = [] if name is None else SETS[name][1](x + d)
    options = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}
    cp.Problem(cp.Minimize(cost), limits).solve(solver=cp.CLARABEL, **options)
    return np.asarray(d.value)


def plain_instance(rng, m=3, n=8):
    jacobian = rng.normal(size=(m, n))
    if rng.random() < 0.3:
        jacobian[-1] = jacobian[0]
    return rng.normal(size=n), rng.normal(size=m), jacobian, 10.0 ** rng.uniform(-1, 1.5), 10.0 ** rng.uniform(-1.5, 1)


@pytest.mark.by_default("3")
@pytest.mark.parametrize("m", [1, 3])
def test_a_convex_solver_agrees_without_a_set(m):
    rng = np.random.default_rng(10 + m)
    for _ in range(8):
        problem = plain_instance(rng, m)
        got = compute(solve, "float64", *problem)[0]
        np.testing.assert_allclose(np.asarray(got, float), by_cone_solver(*problem), atol=1e-5)


@pytest.mark.by_default("box")
@pytest.mark.parametrize("name", SETS)
def test_a_convex_solver_agrees_on_a_set(name):
    rng = np.random.default_rng(20)
    bound = 0
    for _ in range(10):
        problem = plain_instance(rng)
        x = np.asarray(SETS[name][0].project(jnp.asarray(rng.normal(size=8))), float)
        got = np.asarray(compute(solve_on(name), "float64", *problem, x)[0], float)
        np.testing.assert_allclose(got, by_cone_solver(*problem, x, name), atol=1e-5)
        bound += not np.allclose(got, np.asarray(compute(solve, "float64", *problem)[0], float), atol=1e-3)
    assert bound >= 5


# ---- on a set ----------------------------------------------------------------------------------------------------------


def gap_on(name: str, dtype: str, problem) -> float:
    """The duality gap of (d, y) relative to the sizes of its terms, in units of rounding; d must be in the set."""
    d, y, gradient, value, jacobian, penalty, step_size, x = compute(solve_on(name), dtype, *problem)
    eps = np.finfo(dtype).eps
    with jax.enable_x64(True):
        domain, end = SETS[name][0], np.asarray(x + d, float)
        away = np.linalg.norm(np.asarray(domain.project(jnp.asarray(end))) - end)
        at_y = jnp.asarray(np.asarray(x - step_size * (gradient + jacobian.T @ y), float))
        best = np.asarray(domain.project(at_y), WIDE) - x
    assert away <= 20 * eps
    assert norm(y) <= penalty * (1 + 20 * eps)
    primal = gradient @ d + penalty * norm(value + jacobian @ d) + d @ d / (2 * step_size)
    dual = gradient @ best + y @ (value + jacobian @ best) + best @ best / (2 * step_size)
    reach = norm(x) + step_size * (norm(gradient) + penalty * spectral(jacobian))
    size = penalty * (norm(value) + spectral(jacobian) * reach) + norm(gradient) * reach + norm(d) ** 2 / step_size
    return float((primal - dual) / size / eps)


@pytest.mark.by_default("box-float64", "simplex-float32")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SETS)
@seed(0)
@settings(max_examples=40, deadline=None, database=None)
@given(
    random=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["plain", "zero", "rank one", "repeated row", "zero row"]),
    c=st.sampled_from(["plain", "zero", "in the range", "tiny", "out of the range"]),
    v=st.sampled_from(["plain", "zero", "in the range"]),
    penalty=st.floats(-3.0, 3.0),
    step_size=st.floats(-3.0, 2.0),
)
def test_on_a_set_there_is_no_duality_gap(name, dtype, random, kind, c, v, penalty, step_size):
    problem = instance(random, (3, 8), kind, c, v, 10.0**penalty, 10.0**step_size)
    start = np.random.default_rng(random).normal(size=8)
    x = np.asarray(SETS[name][0].project(jnp.asarray(start)), float)
    assert abs(gap_on(name, dtype, (*problem, x))) <= 100


def test_on_a_set_that_does_not_bind_it_is_the_closed_form():
    rng = np.random.default_rng(30)
    everywhere = jax.jit(lambda *problem: prox_linear_on_set(*problem, Box(-1e3, 1e3).project))
    for _ in range(5):
        problem = plain_instance(rng)
        d, y, *_ = compute(everywhere, "float64", *problem, rng.normal(size=8))
        same, multipliers, *_ = compute(solve, "float64", *problem)
        np.testing.assert_allclose(np.asarray(d, float), np.asarray(same, float), rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(np.asarray(y, float), np.asarray(multipliers, float), rtol=1e-9, atol=1e-11)


# ---- sizes of arrays ---------------------------------------------------------------------------------------------------


def sizes(jaxpr) -> list[int]:
    """The sizes of all arrays of a program, including those inside loops and branches."""
    found = [v.aval.size for equation in jaxpr.eqns for v in equation.outvars if hasattr(v.aval, "size")]
    for equation in jaxpr.eqns:
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            found += sizes(inner) if hasattr(inner, "eqns") else []
    return found


@pytest.mark.parametrize("where", ["everywhere", "box"])
def test_no_array_is_larger_than_the_jacobian(where):
    m, n = 3, 500
    problem = jnp.zeros(n), jnp.zeros(m), jnp.ones((m, n)), jnp.float32(1), jnp.float32(1)
    if where == "everywhere":
        program = jax.make_jaxpr(prox_linear)(*problem)
    else:
        program = jax.make_jaxpr(lambda *p: prox_linear_on_set(*p, jnp.zeros(n), Box(-1.0, 1.0).project))(*problem)
    found = sizes(program.jaxpr)
    assert max(found) <= m * n
    assert len(found) > 50
