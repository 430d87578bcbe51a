"""Truncated momentum against a NumPy transcription of Lu, Mei, Xiao 2024, Algorithms 1 and 2, on the same samples."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from sample_paths import drive, follows, outputs, visited, which

import tightrope as tr

STEPS = 40


# ---- the paper, in NumPy ---------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A problem by hand: gradient of f on a sample, constraints, their Jacobian, projection."""

    gradient: object
    c: object
    jacobian: object
    project: object


class Schedule(NamedTuple):
    """(11), (14), (18), (21) times constants."""

    polyak: bool
    theta: float | None
    eta: float
    rho: float
    alpha: float
    growth: float = 1.0

    def eta_k(self, k: int) -> float:
        log = np.log(k + 2) if self.polyak or self.theta is None else 1.0
        return self.eta * k**-0.5 / log

    def rho_k(self, k: int) -> float:
        return self.rho * k ** (0.5 if self.theta is None else self.theta / 4)

    def alpha_k(self, k: int) -> float:
        return min(1.0, self.alpha * k**-0.5)


class Transcribed(NamedTuple):
    """Iterates x_1 … x_{K+1} (entry k − 1 is x_k), how often truncation and projection had an effect, and the last radius."""

    x: np.ndarray
    truncated: int
    projected: int
    radius: float


def ball(v: np.ndarray, radius: float) -> np.ndarray:
    norm = np.sqrt(np.sum(v * v))
    return v if norm <= radius else v / norm * radius


def algorithm(p: Problem, s: Schedule, radius: float, x1: np.ndarray, xi: list[np.ndarray]) -> Transcribed:
    """Algorithms 1 and 2; `xi[0]` is the paper's ξ_1, `xi[k]` its ξ_{k+1}. The radius grows as the docstring says."""
    x, truncated, projected, rate = x1, 0, 0, 0.0
    g = ball(p.gradient(x, xi[0]), radius)
    path = [x]
    for k in range(1, len(xi)):
        G = g + s.rho_k(k) * p.jacobian(x).T @ p.c(x)
        moved = x - s.eta_k(k) * G
        x_next = p.project(moved)
        projected += int(np.any(x_next != moved))
        if s.polyak:
            estimate = (1 - s.alpha_k(k)) * g + s.alpha_k(k) * p.gradient(x_next, xi[k])
        else:
            estimate = p.gradient(x_next, xi[k]) + (1 - s.alpha_k(k)) * (g - p.gradient(x, xi[k]))
        g = ball(estimate, radius)
        acted = int(np.any(g != estimate))
        truncated += acted
        rate = 15 / 16 * rate + acted / 16
        if rate > 1 / 2 and s.growth > 1:
            radius, rate = radius * s.growth, 0.0
        x = x_next
        path.append(x)
    return Transcribed(np.stack(path), truncated, projected, radius)


# ---- a problem: noisy least squares with a wave, on a sphere cut by a surface, in a ball --------------------------------

N, DIM, BATCH = 60, 4, 3
RNG = np.random.default_rng(3)
A, B, W = RNG.normal(size=(N, DIM)), RNG.normal(size=N), RNG.normal(size=(N, DIM))
X1 = np.array([0.7, -0.4, 0.3, 0.2])
SET_RADIUS = 0.89


def f(x, batch):
    return jnp.mean(0.5 * (batch["a"] @ x - batch["b"]) ** 2 + jnp.sin(batch["w"] @ x))


def surfaces(x):
    return jnp.stack([x @ x - 1.0, x[0] * x[1] - x[2] + 0.1 * x[3] ** 3])


def f_gradient(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    total = np.zeros(DIM)
    for i in examples:
        total += A[i] * (A[i] @ x - B[i]) + W[i] * np.cos(W[i] @ x)
    return total / len(examples)


BY_HAND = Problem(
    gradient=f_gradient,
    c=lambda x: np.array([x @ x - 1.0, x[0] * x[1] - x[2] + 0.1 * x[3] ** 3 - 0.2]),
    jacobian=lambda x: np.array([2 * x, [x[1], x[0], -1.0, 0.3 * x[3] ** 2]]),
    project=lambda x: ball(x, SET_RADIUS),
)


@functools.cache
def problem() -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B, "w": W}, batch_size=BATCH)
    return tr.Problem(
        f, tr.equals(surfaces, np.array([0.0, 0.2]), name="surfaces"), domain=tr.domains.L2Ball(SET_RADIUS), data=data
    )


