"""The inexact proximal point method with two inner methods against NumPy transcriptions (Huang, Lin 2023, Section 6)."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from convex_by_hand import (
    BATCH,
    CONSTRAINT_BATCH,
    START,
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
from tightrope.methods import ConstraintExtrapolation, ProximalPoint, SwitchingSubgradient

T, INNER, RADIUS, WEIGHT = 40, 9, 0.62, 1.7
TOLERANCE, STEP_SIZE = 0.12, 0.2
C1, C2 = 2.0, 2.0


class Subproblem(NamedTuple):
    """f + ½ρ̂‖x − center‖² and max_i g_i + ½ρ̃‖x − center‖², on a sample."""

    center: np.ndarray
    objective: float
    row_weight: float

    def f_prime(self, x, examples):
        return gradient(x, examples) + self.objective * (x - self.center)

    def g(self, x, examples):
        return paired_values(x, examples) + 0.5 * self.row_weight * ((x - self.center) @ (x - self.center))

    def g_prime(self, x, examples):
        return paired_jacobian(x, examples) + self.row_weight * (x - self.center)


class Transcribed(NamedTuple):
    """All inner iterates, the centers, and for each inner step: whether along f, worst row, multipliers, whether X cut it."""

    x: np.ndarray
    centers: np.ndarray
    along_f: np.ndarray
    row: np.ndarray
    y: np.ndarray
    cut: np.ndarray


def with_switching(x: np.ndarray, weight: float, deciding: list, objective: list, slope: list) -> Transcribed:
    xs, centers, flags, worst, cut = [x], [], [], [], []
    for start in range(0, T, INNER):
        sub = Subproblem(x, WEIGHT, weight)
        centers.append(x)
        for k in range(start, min(start + INNER, T)):
            found = sub.g(x, deciding[k])
            i = int(np.argmax(found))
            along_f = found[i] <= TOLERANCE
            step = x - STEP_SIZE * (sub.f_prime(x, objective[k]) if along_f else sub.g_prime(x, slope[k])[i])
            x = ball(step, RADIUS)
            xs.append(x)
            flags.append(along_f)
            worst.append(i)
            cut.append(step @ step > RADIUS**2)
    return Transcribed(
        np.stack(xs), np.stack(centers), np.array(flags), np.array(worst), np.zeros((T, 5)), np.array(cut)
    )


def with_extrapolation(x: np.ndarray, weight: float, value: list, objective: list, slope: list) -> Transcribed:
    xs, centers, ys, cut = [x], [], [], []
    for start in range(0, T, INNER):
        sub = Subproblem(x, WEIGHT, weight)
        centers.append(x)
        before, model_before, y = x, sub.g(x, value[start]), np.zeros(5)
        for k in range(start, min(start + INNER, T)):
            t = k - start
            model = sub.g(before, value[k]) + sub.g_prime(before, value[k]) @ (x - before)
            s = (1 + t / (t + 1)) * model - t / (t + 1) * model_before
            y = np.maximum(y + s * (t + 1) / C2, 0.0)
            step = x - (sub.f_prime(x, objective[k]) + sub.g_prime(x, slope[k]).T @ y) / (C1 * (t + 1))
            before, model_before, x = x, model, ball(step, RADIUS)
            xs.append(x)
            ys.append(y)
            cut.append(step @ step > RADIUS**2)
    nothing = np.zeros(T, bool)
    return Transcribed(np.stack(xs), np.stack(centers), nothing, nothing, np.stack(ys), np.array(cut))


@functools.cache
def problem() -> tr.Problem:
    return make_problem(tr.domains.L2Ball(RADIUS), plane=True)


ROW_WEIGHTS = {"weakly_convex": WEIGHT, "convex": 0.0}
KINDS = list(ROW_WEIGHTS)


@functools.cache
def switching(kind: str) -> tuple:
    inner = SwitchingSubgradient(step_size=STEP_SIZE, tolerance=TOLERANCE, rule="static", values="sampled")
    method = ProximalPoint(inner=inner, proximal_weight=WEIGHT, inner_steps=INNER, constraints=kind)
    path = drive(problem(), START, method, steps=T, seed=6)
    examples = drawn(path, "value")[1], *drawn(path, "subgradient")
    return path, with_switching(START, ROW_WEIGHTS[kind], *examples), examples


@functools.cache
def extrapolating(kind: str) -> tuple:
    inner = ConstraintExtrapolation(step_size=1 / C1, dual_step_size=1 / C2)
    method = ProximalPoint(inner=inner, proximal_weight=WEIGHT, inner_steps=INNER, constraints=kind)
    path = drive(problem(), START, method, steps=T, seed=1)
    examples = drawn(path, "value")[1], drawn(path, "objective")[0], drawn(path, "jacobian")[1]
    return path, with_extrapolation(START, ROW_WEIGHTS[kind], *examples), examples


@pytest.mark.parametrize("kind", KINDS)
def test_iterates_with_switching_subgradients_inside(kind):
    path, expected, examples = switching(kind)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert len(expected.centers) == 5
    assert 8 < expected.along_f.sum() < T - 8
    assert len(set(expected.row[~expected.along_f])) >= 3
    assert 1 < expected.cut.sum() < T - 2
    other = with_switching(START, WEIGHT - ROW_WEIGHTS[kind], *examples)
    assert not np.allclose(other.x, expected.x), "the prox term of the rows makes no difference: this proves nothing"


@pytest.mark.parametrize("kind", ["weakly_convex"])
def test_iterates_with_constraint_extrapolation_inside(kind):
    path, expected, examples = extrapolating(kind)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert 1 < expected.cut.sum() < T - 2
    assert ((expected.y == 0).any(axis=0) & (expected.y > 0).any(axis=0)).sum() >= 3
    other = with_extrapolation(START, WEIGHT - ROW_WEIGHTS[kind], *examples)
    assert not np.allclose(other.x, expected.x), "the prox term of the rows makes no difference: this proves nothing"


def test_the_inner_methods_multipliers_restart_at_every_center():
    path, expected, _ = extrapolating("weakly_convex")
    found = np.stack([state.inner.multipliers for state in path.states[1:]])
    np.testing.assert_allclose(found, expected.y, rtol=1e-9, atol=1e-12)


def test_centers_are_the_last_iterates_of_the_inner_loops():
    path, expected, _ = switching("weakly_convex")
    found = np.stack([state.center for state in path.states[1:]])
    np.testing.assert_allclose(found, np.repeat(expected.centers, INNER, axis=0)[:T], rtol=1e-9)


def test_the_output_is_the_last_iterate():
    for path, _, _ in (switching("weakly_convex"), extrapolating("weakly_convex")):
        np.testing.assert_array_equal(path.method.output(path.states[-1]), path.x[-1])


def test_counts_are_the_inner_methods():
    path, expected, _ = switching("weakly_convex")
    assert [tuple(info) for info in path.infos] == [
        (1, 1, 0, CONSTRAINT_BATCH + BATCH) if along_f else (0, 2, 1, 2 * CONSTRAINT_BATCH)
        for along_f in expected.along_f
    ]
    assert {tuple(info) for info in extrapolating("weakly_convex")[0].infos} == {
        (1, 2, 2, BATCH + 2 * CONSTRAINT_BATCH)
    }


def test_the_inner_methods_samples_are_independent():
    for path, expected, (deciding, objective, slope) in (switching("convex"), extrapolating("weakly_convex")):
        assert independent(path)
        algorithm, weight = (with_switching, 0.0) if "subgradient" in path.samples else (with_extrapolation, WEIGHT)
        assert not np.allclose(algorithm(START, weight, slope, objective, slope).x, expected.x)
        assert not np.allclose(algorithm(START, weight, deciding, objective, deciding).x, expected.x)
