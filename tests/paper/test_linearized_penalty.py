"""The linearized penalty method against a NumPy transcription of Alacaoglu, Wright, Algorithm 2 and Section 4."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import noisy_by_hand as hand
import numpy as np
import pytest
from noisy_by_hand import DIM, FIXED, NOISY, START, X1, WithSlacks
from sample_paths import drive, follows, outputs, which

import tightrope as tr
from tightrope.methods import LinearizedPenalty, TruncatedMomentum

STEPS = 30


# ---- the paper, in NumPy ---------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """Theorem 3.1 (fifths) and Theorem 4.2 (quarters), times constants; γ = None: no multipliers."""

    eta: float
    rho: float
    alpha: float
    gamma: float | None = None
    quarters: bool = False
    offset: float = 0.0

    def eta_(self, k: int) -> float:
        return self.eta / (k + 1) ** (1 / 2 if self.quarters else 3 / 5)

    def rho_(self, k: int) -> float:
        return self.rho * k ** (1 / 4 if self.quarters else 1 / 5)

    def gamma_(self, k: int) -> float:
        """The dual step, without the constraint's size; the paper has no offset."""
        return self.gamma / ((k + self.offset) * np.log(k + self.offset + 1) ** 2)

    def alpha_(self, k: int) -> float:
        """α_k, k ≥ 2."""
        return min(1.0, self.alpha / k ** (1 / 2 if self.quarters else 4 / 5))


class Batch(NamedTuple):
    """B = (ξ⁰, ζ¹, ζ²)."""

    xi0: tuple
    zeta1: tuple
    zeta2: tuple


def estimate(p: WithSlacks, x: np.ndarray, multipliers: np.ndarray, rho: float, batch: Batch) -> np.ndarray:
    """(D.2); (3.1) where the multipliers are 0."""
    total = p.gradient(x, batch.xi0)
    c, jacobian = p.c(x, batch.zeta2), p.jacobian(x, batch.zeta1)
    for i in range(len(c)):
        total = total + jacobian[i] * multipliers[i] + rho * jacobian[i] * c[i]
    return total


class Transcribed(NamedTuple):
    """`x[k − 1]` is x_k, k = 1 … K + 1; `multipliers[k]` are λ_k + ρ_k c(x_{k+1}) for exact constraints, k = 1 … K."""

    x: np.ndarray
    multipliers: dict[int, np.ndarray]


def algorithm(
    p: WithSlacks, s: Constants, x1: np.ndarray, lambda1: np.ndarray, batches: list[Batch], prox: Callable | None = None
) -> Transcribed:
    """Algorithm 2, with (D.1a)-(D.1d) where there are multipliers; `batches[k]` is B_{k+1}."""
    into_set = prox or (lambda point, eta: p.project(point))
    x, dual, reported = {1: x1}, {1: lambda1, 2: lambda1}, {}
    if s.gamma is not None:
        dual[2] = dual[1] + s.gamma_(1) * np.sign(p.c(x[1], batches[0].zeta2))
    g = estimate(p, x[1], dual[1], s.rho_(1), batches[0])
    for k in range(1, len(batches)):
        batch = batches[k]
        x[k + 1] = into_set(x[k] - s.eta_(k) * g, s.eta_(k))
        new = estimate(p, x[k + 1], dual[k + 1], s.rho_(k + 1), batch)
        old = estimate(p, x[k], dual[k], s.rho_(k), batch)
        g = new + (1 - s.alpha_(k + 1)) * (g - old)
        dual[k + 2] = dual[k + 1]
        if s.gamma is not None:
            dual[k + 2] = dual[k + 1] + s.gamma_(k + 1) * np.sign(p.c(x[k + 1], batch.zeta2))
        if not batch.zeta2:
            reported[k] = dual[k] + s.rho_(k) * p.c(x[k + 1], ())
    return Transcribed(np.stack([x[k] for k in range(1, len(batches) + 1)]), reported)


