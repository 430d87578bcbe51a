"""The estimators keep to scikit-learn's conventions and to their constraints."""

from __future__ import annotations

import gc
import pickle
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import tightrope as tr
from tightrope.sklearn import ConstrainedClassifier, ConstrainedRegressor


def people(examples=400, seed=0, features=3):
    """Features, labels and two groups, of which the second one is selected more often."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, examples)
    X = rng.normal(size=(examples, features))
    X[:, 0] += group
    y = X.sum(axis=1) + rng.normal(size=examples) > 0.5
    return X, np.where(y, "yes", "no"), np.array(["a", "b"])[group]


def classifier(constraints="demographic_parity", **options):
    return ConstrainedClassifier(constraints, **({"steps": 200, "random_state": 0} | options))


def difference(model, X, group):
    selected = model.predict(X) == "yes"
    return abs(selected[group == "a"].mean() - selected[group == "b"].mean())


@pytest.fixture(scope="module")
def fitted():
    X, y, group = people()
    return classifier().fit(X, y, sensitive_features=group)


@pytest.fixture
def compiled():
    names = []

    def note(event, seconds, **about):
        if event.endswith("backend_compile_duration"):
            names.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


# ---- constraints


def test_the_decisions_meet_the_bound_and_the_certificate_says_so_of_them(fitted):
    X, y, group = people()
    free = classifier({"demographic_parity": 1.0}).fit(X, y, sensitive_features=group)
    assert difference(free, X, group) > 0.15
    assert difference(fitted, X, group) <= 0.05 + 1e-3
    assert fitted.certificate_.verdict == "feasible"
    violation = fitted.certificate_.violation["demographic_parity"]
    assert violation.kind == "exact"
    assert violation.value == pytest.approx(max(difference(fitted, X, group) - 0.05, 0.0), abs=1e-6)
    assert fitted.score(X, y) > 0.7


def test_a_second_fit_of_the_same_shape_compiles_nothing(fitted, compiled):
    """Other data, groups of other shares, another bound, ridge penalty and seed."""
    X, y, group = people(seed=1)
    classifier({"demographic_parity": 0.1}, l2=1e-3, random_state=5).fit(X, y, sensitive_features=group)
    assert compiled == []


def test_fits_keep_no_data_but_their_shapes(fitted):
    X, y, group = people(examples=401)
    before = {id(array) for array in jax.live_arrays()}
    classifier(None, steps=5).fit(X, y, sensitive_features=group)
    gc.collect()
    assert not [a for a in jax.live_arrays() if a.size >= X.size and id(a) not in before]


@pytest.mark.full
def test_recall_is_maximized_at_a_given_precision():
    X, y, _ = people()
    model = classifier({"overall_precision": 0.9}, loss="recall").fit(X, y)
    selected, positive = model.predict(X) == "yes", y == "yes"
    assert positive[selected].mean() >= 0.9 - 2e-3
    threshold = classifier(None).fit(X, y).decision_function(X)
    order = np.argsort(-threshold)
    precisions = np.cumsum(positive[order]) / np.arange(1, len(y) + 1)
    reachable = np.cumsum(positive[order])[precisions >= 0.9].max() / positive.sum()
    assert selected[positive].mean() >= reachable - 0.05


def listed(low, high, error):
    return [partial(tr.rates.selection_rate, bound=(low, high)), {"overall_error_rate": error}]


def test_constraints_may_be_functions_and_lists():
    X, y, group = people()
    model = classifier(listed(0.3, 0.35, 0.5)).fit(X, y, sensitive_features=group)
    selected = model.predict(X) == "yes"
    assert set(model.certificate_.violation) == {"selection_rate", "overall_error_rate"}
    assert all(0.29 <= selected[group == g].mean() <= 0.36 for g in "ab")


@pytest.mark.full
def test_constraints_that_cannot_be_met_are_warned_of():
    X, y, group = people()
    with pytest.warns(ConvergenceWarning, match="constraints are not met"):
        classifier(listed(0.9, 1.0, 0.1), corrections=0).fit(X, y, sensitive_features=group)


def test_a_regressor_bounds_the_loss_of_each_group():
    rng = np.random.default_rng(0)
    X, group = rng.normal(size=(300, 2)), np.repeat([0, 1], [250, 50])
    y = 50.0 * np.where(group, -1.0, 1.0) * X[:, 0] + rng.normal(size=300)
    free, fair = (
        ConstrainedRegressor({"group_loss": bound}, steps=300, random_state=0).fit(X, y, sensitive_features=group)
        for bound in (1e9, 4000.0)
    )
    errors = [((model.predict(X) - y) ** 2)[group == 1].mean() for model in (free, fair)]
    assert errors[0] > 6000.0
    assert errors[1] <= 4000.0 * 1.002
    least_squares = np.linalg.lstsq(np.column_stack([X, np.ones(300)]), y, rcond=None)[0]
    np.testing.assert_allclose([*free.coef_, free.intercept_], least_squares, rtol=0.02, atol=0.02)


@pytest.mark.full
def test_a_small_network_keeps_to_a_constraint():
    X, y, group = people(features=2)
    model = classifier(hidden=(8,)).fit(X, y, sensitive_features=group)
    assert difference(model, X, group) <= 0.05 + 1e-3
    assert not hasattr(model, "coef_")
    assert [weights.shape for weights, _ in model.weights_] == [(2, 8), (8, 1)]


# ---- scikit-learn


@pytest.mark.full
def test_units_of_the_features_do_not_matter(fitted):
    X, y, group = people()
    scaled = classifier().fit(X * [1.0, 1e3, 1e-3] + 5.0, y, sensitive_features=group)
    assert np.mean(scaled.predict(X * [1.0, 1e3, 1e-3] + 5.0) == fitted.predict(X)) > 0.98


@pytest.mark.full
def test_it_is_cloned_searched_over_and_part_of_a_pipeline():
    X, y, group = people(800)
    pipeline = make_pipeline(StandardScaler(), clone(classifier()))
    search = GridSearchCV(
        pipeline, {"constrainedclassifier__constraints": [{"demographic_parity": b} for b in (0.05, 0.3)]}, cv=2
    )
    search.fit(X, y, constrainedclassifier__sensitive_features=group)
    assert search.best_params_["constrainedclassifier__constraints"] == {"demographic_parity": 0.3}


def test_sensitive_features_can_be_requested_by_metadata_routing():
    with config_context(enable_metadata_routing=True):
        request = classifier().set_fit_request(sensitive_features=True).get_metadata_routing()
    assert request.fit.requests == {"sensitive_features": True}


def test_it_is_saved_without_pickle(fitted, tmp_path):
    X, _, _ = people()
    fitted.save(tmp_path / "model.npz")
    loaded = ConstrainedClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert loaded.certificate_ == fitted.certificate_
    assert loaded.get_params() == fitted.get_params()
    with np.load(tmp_path / "model.npz", allow_pickle=False) as archive:
        assert all(archive[name].dtype != object for name in archive.files)
    with pytest.raises(ValueError, match=r"use ConstrainedClassifier\.load"):
        ConstrainedRegressor.load(tmp_path / "model.npz")
    fitted.result_.save(tmp_path / "result.npz")
    with pytest.raises(ValueError, match="not an estimator that save wrote"):
        ConstrainedClassifier.load(tmp_path / "result.npz")


def test_it_can_be_pickled(fitted):
    X, _, _ = people()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))


@pytest.mark.full
def test_three_classes_are_those_of_multinomial_regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.argmax(X @ rng.normal(size=(2, 3)), axis=1) + 5
    model = classifier(None).fit(X, y)
    assert model.score(X, y) > 0.95
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    with pytest.raises(ValueError, match="two classes"):
        classifier().fit(X, y, sensitive_features=y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constraints": "demographic_party"}, "did you mean 'demographic_parity'"),
        ({"constraints": "error_rate"}, "needs a bound"),
        ({"constraints": "demographic_parity"}, "sensitive_features"),
        ({"constraints": 3}, "a name, a dict"),
        ({"constraints": None, "loss": "hinge"}, "loss must be one of"),
        ({"constraints": None, "hidden": (0,)}, "hidden must be a positive integer"),
        ({"constraints": None, "l2": -1.0}, "l2 must be ≥ 0"),
    ],
)
def test_a_bad_argument_is_refused_by_name(options, message):
    X, y, _ = people(20)
    with pytest.raises((ValueError, TypeError), match=message):
        ConstrainedClassifier(**options).fit(X, y)


ESTIMATORS = pytest.mark.parametrize(
    "estimator", [ConstrainedClassifier, ConstrainedRegressor], ids=["classifier", "regressor"]
)


def least_squares(problem, x0, **_):
    """An answer without a solve, for checks of everything around it."""
    data = {name: jax.tree.map(np.asarray, field) for name, field in problem.data.arrays.items()}
    inputs = np.column_stack([data["x"], np.ones(len(data["x"]))]).astype(float)
    if "y" in data:
        targets = data["y"][:, None]
    elif "class" in data:
        targets = 4.0 * np.eye(len(x0[-1][1]))[data["class"]]
    else:
        targets = 8.0 * data["everyone"].label[:, None] - 4.0
    ridge = 1e-6 * len(inputs) * np.eye(inputs.shape[1])
    weights = np.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ targets)
    certificate = SimpleNamespace(verdict="feasible")
    return SimpleNamespace(x=[(weights[:-1], weights[-1])], certificate=certificate)


@ESTIMATORS
@pytest.mark.filterwarnings("ignore")
def test_all_but_the_solves_passes_the_checks_of_scikit_learn(estimator, monkeypatch):
    monkeypatch.setattr(tr.rates, "solve", least_squares)
    check_estimator(estimator(random_state=0), on_skip=None)


@pytest.mark.full
@ESTIMATORS
def test_it_passes_the_checks_of_scikit_learn(estimator):
    check_estimator(estimator(steps=300, random_state=0), on_skip=None)
