"""Stochastic SQP against a NumPy transcription of Berahas, Curtis, Robinson, Zhou 2021, Algorithm 3.1, on the same samples."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from sample_paths import drive

import tightrope as tr

STEPS = 30


# ---- the paper, in NumPy ---------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    L: float = 2.0
    Gamma: float = 2.0
    tau: float = 1.0
    xi: float = 1.0
    beta: float = 1.0
    sigma: float = 0.5
    epsilon: float = 1e-2
    theta: float = 10.0


class Transcribed(NamedTuple):
    """Iterates; multipliers, merit and ratio parameters, and the case of each step ('cut': clipped to its bounds)."""

    x: np.ndarray
    y: np.ndarray
    tau: np.ndarray
    xi: np.ndarray
    cases: list[str]


def algorithm(gradient, c, jacobian, s: Constants, x: np.ndarray, samples: list) -> Transcribed:
    tau, xi = s.tau, s.xi
    points, duals, taus, xis, cases = [x], [], [tau], [xi], []
    for examples in samples:
        v, value, J = gradient(x, examples), c(x), jacobian(x)
        n, m = len(x), len(value)
        system = np.block([[np.eye(n), J.T], [J, np.zeros((m, m))]])
        solution = np.linalg.lstsq(system, -np.concatenate([v, value]), rcond=1e-10)[0]
        d, y = solution[:n], solution[n:]
        square, violation = d @ d, np.sum(np.abs(value))
        q = v @ d + max(square, 0.0)
        trial = np.inf if q <= 0 else (1 - s.sigma) * violation / q
        if tau > trial:
            tau = (1 - s.epsilon) * trial
        decrease = -tau * (v @ d + 0.5 * max(square, 0.0)) + violation
        trial = decrease / (tau * square)
        if xi > trial:
            xi = (1 - s.epsilon) * trial
        curvature = tau * s.L + s.Gamma
        low = s.beta * xi * tau / curvature
        high = low + s.theta * s.beta**2
        longer = s.beta * decrease / (curvature * square)
        shorter = longer - 4 * violation / (curvature * square)
        inside = [low <= a <= high for a in (longer, shorter)]
        longer, shorter = (min(max(a, low), high) for a in (longer, shorter))
        if longer < 1:
            step, case = longer, f"longer{'' if inside[0] else ' cut'}"
        elif shorter <= 1:
            step, case = 1.0, "one"
        else:
            step, case = shorter, f"shorter{'' if inside[1] else ' cut'}"
        cases.append(case)
        x = x + step * d
        points.append(x)
        duals.append(y)
        taus.append(tau)
        xis.append(xi)
    return Transcribed(*(np.stack(a) for a in (points, duals, taus, xis)), cases)


# ---- a problem: noisy least squares with a wave, on a sphere cut by a surface; and with the sphere twice ----------------

N, DIM, BATCH, SCALE = 60, 4, 3, 0.3
RNG = np.random.default_rng(13)
A, B, W = RNG.normal(size=(N, DIM)), RNG.normal(size=N), RNG.normal(size=(N, DIM))
X1, X2 = np.array([0.7, -0.4, 0.3, 0.2]), np.array([1.2, 0.9, -0.5, 0.8])


def f(x, batch):
    return SCALE * jnp.mean(0.5 * (batch["a"] @ x - batch["b"]) ** 2 + jnp.sin(batch["w"] @ x))


def f_gradient(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    total = np.zeros(DIM)
    for i in examples:
        total += A[i] * (A[i] @ x - B[i]) + W[i] * np.cos(W[i] @ x)
    return SCALE * total / len(examples)


def c(x: np.ndarray) -> np.ndarray:
    return np.array([x @ x - 1.5, x[0] * x[1] - x[2] + 0.1 * x[3] ** 3 - 0.2])


def jacobian(x: np.ndarray) -> np.ndarray:
    return np.array([2 * x, [x[1], x[0], -1.0, 0.3 * x[3] ** 2]])


def twice(x: np.ndarray) -> np.ndarray:
    """With the sphere repeated, scaled by −2: the rows of the Jacobian are dependent, and c lies in its range."""
    return np.append(c(x), -2 * c(x)[0])


def twice_jacobian(x: np.ndarray) -> np.ndarray:
    return np.vstack([jacobian(x), -2 * jacobian(x)[:1]])


@functools.cache
def problem(repeated: bool) -> tr.Problem:
    surfaces = lambda x: jnp.stack([x @ x, x[0] * x[1] - x[2] + 0.1 * x[3] ** 3])
    constraints = [tr.equals(surfaces, np.array([1.5, 0.2]), name="surfaces")]
    if repeated:
        constraints.append(tr.equals(lambda x: -2 * (x @ x), -3.0, name="again"))
    return tr.Problem(f, constraints, data=tr.Dataset({"a": A, "b": B, "w": W}, batch_size=BATCH))


def method_of(s: Constants) -> tr.methods.Method:
    return tr.methods.StochasticSQP(
        smoothness=s.L, jacobian_smoothness=s.Gamma, merit_parameter=s.tau, ratio_parameter=s.xi, damping=s.beta,
        decrease_fraction=s.sigma, shrink=s.epsilon, step_size_span=s.theta,
    )  # fmt: skip


def run(s: Constants, repeated: bool = False, seed: int = 4, start: np.ndarray = X1):
    path = drive(problem(repeated), X1, method_of(s), steps=STEPS, seed=seed, start=start)
    examples = [entry[0] for entry in path.samples["objective"][1:]]
    by_hand = (twice, twice_jacobian) if repeated else (c, jacobian)
    return path, algorithm(f_gradient, *by_hand, s, start, examples)


def multipliers_of(path) -> np.ndarray:
    return np.stack([np.asarray(path.oracle.rows.to_raw(path.method.multipliers(s))) for s in path.states[1:]])


# ---- tests ---------------------------------------------------------------------------------------------------------

CASES = {
    "short": (Constants(), X1, {"longer", "one"}),
    "long": (Constants(L=0.3, Gamma=0.1, epsilon=0.1, theta=0.9, xi=0.4), X2, {"one", "shorter"}),
    "longest": (Constants(L=0.3, Gamma=0.2, tau=3.0, epsilon=0.1, theta=1.0), X2, {"longer", "one", "shorter cut"}),
    "narrow": (Constants(L=0.5, Gamma=0.3, beta=0.7, theta=0.2, xi=0.3), X1, {"longer cut"}),
    "damped": (Constants(L=0.6, Gamma=0.5, beta=0.6, theta=3.0, sigma=0.8), X1, {"longer", "one"}),
    "eager": (Constants(tau=20.0, xi=30.0, epsilon=0.3), X2, {"longer"}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_iterates_and_multipliers_are_those_of_the_paper_on_the_same_samples(name):
    s, start, seen = CASES[name]
    path, expected = run(s, start=start, seed=6)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(multipliers_of(path), expected.y, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(np.asarray(path.method.output(path.states[-1])), path.x[-1])
    assert set(path.infos) == {(1, 1, 1, BATCH)}
    assert seen <= set(expected.cases), expected.cases
    if name == "longest":
        assert np.sum(np.diff(expected.tau) < 0) >= 2
        assert np.sum(np.diff(expected.xi) < 0) >= 2


def test_dependent_rows_get_minimum_norm_multipliers_and_the_same_step():
    s = Constants(epsilon=0.1)
    path, expected = run(s, repeated=True)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(multipliers_of(path), expected.y, rtol=1e-9, atol=1e-12)
    assert np.all(np.abs(expected.y[:, 2] + 2 * expected.y[:, 0]) < 1e-9)
