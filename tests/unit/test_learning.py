"""Learning problems: the stated values hold on the real data, and the constraints are the documented means."""

from __future__ import annotations

import math
from functools import cache

import generated_files as generated
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from generated_files import needs_real_files
from jax.flatten_util import ravel_pytree

import tightrope as tr
from tightrope.zoo import learning

NAMES = tuple(learning.available())
STATED = tuple(name for name in NAMES if "network" not in name)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Generated files instead of the real ones."""
    generated.install(tmp_path, monkeypatch)


# ---- solutions on the real data ----------------------------------------------------------------------------------------


class Whole:
    """A problem on all of its examples in float64; an L2Ball is one more constraint, on ‖x‖²."""

    def __init__(self, problem, x0):
        start, unravel = ravel_pytree(jax.tree.map(lambda part: np.asarray(part, float), x0))
        arrays = [jax.tree.map(lambda part: jnp.asarray(part, float), source.arrays) for source in problem.sources]
        places = {id(source): i for i, source in enumerate(problem.sources)}

        def value(fn, data, x, arrays):
            return jnp.ravel(fn(unravel(x)) if data is None else fn(unravel(x), arrays[places[id(data)]]))

        constraints = [(c.fn, c.data, c.low, c.high) for c in problem.constraints]
        if isinstance(problem.domain, tr.domains.L2Ball):
            constraints.append((lambda x: x @ x, None, -np.inf, float(problem.domain.radius) ** 2))

        def values(x, arrays):
            return jnp.concatenate([value(fn, data, x, arrays) for fn, data, _, _ in constraints])

        sizes = [value(fn, data, start, arrays).size for fn, data, _, _ in constraints]
        self.low, self.high = (
            np.concatenate([np.broadcast_to(c[end], size) for c, size in zip(constraints, sizes, strict=True)])
            for end in (2, 3)
        )

        def augmented(x, y, penalty, arrays):
            shifted = values(x, arrays) + y / penalty
            outside = shifted - jnp.clip(shifted, self.low, self.high)
            return value(problem.objective, problem.data, x, arrays)[0] + 0.5 * penalty * outside @ outside

        compiled, slopes, levels = (
            jax.jit(value, static_argnums=(0, 1)),
            jax.jit(jax.value_and_grad(augmented)),
            jax.jit(values),
        )
        self.start = np.asarray(start)
        self.objective = lambda x: float(compiled(problem.objective, problem.data, x, arrays)[0])
        self.values = lambda x: np.asarray(levels(x, arrays))
        self.augmented = lambda x, y, penalty: slopes(x, y, penalty, arrays)

    def minimized(self, x, y, penalty):
        """The minimizer of the augmented Lagrangian, from x."""

        def fun(x):
            value, slope = self.augmented(x, y, penalty)
            return float(value), np.asarray(slope)

        options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 3e-8, "maxcor": 30}
        return scipy.optimize.minimize(fun, x, jac=True, method="L-BFGS-B", options=options).x

    def violation(self, x):
        values = self.values(x)
        return float(np.maximum(values - self.high, self.low - values).max())


@cache
def whole(name):
    problem, x0, solution = learning.available()[name]()
    return problem, Whole(problem, x0), solution


@pytest.mark.by_default("compas_equal_rates")
@needs_real_files
@pytest.mark.parametrize("name", STATED)
def test_the_stated_multipliers_give_a_feasible_point_with_the_stated_value(name):
    with jax.enable_x64(True):
        problem, data, solution = whole(name)
        signs = {c.name: -1.0 if c.kind == "at_least" else 1.0 for c in problem.constraints}
        stated = np.concatenate([signs[key] * np.ravel(value) for key, value in solution.multipliers.items()])
        in_ball = isinstance(problem.domain, tr.domains.L2Ball)
        y, penalty, x = np.append(stated, [0.0] * in_ball), 10.0, data.start
        for _ in range(10 if in_ball else 1):
            x = data.minimized(x, y, penalty)
            shifted = data.values(x) + y / penalty
            y = penalty * (shifted - np.clip(shifted, data.low, data.high))
        assert data.violation(x) < 1e-6
        assert data.objective(x) == pytest.approx(solution.objective, abs=2e-6)
        np.testing.assert_allclose(y[: stated.size], stated, rtol=1e-4)
        assert (np.abs(y) > 1e-3).all()


@pytest.mark.by_default("compas_equal_rates")
@needs_real_files
@pytest.mark.parametrize("name", [name for name in STATED if "mnist" not in name])
def test_without_constraints_the_minimum_violates_every_bound(name):
    with jax.enable_x64(True):
        _, data, solution = whole(name)
        x = data.minimized(data.start, np.zeros_like(data.low), 1e-12)
        values = data.values(x)
        outside = np.maximum(values - data.high, data.low - values)
        alone = (
            slice(1) if name == "bank_recall_and_alarms" else slice(None)
        )  # its second bound is active with the first
        assert (outside[alone] > 0.02).all()
        assert data.objective(x) < solution.objective - 1e-3


# ---- the functions --------------------------------------------------------------------------------------------


def parts(data, count):
    size = data.size // count
    return [jax.tree.map(lambda array, i=i: array[i * size : (i + 1) * size], data.arrays) for i in range(count)]


@pytest.mark.by_default("a9a_parity", "bank_network_recall")
@pytest.mark.parametrize("name", NAMES)
def test_functions_are_means_over_examples_with_finite_values_at_the_start(name, small):
    problem, x0, solution = learning.available()[name](batch_size=8)
    assert problem.data.batch_size == 8
    assert solution.x is None
    assert math.isnan(solution.objective) == ("network" in name)
    for fn, data in [(problem.objective, problem.data), *((c.fn, c.data) for c in problem.constraints if c.data)]:
        halves = parts(data, 2)
        both = jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *halves)
        mean = np.mean([fn(x0, half) for half in halves], axis=0)
        assert np.isfinite(mean).all()
        np.testing.assert_allclose(fn(x0, both), mean, rtol=1e-5)


def sigmoid(score):
    return 1 / (1 + np.exp(-np.asarray(score, float)))


def scores(params, x):
    if not isinstance(params, dict):
        return x @ params
    return np.squeeze(
        np.tanh(x @ params["hidden"] + params["hidden_offset"]) @ params["output"] + params["output_offset"]
    )


def anywhere(x0):
    """A point away from the start."""
    random = np.random.default_rng(3)
    return jax.tree.map(lambda part: jnp.asarray(0.5 * random.normal(size=np.shape(part)), jnp.float32), x0)


@pytest.mark.parametrize("name", ["bank_recall_and_alarms", "bank_network_recall"])
def test_recall_and_alarms_are_mean_probabilities_over_one_class(name, small):
    problem, x0, _ = learning.available()[name]()
    train, x = tr.datasets.load("bank-additional").train, anywhere(x0)
    rates = sigmoid(scores(x, train["x"]))
    recall, alarms = (c.fn(x, c.data.arrays) for c in problem.constraints)
    np.testing.assert_allclose(recall, rates[train["y"] == 1].mean(), rtol=1e-5)
    np.testing.assert_allclose(alarms, rates[train["y"] == -1].mean(), rtol=1e-5)


@pytest.mark.parametrize("name", ["compas_equal_rates", "compas_network_equal_rates"])
def test_rates_are_mean_probabilities_of_two_groups_and_their_target_is_the_share_of_positives(name, small):
    problem, x0, _ = learning.available()[name]()
    train, x = tr.datasets.load("compas").train, anywhere(x0)
    probabilities, (constraint,) = sigmoid(scores(x, train["x"])), problem.constraints
    means = [probabilities[train["group"] == member].mean() for member in (1, 0)]
    np.testing.assert_allclose(constraint.fn(x, constraint.data.arrays), means, rtol=1e-5)
    np.testing.assert_allclose(constraint.low, np.mean(train["y"] == 1), rtol=1e-6)


def test_the_gap_is_the_difference_between_men_and_women(small):
    problem, x0, _ = learning.a9a_network_parity()
    train, x = tr.datasets.load("a9a").train, anywhere(x0)
    rates, (constraint,) = sigmoid(scores(x, train["x"])), problem.constraints
    expected = rates[train["group"] == 1].mean() - rates[train["group"] == 0].mean()
    np.testing.assert_allclose(constraint.fn(x, constraint.data.arrays), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["a9a_parity", "compas_parity_in_ball"])
def test_parity_is_the_covariance_of_group_and_score(name, small):
    problem, x0, _ = learning.available()[name]()
    train, x = tr.datasets.load(name.partition("_")[0]).train, anywhere(x0)
    expected = np.cov(train["group"], scores(x, train["x"]), ddof=0)[0, 1]
    (constraint,) = problem.constraints
    np.testing.assert_allclose(constraint.fn(x, constraint.data.arrays), expected, rtol=1e-4)


def test_digit_losses_are_cross_entropies_and_the_loss_on_eights_is_their_mean(small):
    problem, x0, _ = learning.mnist_network_worst_digit()
    train, x = tr.datasets.load("mnist").train, anywhere(x0)
    logits = scores(x, train["x"])
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), train["y"]]
    eights, norm = problem.constraints
    np.testing.assert_allclose(eights.fn(x, eights.data.arrays), losses[train["y"] == 8].mean(), rtol=1e-4)
    squares = sum(np.sum(np.asarray(part) ** 2) for part in x.values())
    np.testing.assert_allclose(norm.fn(x), squares, rtol=1e-5)
    objective = problem.objective(x, problem.data.arrays)
    np.testing.assert_allclose(objective, losses.mean() + 1e-3 * squares, rtol=1e-4)


def test_unit_norms_are_those_of_the_weights_into_each_hidden_unit(small):
    problem, x0, _ = learning.mnist_network_unit_norms()
    (constraint,) = problem.constraints
    assert constraint.fn(x0).shape == (32,)
    np.testing.assert_allclose(constraint.fn(x0)[5], np.sum(np.asarray(x0["hidden"])[:, 5] ** 2), rtol=1e-5)


def test_a_run_on_dict_parameters_and_sampled_equations_lowers_the_objective(small):
    problem, x0, _ = learning.compas_network_equal_rates(batch_size=16)
    result = tr.solve(problem, x0, tr.methods.GradientDescentAscent(), steps=200, progress=False)
    assert result.objective < problem.objective(x0, problem.data.arrays)


# ---- generated data ----------------------------------------------------------------------------------------------------


def test_finite_logistic_has_the_given_size_and_an_active_bound():
    with jax.enable_x64(True):
        problem, x0, _ = learning.finite_logistic(examples=3000, features=20, batch_size=32)
        assert (problem.data.size, problem.data.batch_size, x0.shape) == (3000, 32, (20,))
        data = Whole(problem, x0)
        assert data.violation(data.start) < 0
        free = data.minimized(data.start, np.zeros(1), 1e-12)
        assert data.violation(free) == pytest.approx(
            1 / np.sqrt(2 * np.pi) - 0.05, abs=0.1
        )  # E max(N(0, 1), 0) = 1/√2π


def test_finite_logistic_depends_on_its_seed_alone():
    first, again, other = (learning.finite_logistic(100, 5, seed=seed)[0].data.arrays["x"] for seed in (0, 0, 1))
    assert (first == again).all()
    assert not (first == other).all()