def batches_of(path) -> list[Batch]:
    return [Batch(*(path.samples[role][k] for role in ("objective", "jacobian", "value"))) for k in range(STEPS + 1)]


def exact_batches_of(path) -> list[Batch]:
    """Where the constraints have no data."""
    return [Batch(entry, (), ()) for entry in path.samples["objective"]]


# ---- the library -------------------------------------------------------------------------------------------------------

WARM = np.array([0.4, -0.3, 0.2])
PLAIN = Constants(eta=0.4, rho=1.3, alpha=2.5)
DUAL = PLAIN._replace(gamma=0.3)
SLOW = PLAIN._replace(gamma=2.0, offset=7.0)
EXACT = Constants(eta=0.35, rho=1.3, alpha=1.9, quarters=True)


def method_of(s: Constants, **options) -> LinearizedPenalty:
    if s.gamma is not None:
        options |= {"dual": True, "dual_step_size": s.gamma, "dual_offset": s.offset}
    return LinearizedPenalty(step_size=s.eta, penalty=s.rho, momentum=s.alpha, **options)


@functools.cache
def run(s: Constants, problem: Callable = hand.noisy, **options):
    method = method_of(s, **options)
    return drive(problem(), X1, method, steps=STEPS, seed=3, start=START, multipliers=WARM)


# ---- iterates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [PLAIN, DUAL, SLOW], ids=["1b", "1c", "1c with an offset"])
def test_iterates_are_those_of_the_paper_on_the_same_samples(s):
    path = run(s)
    first = WARM if s.gamma else np.zeros(3)
    expected = algorithm(NOISY, s, START, first, batches_of(path))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert s.alpha_(2) == 1.0 > s.alpha_(STEPS)
    assert hand.ball_is_active(expected.x)
    assert hand.slacks_visit_their_bounds(expected.x)


def test_jacobians_values_and_gradients_come_from_independent_samples():
    path = run(PLAIN)
    assert hand.independent(path, ["objective", "jacobian", "value"])
    batches = batches_of(path)
    reused = [batch._replace(zeta2=batch.zeta1) for batch in batches]
    swapped = [Batch(batch.xi0, batch.zeta2, batch.zeta1) for batch in batches]
    for wrong in (reused, swapped):
        x = algorithm(NOISY, PLAIN, START, np.zeros(3), wrong).x
        assert not np.allclose(path.x, x, rtol=1e-9, atol=1e-12)


def shrink(params, step_size):
    """The prox of 0.4 ‖x‖₁ on the box of half width 0.34, which lies in the ball."""
    return jnp.clip(jnp.sign(params) * jnp.maximum(jnp.abs(params) - 0.4 * step_size, 0.0), -0.34, 0.34)


def shrink_by_hand(z: np.ndarray, eta: float) -> np.ndarray:
    point = NOISY.project(z)
    for i in range(DIM):
        size = min(max(abs(z[i]) - 0.4 * eta, 0.0), 0.34)
        point[i] = size if z[i] > 0 else -size
    return point


def test_a_prox_replaces_the_projection_and_slacks_keep_their_bounds():
    """With the deterministic schedule, requested by name."""
    path = run(EXACT, prox=shrink, schedule="deterministic")
    expected = algorithm(NOISY, EXACT, START, np.zeros(3), batches_of(path), shrink_by_hand)
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert np.any(expected.x[1:, :DIM] == 0.0)
    assert np.any(np.abs(expected.x[1:, :DIM]) == 0.34)
    assert hand.slacks_visit_their_bounds(expected.x)


# ---- deterministic constraints -------------------------------------------------------------------------------------------


def test_without_data_in_the_constraints_the_schedule_is_that_of_section_4_2():
    path = run(EXACT, hand.fixed)
    expected = algorithm(FIXED, EXACT, START, np.zeros(3), exact_batches_of(path))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)
    assert hand.box_is_active(expected.x)
    assert hand.slacks_visit_their_bounds(expected.x)


