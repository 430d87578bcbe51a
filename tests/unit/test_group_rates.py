"""Rates of groups: certified as they are, with the derivatives of their surrogates."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightrope as tr
from tightrope import rates
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters
from tightrope.runs.fingerprint import fingerprint
from tightrope.runs.fitting import fit
from tightrope.runs.options import Record

RNG = np.random.default_rng(0)
GROUP = RNG.integers(0, 3, 120)
LABEL = RNG.integers(0, 2, 120)
X = RNG.normal(size=(120, 3)).astype(np.float32)
W = np.array([1.0, -0.5, 0.3], np.float32)
SELECTED = X @ W > 0
DATA = tr.Dataset({"x": X, "y": 2.0 * LABEL - 1.0, "group": rates.groups(GROUP, LABEL)}, batch_size=16)


def score(w, batch):
    return batch["x"] @ w


def loss(w, batch):
    return jnp.mean(jax.nn.softplus(-batch["y"] * score(w, batch)))


def of_each(values, among=True):
    return np.array([values[(g == GROUP) & among].mean() for g in range(3)])


def pairs(found):
    return np.array([found[0] - found[1], found[0] - found[2], found[1] - found[2]])


WRONG = SELECTED != LABEL
TRUE = {
    "demographic_parity": pairs(of_each(SELECTED)),
    "equal_opportunity": pairs(of_each(SELECTED, LABEL == 1)),
    "equalized_odds": np.concatenate([pairs(of_each(SELECTED, label == LABEL)) for label in (1, 0)]),
    "selection_rate": of_each(SELECTED),
    "true_positive_rate": of_each(SELECTED, LABEL == 1),
    "false_positive_rate": of_each(SELECTED, LABEL == 0),
    "error_rate": of_each(WRONG),
    "precision": of_each(SELECTED * (LABEL - 0.4)),
}


def build(name, bound=0.4):
    return getattr(rates, name)(score, "group", DATA, bound)


@pytest.fixture(scope="module")
def problem():
    return tr.Problem(loss, [build(name) for name in TRUE], data=DATA)


@pytest.fixture(scope="module")
def oracles(problem):
    parameters = Parameters(jnp.asarray(W))
    return [oracle_for(problem, parameters, training=training) for training in (False, True)]


def test_every_rate_is_the_share_that_numpy_counts(oracles):
    oracle, _ = oracles
    found = np.asarray(oracle.raw(oracle.parameters.start, oracle.everything()))
    for name, part in oracle.slices().items():
        np.testing.assert_allclose(found[part], TRUE[name], atol=2e-7, err_msg=name)


def test_fairlearns_metrics_are_the_largest_differences():
    metrics = pytest.importorskip("fairlearn.metrics")
    for name, metric in {
        "demographic_parity": metrics.demographic_parity_difference,
        "equal_opportunity": metrics.equal_opportunity_difference,
        "equalized_odds": metrics.equalized_odds_difference,
    }.items():
        value = metric(LABEL, SELECTED.astype(int), sensitive_features=GROUP)
        assert value == pytest.approx(np.abs(TRUE[name]).max(), abs=1e-9)


def test_the_certificate_is_about_the_rates_and_exact(problem):
    certificate = tr.certify(problem, jnp.asarray(W))
    for name in ("demographic_parity", "equal_opportunity", "equalized_odds"):
        estimate = certificate.violation[name]
        assert estimate.kind == "exact"
        assert estimate.value == pytest.approx(max(np.abs(TRUE[name]).max() - 0.4, 0.0), abs=3e-7)
    assert certificate.violation["true_positive_rate"].value == pytest.approx(
        max(0.4 - TRUE["true_positive_rate"].min(), 0.0), abs=3e-7
    )


def test_a_test_set_is_judged_with_its_own_shares(problem):
    group = np.where(GROUP == 2, RNG.integers(0, 3, 120), GROUP)
    data = tr.Dataset({"x": X, "y": 2.0 * LABEL - 1.0, "group": rates.groups(group, LABEL)}, batch_size=16)
    found = tr.certify(problem, jnp.asarray(W), data=data).violation["selection_rate"].value
    shares = [SELECTED[group == g].mean() for g in range(3)]
    assert found == pytest.approx(max(*shares, 0.4) - 0.4, abs=3e-7)


def test_steps_see_the_surrogate_and_derivatives_are_its_own(oracles):
    true, smooth = oracles
    x, everything = true.parameters.start, true.everything()
    soft = np.asarray(jax.nn.sigmoid(X @ W / rates.TEMPERATURE))
    part = true.slices()["selection_rate"]
    np.testing.assert_allclose(smooth.raw(x, everything)[part], of_each(soft), atol=1e-6)
    np.testing.assert_allclose(true.jac(x, everything), smooth.jac(x, everything), atol=1e-6)
    assert np.abs(true.raw(x, everything) - smooth.raw(x, everything)).max() > 0.01


def test_a_checkpoint_knows_the_surrogate(problem):
    other = replace(problem.constraints[0], surrogate=lambda w, batch: jnp.tanh(problem.constraints[0].fn(w, batch)))
    problems = problem, tr.Problem(loss, [other, *problem.constraints[1:]], data=DATA)
    one, another = (fingerprint(fit("solve", p, jnp.zeros(3), None, 5), Record(5), 0) for p in problems)
    assert [part for part in one if one[part] != another[part]] == [
        "the surrogate of the constraint 'demographic_parity'"
    ]


@pytest.fixture(scope="module")
def solved():
    """A problem of 2000 examples, its features and groups, and what `rates.solve` and its solves gave."""
    rng = np.random.default_rng(1)
    group = rng.integers(0, 2, 2000)
    x = rng.normal(size=(2000, 3)).astype(np.float32)
    x[:, 0] += group
    y = np.where(x.sum(axis=1) + rng.normal(size=2000) > 0.5, 1.0, -1.0)
    data = tr.Dataset({"x": x, "y": y, "group": rates.groups(group)}, batch_size=64)
    problem = tr.Problem(loss, rates.demographic_parity(score, "group", data, bound=0.1), data=data)
    solves = []

    def solve(*args, **options):
        solves.append(tr.solve(*args, **options))
        return solves[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates.solving, "run_solve", solve)
        result = rates.solve(problem, jnp.zeros(3), steps=150)
    return SimpleNamespace(problem=problem, x=x, group=group, result=result, solves=solves)


def test_a_solve_ends_at_the_bound_of_the_rate_and_not_of_its_surrogate(solved):
    def difference(w):
        selected = solved.x @ np.asarray(w) > 0
        return abs(selected[solved.group == 0].mean() - selected[solved.group == 1].mean())

    assert abs(difference(solved.solves[0].x) - 0.1) > 5e-3
    assert abs(difference(solved.result.x) - 0.1) < 2e-3
    assert solved.result.violation == pytest.approx(max(difference(solved.result.x) - 0.1, 0.0), abs=1e-6)


def numbers_and_texts(certificate):
    leaves = jax.tree.leaves(certificate)
    return [
        np.concatenate([np.ravel(a) for a in leaves if not isinstance(a, str)]),
        [a for a in leaves if isinstance(a, str)],
    ]


def test_what_is_certified_in_the_end_are_the_rates(solved):
    found, expected = solved.result.certificate, tr.certify(solved.problem, solved.result.x)
    numbers, texts = zip(*map(numbers_and_texts, (found, expected)), strict=True)
    np.testing.assert_allclose(*numbers, rtol=1e-3, atol=1e-6)  # up to rounding
    assert texts[0] == texts[1]
    assert solved.result.success
    assert solved.result.history.records > 0


def test_solves_on_surrogates_end_at_rest_and_corrections_compile_nothing(solved):
    first, *later = solved.solves
    assert 1 <= len(later) <= 3
    assert all(result.status == "converged" and result.steps < 150 for result in solved.solves)
    assert all(result.compile_seconds < 0.02 * first.compile_seconds for result in later)


def test_without_surrogates_there_is_one_solve(monkeypatch):
    problem = tr.Problem(lambda w: jnp.sum(w**2), tr.at_least(jnp.sum, 1.0))
    answer = SimpleNamespace(certificate=SimpleNamespace(verdict="feasible"), objective=0.0)
    answer.certificate.relative_violation = {}
    monkeypatch.setattr(rates.solving, "run_solve", lambda *_, **__: answer)
    assert rates.solve(problem, jnp.zeros(2), steps=5) is answer


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_weights_of_every_group_have_mean_one(data):
    count = data.draw(st.integers(1, 30))
    group = np.array(data.draw(st.lists(st.integers(-2, 2), min_size=count, max_size=count)))
    label = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    made = rates.groups(group, label)
    np.testing.assert_allclose(made.every.mean(axis=0), 1.0, rtol=1e-5)
    for part, value in ((made.positives, 1), (made.negatives, 0)):
        present = [np.any((group == g) & (label == value)) for g in np.unique(group)]
        np.testing.assert_allclose(part.mean(axis=0), np.asarray(present, float), rtol=1e-5)


def test_several_columns_make_a_group_of_each_combination():
    columns = np.array([["a", 1], ["a", 2], ["b", 1], ["a", 1]], object)
    assert rates.groups(columns).every.tolist() == [[2, 0, 0], [0, 4, 0], [0, 0, 4], [2, 0, 0]]


LABELED = rates.groups([0, 1, 1, 1], [1, 1, 0, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rates.groups(), "both group and label are missing"),
        (lambda: rates.groups([0, 1], [1]), "group has 2 examples and label 1"),
        (lambda: rates.groups(label=[1, 2]), "label must be a vector of 1"),
        (lambda: rates.groups(3), "one entry per example"),
        (lambda: rates.demographic_parity(score, "sex", DATA), "have no field 'sex' made by"),
        (lambda: rates.demographic_parity(score, "g", _four(rates.groups(np.zeros(4)))), "has one group"),
        (lambda: rates.equal_opportunity(score, "g", _four(rates.groups([0, 1, 1, 1]))), "has no labels"),
        (lambda: rates.equalized_odds(score, "g", _four(LABELED)), "group 0 of 'g' has no examples with label 0"),
    ],
)
def test_bad_groups_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", [name for name in TRUE if name != "group_loss"])
def test_a_bound_in_percent_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name}: bound must be ≥ 0 and ≤ 1, got 5"):
        build(name, 5.0)


def _four(made):
    return tr.Dataset({"x": np.zeros((4, 3)), "g": made}, batch_size=2)


def test_every_builder_takes_its_arguments_in_one_order():
    builders = [name for name in rates.__all__ if name not in ("TEMPERATURE", "Groups", "groups", "solve")]
    assert sorted(builders) == sorted([*TRUE, "group_loss"])
    for name in builders:
        assert list(inspect.signature(getattr(rates, name)).parameters)[1:] == ["group", "data", "bound"]
