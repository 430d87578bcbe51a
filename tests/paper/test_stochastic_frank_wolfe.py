"""Stochastic Frank-Wolfe against a NumPy transcription of Mokhtari, Hassani, Karbasi 2020 as paper 5 runs it."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from convex_by_hand import (
    BATCH,
    CONSTRAINT_BATCH,
    LmoOnly,
    drawn,
    estimated,
    gradient,
    jacobian,
    l1_vertex,
    make_problem,
)
from sample_paths import drive

import tightrope as tr
from tightrope.methods import StochasticFrankWolfe

T, RADIUS, PENALTY = 40, 1.2, 0.7
START = np.array([0.5, 0.3, -0.4])


class Transcribed(NamedTuple):
    """x_1 … x_{T+1}, d_0 … d_T and the vertices."""

    x: np.ndarray
    d: np.ndarray
    vertices: np.ndarray


def algorithm(x: np.ndarray, penalty: float, objective: list, constraint: list) -> Transcribed:
    d, xs, ds, vertices = np.zeros(3), [x], [np.zeros(3)], []
    for t in range(1, len(objective) + 1):
        rho, gamma = 4 / (t + 8) ** (2 / 3), 2 / (t + 8)
        G = gradient(x, objective[t - 1])
        for slope in jacobian(x, constraint[t - 1]):
            G = G + penalty * slope
        d = (1 - rho) * d + rho * G
        s = l1_vertex(d, RADIUS)
        x = x + gamma * (s - x)
        xs.append(x)
        ds.append(d)
        vertices.append(s)
    return Transcribed(np.stack(xs), np.stack(ds), np.stack(vertices))


@functools.cache
def problem() -> tr.Problem:
    return make_problem(LmoOnly(RADIUS), plane=False)


@functools.cache
def both(penalty: float) -> tuple:
    path = drive(problem(), START, StochasticFrankWolfe(penalty=penalty), steps=T, seed=4)
    return path, algorithm(START, penalty, *drawn(path, "joint"))


@pytest.mark.parametrize("penalty", [PENALTY, 0.1])
def test_iterates_without_a_projection(penalty):
    path, expected = both(penalty)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose([state.direction for state in path.states], expected.d, rtol=1e-9, atol=1e-12)
    assert len(np.unique(expected.vertices, axis=0)) >= 3


def test_the_output_is_the_last_iterate():
    path, _ = both(PENALTY)
    np.testing.assert_array_equal(path.method.output(path.states[-1]), path.x[-1])


def test_a_step_counts_one_gradient_of_each_function_on_one_sample():
    path, _ = both(PENALTY)
    assert set(path.samples) == {"joint"}
    assert {tuple(info) for info in path.infos} == {(1, 1, 1, BATCH + CONSTRAINT_BATCH)}


def test_its_penalty_is_estimated_without_a_projection_too():
    path = drive(problem(), START, estimated(problem(), START, StochasticFrankWolfe()), steps=T)
    assert np.isfinite(path.x).all()
    assert np.abs(path.x).sum(axis=1).max() <= RADIUS * (1 + 1e-9)
