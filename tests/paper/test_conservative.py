"""Both conservative methods against a NumPy transcription of Akhtar, Bedi, Rajawat 2021, Algorithms 1 and 2."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from convex_by_hand import (
    BATCH,
    CONSTRAINT_BATCH,
    START,
    LmoOnly,
    drawn,
    estimated,
    gradient,
    jacobian,
    l1_vertex,
    make_problem,
    values,
)
from sample_paths import drive

import tightrope as tr
from tightrope.methods import ConservativeFrankWolfe, ConservativeSaddle

T = 40
LOW, HIGH = np.array([-0.4, -0.1, -0.5]), np.array([0.7, 0.7, 0.6])
ETA, V, DELTA = 1.8, 0.15, 0.9
FW_ETA, FW_RHO, FW_V, FW_DELTA, FW_RADIUS = 2.4, 1.6, 0.35, 1.3, 1.2
FW_START = np.array([0.5, 0.3, -0.4])


class Transcribed(NamedTuple):
    """x_1 … x_{T+1}, λ_1 … λ_{T+1}, their averages over t = 1 … T (weights η_t), and whether X cut off step t."""

    x: np.ndarray
    multipliers: np.ndarray
    average: np.ndarray
    average_multipliers: np.ndarray
    cut: np.ndarray


def lagrangian_gradient(x, multipliers, objective_examples, constraint_examples):
    total = gradient(x, objective_examples)
    for weight, slope in zip(multipliers, jacobian(x, constraint_examples), strict=True):
        total = total + weight * slope
    return total


def dual_step(multipliers, eta, delta, h, v):
    return np.array(
        [max((1 - eta**2 * delta) * old + eta * (h_i + v), 0.0) for old, h_i in zip(multipliers, h, strict=True)]
    )


def algorithm_1(x, multipliers, horizon: str, objective: list, constraint: list) -> Transcribed:
    xs, ls, weights, cut = [x], [multipliers], [], []
    for t in range(1, T + 1):
        length = T if horizon == "fixed" else t
        eta, v = ETA / np.sqrt(length), V / np.sqrt(length)
        step = x - eta * lagrangian_gradient(x, multipliers, objective[t - 1], constraint[t - 1])
        multipliers = dual_step(multipliers, eta, DELTA, values(x, constraint[t - 1]), v)
        x = np.minimum(np.maximum(step, LOW), HIGH)
        xs.append(x)
        ls.append(multipliers)
        weights.append(eta)
        cut.append((x != step).any())
    share = np.array(weights) / sum(weights)
    average, average_multipliers = np.zeros(3), np.zeros(3)
    for t in range(T):
        average, average_multipliers = average + share[t] * xs[t], average_multipliers + share[t] * ls[t]
    return Transcribed(np.stack(xs), np.stack(ls), average, average_multipliers, np.array(cut))


class FrankWolfe(NamedTuple):
    """As above, with d_1 … d_T and the vertices."""

    x: np.ndarray
    multipliers: np.ndarray
    average: np.ndarray
    average_multipliers: np.ndarray
    d: np.ndarray
    vertices: np.ndarray


def algorithm_2(x, multipliers, v: float, objective: list, constraint: list) -> FrankWolfe:
    """`v` is the tightening itself; d_1 is the first stochastic gradient, and the recursion starts at t = 2."""
    eta, rho = FW_ETA * T**-0.75, FW_RHO / np.sqrt(T)
    xs, ls, ds, vertices, d = [x], [multipliers], [], [], np.zeros(3)
    for t in range(1, T + 1):
        sample = objective[t - 1], constraint[t - 1]
        if t == 1:
            d = lagrangian_gradient(x, multipliers, *sample)
        else:
            old = lagrangian_gradient(xs[-2], ls[-2], *sample)
            d = (1 - rho) * d + lagrangian_gradient(x, multipliers, *sample) - (1 - rho) * old
        s = l1_vertex(d, FW_RADIUS)
        multipliers = dual_step(multipliers, eta, FW_DELTA, values(x, constraint[t - 1]), v)
        x = x + eta * (s - x)
        xs.append(x)
        ls.append(multipliers)
        ds.append(d)
        vertices.append(s)
    average, average_multipliers = sum(xs[:-1]) / T, sum(ls[:-1]) / T
    return FrankWolfe(np.stack(xs), np.stack(ls), average, average_multipliers, np.stack(ds), np.stack(vertices))


NONE, WARM = (0.0, 0.0, 0.0), (0.3, 0.1, 0.7)


def multipliers_cut_at_zero(multipliers: np.ndarray) -> int:
    """The number of multipliers that are positive at some step and zero at the next."""
    positive = multipliers > 0
    return int((positive[:-1] & ~positive[1:]).any(axis=0).sum())


# ---- Algorithm 1, with a horizon and without -------------------------------------------------------------------------------

HORIZONS = ["fixed", "any"]


@functools.cache
def box_problem() -> tr.Problem:
    return make_problem(tr.domains.Box(LOW, HIGH), plane=False)


@functools.cache
def saddle(horizon: str, multipliers: tuple = NONE) -> tuple:
    method = ConservativeSaddle(step_size=ETA, tightening=V, regularization=DELTA, horizon=horizon)
    first = np.array(multipliers)
    path = drive(box_problem(), START, method, steps=T, seed=3, multipliers=first)
    return path, algorithm_1(START, first, horizon, *drawn(path, "joint"))


@pytest.mark.parametrize("horizon", HORIZONS)
def test_algorithm_1_iterates(horizon):
    path, expected = saddle(horizon)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 2 < expected.cut.sum() < T - 2
    assert multipliers_cut_at_zero(expected.multipliers) >= 2


@pytest.mark.parametrize("horizon", HORIZONS)
def test_algorithm_1_output_and_multipliers_are_averages_over_the_iterates_before_each_step(horizon):
    path, expected = saddle(horizon)
    last = path.states[-1]
    np.testing.assert_allclose(path.method.output(last), expected.average, rtol=1e-9)
    np.testing.assert_allclose(path.method.multipliers(last), expected.average_multipliers, rtol=1e-9)


@pytest.mark.parametrize("horizon", HORIZONS)
def test_algorithm_1_uses_and_counts_one_sample_per_step(horizon):
    path, _ = saddle(horizon)
    assert set(path.samples) == {"joint"}
    assert {tuple(info) for info in path.infos} == {(1, 1, 1, BATCH + CONSTRAINT_BATCH)}


def test_algorithm_1_declares_whether_it_depends_on_the_horizon():
    assert saddle("fixed")[0].method.uses_horizon
    assert not saddle("any")[0].method.uses_horizon


# ---- Algorithm 2, with the tightening of the theory and that of the experiment ---------------------------------------------

RATES = {"theory": -0.25, "experiment": -0.5}


@functools.cache
def ball_problem() -> tr.Problem:
    return make_problem(LmoOnly(FW_RADIUS), plane=False)


def frank_wolfe_method(rate: str) -> ConservativeFrankWolfe:
    return ConservativeFrankWolfe(
        step_size=FW_ETA, momentum=FW_RHO, tightening=FW_V, regularization=FW_DELTA, tightening_rate=rate
    )


@functools.cache
def frank_wolfe(rate: str, multipliers: tuple = NONE) -> tuple:
    method, first = frank_wolfe_method(rate), np.array(multipliers)
    path = drive(ball_problem(), FW_START, method, steps=T, seed=4, multipliers=first)
    return path, algorithm_2(FW_START, first, FW_V * T ** RATES[rate], *drawn(path, "joint"))


@pytest.mark.parametrize("rate", RATES)
def test_algorithm_2_iterates_without_a_projection(rate):
    path, expected = frank_wolfe(rate)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose([state.direction for state in path.states[1:]], expected.d, rtol=1e-9, atol=1e-12)
    assert len(np.unique(expected.vertices, axis=0)) >= 3
    assert multipliers_cut_at_zero(expected.multipliers) >= 2
    assert (expected.multipliers[-1] > 0).any()


def test_the_two_tightenings_differ():
    assert not np.allclose(frank_wolfe("theory")[1].x, frank_wolfe("experiment")[1].x)


@pytest.mark.parametrize("rate", RATES)
def test_algorithm_2_output_and_multipliers_are_averages_over_the_iterates_before_each_step(rate):
    path, expected = frank_wolfe(rate)
    last = path.states[-1]
    np.testing.assert_allclose(path.method.output(last), expected.average, rtol=1e-9)
    np.testing.assert_allclose(path.method.multipliers(last), expected.average_multipliers, rtol=1e-9)


def test_algorithm_2_counts_two_gradients_per_step_on_one_sample():
    path, _ = frank_wolfe("theory")
    assert set(path.samples) == {"joint"}
    assert {tuple(info) for info in path.infos} == {(2, 2, 2, BATCH + CONSTRAINT_BATCH)}


def test_algorithm_2_estimates_its_constants_without_a_projection_too():
    method = estimated(ball_problem(), FW_START, ConservativeFrankWolfe())
    path = drive(ball_problem(), FW_START, method, steps=T)
    assert np.isfinite(path.x).all()
    assert np.abs(path.x).sum(axis=1).max() <= FW_RADIUS * (1 + 1e-9)


def test_a_warm_start_keeps_its_multipliers():
    for path, expected in (saddle("fixed", WARM), frank_wolfe("theory", WARM)):
        np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
        last = path.states[-1]
        np.testing.assert_allclose(path.method.multipliers(last), expected.average_multipliers, rtol=1e-9)