def method_of(s: Schedule, radius: float) -> tr.methods.TruncatedMomentum:
    return tr.methods.TruncatedMomentum(
        step_size=s.eta, penalty=s.rho, gradient_radius=radius, momentum=s.alpha, error_bound_exponent=s.theta,
        radius_growth=s.growth, estimator="polyak" if s.polyak else "recursive",
    )  # fmt: skip


# ---- iterates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1.1, 50.0], ids=["truncating", "wide"])
@pytest.mark.parametrize("theta", [1.0, 1.5, None], ids=["theta1", "theta1.5", "unknown"])
@pytest.mark.parametrize("polyak", [False, True], ids=["2a", "2b"])
def test_iterates_are_those_of_the_paper_on_the_same_samples(polyak, theta, radius):
    s = Schedule(polyak, theta, eta=0.25, rho=1.7, alpha=1.0)
    path = drive(problem(), X1, method_of(s, radius), steps=STEPS, seed=5)
    xi = [entry[0] for entry in path.samples["objective"]]
    expected = algorithm(BY_HAND, s, radius, X1, xi)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert (expected.truncated > 5) == (radius == 1.1)
    assert expected.projected > 3


@pytest.mark.parametrize("polyak", [False, True], ids=["2a", "2b"])
def test_the_momentum_scale_multiplies_the_weight_which_stays_at_most_one(polyak):
    s = Schedule(polyak, 1.0, eta=0.2, rho=1.0, alpha=2.3)
    path = drive(problem(), X1, method_of(s, 50.0), steps=STEPS, seed=6)
    expected = algorithm(BY_HAND, s, 50.0, X1, [entry[0] for entry in path.samples["objective"]])
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("polyak", [False, True], ids=["2a", "2b"])
def test_the_radius_grows_while_it_truncates(polyak):
    s = Schedule(polyak, None, eta=0.25, rho=1.7, alpha=1.0, growth=2.0)
    path = drive(problem(), X1, method_of(s, 0.05), steps=STEPS, seed=5)
    expected = algorithm(BY_HAND, s, 0.05, X1, [entry[0] for entry in path.samples["objective"]])
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    last = path.states[-1]
    assert float(last.radius) == expected.radius > 0.1
    assert float(last.truncated) == pytest.approx(expected.truncated / STEPS)
    assert "raised from 0.05" in path.method.note(last)


def test_every_step_draws_a_fresh_batch_and_counts_what_it_computed():
    s = Schedule(False, None, eta=0.25, rho=1.7, alpha=1.0)
    path = drive(problem(), X1, method_of(s, 50.0), steps=STEPS, seed=5)
    examples = np.stack([entry[0] for entry in path.samples["objective"]])
    assert examples.shape == (STEPS + 1, BATCH)
    assert examples.min() >= 0
    assert examples.max() < N
    assert len(np.unique(examples, axis=0)) == STEPS + 1
    assert set(path.infos) == {(2, 1, 1, BATCH)}
    polyak = drive(problem(), X1, method_of(s._replace(polyak=True), 50.0), steps=2, seed=5)
    assert set(polyak.infos) == {(1, 1, 1, BATCH)}


# ---- inequalities by slacks --------------------------------------------------------------------------------------------

LOW, HIGH, FLOOR = 0.1, 0.35, -0.2


@functools.cache
def with_band() -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B, "w": W}, batch_size=BATCH)
    constraints = [
        tr.equals(lambda x: x @ x, 1.0, name="sphere"),
        tr.between(lambda x: x[0] * x[1] - x[2], LOW, HIGH, name="band"),
        tr.at_least(lambda x: x[3] - x[0] ** 2, FLOOR, name="floor"),
    ]
    return tr.Problem(f, constraints, data=data)


def band_c(z: np.ndarray) -> np.ndarray:
    x, s = z[:DIM], z[DIM:]
    return np.array([x @ x - 1.0, x[0] * x[1] - x[2] - s[0], x[3] - x[0] ** 2 - s[1]])


