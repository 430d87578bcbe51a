"""Gradient descent-ascent against a NumPy transcription, Adam included, on the same samples."""

import copy
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sample_paths import drive, visited

import tightrope as tr
from tightrope.methods import GradientDescentAscent

STEPS = 40


# ---- the rule, in NumPy ----------------------------------------------------------------------------------------------


class Plain:
    """The gradient itself."""

    def direction(self, gradient: np.ndarray) -> np.ndarray:
        return gradient


class Adam:
    """Kingma, Ba 2015, Algorithm 1, without the step size."""

    def __init__(self) -> None:
        self.t, self.first, self.second = 0, 0.0, 0.0

    def direction(self, gradient: np.ndarray) -> np.ndarray:
        self.t += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        return (self.first / (1 - 0.9**self.t)) / (np.sqrt(self.second / (1 - 0.999**self.t)) + 1e-8)


class OneScale(Adam):
    """The same with the mean of the second moments for all coordinates."""

    def direction(self, gradient: np.ndarray) -> np.ndarray:
        super().direction(gradient)
        scale = np.sqrt(np.mean(self.second) / (1 - 0.999**self.t)) + 1e-8
        return self.first / (1 - 0.9**self.t) / scale


class Transcribed(NamedTuple):
    x: np.ndarray
    multipliers: np.ndarray
    cuts: int
    projections: int


def in_box(x: np.ndarray) -> np.ndarray:
    return np.clip(x, *BOX)


def in_ball(x: np.ndarray) -> np.ndarray:
    return x * min(1.0, RADIUS / np.sqrt(x @ x))


def rule(
    primal, dual, eta: float, sigma: float, decay: float, x: np.ndarray, samples: list, project: Callable = in_box
) -> Transcribed:
    """Descent in x and ascent in λ at once, from λ = 0; the first row is an equality, the others inequalities."""
    multipliers = np.zeros(4)
    path, duals, cuts, projections = [x], [multipliers], 0, 0
    for k, examples in enumerate(samples, start=1):
        c, jacobian = rows_and_jacobian(x, examples)
        gradient = f_gradient(x, examples) + sum(m * line for m, line in zip(multipliers, jacobian, strict=True))
        moved = x - eta * k**-decay * primal.direction(gradient)
        climbed = multipliers + sigma * k**-decay * dual.direction(c)
        cuts += int(np.any(climbed[1:] < 0))
        multipliers = np.array([climbed[0], *(max(m, 0.0) for m in climbed[1:])])
        x = project(moved)
        projections += int(np.any(x != moved))
        path.append(x)
        duals.append(multipliers)
    return Transcribed(np.stack(path), np.stack(duals), cuts, projections)


def lagrangian_gradient(x: np.ndarray, multipliers: np.ndarray, examples: np.ndarray) -> np.ndarray:
    _, jacobian = rows_and_jacobian(x, examples)
    return f_gradient(x, examples) + sum(m * line for m, line in zip(multipliers, jacobian, strict=True))


def cut_at_zero(multipliers: np.ndarray) -> np.ndarray:
    return np.array([multipliers[0], *(max(m, 0.0) for m in multipliers[1:])])


def alternating(primal, dual, eta: float, sigma: float, decay: float, x: np.ndarray, samples: list) -> Transcribed:
    """Descent in x first, then ascent in λ at the new x, on a sample of its own."""
    multipliers = np.zeros(4)
    path, duals, cuts, projections = [x], [multipliers], 0, 0
    for k, (joint, second) in enumerate(samples, start=1):
        moved = x - eta * k**-decay * primal.direction(lagrangian_gradient(x, multipliers, joint))
        x = np.clip(moved, *BOX)
        c, _ = rows_and_jacobian(x, second)
        climbed = multipliers + sigma * k**-decay * dual.direction(c)
        multipliers = cut_at_zero(climbed)
        cuts += int(np.any(multipliers != climbed))
        projections += int(np.any(x != moved))
        path.append(x)
        duals.append(multipliers)
    return Transcribed(np.stack(path), np.stack(duals), cuts, projections)


