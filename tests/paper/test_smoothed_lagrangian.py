"""The smoothed linearized augmented Lagrangian against a NumPy transcription of its rule, on the same samples."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from sample_paths import drive

import tightrope as tr

STEPS = 40


# ---- the rule, in NumPy ----------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    tau: float
    eta: float
    rho: float
    mu: float
    beta: float
    bound: float


class Transcribed(NamedTuple):
    """Points, multipliers and centers before step 1 and after each step; the steps of resets, and how often x was projected."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    resets: list[int]
    projected: int


def rule(s: Constants, start: np.ndarray, y: np.ndarray, samples: list[dict]) -> Transcribed:
    """Multipliers ascend first and are reset if too large; then x descends; then the center follows the old x."""
    x, z = start, start
    points, duals, centers, resets, projected = [x], [y], [z], [], 0
    for k, at in enumerate(samples, start=1):
        climbed = y + s.eta * c(x, at["dual"])
        if np.sqrt(np.sum(climbed**2)) >= s.bound:
            resets.append(k)
            climbed = np.zeros(len(y))
        weights = climbed + s.rho * c(x, at["value"])
        slope = f_gradient(x, at["objective"]) + s.mu * (x - z)
        for weight, line in zip(weights, jacobian(x, at["jacobian"]), strict=True):
            slope = slope + weight * line
        moved = x - s.tau * slope
        z = z + s.beta * (x - z)
        x, y = project(moved), climbed
        projected += int(np.any(x[:DIM] != moved[:DIM]))
        points.append(x)
        duals.append(y)
        centers.append(z)
    return Transcribed(np.stack(points), np.stack(duals), np.stack(centers), resets, projected)


# ---- a problem: an equality and a band that are random, a floor that is not, in a box -----------------------------------

N, NC, DIM, BATCH, CBATCH = 50, 30, 3, 3, 2
RNG = np.random.default_rng(7)
A, B, C = RNG.normal(size=(N, DIM)), RNG.normal(size=N), RNG.normal(size=(NC, DIM))
BOX, BAND, FLOOR = (-0.8, 0.75), (-0.3, 0.1), -0.05
X1 = np.array([0.5, -0.2, 0.3])


@functools.cache
def problem() -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B}, batch_size=BATCH)
    other = tr.Dataset(C, batch_size=CBATCH)
    constraints = [
        tr.equals(lambda x, batch: jnp.mean((batch @ x) ** 2), 0.4, data=other, name="energy"),
        tr.between(lambda x, batch: jnp.mean(batch @ x), *BAND, data=other, name="band"),
        tr.at_least(lambda x: x[0] * x[1], FLOOR, name="floor"),
    ]
    objective = lambda x, batch: jnp.mean(0.5 * (batch["a"] @ x - batch["b"]) ** 2 + jnp.sin(batch["a"] @ x))
    return tr.Problem(objective, constraints, domain=tr.domains.Box(*BOX), data=data)


def f_gradient(v: np.ndarray, sample: tuple) -> np.ndarray:
    x, total = v[:DIM], np.zeros(DIM)
    for i in sample[0]:
        total += A[i] * (A[i] @ x - B[i] + np.cos(A[i] @ x))
    return np.concatenate([total / len(sample[0]), [0.0, 0.0]])


def c(v: np.ndarray, sample: tuple) -> np.ndarray:
    x, s, examples = v[:DIM], v[DIM:], sample[1]
    energy = sum((C[i] @ x) ** 2 for i in examples) / len(examples)
    band = sum(C[i] @ x for i in examples) / len(examples)
    return np.array([energy - 0.4, band - s[0], x[0] * x[1] - s[1]])


def jacobian(v: np.ndarray, sample: tuple) -> np.ndarray:
    x, examples = v[:DIM], sample[1]
    energy = sum(2 * C[i] * (C[i] @ x) for i in examples) / len(examples)
    band = sum(C[i] for i in examples) / len(examples)
    return np.array([[*energy, 0, 0], [*band, -1, 0], [x[1], x[0], 0, 0, -1]])


def project(v: np.ndarray) -> np.ndarray:
    return np.concatenate([np.clip(v[:DIM], *BOX), [np.clip(v[DIM], *BAND), max(v[DIM + 1], FLOOR)]])


def samples_of(path) -> list[dict]:
    return [{role: path.samples[role][k] for role in path.samples} for k in range(1, STEPS + 1)]


def method_of(s: Constants) -> tr.methods.Method:
    return tr.methods.SmoothedLagrangian(
        step_size=s.tau,
        dual_step_size=s.eta,
        penalty=s.rho,
        proximal_weight=s.mu,
        smoothing=s.beta,
        multiplier_bound=s.bound,
    )


START = project(np.array([*X1, 0.05, X1[0] * X1[1]]))
RESETTING = Constants(tau=0.12, eta=0.5, rho=1.3, mu=0.9, beta=0.4, bound=0.8)


# ---- tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.8, 1e6], ids=["resetting", "wide"])
def test_points_multipliers_and_centers_are_those_of_the_rule_on_the_same_samples(bound):
    s = RESETTING._replace(bound=bound)
    path = drive(problem(), X1, method_of(s), steps=STEPS, seed=3, start=START)
    expected = rule(s, START, np.zeros(3), samples_of(path))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    raw = np.stack([np.asarray(path.oracle.rows.to_raw(path.method.multipliers(state))) for state in path.states])
    np.testing.assert_allclose(raw, expected.y, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(np.asarray(path.method.output(path.states[-1])), path.x[-1])
    assert (3 <= len(expected.resets) < STEPS // 2) == (bound == 0.8)
    assert expected.projected > 3
    slacks = expected.x[:, DIM:]
    assert np.any(slacks[:, 0] == BAND[0]) or np.any(slacks[:, 0] == BAND[1])
    assert np.any((slacks[:, 0] > BAND[0]) & (slacks[:, 0] < BAND[1]))
    assert np.abs(expected.x - expected.z).max() > 0.1


def test_each_step_has_four_independent_samples_and_counts_them():
    path = drive(problem(), X1, method_of(RESETTING), steps=STEPS, seed=3, start=START)
    assert set(path.samples) == {"objective", "dual", "jacobian", "value"}
    examples = np.stack(
        [np.stack([entry[1] for entry in path.samples[role]]) for role in ("dual", "jacobian", "value")]
    )
    assert examples.shape == (3, STEPS + 1, CBATCH)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.any(examples[one] != examples[other])
    assert set(path.infos) == {(1, 3, 1, BATCH + 3 * CBATCH)}
