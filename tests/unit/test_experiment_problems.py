"""The problems of five experiments against NumPy. Tests on real files need TIGHTROPE_DATA."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from generated_files import needs_real_files
from scipy.stats import multivariate_normal

from tightrope.experiments.base import Entry
from tightrope.experiments.exact_penalty_bank import config as bank_config
from tightrope.experiments.exact_penalty_bank import problem as bank
from tightrope.experiments.exact_penalty_bank.claims import at_budget, samples_to_most
from tightrope.experiments.exact_penalty_loan import config as loan_config
from tightrope.experiments.fair_adult import problem as adult
from tightrope.experiments.fair_adult.claims import average_violation
from tightrope.experiments.fairness_tradeoff import config as tradeoff_config
from tightrope.experiments.fairness_tradeoff import problem as tradeoff
from tightrope.experiments.fairness_tradeoff.claims import goes_down, late
from tightrope.experiments.matrix_completion import config as completion_config
from tightrope.experiments.matrix_completion import problem as completion
from tightrope.experiments.matrix_completion.claims import falls
from tightrope.experiments.matrix_completion.measure import curves, scores
from tightrope.methods import ExactPenalty, InexactALM
from tightrope.problems.checks import check_functions
from tightrope.problems.parameters import Parameters

# ---------------------------------------------------------------------- exact-penalty-bank and -loan


@pytest.mark.parametrize("n", [7, 81])
def test_the_draws_have_the_papers_means_and_variances(n):
    drawn = bank.draws(n, 4000)
    assert drawn["A"].shape == (4000, 10, n)
    assert drawn["a"].shape == (4000, 10)
    assert drawn["A"].var(axis=0, dtype=float).mean() == pytest.approx(1e-3 / n, rel=0.05)
    assert drawn["a"].var(axis=0, dtype=float).mean() == pytest.approx(1e-3, rel=0.1)
    centers = bank.draws(2000, 1)["A"]  # one draw of many entries: A0 to within the small noise
    assert centers.mean() == pytest.approx(1.0, abs=0.3)
    assert centers.var() == pytest.approx(100.0, rel=0.05)


def test_the_start_has_length_one_hundredth():
    assert np.linalg.norm(bank.start(81)) == pytest.approx(0.01, rel=1e-5)


@pytest.fixture
def few_examples(monkeypatch):
    """Thirty examples with twenty features instead of a data set."""
    rng = np.random.default_rng(5)
    arrays = {"x": rng.normal(size=(30, 20)).astype(np.float32), "y": np.sign(rng.normal(size=30)).astype(np.float32)}
    monkeypatch.setattr(bank, "examples", lambda name, count: arrays)
    return arrays


def test_the_mean_constraint_is_the_mean_of_the_draws(few_examples):
    problem, _ = bank.make.__wrapped__("any", None)
    x, drawn = np.linspace(-1.0, 2.0, 20), bank.draws(20)
    found = problem.constraints[0].fn(jnp.asarray(x, jnp.float32), problem.constraints[0].data.arrays)
    expected = drawn["A"].mean(axis=0, dtype=float) @ x - drawn["a"].mean(axis=0, dtype=float)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_metrics_are_loss_violation_and_residual_of_least_squares_multipliers(few_examples):
    metrics, x = bank.metrics.__wrapped__("any", None), np.linspace(-0.5, 0.7, 20)
    features, labels, drawn = few_examples["x"].astype(float), few_examples["y"].astype(float), bank.draws(20)
    matrix, right = drawn["A"].mean(axis=0, dtype=float), drawn["a"].mean(axis=0, dtype=float)
    margins = labels * (features @ x)
    gradient, jacobian = features.T @ (-labels / (1 + np.exp(margins))) / 30, np.vstack([matrix, 2 * x])
    multipliers = np.linalg.lstsq(jacobian.T, -gradient, rcond=None)[0]
    expected = {
        "loss": np.mean(np.log1p(np.exp(-margins))),
        "norm of c": np.linalg.norm(np.append(matrix @ x - right, x @ x - 1)),
        "KKT residual": np.linalg.norm(gradient + jacobian.T @ multipliers),
    }
    expected["ε"] = max(expected["norm of c"], expected["KKT residual"])
    assert expected["KKT residual"] > 0.01
    found = {name: float(metric(jnp.asarray(x, jnp.float32), None)) for name, metric in metrics.items()}
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.by_default("bank-full-81")
@needs_real_files
@pytest.mark.parametrize(("name", "n"), [("bank-full", 81), ("loan", 137)])
def test_there_are_eleven_constraints_and_the_stated_number_of_features(name, n):
    problem, x0 = bank.make(name)
    assert x0.shape == (n,)
    assert sum(map(math.prod, check_functions(problem, Parameters(x0)))) == 11


def test_every_method_has_nine_settings_and_the_chosen_one_is_among_them():
    for label, grid in bank_config.GRIDS.items():
        assert len(grid) == 9
        assert repr(bank_config.CHOSEN[label]) in [repr(method) for method in grid]


def test_on_the_loan_data_the_others_are_tuned_again_and_exact_penalty_keeps_its_settings():
    sizes = {label: len(grid) for label, grid in loan_config.GRIDS.items()}
    assert sizes == {label: 1 if label == bank_config.EXACT else 9 for label in bank_config.GRIDS}
    assert repr(loan_config.CHOSEN[bank_config.EXACT]) == repr(bank_config.CHOSEN[bank_config.EXACT])
    for label, grid in loan_config.GRIDS.items():
        assert repr(loan_config.CHOSEN[label]) in [repr(method) for method in grid]


def test_exact_penalty_has_the_papers_numbers_in_every_setting():
    for method in bank_config.GRIDS[bank_config.EXACT]:
        assert isinstance(method, ExactPenalty)
        numbers = (
            method.penalty,
            method.penalty_growth,
            method.normal_fraction,
            method.decrease_fraction,
            method.step_size,
        )
        assert numbers == (1.0, 1.2, 0.8, 0.8, 0.001)


def test_adjusting_multiplies_step_and_penalty_alone():
    method = bank_config.adjusted(bank_config.inexact_alm(0.1, 1.0), 2.0, 0.5)
    assert isinstance(method, InexactALM)
    assert method.penalty == pytest.approx(0.05)
    assert method.smoothness == pytest.approx(3.0 / 16)
    exact = bank_config.adjusted(bank_config.exact_penalty(20, 1), 2.0, 0.5)
    assert isinstance(exact, ExactPenalty)
    assert (exact.step_size, exact.penalty, exact.penalty_growth) == (0.002, 0.5, 1.2)


def test_values_at_the_budget_are_means_over_the_last_tenth_and_infinite_where_a_run_diverged():
    steps = [0, 50, 90, 100]
    frame = pd.DataFrame({"entry": "a", "seed": 0, "step": steps, "v": [9.0, 9.0, 1.0, 3.0], "status": "budget"})
    assert at_budget(frame, "v") == {"a": 2.0}
    assert at_budget(frame.assign(status="diverged"), "v") == {"a": np.inf}


def test_samples_are_counted_to_95_percent_of_the_decrease_that_all_reach():
    frame = pd.DataFrame({"step": [0, 1, 2], "samples": [0, 3, 6]})
    fast, slow = frame.assign(entry="fast", loss=[1.0, 0.52, 0.1]), frame.assign(entry="slow", loss=[1.0, 0.53, 0.5])
    assert samples_to_most(pd.concat([fast, slow])) == {"fast": 3.0, "slow": 6.0}


# ---------------------------------------------------------------------- fair-adult


@pytest.fixture
def people():
    """Generated examples in the format of `fair_adult`."""
    rng = np.random.default_rng(3)
    group = rng.random(200) < 0.6
    x = rng.normal(size=(200, 4)) + group[:, None]
    y = np.where(rng.random(200) < 0.5, 1.0, -1.0)
    return {"x": x, "y": y, "s": group.astype(float), "group": group - group.mean()}


def test_the_covariance_is_numpys(people):
    theta = np.array([0.3, -1.0, 2.0, 0.5])
    expected = np.cov(people["s"], people["x"] @ theta, bias=True)[0, 1]
    assert adult.covariance(theta, people) == pytest.approx(expected, rel=1e-5)


def test_accuracy_and_p_rule_are_in_percent(people):
    theta = np.array([0.3, -1.0, 2.0, 0.5])
    score = people["x"] @ theta
    assert adult.accuracy(theta, people) == pytest.approx(100 * np.mean(np.sign(score) == people["y"]), rel=1e-5)
    rates = [np.mean(score[people["s"] == value] >= 0) for value in (0, 1)]
    assert adult.p_rule(theta, people) == pytest.approx(100 * min(rates) / max(rates), rel=1e-5)


def test_the_zero_classifier_predicts_positive_for_all(people):
    assert adult.accuracy(np.zeros(4), people) == pytest.approx(100 * np.mean(people["y"] > 0), rel=1e-5)


def test_the_p_rule_is_100_where_nobody_or_everybody_is_chosen(people):
    nobody = people | {"x": -np.ones((200, 4))}
    assert adult.p_rule(np.ones(4), nobody) == 100.0
    assert adult.p_rule(np.zeros(4), people) == 100.0


@needs_real_files
def test_adult_is_split_as_in_the_paper():
    train, test = adult.parts()
    assert len(train["y"]) == 28_350
    assert len(train["y"]) + 3_150 + len(test["y"]) == 45_222
    assert train["group"].mean(dtype=float) == pytest.approx(0.0, abs=1e-6)
    problem, x0 = adult.make()
    assert x0.shape == (101,)
    assert problem.constraints[0].kind == "between"


def test_the_average_violation_is_that_of_the_mean_iterate():
    run = pd.DataFrame({"signed covariance": [0.2, -0.1, -0.4]})
    np.testing.assert_allclose(average_violation(run), [0.15, 0.0, 0.05])


# ---------------------------------------------------------------------- matrix-completion


@pytest.fixture(scope="module")
def instance():
    return completion.instance()


def test_the_matrix_is_200_by_300_of_rank_10_with_the_papers_shares_observed(instance):
    assert instance.truth.shape == (200, 300)
    assert np.linalg.matrix_rank(instance.truth) == 10
    zeros = instance.truth == 0
    assert zeros.mean() == pytest.approx((1 - 0.3 * 0.5) ** 10, abs=0.05)
    assert instance.observed[~zeros].mean() == pytest.approx(0.9, abs=0.01)
    assert instance.observed[zeros].mean() == pytest.approx(0.01, abs=0.004)


def test_the_noise_has_the_stated_size_and_the_truth_its_square_as_normalized_error(instance):
    assert np.linalg.norm(instance.noisy - instance.truth) == pytest.approx(1e-3 * np.linalg.norm(instance.truth))
    seen = instance.observed
    error = np.sum((instance.truth - instance.noisy)[seen] ** 2) / np.sum(instance.noisy[seen] ** 2)
    assert error == pytest.approx(1e-6, rel=0.3)


def test_the_truth_lies_on_both_bounds(instance):
    problem, x0 = completion.make(200)
    assert instance.radius == pytest.approx(np.linalg.norm(instance.truth, "nuc"))
    limit = problem.constraints[0]
    value = limit.fn(jnp.asarray(instance.truth, jnp.float32), limit.data.arrays)
    assert value == pytest.approx(float(limit.high), rel=1e-4)
    assert value * limit.data.size == pytest.approx(0.5 * np.sum(instance.truth[~instance.observed] ** 2), rel=1e-4)
    assert not x0.any()


def test_the_objective_is_the_mean_over_the_observed_entries_alone(instance):
    problem, _ = completion.make(200)
    x = np.random.default_rng(1).random((200, 300))
    expected = 0.5 * np.mean((x - instance.noisy)[instance.observed] ** 2)
    assert problem.objective(jnp.asarray(x, jnp.float32), problem.data.arrays) == pytest.approx(expected, rel=1e-4)


def test_both_readings_of_tau_are_run():
    found = completion_config.methods(1000)
    assert found[completion_config.BY_ENTRY].penalty == pytest.approx(5e-3)
    assert found[completion_config.BY_MEAN].penalty == 5e-6


def test_the_tuned_methods_have_nine_settings_each_with_the_papers_other_constants():
    grids = completion_config.grids(1000)
    numbers = {(m.step_size, m.momentum) for m in grids[completion_config.TUNED_CONSERVATIVE]}
    weights = {m.penalty for m in grids[completion_config.TUNED_PENALTY]}
    assert len(numbers) == len(weights) == 9
    assert {(m.tightening, m.regularization) for m in grids[completion_config.TUNED_CONSERVATIVE]} == {(0.77, 0.25)}
    assert max(weights) == pytest.approx(5e-3)


def test_settings_with_a_positive_average_violation_score_worse():
    shape = completion_config.QUICK["shape"]
    hidden = int((~completion.instance(*shape).observed).sum())
    entry = Entry("FW-CSOA", completion_config.grids(hidden)[completion_config.TUNED_CONSERVATIVE][3:5])
    found = scores(shape, 20, 30, entry)
    frames = [curves(shape, 20, 30, 1, replace(entry, grid=(method,))) for method in entry.grid]
    assert [excess for excess, _ in found] == [0.0, 0.0]
    assert [error for _, error in found] != [
        float(frame["normalized error"].iloc[-1]) for frame in frames
    ]  # other seed
    assert np.argmin([error for _, error in found]) == np.argmin([f["normalized error"].iloc[-1] for f in frames])


def test_errors_fall_only_if_each_is_below_the_previous_one():
    assert falls([3.0, 2.0, 1.0])
    assert not falls([3.0, 1.0, 1.0])


# ---------------------------------------------------------------------- fairness-tradeoff


@pytest.mark.parametrize("angle", tradeoff_config.ANGLES.values())
def test_the_sensitive_attribute_has_the_probability_of_the_density_ratio(angle):
    x = np.random.default_rng(2).normal(scale=4.0, size=(50, 2))
    turned = np.stack(
        [np.cos(angle) * x[:, 0] - np.sin(angle) * x[:, 1], np.sin(angle) * x[:, 0] + np.cos(angle) * x[:, 1]]
    )
    one = multivariate_normal([2, 2], [[5, 1], [1, 5]]).pdf(turned.T)
    other = multivariate_normal([-2, -2], [[10, 1], [1, 3]]).pdf(turned.T)
    np.testing.assert_allclose(tradeoff.attribute_probability(x, angle), one / (one + other), rtol=1e-9)


def test_the_attribute_is_more_correlated_with_the_label_for_the_smaller_angle():
    data = tradeoff.points()
    assert data["x"].shape == (4000, 3)
    wide, narrow = (np.corrcoef(data["group"][:, i], data["y"])[0, 1] for i in range(2))
    assert 0.4 < wide < narrow
    positive = data["x"][data["y"] > 0, :2]
    np.testing.assert_allclose(positive.mean(axis=0), [2, 2], atol=0.2)
    np.testing.assert_allclose(np.cov(positive.T), [[5, 1], [1, 5]], atol=0.5)


def test_joint_classifiers_are_independent_and_have_their_own_attribute():
    problem, x0 = tradeoff.make(300)
    data = tradeoff.points(300)
    thetas = np.random.default_rng(0).normal(size=x0.shape)
    expected = [
        [np.cov(data["group"][:, i], data["x"] @ theta, bias=True)[0, 1] for theta in each]
        for i, each in enumerate(thetas)
    ]
    np.testing.assert_allclose(tradeoff.covariances(jnp.asarray(thetas), data), expected, rtol=1e-3, atol=1e-4)
    assert check_functions(problem, Parameters(x0)) == [(2 * len(tradeoff_config.BOUNDS),)]
    np.testing.assert_array_equal(problem.constraints[0].high, [*tradeoff_config.BOUNDS, *tradeoff_config.BOUNDS])


def test_a_rotation_is_the_angle_to_the_classifier_without_a_bound():
    rows = {"entry": ["c = 0.1", "no bound"], "seed": 0, "step": 1, "theta 0": [0.0, 2.0], "theta 1": [3.0, 2.0]}
    found = late(pd.DataFrame(rows))["rotation"]
    np.testing.assert_allclose(found, [45.0, 0.0], atol=1e-5)


def test_going_down_allows_small_rises_but_not_overall():
    assert goes_down([3.0, 3.2, 1.0], 0.5)
    assert not goes_down([3.0, 3.8, 1.0], 0.5)
    assert not goes_down([3.0, 3.2, 3.1], 0.5)