def extragradient(primal, dual, eta: float, sigma: float, decay: float, x: np.ndarray, samples: list) -> Transcribed:
    """A provisional step along the gradients at (x, λ), then a step from (x, λ) along those at the provisional point.

    The second gradients have a sample of their own, and only they update the optimizers.
    """
    multipliers = np.zeros(4)
    path, duals, cuts, projections = [x], [multipliers], 0, 0
    for k, (joint, second) in enumerate(samples, start=1):
        down, up = eta * k**-decay, sigma * k**-decay
        c, _ = rows_and_jacobian(x, joint)
        try_primal, try_dual = copy.deepcopy((primal, dual))
        half = np.clip(x - down * try_primal.direction(lagrangian_gradient(x, multipliers, joint)), *BOX)
        half_multipliers = cut_at_zero(multipliers + up * try_dual.direction(c))
        c, _ = rows_and_jacobian(half, second)
        moved = x - down * primal.direction(lagrangian_gradient(half, half_multipliers, second))
        climbed = multipliers + up * dual.direction(c)
        x, multipliers = np.clip(moved, *BOX), cut_at_zero(climbed)
        cuts += int(np.any(multipliers != climbed))
        projections += int(np.any(x != moved))
        path.append(x)
        duals.append(multipliers)
    return Transcribed(np.stack(path), np.stack(duals), cuts, projections)


# ---- a problem with an equality, a band and a floor, all random ------------------------------------------------------------

N, DIM, BATCH, BOX, RADIUS = 40, 3, 3, (-0.9, 0.8), 0.8
RNG = np.random.default_rng(21)
A, B, C = RNG.normal(size=(N, DIM)), RNG.normal(size=N), RNG.normal(size=(N, DIM))
X1 = np.array([0.5, -0.2, 0.3])


@functools.cache
def problem(kind: str = "box") -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B, "c": C}, batch_size=BATCH)
    constraints = [
        tr.equals(lambda x, batch: jnp.mean((batch["c"] @ x) ** 2), 0.4, data=data, name="energy"),
        tr.between(lambda x, batch: jnp.mean(batch["c"] @ x), -0.3, 0.1, data=data, name="band"),
        tr.at_least(lambda x: x[0] * x[1], -0.05, name="floor"),
    ]
    objective = lambda x, batch: jnp.mean(0.5 * (batch["a"] @ x - batch["b"]) ** 2)
    domain = tr.domains.Box(*BOX) if kind == "box" else tr.domains.L2Ball(RADIUS)
    return tr.Problem(objective, constraints, domain=domain, data=data)


