"""Forecasts: on histories made by hand, and the numbers of paper 3's theorems worked out with simple constants."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.methods.exact_penalty.theorem import TheoremConstants, theorem_sizes
from tightrope.runs.planning import extrapolate, first_reached, measured_decay

STEPS = np.arange(20.0, 1001.0, 20.0)


def test_a_power_law_is_found_and_extrapolated():
    residuals = 3.0 * STEPS**-0.5
    assert measured_decay(STEPS, residuals) == pytest.approx(0.5)
    assert extrapolate(STEPS, residuals, 0.01, 0.5) == pytest.approx((3.0 / 0.01) ** 2, rel=0.05)


def test_no_decay_is_no_forecast():
    level = np.full_like(STEPS, 0.3)
    assert measured_decay(STEPS, level) == pytest.approx(0.0, abs=1e-12)
    assert extrapolate(STEPS, level, 0.01, 0.0) == math.inf


def test_one_lucky_record_does_not_count_as_reached():
    residuals = np.full_like(STEPS, 0.3)
    residuals[-1] = 0.0
    assert first_reached(STEPS, residuals, 0.1) is None
    residuals[25:] = 0.05
    assert first_reached(STEPS, residuals, 0.1) == STEPS[25]


UNIT = TheoremConstants(
    penalty=1.0,
    growths=2,
    gap=2.0,
    smoothness=1.0,
    jacobian_smoothness=1.0,
    gradient_norm=0.0,
    jacobian_norm=0.5,
    noise=(1.0, 1.0, 1.0),
    fractions=1.0,
    examples=8_000,
)


def test_theorem_3_1_with_unit_constants():
    """γ = 1/16, C_1 = 144, T = τ = ⌈12 · 4 / ε⌉ and ε̃² = ε²/2304; M₂ + Q₂^½ < 1 leaves ε as it is."""
    found = theorem_sizes("stochastic", 0.5, UNIT)
    square = 0.25 / 2304
    assert found["restart period"] == 96
    assert found["steps"] == 2 * 96**2
    restart = [math.ceil(2.5 / square), math.ceil(36 / square**2), math.ceil(2.5 / square)]
    between = [360, math.ceil(288 / 16 * 96 * 0.25 / square), 360]
    names = ("gradient", "values", "Jacobian")
    assert [found[f"{name} at a restart"] for name in names] == restart
    assert [found[f"{name} between"] for name in names] == between
    assert found["samples"] == 2 * (96 * sum(restart) + 96 * 95 * sum(between))


def test_the_other_settings_with_unit_constants():
    """Deterministic: 4 · 2 · 16/ε². Finite sum, N = 8,000: τ = 2, T = ⌈82 · 2 · 16/(2ε²)⌉, sizes 73, 5,304, 73."""
    assert theorem_sizes("deterministic", 0.5, UNIT)["steps"] == 2 * 512
    finite = theorem_sizes("finite_sum", 0.5, UNIT)
    assert finite["steps"] == 2 * 2 * 5_248
    assert finite["samples"] == 2 * 5_248 * (8_000 + 73 + 5_304 + 73)


def test_theorem_4_1_divides_the_accuracy_by_its_factor():
    """M₂ = (G/ρ + L_c)/(αζ) = 4, up to Q₂^½ = √(152/288)/(16 · 144)."""
    steep = UNIT._replace(gradient_norm=1.5, fractions=0.5)
    factor = 4.0 + math.sqrt(152 / 288) / (16 * 144)
    assert theorem_sizes("stochastic", 0.5, steep)["restart period"] == math.ceil(48 * factor / 0.5)


def test_a_plan_says_what_it_is_and_checks_its_arguments():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
    x0 = jnp.array([1.0, 0.0])
    forecast = tr.plan(problem, x0, accuracy=1e-2, method="ExactPenalty")
    assert forecast.steps <= 1_000
    assert forecast.bound["steps"] > forecast.steps
    assert "order of magnitude" in str(forecast)
    with pytest.raises(ValueError, match=r"plan: accuracy must be > 0"):
        tr.plan(problem, x0, accuracy=0.0)
    with pytest.raises(TypeError, match=r"plan: accuracy must be a number"):
        tr.plan(problem, x0, accuracy="small")
    with pytest.raises(TypeError, match=r"plan: problem must be"):
        tr.plan(None, x0, accuracy=0.1)
