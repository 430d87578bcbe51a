"""The end of AdaptiveLagrangian, restoration and descent: on all data, never for the worse, and as quadratic programs."""

from dataclasses import replace
from functools import cache

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import tightrope as tr
from tightrope.methods.adaptive_lagrangian import restoration
from tightrope.methods.adaptive_lagrangian.restoration import finish, restoration_sample, restore, restoring_step
from tightrope.oracles.build import oracle_for
from tightrope.oracles.oracle import Oracle
from tightrope.problems.parameters import Parameters

INF, M, DIM, EXAMPLES = np.inf, 5, 8, 40
KEY = np.uint32(0)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def bent(x, batch):
    """Rows ⟨a_i, x⟩ + bend_i ⟨c_i, x⟩²/2, means over the examples."""
    line, bend = batch["a"] @ x, batch["c"] @ x
    return jnp.mean(line + 0.5 * batch["bend"] * bend**2, axis=0)


@cache
def template() -> Oracle:
    """An oracle whose data and ranges are replaced, so that all tests share programs."""
    zero = np.zeros((EXAMPLES, M, DIM))
    data = tr.Dataset({"a": zero, "c": zero, "bend": zero[:, :, 0]}, batch_size=4)
    problem = tr.Problem(lambda x: jnp.sum(x**2), tr.between(bent, np.full(M, -1.0), np.ones(M), data=data))
    return oracle_for(problem, Parameters(jnp.zeros(DIM)), "ranges")


def instance(number: int, *, bend: float, contradictions: bool = False, units: float = 0.0):
    """An oracle, a point that violates rows, and a metric: equations, ceilings, floors and bands in units of 10^±`units`."""
    rng = np.random.default_rng(number)
    a, c = (rng.normal(size=(EXAMPLES, M, DIM)) * 0.3 + rng.normal(size=(M, DIM)) for _ in range(2))
    bends = bend * rng.normal(size=M) * np.ones((EXAMPLES, 1))
    x = rng.normal(size=DIM)
    kind, shift = rng.integers(4, size=M), rng.normal(size=M)
    near = np.mean(a @ x + 0.5 * bends * (c @ x) ** 2, axis=0) + shift
    width = rng.exponential(size=M)
    low = np.select([kind == 0, kind == 1], [near, -INF], near - width)
    high = np.select([kind == 0, kind == 2], [near, INF], near + width)
    if contradictions:  # rows 0 and 1 are one function that should be in two places
        a[:, 1], c[:, 1], bends[:, 1] = a[:, 0], c[:, 0], bends[:, 0]
        low[0], high[0], low[1], high[1] = -INF, near[0], near[0] + 1.0, INF
    unit = 10 ** rng.uniform(-units, units, size=M)
    oracle, data = template(), {"a": a * unit[:, None], "c": c, "bend": bends * unit}
    rows = replace(oracle.rows, low=jnp.asarray(low * unit), high=jnp.asarray(high * unit))
    oracle = replace(oracle, data=(jax.tree.map(jnp.asarray, data),), rows=rows)
    return oracle, x, 10 ** rng.uniform(-2, 2, size=DIM)


@eqx.filter_jit
def restored(oracle: Oracle, x, metric):
    return restore(oracle, x, metric, jax.random.key(KEY))


@eqx.filter_jit
def finished(oracle: Oracle, x, metric, rate):
    return finish(oracle, x, metric, rate, jax.random.key(KEY))


@eqx.filter_jit
def all_rows(oracle: Oracle, x):
    return oracle.c(x, oracle.everything())


def step_function():
    """The restoring step on all data, compiled the way that DENSE_ROWS says now."""

    @eqx.filter_jit
    def step(oracle, x, metric, gradient=None):
        key = jax.random.key(KEY)
        sample = restoration_sample(oracle, key)
        return restoring_step(oracle, x, oracle.c(x, sample), metric, sample, key, gradient)

    return step


@pytest.fixture(scope="module")
def dense_step():
    return step_function()


def violations(oracle: Oracle, x) -> np.ndarray:
    h, low, high = (np.asarray(a) for a in (all_rows(oracle, x), oracle.rows.low, oracle.rows.high))
    return np.maximum(np.maximum(low - h, h - high), 0.0)


def sizes(oracle: Oracle, x) -> np.ndarray:
    """The rows' scales: the largest of their values and finite bounds."""
    ends = [np.where(np.isfinite(end), np.abs(end), 0.0) for end in (oracle.rows.low, oracle.rows.high)]
    return np.maximum(np.abs(all_rows(oracle, x)), np.maximum(*ends))


def test_nonlinear_rows_come_within_their_ranges_on_all_data():
    far = 0
    for number in range(40):
        oracle, x, metric = instance(number, bend=0.05)
        size = sizes(oracle, x)
        far += np.max(violations(oracle, x) / size) > 0.2
        new, cost = restored(oracle, x, metric)
        assert np.max(violations(oracle, new) / size) <= 1e-6, number
        assert int(cost.constraint_values) == 1 + 2 * int(cost.constraint_jacobians)
        assert int(cost.samples) == EXAMPLES * int(cost.constraint_values)
    assert far > 20


def test_rows_within_their_ranges_are_left_alone():
    oracle, x, metric = instance(0, bend=0.3)
    h = all_rows(oracle, x)
    oracle = replace(oracle, rows=replace(oracle.rows, low=h - 1e-9, high=h + 1e-9))
    new, cost = restored(oracle, x, metric)
    np.testing.assert_array_equal(new, x)
    assert (int(cost.constraint_values), int(cost.constraint_jacobians)) == (1, 0)


