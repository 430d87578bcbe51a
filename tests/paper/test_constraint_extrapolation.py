"""Constraint extrapolation against a NumPy transcription of Boob, Deng, Lan 2022, on the same samples."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from convex_by_hand import (
    BATCH,
    CONSTRAINT_BATCH,
    PLANE,
    START,
    ball,
    drawn,
    gradient,
    independent,
    jacobian,
    make_problem,
    plane_value,
    values,
)
from sample_paths import drive

import tightrope as tr
from tightrope.methods import ConstraintExtrapolation

T, RADIUS = 40, 0.62
C1, C2 = 1.5, 2.0


class Transcribed(NamedTuple):
    """x_0 … x_T, y_0 … y_T, Σ (t+1) x_{t+1} / Σ (t+1), the same of y, and whether X cut off step t."""

    x: np.ndarray
    y: np.ndarray
    average: np.ndarray
    average_y: np.ndarray
    cut: np.ndarray


def g(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    return np.append(values(x, examples), plane_value(x))


def g_prime(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    return np.vstack([jacobian(x, examples), PLANE])


def algorithm(x: np.ndarray, y: np.ndarray, objective: list, value: list, slope: list) -> Transcribed:
    """`value[t]` are the examples of ℓ_t, `slope[t]` those of the Jacobian at x_t, `objective[t]` those of f'(x_t)."""
    free = np.array([False, False, False, True])
    before, model_before = x, None
    xs, ys, cut = [x], [y], []
    total, total_y, weight = np.zeros(3), np.zeros(4), 0.0
    for t in range(len(value)):
        theta, eta, tau = t / (t + 1), C1 * (t + 1), C2 / (t + 1)
        model = g(before, value[t]) + g_prime(before, value[t]) @ (x - before)
        if model_before is None:
            model_before = model
        s = (1 + theta) * model - theta * model_before
        y = np.where(free, y + s / tau, np.maximum(y + s / tau, 0.0))
        step = x - (gradient(x, objective[t]) + g_prime(x, slope[t]).T @ y) / eta
        before, model_before, x = x, model, ball(step, RADIUS)
        total, total_y, weight = total + (t + 1) * x, total_y + (t + 1) * y, weight + t + 1
        xs.append(x)
        ys.append(y)
        cut.append(step @ step > RADIUS**2)
    return Transcribed(np.stack(xs), np.stack(ys), total / weight, total_y / weight, np.array(cut))


METHOD = ConstraintExtrapolation(step_size=1 / C1, dual_step_size=1 / C2)


@functools.cache
def problem() -> tr.Problem:
    return make_problem(tr.domains.L2Ball(RADIUS), plane=True)


@functools.cache
def both(y: tuple = (0.0, 0.0, 0.0, 0.0)) -> tuple:
    path = drive(problem(), START, METHOD, steps=T, seed=1, multipliers=np.array(y))
    examples = drawn(path, "objective")[0], drawn(path, "value")[1], drawn(path, "jacobian")[1]
    return path, algorithm(START, np.array(y), *examples), examples


def test_iterates_are_those_of_the_transcription():
    path, expected, _ = both()
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 2 < expected.cut.sum() < T - 2


def test_multipliers_are_those_of_the_transcription():
    path, expected, _ = both()
    found = np.stack([state.multipliers for state in path.states])
    np.testing.assert_allclose(found, expected.y, rtol=1e-9, atol=1e-12)
    inequalities, equality = expected.y[1:, :3], expected.y[1:, 3]
    assert ((inequalities == 0).any(axis=0) & (inequalities > 0).any(axis=0)).sum() >= 2
    assert (equality > 0).any()
    assert (equality < 0).any(), "the equality's multiplier is never negative"


def test_the_output_averages_with_weights_that_grow_linearly():
    path, expected, _ = both()
    last = path.states[-1]
    np.testing.assert_allclose(path.method.output(last), expected.average, rtol=1e-9)
    np.testing.assert_allclose(path.method.multipliers(last), expected.average_y, rtol=1e-9)


def test_a_step_counts_two_linearizations_and_one_gradient():
    path, _, _ = both()
    assert {tuple(info) for info in path.infos} == {(1, 2, 2, BATCH + 2 * CONSTRAINT_BATCH)}


def test_the_three_samples_are_independent():
    path, expected, (objective, value, _) = both()
    assert set(path.samples) == {"objective", "value", "jacobian"}
    assert independent(path)
    assert not np.allclose(algorithm(START, np.zeros(4), objective, value, value).x, expected.x)


def test_a_warm_start_keeps_its_multipliers():
    path, expected, _ = both((0.3, 0.1, 0.7, -0.2))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose([state.multipliers for state in path.states], expected.y, rtol=1e-9, atol=1e-12)


@pytest.mark.full
def test_noise_in_the_jacobian_alone_shortens_the_dual_steps():
    """At x = 0 every sample of c·x is 0: the noise is in the Jacobian."""
    made = make_problem(tr.domains.L2Ball(RADIUS), plane=False)
    found = [
        tr.solve(made, np.zeros(3), ConstraintExtrapolation(), steps=steps).settings["dual_step_size"]
        for steps in (1000, 4000)
    ]
    np.testing.assert_allclose(found[0] / found[1], 4**1.5, rtol=1e-5)
