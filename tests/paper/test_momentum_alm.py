"""The momentum-based linearized augmented Lagrangian method against a NumPy transcription, on the same samples."""

import functools
from typing import NamedTuple

import noisy_by_hand as hand
import numpy as np
import pytest
from noisy_by_hand import FLOOR, HIGH, LOW, TARGET, X1
from sample_paths import drive

from tightrope.methods import MomentumALM

STEPS = 30


# ---- the rule, in NumPy ----------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """Scales of η, β and α, and ρ."""

    eta: float
    beta: float
    alpha: float
    rho: float
    feasible: bool = False


class Transcribed(NamedTuple):
    """Entry k is the state after k steps; how often an inequality was active, inactive, and λ_I was stopped at 0."""

    x: np.ndarray
    multipliers: np.ndarray
    active: int
    inactive: int
    stopped: int
    alpha: float
    rho: float


def rows(x: np.ndarray) -> np.ndarray:
    """Energy − target = 0; band − high ≤ 0, low − band ≤ 0, floor's bound − floor ≤ 0."""
    energy, band, floor = hand.fixed_raw(x)
    return np.array([energy - TARGET, band - HIGH, LOW - band, FLOOR - floor])


def jacobian(x: np.ndarray) -> np.ndarray:
    energy, band, floor = hand.fixed_raw_jacobian(x)
    return np.array([energy, band, -band, -floor])


def rule(s: Constants, x: np.ndarray, multipliers: np.ndarray, xi: list) -> Transcribed:
    """`xi[0]` gives the first estimate, `xi[k]` belongs to step k."""
    K = len(xi) - 1
    if s.feasible:
        beta, eta, alpha = s.beta * K ** (1 / 3), s.eta * K ** (-1 / 3), min(1.0, s.alpha * K ** (-2 / 3))
    else:
        beta, eta, alpha = s.beta * K ** (1 / 4), s.eta * K ** (-1 / 4), min(1.0, s.alpha * K ** (-1 / 2))
    rho = min(s.rho, beta)
    v = hand.gradient(x, xi[0])
    path, duals, active, inactive, stopped = [x], [multipliers], 0, 0, 0
    for k in range(1, K + 1):
        c, J = rows(x), jacobian(x)
        direction = v.copy()
        for i in range(len(c)):
            z = multipliers[i] + beta * c[i]
            if i > 0:
                active += int(z > 0)
                inactive += int(z < 0)
                z = max(z, 0.0)
            direction += J[i] * z
        x_new = hand.in_box(x - eta * direction)
        v = hand.gradient(x_new, xi[k]) + (1 - alpha) * (v - hand.gradient(x, xi[k]))
        c = rows(x_new)
        climbed = multipliers.copy()
        climbed[0] += rho * c[0]
        for i in range(1, len(c)):
            stopped += int(multipliers[i] > 0 and c[i] < -multipliers[i] / beta)
            climbed[i] += rho * max(-multipliers[i] / beta, c[i])
        x, multipliers = x_new, climbed
        path.append(x)
        duals.append(multipliers)
    return Transcribed(np.stack(path), np.stack(duals), active, inactive, stopped, alpha, rho)


def to_raw(multipliers: np.ndarray) -> np.ndarray:
    """One signed number per constraint function: positive where an upper bound is active."""
    return np.stack([multipliers[:, 0], multipliers[:, 1] - multipliers[:, 2], -multipliers[:, 3]], axis=1)


# ---- the library -----------------------------------------------------------------------------------------------------

WARM = np.array([0.3, 0.0, 0.4, 0.2])
ANY = Constants(eta=0.3, beta=1.1, alpha=2.0, rho=0.9)
VARIANTS = {
    "any": ANY,
    "feasible": ANY._replace(feasible=True, alpha=3.0),
    "dual step at most the penalty": ANY._replace(rho=9.0, beta=0.8),
    "alpha is one": ANY._replace(alpha=11.0),
}


def method_of(s: Constants) -> MomentumALM:
    return MomentumALM(
        step_size=s.eta, penalty=s.beta, momentum=s.alpha, dual_step_size=s.rho,
        start="feasible" if s.feasible else "any",
    )  # fmt: skip


@functools.cache
def run(s: Constants, seed: int = 2):
    return drive(hand.fixed(), X1, method_of(s), steps=STEPS, seed=seed, multipliers=WARM)


def expected_of(s: Constants) -> Transcribed:
    return rule(s, X1, WARM, run(s).samples["objective"])


@pytest.mark.parametrize("name", list(VARIANTS))
def test_iterates_and_multipliers_are_those_of_the_rule_on_the_same_samples(name):
    s = VARIANTS[name]
    path, expected = run(s), expected_of(s)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    duals = np.stack([np.asarray(path.oracle.rows.to_raw(path.method.multipliers(state))) for state in path.states])
    np.testing.assert_allclose(duals, to_raw(expected.multipliers), rtol=1e-9, atol=1e-12)
    assert (expected.rho < s.rho) == (name == "dual step at most the penalty")
    assert (expected.alpha == 1.0) == (name == "alpha is one")
    assert expected.active > 3
    assert expected.inactive > 3
    assert expected.stopped > 1
    assert expected.multipliers[:, 1:].min() >= 0
    assert hand.box_is_active(expected.x)


def test_counts_and_fresh_samples():
    path = run(ANY)
    assert set(path.infos) == {(2, 1, 1, hand.BATCH)}
    drawn = np.stack([entry[0] for entry in path.samples["objective"]])
    assert len(np.unique(drawn, axis=0)) == STEPS + 1


def test_the_output_is_the_last_iterate():
    path = run(ANY)
    np.testing.assert_array_equal(path.method.output(path.states[-1]), path.x[-1])