def test_exact_constraints_can_have_multipliers_and_the_stochastic_schedule():
    path = run(DUAL, hand.fixed, schedule="stochastic")
    expected = algorithm(FIXED, DUAL, START, WARM, exact_batches_of(path))
    np.testing.assert_allclose(path.x, expected.x, rtol=1e-9, atol=1e-12)


class Shifted(TruncatedMomentum):
    """2a with 1d's schedule: η_k of k + 1, and α_{k+1} instead of α_k."""

    def roles(self, oracle):
        return LinearizedPenalty().roles(oracle)

    def schedule(self, k):
        weight = jnp.minimum(1.0, self.momentum * (k + 1) ** -0.5)
        return self.step_size * (k + 1) ** -0.5, self.penalty * k**0.25, weight


def test_with_exact_constraints_it_is_truncated_momentum_without_truncation():
    path = run(EXACT, hand.fixed)
    method = Shifted(
        step_size=EXACT.eta, penalty=EXACT.rho, gradient_radius=np.inf, radius_growth=1.0, momentum=EXACT.alpha,
        error_bound_exponent=1.0,
    )  # fmt: skip
    other = drive(hand.fixed(), X1, method, steps=STEPS, seed=3, start=START)
    np.testing.assert_allclose(path.x, other.x, rtol=1e-9, atol=1e-12)


# ---- multipliers, outputs, counts ------------------------------------------------------------------------------------------


EXACT_DUAL = EXACT._replace(gamma=0.3)


@pytest.mark.parametrize("s", [EXACT, EXACT_DUAL], ids=["1d", "1c, exact"])
def test_reported_multipliers_belong_to_the_output(s):
    """The output after K' steps for every K' ≤ K: it is x_{k+1} with k ≤ K', and comes with its own multipliers."""
    path = run(s, hand.fixed)
    expected = algorithm(FIXED, s, START, WARM if s.gamma else np.zeros(3), exact_batches_of(path))
    found = set()
    for steps, state in enumerate(path.states[1:], start=1):
        k = 1 + which(np.asarray(path.method.output(state))[None], expected.x[1:])[0]
        assert k <= steps
        found.add(int(k))
        multipliers = np.asarray(path.oracle.rows.to_raw(path.method.multipliers(state)))
        np.testing.assert_allclose(multipliers, expected.multipliers[int(k)], rtol=1e-8, atol=1e-12)
    assert len(found) > 2


def test_a_sample_of_the_constraints_is_not_reported_as_a_multiplier():
    """(C.4) has ρ E c, which one batch does not give."""
    assert run(PLAIN).method.multipliers(run(PLAIN).states[-1]) is None


def test_the_output_is_uniform_over_the_new_iterates():
    """With a constant gradient x_k identifies k: x_{k+1} = x_k + η_k."""
    steps, s = 7, Constants(eta=1.0, rho=1.0, alpha=1.0, quarters=True)
    path = np.concatenate([[0.0], np.cumsum([s.eta_(k) for k in range(1, steps + 1)])])[:, None]
    slope = tr.Problem(lambda x: -jnp.sum(x))
    points = outputs(slope, np.zeros(1), method_of(s), steps=steps, seeds=4000)
    counts = np.bincount(1 + which(points, path), minlength=steps + 2)
    probabilities = np.array([0, 0, *[1 / steps] * steps])
    assert follows(counts, probabilities), counts


def test_a_step_counts_two_estimates():
    """A value and a Jacobian on ζ¹ and a value on ζ², at two points; with exact constraints one value serves both."""
    examples = hand.BATCH + 2 * (hand.BATCH + hand.FEW)
    assert set(run(PLAIN).infos) == {(2, 4, 2, examples)}
    assert set(run(DUAL).infos) == {(2, 4, 2, examples)}
    assert set(run(EXACT, hand.fixed).infos) == {(2, 2, 2, hand.BATCH)}