@seed(0)
@settings(max_examples=300, deadline=None, database=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 3.0, 100.0]), st.booleans(), st.sampled_from([0.0, 3.0]))
def test_the_largest_violation_never_grows(number, bend, contradictions, units):
    """In units of each row's value and bounds, also where rows contradict each other or the linear model is worthless."""
    oracle, x, metric = instance(number, bend=bend, contradictions=contradictions, units=units)
    new, _ = restored(oracle, x, metric)
    assert np.isfinite(new).all()
    before, after = (np.max(violations(oracle, point) / sizes(oracle, x)) for point in (x, new))
    assert after <= before * (1 + 1e-12)
    assert after > restoration.TOLERANCE or not contradictions


def test_the_descent_lowers_the_objective_and_violates_no_row():
    """Or leaves x where it is, as for the longest of these steps, at points that only restoration has moved."""
    lower = 0
    for number in range(40):
        oracle, x, metric = instance(number, bend=0.05)
        before, size = restored(oracle, x, metric)[0], sizes(oracle, x)
        after, cost = finished(oracle, x, metric, jnp.asarray(10.0 ** (number % 4 - 2)))
        assert np.sum(after**2) < np.sum(before**2) or np.array_equal(after, before), number
        assert np.max(violations(oracle, after) / size) <= max(1e-6, np.max(violations(oracle, before) / size)), number
        assert int(cost.objective_gradients) == 2
        lower += bool(np.any(after != before))
    assert 20 < lower < 40


def test_a_descent_with_the_true_curvature_solves_a_quadratic_problem():
    """Of min ‖x‖² subject to linear rows: with P = I and α = ½ its model is the problem, so rows get to their ends."""
    moved = 0
    for number in range(20):
        oracle, x, _ = instance(number, bend=0.0)
        found, _ = finished(oracle, x, jnp.ones(DIM), jnp.asarray(0.5))
        jacobian = np.asarray(oracle.rows_and_jacobian(jnp.asarray(x), oracle.everything())[1])
        z, low, high = cp.Variable(DIM), np.asarray(oracle.rows.low), np.asarray(oracle.rows.high)
        limits = [jacobian[i] @ z >= low[i] for i in np.flatnonzero(np.isfinite(low))]
        limits += [jacobian[i] @ z <= high[i] for i in np.flatnonzero(np.isfinite(high))]
        cp.Problem(cp.Minimize(cp.sum_squares(z)), limits).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(found, z.value, atol=1e-5)
        moved += np.linalg.norm(found - restored(oracle, x, jnp.ones(DIM))[0]) > 1e-3
    assert moved == 20


def test_endless_data_are_restored_without_a_descent():
    """At the ends of their ranges, rows would be outside on half of all other samples."""
    draw = lambda key, n: {"z": jax.random.normal(key, (n, 2))}
    data = tr.Sampler(draw, batch_size=4)
    inside = tr.at_most(lambda x, batch: jnp.mean(batch["z"] ** 2 @ x), 10.0, data=data)
    problem = tr.Problem(lambda x, batch: -jnp.mean(batch["z"] ** 2 @ x), inside, data=data)
    oracle = oracle_for(problem, Parameters(jnp.zeros(2)), "ranges")
    x, _ = finish(oracle, jnp.ones(2), jnp.ones(2), jnp.asarray(0.1), jax.random.key(KEY))
    np.testing.assert_array_equal(x, np.ones(2))


def test_steps_by_products_are_the_dense_ones(dense_step, monkeypatch):
    instances = [(*instance(number, bend=0.3), 0.1 * np.ones(DIM)) for number in range(20)]
    expected = [dense_step(*at) for at in instances]
    monkeypatch.setattr(restoration, "DENSE_ROWS", 0)
    monkeypatch.setattr(restoration, "range_multipliers", None)  # only the dense step needs it
    by_products = step_function()
    for at, dense in zip(instances, expected, strict=True):
        root = np.sqrt(at[2])
        np.testing.assert_allclose(by_products(*at) / root, dense / root, atol=1e-5 * np.linalg.norm(dense / root))


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_a_step_solves_the_quadratic_program(dense_step, slope):
    """Of gᵀd + ½ dᵀP⁻¹d subject to low ≤ h + Jd ≤ high, by Clarabel in z with d = √P z, rows in units of their norms."""
    held = 0
    for number in range(20):
        oracle, x, metric = instance(number, bend=0.3, units=2.0)
        gradient = slope * np.random.default_rng(number).normal(size=DIM)
        step = np.asarray(dense_step(oracle, x, metric, gradient)) / np.sqrt(metric)
        h, jacobian = map(np.asarray, oracle.rows_and_jacobian(jnp.asarray(x), oracle.everything()))
        size = np.sqrt(np.sum(jacobian**2 * metric, axis=1))
        low, high = ((np.asarray(end) - h) / size for end in (oracle.rows.low, oracle.rows.high))
        equal = low == high
        below, above = np.isfinite(low) & ~equal, np.isfinite(high) & ~equal
        z = cp.Variable(DIM)
        rows = (jacobian * np.sqrt(metric) / size[:, None]) @ z
        limits = [rows[equal] == low[equal], rows[below] >= low[below], rows[above] <= high[above]]
        model = (np.sqrt(metric) * gradient) @ z + 0.5 * cp.sum_squares(z)
        cp.Problem(cp.Minimize(model), limits).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
        np.testing.assert_allclose(step, z.value, atol=1e-7 * np.linalg.norm(z.value))
        held += np.sum(np.minimum(np.abs(rows.value - low), np.abs(rows.value - high)) < 1e-8)
    assert held > 40