def band_jacobian(z: np.ndarray) -> np.ndarray:
    x = z[:DIM]
    return np.array([
        [*(2 * x), 0, 0],
        [x[1], x[0], -1, 0, -1, 0],
        [-2 * x[0], 0, 0, 1, 0, -1],
    ])  # fmt: skip


BAND = Problem(
    gradient=lambda z, examples: np.concatenate([f_gradient(z[:DIM], examples), [0.0, 0.0]]),
    c=band_c,
    jacobian=band_jacobian,
    project=lambda z: np.concatenate([z[:DIM], [np.clip(z[DIM], LOW, HIGH), max(z[DIM + 1], FLOOR)]]),
)


def band_start(x: np.ndarray) -> np.ndarray:
    """x_1 with each slack as close to the constraint's value as its bounds allow."""
    return BAND.project(np.array([*x, x[0] * x[1] - x[2], x[3] - x[0] ** 2]))


@pytest.mark.parametrize("polyak", [False, True], ids=["2a", "2b"])
def test_inequalities_get_slacks_that_are_kept_in_their_bounds(polyak):
    s = Schedule(polyak, None, eta=0.3, rho=1.2, alpha=1.0)
    start = band_start(X1)
    path = drive(with_band(), X1, method_of(s, 3.0), steps=STEPS, seed=2, start=start)
    expected = algorithm(BAND, s, 3.0, start, [entry[0] for entry in path.samples["objective"]])
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    slacks = expected.x[:, DIM:]
    assert np.any(slacks[:, 0] == LOW)
    assert np.any((slacks[:, 0] > LOW) & (slacks[:, 0] < HIGH))
    assert np.any(slacks[:, 1] == FLOOR)


def test_solve_visits_the_iterates_of_the_paper_and_starts_slacks_at_the_clipped_constraint_values():
    s = Schedule(False, None, eta=0.3, rho=1.2, alpha=1.0)
    start = band_start(X1)
    path = drive(with_band(), X1, method_of(s, 3.0), steps=STEPS, seed=2, start=start)
    expected = algorithm(BAND, s, 3.0, start, [entry[0] for entry in path.samples["objective"]])
    seen = visited(with_band(), X1, method_of(s, 3.0), steps=STEPS, seed=2)
    np.testing.assert_allclose(seen, expected.x[:, :DIM], rtol=1e-9, atol=1e-12)


def test_reported_multipliers_are_the_previous_penalty_times_the_constraints_at_the_output():
    s = Schedule(False, 1.5, eta=0.3, rho=1.2, alpha=1.0)
    start, found = band_start(X1), set()
    for seed in range(4):
        path = drive(with_band(), X1, method_of(s, 3.0), steps=12, seed=seed, start=start)
        expected = algorithm(BAND, s, 3.0, start, [entry[0] for entry in path.samples["objective"]])
        state = path.states[-1]
        k = 1 + which(np.asarray(path.method.output(state))[None], expected.x)[0]
        found.add(int(k))
        multipliers = np.asarray(path.oracle.rows.to_raw(path.method.multipliers(state)))
        np.testing.assert_allclose(multipliers, s.rho_k(k - 1) * band_c(expected.x[k - 1]), rtol=1e-8, atol=1e-12)
    assert len(found) > 1


# ---- the output ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [9, 10])
def test_the_output_is_uniform_over_the_second_half_of_the_iterates(steps):
    """With a constant gradient x_k identifies k: x_{k+1} = x_k + η_k."""
    s = Schedule(False, 1.0, eta=1.0, rho=1.0, alpha=1.0)
    path = np.concatenate([[0.0], np.cumsum([s.eta_k(k) for k in range(1, steps + 1)])])[:, None]
    slope = tr.Problem(lambda x: -jnp.sum(x))
    points = outputs(slope, np.zeros(1), method_of(s, 5.0), steps=steps, seeds=4000)
    counts = np.bincount(1 + which(points, path), minlength=steps + 2)
    allowed = np.arange(-(-steps // 2) + 1, steps + 1)
    probabilities = np.zeros(steps + 2)
    probabilities[allowed] = 1 / len(allowed)
    assert follows(counts, probabilities), counts
