"""Drift plus penalty against a NumPy transcription of Yu, Neely, Wei 2017, Algorithm 1, on the same samples."""

import functools
from typing import NamedTuple

import numpy as np
from convex_by_hand import (
    BATCH,
    CONSTRAINT_BATCH,
    START,
    drawn,
    gradient,
    jacobian,
    make_problem,
    values,
)
from sample_paths import drive

import tightrope as tr
from tightrope.methods import DriftPlusPenalty

T = 40
LOW, HIGH = np.array([-0.4, -0.1, -0.5]), np.array([0.7, 0.7, 0.6])
PROXIMAL, WEIGHT = 0.1, 0.6


class Transcribed(NamedTuple):
    """x_1 … x_{T+1}, Q_1 … Q_{T+1}, the average of x_1 … x_T, and whether X cut off step t."""

    x: np.ndarray
    queues: np.ndarray
    average: np.ndarray
    cut: np.ndarray


def algorithm(x: np.ndarray, multipliers: np.ndarray, objective: list, constraint: list) -> Transcribed:
    alpha, V = PROXIMAL * T, WEIGHT * np.sqrt(T)
    queues = V * multipliers
    xs, qs, cut, total = [x], [queues], [], np.zeros(3)
    for t in range(T):
        total = total + x
        slopes, h = jacobian(x, constraint[t]), values(x, constraint[t])
        d = V * gradient(x, objective[t])
        for k in range(3):
            d = d + queues[k] * slopes[k]
        step = x - d / (2 * alpha)
        new = np.minimum(np.maximum(step, LOW), HIGH)
        queues = np.array([max(queues[k] + h[k] + slopes[k] @ (new - x), 0.0) for k in range(3)])
        x = new
        xs.append(x)
        qs.append(queues)
        cut.append((new != step).any())
    return Transcribed(np.stack(xs), np.stack(qs), total / T, np.array(cut))


METHOD = DriftPlusPenalty(proximal_weight=PROXIMAL, objective_weight=WEIGHT)


@functools.cache
def problem() -> tr.Problem:
    return make_problem(tr.domains.Box(LOW, HIGH), plane=False)


@functools.cache
def both(multipliers: tuple = (0.0, 0.0, 0.0)) -> tuple:
    first = np.array(multipliers)
    path = drive(problem(), START, METHOD, steps=T, seed=3, multipliers=first)
    return path, algorithm(START, first, *drawn(path, "joint"))


def test_iterates_are_those_of_the_transcription():
    path, expected = both()
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 2 < expected.cut.sum() < T - 2


def test_multipliers_are_the_queues_over_the_objectives_weight():
    path, expected = both()
    reported = np.stack([np.asarray(path.method.multipliers(state)) for state in path.states])
    np.testing.assert_allclose(reported, expected.queues / (WEIGHT * np.sqrt(T)), rtol=1e-9, atol=1e-12)
    positive = expected.queues > 0
    assert (positive[:-1] & ~positive[1:]).any(axis=0).sum() >= 2, "few queues are ever emptied"


def test_the_output_is_the_plain_average_of_the_iterates_before_each_step():
    path, expected = both()
    np.testing.assert_allclose(path.method.output(path.states[-1]), expected.average, rtol=1e-9)
    assert path.method.uses_horizon


def test_one_sample_serves_the_whole_step_and_is_counted_once():
    path, _ = both()
    assert set(path.samples) == {"joint"}
    assert {tuple(info) for info in path.infos} == {(1, 1, 1, BATCH + CONSTRAINT_BATCH)}


def test_a_warm_start_keeps_its_multipliers():
    path, expected = both((0.3, 0.1, 0.7))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(path.method.multipliers(path.states[0]), [0.3, 0.1, 0.7], rtol=1e-12)