def f_gradient(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    return sum(A[i] * (A[i] @ x - B[i]) for i in examples) / len(examples)


def rows_and_jacobian(x: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Energy − 0.4 = 0, band − 0.1 ≤ 0, −0.3 − band ≤ 0, −0.05 − floor ≤ 0."""
    energy = sum((C[i] @ x) ** 2 for i in examples) / len(examples)
    energy_slope = sum(2 * C[i] * (C[i] @ x) for i in examples) / len(examples)
    slope = sum(C[i] for i in examples) / len(examples)
    c = np.array([energy - 0.4, slope @ x - 0.1, -0.3 - slope @ x, -0.05 - x[0] * x[1]])
    return c, np.array([energy_slope, slope, -slope, [-x[1], -x[0], 0.0]])


def to_raw(multipliers: np.ndarray) -> np.ndarray:
    """One signed number per constraint function: positive where an upper bound is active."""
    return np.stack([multipliers[:, 0], multipliers[:, 1] - multipliers[:, 2], -multipliers[:, 3]], axis=1)


# ---- tests ---------------------------------------------------------------------------------------------------------

ADAM = optax.scale_by_adam()
VARIANTS: dict[str, tuple[Callable, Callable, dict]] = {
    "plain": (Plain, Plain, {"primal": optax.identity(), "dual": optax.identity()}),
    "default": (Adam, Plain, {}),
    "adam-both": (Adam, Adam, {"primal": ADAM, "dual": ADAM}),
}


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_iterates_and_multipliers_are_those_of_the_rule_on_the_same_samples(variant, decay):
    primal, dual, directions = VARIANTS[variant]
    eta, sigma = (0.3, 0.8) if decay else (0.1, 0.3)
    method = GradientDescentAscent(step_size=eta, dual_step_size=sigma, decay=decay, **directions)
    path = drive(problem(), X1, method, steps=STEPS, seed=1)
    samples = [entry[0] for entry in path.samples["joint"][1:]]
    expected = rule(primal(), dual(), eta, sigma, decay, X1, samples)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    raw = np.stack([np.asarray(path.oracle.rows.to_raw(path.method.multipliers(state))) for state in path.states])
    np.testing.assert_allclose(raw, to_raw(expected.multipliers), rtol=1e-9, atol=1e-12)
    assert expected.cuts > 3
    assert expected.projections > 0
    assert expected.multipliers[:, 0].min() < 0 < expected.multipliers[:, 0].max() or variant != "plain"
    assert set(path.infos) == {(1, 1, 1, BATCH)}


def test_on_a_set_that_couples_coordinates_the_default_has_one_scale_for_all():
    method = GradientDescentAscent(step_size=0.3, dual_step_size=0.8)
    path = drive(problem("ball"), X1, method, steps=STEPS, seed=1)
    samples = [entry[0] for entry in path.samples["joint"][1:]]
    expected = rule(OneScale(), Plain(), 0.3, 0.8, 0.5, X1, samples, in_ball)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert expected.projections > 3
    assert not np.allclose(expected.x, rule(Adam(), Plain(), 0.3, 0.8, 0.5, X1, samples, in_ball).x)


@pytest.mark.parametrize(("part", "same"), [(tr.domains.NonNegative(), True), (tr.domains.Simplex(), False)])
def test_on_a_product_the_default_is_adam_only_if_every_part_is_made_of_intervals(part, same):
    parts = tr.domains.Product({"a": tr.domains.Box(-1.0, 1.0), "b": part})
    made = tr.Problem(lambda x: x["a"] @ x["a"] + x["b"] @ jnp.array([1.0, 5.0]), domain=parts)
    x0 = {"a": jnp.array([0.9, -0.5]), "b": jnp.array([0.5, 0.5])}
    default, adam = (tr.solve(made, x0, GradientDescentAscent(primal=p), steps=3).x for p in (None, ADAM))
    assert np.array_equal(default["a"], adam["a"]) == same


UPDATES = {"alternating": (alternating, (1, 2, 1, 2 * BATCH)), "extragradient": (extragradient, (2, 2, 2, 2 * BATCH))}


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("variant", ["plain", "adam-both"])
@pytest.mark.parametrize("update", list(UPDATES))
def test_alternating_and_extragradient_steps_are_those_of_their_rules_on_the_same_samples(update, variant, decay):
    (by_hand, cost), (primal, dual, directions) = UPDATES[update], VARIANTS[variant]
    eta, sigma = (0.3, 0.8) if decay else (0.1, 0.3)
    method = GradientDescentAscent(step_size=eta, dual_step_size=sigma, decay=decay, update=update, **directions)
    path = drive(problem(), X1, method, steps=STEPS, seed=1)
    samples = [(path.samples["joint"][k][0], path.samples["second"][k][0]) for k in range(1, STEPS + 1)]
    expected = by_hand(primal(), dual(), eta, sigma, decay, X1, samples)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    raw = np.stack([np.asarray(path.oracle.rows.to_raw(path.method.multipliers(state))) for state in path.states])
    np.testing.assert_allclose(raw, to_raw(expected.multipliers), rtol=1e-9, atol=1e-12)
    assert expected.cuts > 3
    assert expected.projections > 0
    assert np.any(np.stack([joint != second for joint, second in samples]))
    assert set(path.infos) == {cost}


def test_only_equalities_have_negative_multipliers():
    """F = x² with x = 1 (λ = −2) and x ≤ 3 (μ = 0)."""
    constraints = [tr.equals(lambda x: x[0], 1.0, name="one"), tr.at_most(lambda x: x[0], 3.0, name="three")]
    method = GradientDescentAscent(step_size=0.1, dual_step_size=0.1, decay=0.0, primal=optax.identity())
    path = drive(tr.Problem(lambda x: x[0] ** 2, constraints), np.zeros(1), method, steps=400)
    duals = np.stack([state.multipliers for state in path.states])
    assert duals[:, 1].min() == 0.0
    np.testing.assert_allclose(duals[-1], [-2.0, 0.0], atol=1e-3)


def test_solve_visits_the_iterates_of_the_rule():
    method = GradientDescentAscent(step_size=0.3, dual_step_size=0.8, decay=0.5, primal=ADAM)
    path = drive(problem(), X1, method, steps=STEPS, seed=1)
    expected = rule(Adam(), Plain(), 0.3, 0.8, 0.5, X1, [entry[0] for entry in path.samples["joint"][1:]])
    np.testing.assert_allclose(visited(problem(), X1, method, steps=STEPS, seed=1), expected.x, rtol=1e-9, atol=1e-12)
