"""The rule for multipliers of AdaptiveLagrangian, alone: signs, rows at rest, units, and a linear model of the rows."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tightrope.methods.adaptive_lagrangian.multipliers import Controller, Response
from tightrope.oracles.rows import Rows

INF, M, LENGTH = np.inf, 4, 60
LOW, HIGH = np.array([-INF, -0.5, -0.3, 0.2]), np.array([0.4, INF, 0.3, 0.2])
"""At most, at least, between, equals."""


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def rows_between(low, high) -> Rows:
    """Rows of the form 'ranges'."""
    low, high = jnp.asarray(low), jnp.asarray(high)
    none, m = jnp.zeros(0), low.shape[0]
    return Rows(jnp.ones(m), jnp.zeros(m), low, high, none, none, tuple(range(m)), (False,) * m, (), m)


@jax.jit
def follow(start, values, low, high, seen, steps) -> Controller:
    """The controllers of all steps on which the rows take these values."""

    def one(controller, at):
        k, value, seen = at
        controller = controller.update(value, rows_between(low, high), seen, k, steps)
        return controller, controller

    zero = jnp.zeros_like(start)
    numbers = jnp.arange(1, values.shape[0] + 1, dtype=jnp.int32)
    return jax.lax.scan(one, Controller(zero, start, start, zero), (numbers, values, seen))[1]


def any_path(number: int) -> tuple:
    """Values, noise, responses and lengths of steps that need not make sense; some rows have no noise, some no response."""
    rng = np.random.default_rng(number)
    drift = 10 ** rng.uniform(-2, 1) * np.cumsum(rng.normal(size=(LENGTH, M)), axis=0) / 10
    values = np.clip(LOW, -1, 1) / 2 + np.clip(HIGH, -1, 1) / 2 + drift + 0.3 * rng.normal(size=(LENGTH, M))
    variance = 10 ** rng.uniform(-4, 0, size=(LENGTH, M)) * (rng.random(M) < 0.7)
    response = 10 ** rng.uniform(-3, 3, size=M) * rng.uniform(0.5, 2, size=(LENGTH, M))
    response = response * (rng.random((LENGTH, M)) < rng.choice([0.7, 1.0]))
    length = 10 ** rng.uniform(-4, 2) * rng.uniform(0.5, 2, size=LENGTH)
    share = rng.uniform(0, 1, size=LENGTH)
    start = rng.normal(size=M) * rng.choice([0.0, 1.0], size=M)
    start = np.clip(start, np.where(np.isinf(LOW), 0.0, -INF), np.where(np.isinf(HIGH), 0.0, INF))
    rate = np.full(LENGTH, 10 ** rng.uniform(-4, -1))
    coupling = rng.uniform(-1, M, size=(LENGTH, M))
    push, progress = rng.normal(size=(2, LENGTH, M)) * rng.choice([0.0, 1.0], size=(2, 1, M))
    return (
        start,
        values,
        Response(variance, response, coupling, push, progress, length, rate, share),
        np.int32(rng.choice([60, 600, 10_000])),
    )


PATHS = st.integers(0, 2**32 - 1)


@seed(0)
@settings(max_examples=300, deadline=None, database=None)
@given(PATHS)
def test_multipliers_of_inequalities_never_have_the_wrong_sign(number):
    """≥ 0 at most, ≤ 0 at least, and in a band either sign, but never the other one in the next step; all finite."""
    start, values, seen, steps = any_path(number)
    path = jax.tree.map(np.asarray, follow(start, values, LOW, HIGH, seen, steps))
    for y in (path.multipliers, path.integral):
        assert np.isfinite(y).all()
        assert (y[:, 0] >= 0).all()
        assert (y[:, 1] <= 0).all()
    before = np.concatenate([start[None], path.integral[:-1]])
    for after in (path.integral, path.multipliers):
        assert (before[:, 2] * after[:, 2] >= 0).all()


@seed(0)
@settings(max_examples=50, deadline=None, database=None)
@given(PATHS)
def test_rows_inside_their_ranges_without_multipliers_stay_without(number):
    """Rows at 0.99 of a range at most; an equation has no inside."""
    _, _, seen, steps = any_path(number)
    rng = np.random.default_rng(number)
    low, high = np.maximum(LOW, -5), np.minimum(HIGH, 5)
    values = low + (high - low) * rng.uniform(0.01, 0.99, size=(LENGTH, M))
    path = follow(np.zeros(M), values, LOW, HIGH, seen, steps)
    np.testing.assert_array_equal(path.multipliers[:, :3], 0.0)
    np.testing.assert_array_equal(path.integral[:, :3], 0.0)


@seed(0)
@settings(max_examples=300, deadline=None, database=None)
@given(PATHS, st.lists(st.floats(-3, 3), min_size=M, max_size=M))
def test_multipliers_of_rows_in_other_units_are_those_in_the_inverse_units(number, exponents):
    """Rows with no response for a while included: their multipliers must not move by amounts that have no units."""
    start, values, seen, steps = any_path(number)
    unit = 10 ** np.array(exponents)
    other = seen._replace(variance=seen.variance * unit**2, response=seen.response * unit**2)
    other = other._replace(push=seen.push * unit, progress=seen.progress * unit)
    plain = follow(start, values, LOW, HIGH, seen, steps)
    scaled = follow(start / unit, values * unit, LOW * unit, HIGH * unit, other, steps)
    for y, z in ((plain.multipliers, scaled.multipliers), (plain.integral, scaled.integral)):
        size = np.max(np.abs(y), axis=0)
        np.testing.assert_allclose(z * unit / np.where(size > 0, size, 1), y / np.where(size > 0, size, 1), atol=1e-9)


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, 0, 0, None))
def linear_model(start, pull, rate, response, horizon):
    """The last errors and multipliers, and the largest multipliers, of an equation and a ceiling with e⁺ = e − αG(y + b)."""
    rows = rows_between(np.array([0.0, -INF]), np.zeros(2))
    both = lambda number: jnp.full(2, number)
    zero = jnp.zeros(2)
    fixed = Response(zero, both(response), jnp.ones(2), zero, zero, response * pull**2, rate, jnp.ones(()))

    def one(at, k):
        e, controller = at
        y = controller.multipliers
        seen = fixed._replace(push=response * jnp.abs(y), progress=response * jnp.sign(y) * (y + pull))
        controller = controller.update(e, rows, seen, k, horizon)
        return (e - rate * response * (y + pull), controller), jnp.abs(y)

    begin = (both(start), Controller(zero, zero, zero, zero))
    (e, controller), sizes = jax.lax.scan(one, begin, jnp.arange(1, 8001, dtype=jnp.int32))
    return e, controller.multipliers, jnp.max(sizes, axis=0)


@pytest.mark.parametrize("horizon", [100, 10_000])
def test_on_a_linear_model_errors_vanish_and_multipliers_balance_the_pull(horizon):
    """With τ of 10 and of 40 steps; from errors of a few steps' reach and of hundreds, in any units."""
    cases = itertools.product((0.0, 3.0, -0.5, 500.0), (-2.0, -0.1), (1e-4, 1e-2), (1e-3, 1.0, 1e4))
    start, pull, rate, response = np.array(list(cases)).T
    reach = rate * response * np.abs(pull)  # what a step can do to the row
    e, y, largest = map(np.asarray, linear_model(start * reach, pull, rate, response, np.int32(horizon)))
    assert np.max(np.abs(e).T / reach) < 1e-6
    np.testing.assert_allclose(y, np.stack([-pull, -pull], axis=1), rtol=1e-6)
    assert np.max(largest.T / np.abs(pull)) < 6  # however far a row is from its range


def test_an_inequalitys_multiplier_that_nothing_opposes_does_not_grow_and_shrinks_as_before():
    """A row that stays outside its range, and then inside, with shares of the push unopposed between none and all."""
    m = 5
    unopposed = np.array([-1.0, 0.5, 0.75, 1.0, 2.0])
    values = np.repeat([0.1, -0.1], 30)[:, None] * np.ones(m)
    each, one = np.ones((60, m)), np.ones(60)
    seen = Response(0.01 * each, each, each, each, each * unopposed, one, 0.01 * one, one)
    equation = follow(np.full(m, 5.0), values, np.zeros(m), np.zeros(m), seen, np.int32(600)).integral
    assert np.ptp(equation, axis=1).max() < 1e-12
    path = follow(np.full(m, 5.0), values, np.full(m, -INF), np.zeros(m), seen, np.int32(600)).integral
    grown = np.asarray(path[29] - 5.0)
    np.testing.assert_allclose(grown / grown[0], [1, 1, 0.5, 0, 0], atol=1e-9)
    shrunk = np.asarray(path[39] - path[59])
    assert (shrunk > 0).all()
    np.testing.assert_allclose(shrunk, shrunk[0], rtol=1e-9)
