"""The stochastic inexact augmented Lagrangian method against a NumPy transcription, PStorm inside."""

import functools
from typing import NamedTuple

import noisy_by_hand as hand
import numpy as np
import pytest
from noisy_by_hand import NOISY, START, X1, WithSlacks
from sample_paths import drive

import tightrope as tr
from tightrope.methods import InexactALM

STEPS = 42


# ---- the rule, in NumPy ----------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """β0, σ, γ, smoothness of the objective and of ½‖c‖², T0."""

    beta: float
    sigma: float
    gamma: float
    smoothness: float
    penalty_smoothness: float
    budget: int


class Transcribed(NamedTuple):
    """Entry k is the state after k steps; the last steps of the rounds, and whether γ/‖c‖ was below β there."""

    x: np.ndarray
    multipliers: np.ndarray
    last: list[int]
    capped: list[bool]


def lagrangian(p: WithSlacks, x: np.ndarray, y: np.ndarray, beta: float, xi, zeta1, zeta2) -> np.ndarray:
    """∇f(x, ξ) + J(x, ζ¹)ᵀ(y + β c(x, ζ²))."""
    total, c, jacobian = p.gradient(x, xi), p.c(x, zeta2), p.jacobian(x, zeta1)
    for i in range(len(c)):
        total = total + jacobian[i] * (y[i] + beta * c[i])
    return total


def outer_ends(budget: int, sigma: float, steps: int) -> list[int]:
    """Step numbers after which an outer iteration ends: ⌈T0 + T0 σ² + T0 σ⁴ + …⌉."""
    ends, total, j = [], 0.0, 0
    while not ends or ends[-1] < steps:
        total += budget * sigma ** (2 * j)
        ends.append(int(np.ceil(total - 1e-9)))
        j += 1
    return ends


def rule(p: WithSlacks, s: Constants, x: np.ndarray, y: np.ndarray, samples: dict, steps: int) -> Transcribed:
    """Two plain loops, cut off after `steps` inner steps; `samples[role][k]` belongs to step k from 1."""
    path, duals, last, capped, k, start = [x], [y], [], [], 0, 0
    for j, end in enumerate(outer_ends(s.budget, s.sigma, steps)):
        beta = s.beta * s.sigma**j
        L = s.smoothness + beta * s.penalty_smoothness
        a = [4 ** (1 / 3) / (8 * L) * (t + 4) ** (-1 / 3) for t in range(end - start + 2)]
        v, previous = np.zeros(len(x)), x
        for t in range(end - start):
            k += 1
            if k > steps:
                break
            batch = [samples[role][k] for role in ("objective", "jacobian", "value")]
            if t == 0:
                v = lagrangian(p, x, y, beta, *batch)
            else:
                b = (1 + 24 * a[t - 1] ** 2 * L**2 - a[t] / a[t - 1]) / (1 + 4 * a[t - 1] ** 2 * L**2)
                v = lagrangian(p, x, y, beta, *batch) + (1 - b) * (v - lagrangian(p, previous, y, beta, *batch))
            previous, x = x, p.project(x - a[t] * v)
            if t == end - start - 1:
                c = p.c(x, samples["dual"][k])
                size = s.gamma / np.sqrt(c @ c)
                capped.append(bool(size < beta))
                y = y + min(beta, size) * c
                last.append(k)
            path.append(x)
            duals.append(y)
        start = end
    return Transcribed(np.stack(path), np.stack(duals), last, capped)


# ---- the library -----------------------------------------------------------------------------------------------------

WARM = np.array([0.4, -0.3, 0.2])
FRACTIONAL = Constants(beta=0.7, sigma=1.3, gamma=0.8, smoothness=0.5, penalty_smoothness=0.4, budget=2)
DOUBLING = FRACTIONAL._replace(sigma=2.0)


def method_of(s: Constants) -> InexactALM:
    return InexactALM(
        penalty=s.beta, penalty_growth=s.sigma, max_dual_step=s.gamma, smoothness=s.smoothness,
        penalty_smoothness=s.penalty_smoothness, inner_steps=s.budget,
    )  # fmt: skip


@functools.cache
def run(s: Constants, seed: int = 6):
    return drive(hand.noisy(), X1, method_of(s), steps=STEPS, seed=seed, start=START, multipliers=WARM)


def expected_of(s: Constants) -> Transcribed:
    return rule(NOISY, s, START, WARM, run(s).samples, STEPS)


@pytest.mark.parametrize("s", [FRACTIONAL, DOUBLING], ids=["fractional", "doubling"])
def test_iterates_and_multipliers_are_those_of_the_rule_on_the_same_samples(s):
    path, expected = run(s), expected_of(s)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    duals = np.stack([np.asarray(path.oracle.rows.to_raw(path.method.multipliers(state))) for state in path.states])
    np.testing.assert_allclose(duals, expected.multipliers, rtol=1e-9, atol=1e-12)
    assert expected.last == ([2, 6, 12, 21, 38] if s is FRACTIONAL else [2, 10, 42])
    assert True in expected.capped
    assert False in expected.capped
    assert hand.ball_is_active(expected.x)
    assert hand.slacks_visit_their_bounds(expected.x)


@functools.cache
def far() -> tr.Problem:
    """No point of the set is nearly feasible: the multiplier moves by γ at the end of every round."""
    return tr.Problem(
        lambda x: 0.0 * x[0], tr.equals(lambda x: x[0], 5.0, name="far"), domain=tr.domains.Box(-1.0, 1.0)
    )


@pytest.mark.parametrize(("growth", "ends"), [(2.0, [100, 500, 2100]), (1.2, [100, 244, 452, 750, 1180, 1800])])
def test_rounds_end_at_the_exact_steps_even_in_single_precision(growth, ends):
    """100, 100 + 400, + 1600; and 100, 100 + 144, ⌈244 + 207.36⌉, …"""
    method = InexactALM(penalty=1.0, penalty_growth=growth, max_dual_step=1.0, smoothness=1.0, penalty_smoothness=1.0)
    path = drive(far(), np.zeros(1, np.float32), method, steps=2200)
    assert path.x.dtype == np.float32
    duals = np.stack([state.multipliers for state in path.states])[:, 0]
    assert list(1 + np.flatnonzero(np.diff(duals))) == ends
    np.testing.assert_allclose(duals[ends], -np.arange(1.0, len(ends) + 1))


def test_the_four_samples_are_independent():
    path = run(FRACTIONAL)
    assert hand.independent(path, ["objective", "jacobian", "value", "dual"])
    for role, other in (("value", "jacobian"), ("jacobian", "value"), ("dual", "value")):
        wrong = path.samples | {role: path.samples[other]}
        x = rule(NOISY, FRACTIONAL, START, WARM, wrong, STEPS).x
        assert not np.allclose(path.x, x, rtol=1e-9, atol=1e-12)


def test_a_step_counts_two_estimates_and_one_more_value_after_a_round():
    path, expected = run(FRACTIONAL), expected_of(FRACTIONAL)
    constraints = hand.BATCH + hand.FEW
    for k, info in enumerate(path.infos, start=1):
        last = int(k in expected.last)
        assert info == (2, 4 + last, 2, hand.BATCH + (2 + last) * constraints), k


def test_the_output_is_the_last_iterate():
    path = run(FRACTIONAL)
    np.testing.assert_array_equal(path.method.output(path.states[-1]), path.x[-1])
