"""Two-phase momentum against a NumPy transcription: STORM on ½‖c‖², then penalty and multipliers with constants fixed by K."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import noisy_by_hand as hand
import numpy as np
import pytest
from noisy_by_hand import FIXED, NOISY, START, X1, WithSlacks
from sample_paths import drive, follows, outputs, quick_jit, which

import tightrope as tr
from tightrope.methods import TwoPhaseMomentum
from tightrope.methods.base import Draw

STEPS = 30


# ---- the rule, in NumPy ----------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """c1, c2, c3, γ and j_0 of phase 2; step size, tolerance and largest fraction of phase 1."""

    c1: float
    c2: float
    c3: float
    gamma: float
    feasibility: float
    warm_up: float
    tolerance: float = 0.0
    offset: float = 0.0

    def gamma_(self, j: int) -> float:
        return self.gamma / ((j + self.offset) * np.log(j + self.offset + 1) ** 2)


class Batch(NamedTuple):
    """B = (ξ⁰, ζ¹, ζ²)."""

    xi0: tuple
    zeta1: tuple
    zeta2: tuple


class Transcribed(NamedTuple):
    """Entry k is the iterate after k steps, with its multipliers; N steps of phase 1, and α."""

    x: np.ndarray
    multipliers: np.ndarray
    first: int
    alpha: float


def infeasibility(p: WithSlacks, x: np.ndarray, curvatures: np.ndarray, batch: Batch) -> np.ndarray:
    """J(x, ζ¹)ᵀ W⁻¹ c(x, ζ²)."""
    c, jacobian, total = p.c(x, batch.zeta2), p.jacobian(x, batch.zeta1), np.zeros(len(x))
    for i in range(len(c)):
        total += jacobian[i] * c[i] / curvatures[i]
    return total


def row_curvatures(p: WithSlacks, x: np.ndarray, sample: tuple) -> np.ndarray:
    """max{‖∇c_i‖² at x and a tenth of max(1, ‖x‖) along (1, …, 1), 2 |c_i| ‖change of ∇c_i‖/distance}."""
    reach = 0.1 * max(1.0, np.sqrt(x @ x))
    y = p.project(x + reach * np.ones(len(x)) / np.sqrt(len(x)))
    here, there, c = p.jacobian(x, sample), p.jacobian(y, sample), p.c(x, sample)
    bend = [np.sqrt(np.sum((there[i] - here[i]) ** 2)) / np.sqrt(np.sum((y - x) ** 2)) for i in range(len(c))]
    return np.array([max(here[i] @ here[i], there[i] @ there[i], 2 * abs(c[i]) * bend[i]) for i in range(len(c))])


def penalized(p: WithSlacks, x: np.ndarray, multipliers: np.ndarray, rho: float, batch: Batch) -> np.ndarray:
    """∇f(x, ξ⁰) + J(x, ζ¹)ᵀ(λ + ρ c(x, ζ²))."""
    c, jacobian, total = p.c(x, batch.zeta2), p.jacobian(x, batch.zeta1), p.gradient(x, batch.xi0)
    for i in range(len(c)):
        total = total + jacobian[i] * (multipliers[i] + rho * c[i])
    return total


def rule(p: WithSlacks, s: Constants, x: np.ndarray, multipliers: np.ndarray, batches: list[Batch]) -> Transcribed:
    """`batches[0]` gives the first estimate, `batches[k]` belongs to step k; B_κ of phase 2 is `batches[N + κ − 1]`."""
    K = len(batches) - 1
    path, duals = [x], [multipliers]

    w = row_curvatures(p, x, batches[0].zeta1)
    v, rows = infeasibility(p, x, w, batches[0]), p.c(x, batches[0].zeta2)
    for k in range(1, K + 1):
        last = np.sqrt(np.sum(rows**2 / w)) <= s.tolerance or k >= np.floor(s.warm_up * K)
        x_new = p.project(x - s.feasibility * k ** (-1 / 3) * v)
        weight = min(1.0, k ** (-2 / 3))
        v = infeasibility(p, x_new, w, batches[k]) + (1 - weight) * (v - infeasibility(p, x, w, batches[k]))
        rows = p.c(x_new, batches[k].zeta2) + (1 - weight) * (rows - p.c(x, batches[k].zeta2))
        x = x_new
        path.append(x)
        duals.append(multipliers)
        if last:
            break
    N = len(path) - 1

    rho, eta, alpha = s.c1 * K ** (1 / 5), s.c2 * K ** (-3 / 5), min(1.0, s.c3 * K ** (-4 / 5))
    v = penalized(p, x, multipliers, rho, batches[N])
    dual = [np.full(len(multipliers), np.nan), multipliers]  # dual[κ] is λ_κ
    dual.append(dual[1] + s.gamma_(1) * np.sign(p.c(x, batches[N].zeta2)))
    for kappa in range(1, K - N + 1):
        batch = batches[N + kappa]
        x_new = p.project(x - eta * v)
        old = penalized(p, x, dual[kappa], rho, batch)
        v = penalized(p, x_new, dual[kappa + 1], rho, batch) + (1 - alpha) * (v - old)
        c = p.c(x_new, batch.zeta2)
        dual.append(dual[kappa + 1] + s.gamma_(kappa + 1) * np.sign(c))
        x = x_new
        path.append(x)
        duals.append(dual[kappa] + rho * c)
    return Transcribed(np.stack(path), np.stack(duals), N, alpha)


# ---- the library -----------------------------------------------------------------------------------------------------

WARM = np.array([0.4, -0.3, 0.2])
BOTH = Constants(c1=0.8, c2=1.1, c3=2.0, gamma=0.3, feasibility=0.3, warm_up=0.4)
VARIANTS = {
    "both phases": BOTH,
    "after one step": BOTH._replace(warm_up=0.03),
    "alpha is one": BOTH._replace(c3=40.0, warm_up=0.2),
    "between steps": BOTH._replace(warm_up=0.35, offset=5.0),
    "nearly feasible": BOTH._replace(tolerance=0.25, warm_up=0.9),
}


def method_of(s: Constants) -> TwoPhaseMomentum:
    return TwoPhaseMomentum(
        step_size=s.c2, penalty=s.c1, momentum=s.c3, dual_step_size=s.gamma,
        feasibility_step_size=s.feasibility, warm_up_fraction=s.warm_up, feasibility_tolerance=s.tolerance,
        dual_offset=s.offset,
    )  # fmt: skip


@functools.cache
def run(s: Constants, seed: int = 5):
    return drive(hand.noisy(), X1, method_of(s), steps=STEPS, seed=seed, start=START, multipliers=WARM)


def batches_of(path) -> list[Batch]:
    roles = ("objective", "jacobian", "value")
    return [Batch(*(path.samples[role][k] for role in roles)) for k in range(STEPS + 1)]


@pytest.mark.parametrize("name", list(VARIANTS))
def test_iterates_are_those_of_the_rule_on_the_same_samples(name):
    s = VARIANTS[name]
    path = run(s)
    expected = rule(NOISY, s, START, WARM, batches_of(path))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    lengths = {"both phases": 12, "after one step": 1, "alpha is one": 6, "between steps": 10}
    assert expected.first == lengths[name] if name in lengths else 3 < expected.first < 0.9 * STEPS
    assert (expected.alpha == 1.0) == (name == "alpha is one")
    assert hand.ball_is_active(expected.x)
    assert hand.slacks_visit_their_bounds(expected.x)


def test_jacobians_values_and_gradients_come_from_independent_samples():
    path = run(BOTH)
    assert hand.independent(path, ["objective", "jacobian", "value"])
    batches = batches_of(path)
    for wrong in (
        [batch._replace(zeta2=batch.zeta1) for batch in batches],
        [Batch(batch.xi0, batch.zeta2, batch.zeta1) for batch in batches],
    ):
        x = rule(NOISY, BOTH, START, WARM, wrong).x
        assert not np.allclose(path.x, x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["both phases", "after one step"])
def test_the_second_phase_starts_on_the_samples_of_the_previous_step(name):
    """With v_1 and λ_2 computed on the samples of v_2 the iterates would be different."""
    path, s = run(VARIANTS[name]), VARIANTS[name]
    batches = batches_of(path)
    first = rule(NOISY, s, START, WARM, batches).first
    assert not any(np.array_equal(*pair) for pair in zip(batches[first].xi0, batches[first + 1].xi0, strict=True))
    x = rule(NOISY, s, START, WARM, [*batches[:first], batches[first + 1], *batches[first + 1 :]]).x
    np.testing.assert_allclose(path.x[: first + 1], x[: first + 1], rtol=1e-9, atol=1e-12)
    assert not np.allclose(path.x[first + 1], x[first + 1], rtol=1e-3)


@pytest.mark.parametrize("name", ["both phases", "after one step"])
def test_a_step_is_independent_of_the_samples_of_its_new_estimate(name):
    """A step leads to the same x and λ on the samples of another step, so its new gradient estimate is unbiased."""
    path = run(VARIANTS[name])
    step = quick_jit(lambda *arguments: path.method.step(path.oracle, *arguments)[0])
    for k in range(1, STEPS + 1):
        samples = {role: path.samples[role][k - 1] for role in path.samples}
        draw = Draw(samples, path.uniforms[k], path.keys[k], jnp.int32(k), jnp.int32(STEPS))
        state, expected = step(path.states[k - 1], draw), path.states[k]
        np.testing.assert_allclose(state.x, expected.x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(state.multipliers, expected.multipliers, rtol=1e-9)
        assert not np.allclose(state.gradient, expected.gradient, rtol=1e-3)


def test_the_first_phase_evaluates_the_objective_only_to_start_the_second():
    """Its last step evaluates one point, with the objective."""
    examples = 2 * (hand.BATCH + hand.FEW)
    before, between, after = (0, 4, 2, examples), (1, 2, 1, examples + hand.BATCH), (2, 4, 2, examples + hand.BATCH)
    assert run(BOTH).infos == 11 * [before] + [between] + 18 * [after]
    assert run(VARIANTS["after one step"]).infos == [between] + 29 * [after]


def test_the_output_is_an_iterate_of_the_second_phase_with_its_multipliers():
    """In phase 1, the iterate itself; then after K' steps some x_{j+1} of phase 2, with λ_j + ρ c(x_{j+1}) if c is exact."""
    path = drive(hand.fixed(), X1, method_of(BOTH), steps=STEPS, seed=5, start=START, multipliers=WARM)
    batches = [Batch(entry, (), ()) for entry in path.samples["objective"]]
    expected, found = rule(FIXED, BOTH, START, WARM, batches), set()
    for steps, state in enumerate(path.states):
        k = int(which(np.asarray(path.method.output(state))[None], expected.x)[0])
        assert k == steps if steps <= expected.first else expected.first < k <= steps
        found.add(k)
        multipliers = path.oracle.rows.to_raw(path.method.multipliers(state))
        np.testing.assert_allclose(multipliers, expected.multipliers[k], rtol=1e-8, atol=1e-12)
    assert len(found) > expected.first + 3
    assert run(BOTH).method.multipliers(run(BOTH).states[-1]) is None  # one batch does not give E c


def test_the_output_is_uniform_over_the_second_phase():
    """Without constraints phase 1 is one step that does not move; with a constant gradient phase 2 takes equal steps."""
    steps, first = 8, 1
    path = BOTH.c2 * steps ** (-3 / 5) * np.arange(steps - first + 1)[:, None]
    slope = tr.Problem(lambda x: -jnp.sum(x))
    points = outputs(slope, np.zeros(1), method_of(BOTH), steps=steps, seeds=4000)
    counts = np.bincount(which(points, path), minlength=steps - first + 1)
    assert follows(counts, np.array([0, *[1 / (steps - first)] * (steps - first)])), counts
