"""Constraints on ratios, tails and probabilities: exact where they say so, honest where they are not, invisible to the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq, linprog
from scipy.stats import norm

import tightrope as tr
from tightrope.problems.builders import quantile
from tightrope.problems.lifting import lift
from tightrope.problems.parameters import Parameters
from tightrope.problems.problem import variant

MEAN = jnp.array([0.3, 0.4])
GAUSSIAN = tr.Sampler(lambda key, n: MEAN + jax.random.normal(key, (n, 2)), batch_size=256)
NUMBERS = st.floats(-10.0, 10.0, allow_subnormal=False)


def loss(x, batch):
    return -batch @ x


def cost(x, batch):
    return -jnp.mean(batch @ x)


def excess(x, batch):
    return loss(x, batch) - 1.0


def tail_mean(losses, level):
    """The mean of the worst 1 − level of the losses; the last one that counts may count in part."""
    worst, share = np.sort(losses)[::-1], losses.size * (1.0 - level)
    weights = np.clip(share - np.arange(losses.size), 0.0, 1.0)
    return weights @ worst / share


# ---------------------------------------------------------------------- conditional value at risk


@given(arrays(float, st.integers(1, 40), elements=NUMBERS), st.floats(0.02, 0.98))
def test_the_lifted_value_at_the_best_threshold_is_the_mean_of_the_tail(losses, level):
    def lifted(t):
        return t + np.mean(np.maximum(losses - t, 0.0)) / (1.0 - level)

    best = lifted(quantile(losses, level))
    assert best == pytest.approx(tail_mean(losses, level), abs=1e-9)
    assert best <= min(map(lifted, losses)) + 1e-9


def test_a_threshold_has_no_slope_where_the_tail_is_a_whole_number_of_examples():
    losses = np.arange(10.0)
    assert quantile(losses, 0.8) == 7.5


SCENARIOS = np.random.default_rng(1).normal([0.2, 0.1, 0.05], [1.0, 0.5, 0.1], size=(400, 3))
LEVELS, LIMITS = (0.8, 0.95), (0.30, 0.45)


@pytest.fixture(scope="module")
def portfolio():
    """A portfolio with bounds on its tail and on a probability, on finite scenarios, with parameters that have a structure."""
    data = tr.Dataset(SCENARIOS, batch_size=64)
    risks = [
        tr.cvar_at_most(lambda x, batch: -batch @ x["shares"], level, limit, data=data, name=f"worst {1 - level:.0%}")
        for level, limit in zip(LEVELS, LIMITS, strict=True)
    ]
    ruin = tr.chance_at_most(lambda x, batch: -batch @ x["shares"] - 1.0, 0.3, data=data, name="ruin")  # is slack
    gain = lambda x, batch: -jnp.mean(batch @ x["shares"])
    return tr.Problem(
        gain, [risks[0], ruin, risks[1]], domain=tr.domains.Product({"shares": tr.domains.Simplex()}), data=data
    )


X0 = {"shares": jnp.full(3, 1 / 3)}


@pytest.fixture(scope="module")
def solved(portfolio):
    seen = []
    record = tr.Record(500, metrics={"largest": lambda x, batch: jnp.max(x["shares"])})
    result = tr.solve(portfolio, X0, steps=2000, record=record, callback=lambda row: seen.append(row["x"]))
    return result, seen


def portfolio_by_linear_programming():
    """The same portfolio by linear programming: shares, two thresholds, and the excess of every scenario over each."""
    n = len(SCENARIOS)
    objective = np.concatenate([-SCENARIOS.mean(axis=0), np.zeros(2 + 2 * n)])
    rows, limits = [], []
    for i, (level, limit) in enumerate(zip(LEVELS, LIMITS, strict=True)):
        above = np.zeros((n, objective.size))
        above[:, :3], above[:, 3 + i] = -SCENARIOS, -1.0
        above[:, 5 + i * n : 5 + (i + 1) * n] = -np.eye(n)
        mean = np.zeros((1, objective.size))
        mean[0, 3 + i], mean[0, 5 + i * n : 5 + (i + 1) * n] = 1.0, 1.0 / (n * (1.0 - level))
        rows += [above, mean]
        limits += [np.zeros(n), [limit]]
    total = np.concatenate([np.ones(3), np.zeros(2 + 2 * n)])[None]
    free = [(0, None)] * 3 + [(None, None)] * 2 + [(0, None)] * (2 * n)
    return linprog(objective, np.concatenate(rows), np.concatenate(limits), total, [1.0], free)


def test_a_portfolio_with_two_bounds_on_its_tail_is_that_of_linear_programming(solved):
    result, exact = solved[0], portfolio_by_linear_programming()
    assert result.success
    assert result.objective == pytest.approx(exact.fun, abs=1e-3)
    np.testing.assert_allclose(result.x["shares"], exact.x[:3], atol=0.02)


def test_the_answer_callbacks_and_metrics_have_the_users_parameters(solved):
    result, seen = solved
    assert jax.tree.structure(result.x) == jax.tree.structure(X0)
    assert all(jax.tree.structure(x) == jax.tree.structure(X0) for x in seen)
    assert result.history["largest"][-1] == pytest.approx(float(jnp.max(seen[-1]["shares"])))


def test_a_certificate_evaluates_the_tail_itself_on_all_data(portfolio):
    x = {"shares": jnp.array([0.9, 0.1, 0.0])}
    certificate = tr.certify(portfolio, x)
    losses = -SCENARIOS @ np.asarray(x["shares"])
    for level, limit in zip(LEVELS, LIMITS, strict=True):
        found = certificate.violation[f"worst {1 - level:.0%}"]
        assert found.kind == "exact"
        assert found.value == pytest.approx(tail_mean(losses, level) - limit, rel=1e-5)


def test_a_certificate_evaluates_the_share_of_examples_and_not_a_smooth_one(portfolio):
    x = {"shares": jnp.array([5.0, 0.0, 0.0])}
    share = np.mean(-SCENARIOS @ np.asarray(x["shares"]) > 1.0)
    found = tr.certify(portfolio, x).violation["ruin"]
    assert found.kind == "exact"
    assert found.value == pytest.approx(share - 0.3, abs=1e-6)


def test_a_run_with_thresholds_goes_on_from_a_warm_start_and_from_a_checkpoint(portfolio, solved, tmp_path):
    again = tr.solve(portfolio, X0, steps=2000, record=500, warm_start=solved[0])
    assert again.success
    stopped = tr.solve(
        portfolio, X0, steps=2000, record=500, checkpoint=tmp_path, callback=lambda row: row["step"] >= 500
    )
    assert stopped.status == "interrupted"
    resumed = tr.solve(portfolio, X0, steps=2000, record=500, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.x["shares"], solved[0].x["shares"])


@pytest.fixture(scope="module")
def gaussian_tail():
    level = 0.9
    factor = norm.pdf(norm.ppf(level)) / (1.0 - level)  # of the standard deviation, above the mean
    problem = tr.Problem(cost, tr.cvar_at_most(loss, level, 1.0, data=GAUSSIAN, name="tail"), data=GAUSSIAN)
    return problem, factor


@pytest.mark.full
def test_a_bound_on_the_tail_of_a_gaussian_is_met_as_in_closed_form(gaussian_tail):
    problem, factor = gaussian_tail
    result = tr.solve(problem, jnp.array([0.1, 0.1]), steps=2000)
    tail = factor * np.linalg.norm(result.x) - result.x @ MEAN
    assert result.objective == pytest.approx(-0.5 / (factor - 0.5), abs=0.01)
    assert tail == pytest.approx(1.0, abs=0.01)
    found = result.certificate.violation["tail"]
    assert found.low <= max(tail - 1.0, 0.0) <= found.high


@pytest.mark.parametrize(("length", "verdict"), [(1.5, "infeasible"), (0.5, "feasible")])
def test_the_tail_of_a_point_is_judged_on_fresh_samples(gaussian_tail, length, verdict):
    problem, factor = gaussian_tail
    x = length / (factor - 0.5) * MEAN / 0.5
    certificate = tr.certify(problem, x, seed=1)
    found = certificate.violation["tail"]
    assert certificate.verdict == verdict
    assert found.kind == "asymptotic"
    assert found.low <= max(length - 1.0, 0.0) <= found.high


@pytest.mark.full
def test_a_loss_gets_a_random_key_and_the_model_state():
    data = tr.Dataset(SCENARIOS.astype("float32"), batch_size=64)

    def noisy(x, batch, state, key=None):
        noise = 0.0 if key is None else 0.01 * jax.random.normal(key, (len(batch),))
        return -batch @ x - state + noise, state

    def gain(x, batch, state):
        return -jnp.mean(batch @ x), 0.9 * state + 0.1 * jnp.mean(batch)

    risk = tr.cvar_at_most(noisy, 0.9, 1.0, data=data)
    problem = tr.Problem(gain, risk, domain=tr.domains.Simplex(), data=data)
    result = tr.solve(problem, tr.WithState(jnp.full(3, 1 / 3), jnp.zeros(())), steps=100)
    assert isinstance(result.x, tr.WithState)
    assert result.x.params.shape == (3,)
    losses = -SCENARIOS @ np.asarray(result.x.params) - float(result.x.state)
    assert result.violation == pytest.approx(max(tail_mean(losses, 0.9) - 1.0, 0.0), abs=1e-4)


@pytest.mark.full
def test_a_stepper_takes_thresholds_from_nothing_to_an_answer_that_is_certified():
    rng = np.random.default_rng(0)
    batches = tr.Batches(like=SCENARIOS[:64])
    risk = tr.cvar_at_most(loss, 0.9, 0.3, data=batches, name="tail")
    problem = tr.Problem(cost, risk, domain=tr.domains.Simplex(), data=batches)
    stepper = tr.Stepper(problem, jnp.full(3, 1 / 3), steps=300)
    state, step = stepper.init(SCENARIOS[:64]), jax.jit(stepper.step)
    for _ in range(300):
        state, _ = step(state, SCENARIOS[rng.choice(400, 64)])
    assert state.x.shape == (3,)
    result = stepper.answer(state, tr.Dataset(SCENARIOS, batch_size=64))
    losses = -SCENARIOS @ np.asarray(result.x)
    assert result.violation == pytest.approx(max(tail_mean(losses, 0.9) - 0.3, 0.0), abs=1e-5)
    assert result.violation < 0.02


@pytest.mark.full
def test_a_sweep_and_a_stream_have_answers_without_thresholds(portfolio):
    swept = tr.sweep(portfolio, X0, ["AdaptivePenalty", "AdaptiveLagrangian"], steps=200, seeds=2)
    assert all(result.x["shares"].shape == (3,) for result in swept.results)
    stream = tr.Stream(lambda: iter(np.split(SCENARIOS.astype("float32"), 4)))
    problem = tr.Problem(cost, tr.cvar_at_most(loss, 0.9, 0.3, data=stream), domain=tr.domains.Simplex(), data=stream)
    result = tr.solve(problem, jnp.full(3, 1 / 3), steps=300)
    assert result.violation < 0.02
    assert result.violation == pytest.approx(
        max(tail_mean(-SCENARIOS @ np.asarray(result.x), 0.9) - 0.3, 0.0), abs=1e-5
    )


# ---------------------------------------------------------------------- probabilities


@given(arrays(np.float32, 20, elements=st.floats(-10.0, 10.0, width=32, allow_subnormal=False)), st.floats(0.01, 5.0))
@settings(deadline=None)
def test_the_smooth_constraint_is_never_below_the_probability(margins, width):
    data = tr.Dataset(jnp.zeros((1, 1)), batch_size=1)
    constraint = tr.chance_at_most(lambda x, batch: x, 0.1, data=data)
    assert constraint.surrogate is not None
    share = float(constraint.fn(jnp.asarray(margins), None))
    assert share == pytest.approx(np.mean(margins > 0.0))
    assert float(constraint.surrogate(jnp.asarray(margins), None, auxiliary=width)) >= share - 1e-6


@pytest.fixture(scope="module")
def gaussian_chance():
    return tr.Problem(cost, tr.chance_at_most(excess, 0.05, data=GAUSSIAN, name="ruin"), data=GAUSSIAN)


def test_a_bound_on_a_gaussian_probability_is_met_as_in_closed_form(gaussian_chance):
    result = tr.solve(gaussian_chance, jnp.array([0.1, 0.1]), steps=2000)
    best = -0.5 / (norm.ppf(0.95) - 0.5)
    assert result.objective == pytest.approx(best, rel=0.04)
    probability = norm.sf((1.0 + result.x @ MEAN) / np.linalg.norm(result.x))
    assert 0.045 < probability < 0.0505
    found = result.certificate.violation["ruin"]
    assert found.kind == "bound"
    assert found.low <= max(probability - 0.05, 0.0) <= found.high


@pytest.mark.parametrize(("length", "verdict"), [(1.2, "infeasible"), (0.8, "feasible")])
def test_a_probability_is_judged_on_fresh_samples_without_smoothing(gaussian_chance, length, verdict):
    x = length / (norm.ppf(0.95) - 0.5) * MEAN / 0.5
    certificate = tr.certify(gaussian_chance, x, seed=2)
    found, probability = certificate.violation["ruin"], norm.sf((1.0 + x @ MEAN) / np.linalg.norm(x))
    assert certificate.verdict == verdict
    assert found.low <= max(probability - 0.05, 0.0) <= found.high


# ---------------------------------------------------------------------- ratios

LABELS = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
SCORED = tr.Dataset({"y": LABELS, "score": 2.0 * LABELS - 1.0}, batch_size=10)
"""Three of ten are positive; scores are normal around 1 for those, around −1 for the others."""


def flagged(threshold, batch):
    return jnp.mean(jax.scipy.stats.norm.cdf(batch["score"] - threshold))


def found(threshold, batch):
    return jnp.mean(batch["y"] * jax.scipy.stats.norm.cdf(batch["score"] - threshold))


def test_variants_of_a_problem_share_programs_but_no_data_and_no_bounds():
    """As the two runs of `holdout` and the points of a trade-off: the second must not see what the first had."""
    first, second = (tr.Dataset(SCENARIOS[part, :2], batch_size=8) for part in (slice(0, 64), slice(64, 128)))
    problem = tr.Problem(cost, tr.chance_at_most(excess, 0.05, data=first, name="ruin"), data=first)
    lifted = []
    for data, bound in ((first, 0.05), (second, 0.03)):
        constraint = replace(problem.constraints[0], data=data, high=np.asarray(bound))
        made = variant(problem, [constraint], data, ("training", 64))
        lifted.append(lift(made, Parameters(jnp.array([0.1, 0.1])), "solve")[0])
    assert [each.data for each in lifted] == [first, second]
    assert [float(each.constraints[0].high) for each in lifted] == [0.05, 0.03]


def test_the_lowest_threshold_of_a_precision_is_that_of_its_equation():
    def precision(threshold):
        hits, alarms = 0.3 * norm.sf(threshold - 1.0), 0.7 * norm.sf(threshold + 1.0)
        return hits / (hits + alarms)

    constraint = tr.ratio_at_least(found, flagged, 0.8, data=SCORED)
    result = tr.solve(tr.Problem(lambda threshold: threshold, constraint), jnp.array(2.0), steps=2000)
    assert result.success
    assert float(result.x) == pytest.approx(brentq(lambda t: precision(t) - 0.8, -2.0, 3.0), abs=2e-3)
    assert list(result.multipliers) == ["found / flagged"]
    assert result.multipliers["found / flagged"] > 0.0


@given(arrays(float, 3, elements=st.floats(0.1, 5.0)), arrays(float, 2, elements=NUMBERS))
@settings(max_examples=20, deadline=None)
def test_a_ratio_of_vectors_is_bounded_entry_by_entry(x, bounds):
    data = tr.Dataset(SCENARIOS[:, :2], batch_size=8)
    constraint = tr.ratio_at_most(
        lambda x, batch: jnp.mean(batch, axis=0) * x[:2], lambda x, batch: x[2], bounds, data=data, name="both"
    )
    value = constraint.fn(jnp.asarray(x), jnp.asarray(SCENARIOS[:8, :2]))
    np.testing.assert_allclose(value, SCENARIOS[:8, :2].mean(axis=0) * x[:2] - bounds * x[2], rtol=1e-3, atol=1e-4)


def test_a_denominator_that_is_not_positive_at_the_answer_is_warned_of():
    constraint = tr.ratio_at_least(
        lambda x, batch: jnp.mean(batch["y"]) * x, lambda x, batch: x, 0.5, data=SCORED, name="r"
    )
    problem = tr.Problem(lambda x: (x + 1.0) ** 2, constraint)
    with pytest.warns(UserWarning, match="denominator of the constraint 'r' is .*-1"):
        tr.certify(problem, jnp.array(-1.0))


# ---------------------------------------------------------------------- bad input


def by_example(x, batch):
    return batch[:, 0] * x


DATA = tr.Dataset(SCENARIOS, batch_size=64)
NOTHING: Any = None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tr.cvar_at_most(by_example, 1.0, 0.0, data=DATA), "cvar_at_most: level must be"),
        (lambda: tr.cvar_at_most(by_example, 0.9, np.inf, data=DATA), "cvar_at_most: bound must be"),
        (lambda: tr.cvar_at_most(by_example, 0.9, 0.0, data=NOTHING), "cvar_at_most: data is missing"),
        (lambda: tr.chance_at_most(by_example, 0.0, data=DATA), "chance_at_most: probability must be"),
        (lambda: tr.chance_at_most(by_example, 0.1, data=DATA, smoothing=0.0), "chance_at_most: smoothing must be"),
        (lambda: tr.ratio_at_least(found, flagged, np.nan, data=SCORED), "ratio_at_least: bound must be"),
        (lambda: tr.ratio_at_most(found, flagged, 0.5, data=NOTHING), "ratio_at_most: data is missing"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("constraint", "x0", "message"),
    [
        (tr.cvar_at_most(lambda x, b: jnp.mean(b) * x, 0.9, 0.0, data=DATA, name="r"), 1.0, "one value per example"),
        (tr.cvar_at_most(lambda x, b: b[:, 0] / x, 0.9, 0.0, data=DATA, name="r"), 0.0, "'r' is not finite for all"),
        (tr.chance_at_most(by_example, 0.1, data=DATA), 0.0, "pass smoothing="),
        (tr.chance_at_most(lambda x, b: b[:, 0] * x, 0.1, data=tr.Batches(SCENARIOS[:8])), 1.0, "pass smoothing="),
    ],
)
def test_functions_that_give_no_estimate_at_the_start_are_refused(constraint, x0, message):
    with pytest.raises(ValueError, match=message):
        tr.Stepper(tr.Problem(lambda x: x**2, constraint), jnp.array(x0), steps=10)


def test_a_margin_may_take_a_key_and_the_model_state():
    def margin(params, batch, state, key=None):
        return batch - params - state

    def objective(params, state):
        return params**2, state

    values = np.random.default_rng(0).normal(size=500).astype("float32")
    data = tr.Dataset(values, batch_size=50)
    problem = tr.Problem(objective, tr.chance_at_most(margin, 0.1, data=data, smoothing=0.5, name="late"))
    x = tr.WithState(jnp.asarray(0.25), jnp.asarray(0.5))
    found = tr.certify(problem, x).violation["late"].value
    assert found == pytest.approx(np.mean(values > 0.75) - 0.1, abs=1e-6)
