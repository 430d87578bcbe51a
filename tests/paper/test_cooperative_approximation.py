"""Cooperative stochastic approximation against a NumPy transcription of Lan, Zhou 2020, on the same samples."""

import functools
from typing import NamedTuple

import numpy as np
from convex_by_hand import (
    BATCH,
    CONSTRAINT_BATCH,
    START,
    M,
    ball,
    drawn,
    gradient,
    independent,
    make_problem,
    paired_jacobian,
    paired_values,
)
from sample_paths import drive

import tightrope as tr
from tightrope.methods import CooperativeApproximation

T, RADIUS, VALUE_BATCH = 41, 0.62, 6
TOLERANCE, STEP_SIZE = 0.4, 0.8


class Transcribed(NamedTuple):
    """x_1 … x_{T+1}; for each k whether the step was along f, γ_k, the row with the largest value, and whether X cut it off."""

    x: np.ndarray
    along_f: np.ndarray
    gamma: np.ndarray
    row: np.ndarray
    cut: np.ndarray


def algorithm(x: np.ndarray, deciding: list, objective_examples: list, constraint_examples: list) -> Transcribed:
    """`deciding[k]` are the examples of the value that decides; the subgradients use the others."""
    path, flags, steps, which_row, cut = [x], [], [], [], []
    for k in range(1, len(deciding) + 1):
        gamma, eta = STEP_SIZE / np.sqrt(k), TOLERANCE / np.sqrt(k)
        found = paired_values(x, deciding[k - 1])
        i = int(np.argmax(found))
        along_f = found[i] <= eta
        h = gradient(x, objective_examples[k - 1]) if along_f else paired_jacobian(x, constraint_examples[k - 1])[i]
        free = x - gamma * h
        x = ball(free, RADIUS)
        path.append(x)
        flags.append(along_f)
        steps.append(gamma)
        which_row.append(i)
        cut.append(free @ free > RADIUS**2)
    return Transcribed(np.stack(path), np.array(flags), np.array(steps), np.array(which_row), np.array(cut))


def averaged(run: Transcribed, steps: int) -> np.ndarray:
    """Σ γ_k x_k / Σ γ_k over the steps along f from the second half; x_k is the point before step k."""
    total, weight = np.zeros(len(run.x[0])), 0.0
    for k in range(1, steps + 1):
        if k - 1 >= steps / 2 and run.along_f[k - 1]:
            total, weight = total + run.gamma[k - 1] * run.x[k - 1], weight + run.gamma[k - 1]
    return total / weight


@functools.cache
def problem() -> tr.Problem:
    return make_problem(tr.domains.L2Ball(RADIUS), plane=True)


METHOD = CooperativeApproximation(step_size=STEP_SIZE, tolerance=TOLERANCE, value_batch_size=VALUE_BATCH)


@functools.cache
def both() -> tuple:
    path = drive(problem(), START, METHOD, steps=T, seed=2)
    return path, algorithm(START, drawn(path, "value")[1], *drawn(path, "subgradient"))


def test_iterates_are_those_of_the_transcription():
    path, expected = both()
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 8 < expected.along_f.sum() < T - 8
    assert len(set(expected.row[~expected.along_f])) >= 3
    assert 2 < expected.cut.sum() < T - 2


def test_the_output_averages_the_second_half_weighted_by_the_steps_along_the_objective():
    path, expected = both()
    np.testing.assert_allclose(path.method.output(path.states[-1]), averaged(expected, T), rtol=1e-9)
    late = expected.along_f & (2 * np.arange(T) >= T)
    assert 2 < late.sum() < (2 * np.arange(T) >= T).sum(), "the second half has steps of one kind only"


def test_multipliers_are_the_steps_along_each_row_over_those_along_the_objective():
    path, expected = both()
    late = 2 * np.arange(T) >= T
    weights = [expected.gamma[late & ~expected.along_f & (expected.row == i)].sum() for i in range(5)]
    weights = np.array(weights) / expected.gamma[late & expected.along_f].sum()
    np.testing.assert_allclose(path.method.multipliers(path.states[-1]), weights, rtol=1e-9)
    assert np.count_nonzero(weights) >= 2


def test_one_value_decides_and_only_the_subgradient_that_is_used_is_counted():
    path, expected = both()
    assert [tuple(info) for info in path.infos] == [
        (1, 1, 0, VALUE_BATCH + BATCH) if along_f else (0, 2, 1, VALUE_BATCH + CONSTRAINT_BATCH)
        for along_f in expected.along_f
    ]


def test_the_value_and_the_subgradient_have_independent_samples():
    path, expected = both()
    assert set(path.samples) == {"value", "subgradient"}
    assert {examples.shape for examples in drawn(path, "value")[1]} == {(VALUE_BATCH,)}
    assert independent(path)
    same = algorithm(START, drawn(path, "subgradient")[1], *drawn(path, "subgradient"))
    assert not np.allclose(same.x, expected.x), "one sample for both would give the same iterates: this proves nothing"


def test_a_small_data_set_is_evaluated_in_full_if_no_batch_size_is_given():
    method = CooperativeApproximation(step_size=STEP_SIZE, tolerance=TOLERANCE)
    path = drive(problem(), START, method, steps=T, seed=2)
    assert set(path.samples) == {"subgradient"}
    expected = algorithm(START, [np.arange(M)] * T, *drawn(path, "subgradient"))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 8 < expected.along_f.sum() < T - 8
    assert {info.samples for info in path.infos if info.objective_gradients == 1} == {M + BATCH}
