"""In every form of the constraint rows, x, violation and multipliers are those of the original problem."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.oracles.build import oracle_for
from tightrope.oracles.rows import bounds
from tightrope.problems.parameters import Parameters

FORMS = ("native", "slacks", "pairs", "ranges")
TARGET = jnp.array([2.0, -1.0, 0.5])


def distance(x):
    return 0.5 * jnp.sum((x - TARGET) ** 2)


def constrained(*constraints, domain=None):
    return tr.Problem(distance, list(constraints), domain=domain)


CASES = {  # constraints, solution, multipliers (x = target − Σ λ_i ∇h_i) in the shape that the function returns
    "at_most": ([tr.at_most(lambda x: x[0], 1.0, name="a")], [1.0, -1.0, 0.5], {"a": 1.0}),
    "at_least": ([tr.at_least(lambda x: x[1], 0.0, name="a")], [2.0, 0.0, 0.5], {"a": 1.0}),
    "between, upper end": ([tr.between(lambda x: x[0], -1.0, 1.0, name="a")], [1.0, -1.0, 0.5], {"a": 1.0}),
    "between, lower end": ([tr.between(lambda x: x[1], 0.0, 1.0, name="a")], [2.0, 0.0, 0.5], {"a": -1.0}),
    "between, inside": ([tr.between(lambda x: x[2], 0.0, 1.0, name="a")], [2.0, -1.0, 0.5], {"a": 0.0}),
    "vector": ([tr.at_most(lambda x: x[:2], np.array([1.0, 5.0]), name="a")], [1.0, -1.0, 0.5], {"a": [1.0, 0.0]}),
    "affine": ([tr.affine([[1.0, 1.0, 1.0]], [0.0], name="a")], [1.5, -1.5, 0.0], {"a": [0.5]}),
    "mixed": (
        [tr.at_least(lambda x: x[1], 0.0, name="a"), tr.affine([[1.0, 0.0, 0.0]], [1.0], name="b")],
        [1.0, 0.0, 0.5],
        {"a": 1.0, "b": [1.0]},
    ),
}

METHODS = {
    "TruncatedMomentum": tr.methods.TruncatedMomentum(),
    "SwitchingSubgradient": tr.methods.SwitchingSubgradient(),
    "GradientDescentAscent": tr.methods.GradientDescentAscent(),
}


@cache
def problem_of(kind):
    return constrained(*CASES[kind][0])


@pytest.mark.by_default("mixed-*", "*-SwitchingSubgradient")
@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("kind", sorted(CASES))
def test_x_violation_and_multipliers_are_those_of_the_original(kind, name):
    """To a few percent: the accuracy of 20,000 steps with a penalty k^(1/2) or step sizes k^(-1/2)."""
    _, solution, multipliers = CASES[kind]
    result = tr.solve(problem_of(kind), jnp.zeros(3), METHODS[name], steps=20_000, record=5000)
    assert result.x.shape == (3,)
    np.testing.assert_allclose(result.x, solution, atol=0.06)
    assert set(result.multipliers) == set(multipliers) == set(result.certificate.violation)
    for key, expected in multipliers.items():
        np.testing.assert_allclose(result.multipliers[key], expected, atol=0.1)
        assert np.shape(result.multipliers[key]) == np.shape(expected)
    recomputed = tr.certify(problem_of(kind), result.x)
    assert recomputed.largest_violation.value == pytest.approx(result.violation, abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", sorted(CASES))
def test_rows_are_violated_by_as_much_as_the_constraints(form, kind):
    problem = constrained(*CASES[kind][0])
    oracle = oracle_for(problem, Parameters(jnp.zeros(3)), form)
    low, high = bounds(problem.constraints, [term.shape for term in oracle.constraints])
    for x in np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32) * 2:
        raw = np.asarray(oracle.raw(x, ()))
        expected = np.maximum(np.maximum(low - raw, raw - high), 0.0)
        rows = np.asarray(oracle.c(oracle.with_slacks(jnp.asarray(x), ()), ()))
        found = np.maximum(np.maximum(oracle.rows.low - rows, rows - oracle.rows.high), 0.0)
        largest = np.zeros_like(expected)
        np.maximum.at(largest, np.array(oracle.rows.index), found)
        np.testing.assert_allclose(largest, expected, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_multipliers_go_to_rows_and_back_unchanged(form):
    constraints = [
        tr.equals(lambda x: x[0], name="e"),
        tr.at_most(lambda x: x[0], name="m"),
        tr.at_least(lambda x: x[0], name="l"),
        tr.between(lambda x: x[0], 0.0, 1.0, name="b"),
    ]
    rows = oracle_for(constrained(*constraints), Parameters(jnp.zeros(3)), form).rows
    for raw in ([-2.0, 3.0, -1.0, 0.5], [2.0, 0.0, 0.0, -0.5]):
        np.testing.assert_allclose(rows.to_raw(rows.from_raw(jnp.array(raw))), raw)


def test_lagrangian_gradient_is_the_same_in_every_form():
    """Jᵀ of the rows times their multipliers is the raw Jacobian times the raw multipliers."""
    problem = constrained(
        *[c for kind in ("mixed",) for c in CASES[kind][0]], tr.between(lambda x: x @ x, 0.0, 1.0, name="n")
    )
    x, raw = jnp.array([0.3, -0.2, 0.7]), jnp.array([-1.0, 0.5, 2.0])
    expected = jnp.array([0.0, -1.0, 0.0]) + jnp.array([0.5, 0.0, 0.0]) + 2.0 * 2 * x
    for form in FORMS:
        oracle = oracle_for(problem, Parameters(x), form)
        full = oracle.with_slacks(x, ())
        _, pullback = oracle.vjp(full, ())
        np.testing.assert_allclose(pullback(oracle.rows.from_raw(raw))[:3], expected, rtol=1e-5)
