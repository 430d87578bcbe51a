"""Constrained learning on real data: logistic regressions and networks with fairness, recall and norm constraints.

All but `finite_logistic` need files (see `tightrope.datasets`) and use the training set. Every constraint is a mean over
examples, so that a batch gives an unbiased value: the rate of a class or group is a weighted mean, with weights divided by the
known share of that class or group in the data, and 0/1 outcomes are smoothed to the probability σ(score).

All bounds are active: the minimum without constraints, or with the others alone, violates each of them by the amount in the
docstrings; and there are points that satisfy all of them strictly. Solutions of the logistic problems were computed once on the
whole training set in float64, by an augmented Lagrangian and L-BFGS; for networks no solution is stated.

Example:
    >>> import tightrope as tr
    >>> list(tr.zoo.learning.available())[:3]
    ['a9a_parity', 'a9a_neyman_pearson', 'bank_recall']
    >>> problem, w0, solution = tr.zoo.learning.finite_logistic(examples=1000, features=5)
    >>> problem
    Problem(objective 'loss', constraints: parity (between), domain Reals)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import datasets
from ..domains import L2Ball
from ..problems.constraints import at_least, at_most, between, equals
from ..problems.data import Dataset
from ..problems.problem import Problem
from .base import Case, Solution

RIDGE = 1e-3
"""Weight of the sum of squares of all parameters in the losses; without it rare features would get infinite weights."""
HIDDEN = 32
"""Hidden units of the networks."""

Column = Float[np.ndarray, " examples"]


def available() -> dict[str, Callable[..., Case]]:
    """The problems on real data by name; each takes `batch_size`.

    Example:
        >>> import tightrope as tr
        >>> len(tr.zoo.learning.available())
        12
    """
    problems = (
        a9a_parity,
        a9a_neyman_pearson,
        bank_recall,
        bank_recall_and_alarms,
        compas_equal_rates,
        compas_parity_in_ball,
        mnist_small_norm,
        a9a_network_parity,
        bank_network_recall,
        compas_network_equal_rates,
        mnist_network_unit_norms,
        mnist_network_worst_digit,
    )
    return {problem.__name__: problem for problem in problems}


# ---------------------------------------------------------------------- logistic regression


def a9a_parity(batch_size: int = 64) -> Case:
    """Logistic regression of income, its score almost uncorrelated with sex: linear `between`.

    |mean of (s − s̄) w·x| ≤ 0.05, s = 1 for men; 0.386 without the constraint. At w = 0 it is 0. Convex.
    """
    train = datasets.load("a9a").train
    data = Dataset({"x": train["x"], "y": train["y"], "group": _centered(train["group"])}, batch_size)
    problem = Problem(_ridge_loss, between(_covariance, -0.05, 0.05, data=data, name="parity"), data=data)
    return problem, jnp.zeros(123), _found(0.3606663, parity=0.130210)


def a9a_neyman_pearson(batch_size: int = 64) -> Case:
    """Minimal loss on high incomes with a bound on the loss on low incomes: two data sets, convex `at_most`.

    Mean loss on the negatives ≤ 0.3; 5.7 without the constraint. A constant score of −2 has 0.127.
    """
    train = datasets.load("a9a").train
    positives, negatives = (Dataset(train["x"][train["y"] == sign], batch_size) for sign in (1, -1))

    def missed(w, batch):
        return jnp.mean(jax.nn.softplus(-(batch @ w))) + RIDGE * w @ w

    def false_alarms(w, batch):
        return jnp.mean(jax.nn.softplus(batch @ w))

    problem = Problem(missed, at_most(false_alarms, 0.3, data=negatives), data=positives)
    return problem, jnp.zeros(123), _found(0.5192719, false_alarms=1.620948)


def bank_recall(batch_size: int = 64) -> Case:
    """Logistic regression of subscriptions with a lower bound on recall: nonconvex `at_least`.

    Mean of σ(w·x) over the positives ≥ 0.6; 0.297 without the constraint. A constant score of 2 has 0.88.
    """
    data = Dataset(_bank(), batch_size)
    problem = Problem(_ridge_loss, at_least(_recall, 0.6, data=data, name="recall"), data=data)
    return problem, jnp.zeros(54), _found(0.4326018, recall=1.324576)


def bank_recall_and_alarms(batch_size: int = 64) -> Case:
    """Logistic regression with bounds on recall and false alarms: two sampled inequalities.

    Mean of σ(w·x) over the positives ≥ 0.6 and over the negatives ≤ 0.18; 0.297 and 0.094 without the constraints, 0.6 and
    0.234 with the first alone. Large weights reach 0.6 and 0.13.
    """
    data = Dataset(_bank(), batch_size)
    constraints = [
        at_least(_recall, 0.6, data=data, name="recall"),
        at_most(_false_alarms, 0.18, data=data, name="false_alarms"),
    ]
    solution = _found(0.4663412, recall=2.93499, false_alarms=1.65664)
    return Problem(_ridge_loss, constraints, data=data), jnp.zeros(54), solution


def compas_equal_rates(batch_size: int = 64) -> Case:
    """The same mean risk in both groups as in the data: two nonlinear sampled equations.

    Mean of σ(w·x) = the share of positives, in each group; without the constraints it is off by −0.048 and 0.028. A
    constant score satisfies both.
    """
    arrays, share = _compas_groups()
    data = Dataset(arrays, batch_size)
    problem = Problem(_ridge_loss, equals(_rates, share, data=data, name="rates"), data=data)
    return problem, jnp.zeros(16), _found(0.6114101, rates=np.array([-0.078845, 0.090928]))


def compas_parity_in_ball(batch_size: int = 64) -> Case:
    """A score almost uncorrelated with race, and small weights: linear `between`, L2Ball, both active.

    |mean of (s − s̄) w·x| ≤ 0.02, s = 1 for Caucasians, and ‖w‖ ≤ 0.7; 0.083 and 1.56 without. At w = 0 both are 0. Convex.
    """
    train = datasets.load("compas").train
    data = Dataset({"x": train["x"], "y": train["y"], "group": _centered(train["group"])}, batch_size)

    def loss(w, batch):
        return _log_loss(batch["x"] @ w, batch["y"])

    parity = between(_covariance, -0.02, 0.02, data=data, name="parity")
    return Problem(loss, parity, domain=L2Ball(0.7), data=data), jnp.zeros(16), _found(0.6184648, parity=-0.098983)


def mnist_small_norm(batch_size: int = 64) -> Case:
    """Logistic regression of threes and eights with small weights: deterministic `at_most`, dict parameters.

    ‖w‖² ≤ 4 for the weights of the 784 pixels, with a free offset; without the constraint it exceeds 100,000. Convex.
    """
    train = datasets.load("mnist").train
    kept = np.isin(train["y"], (3, 8))
    y = np.where(train["y"][kept] == 8, 1.0, -1.0).astype(np.float32)
    data = Dataset({"x": train["x"][kept], "y": y}, batch_size)

    def loss(params, batch):
        return _log_loss(batch["x"] @ params["weights"] + params["offset"], batch["y"])

    def square_norm(params):
        return params["weights"] @ params["weights"]

    problem = Problem(loss, at_most(square_norm, 4.0), data=data)
    return problem, {"weights": jnp.zeros(784), "offset": jnp.zeros(())}, _found(0.1438247, square_norm=0.0129398)


# ---------------------------------------------------------------------- networks


def a9a_network_parity(batch_size: int = 64) -> Case:
    """A network for income with similar rates for men and women: smoothed rates, `between`.

    |mean of σ(score) over men − over women| ≤ 0.05; 0.195 without the constraint. A constant score has 0.
    """
    train = datasets.load("a9a").train
    group = train["group"]
    data = Dataset({"x": train["x"], "y": train["y"], "gap": _weights(group == 1) - _weights(group == 0)}, batch_size)

    def gap(params, batch):
        return jnp.mean(batch["gap"] * jax.nn.sigmoid(_score(params, batch["x"])))

    return Problem(_network_loss, between(gap, -0.05, 0.05, data=data), data=data), _network(123), UNKNOWN


def bank_network_recall(batch_size: int = 64) -> Case:
    """A network for subscriptions with bounds on recall and false alarms: two sampled inequalities.

    Mean of σ(score) over the positives ≥ 0.6 and over the negatives ≤ 0.15; 0.304 and 0.091 without the constraints.
    """
    data = Dataset(_bank(), batch_size)

    def recall(params, batch):
        return jnp.mean(batch["positive"] * jax.nn.sigmoid(_score(params, batch["x"])))

    def false_alarms(params, batch):
        return jnp.mean(batch["negative"] * jax.nn.sigmoid(_score(params, batch["x"])))

    constraints = [at_least(recall, 0.6, data=data), at_most(false_alarms, 0.15, data=data)]
    return Problem(_network_loss, constraints, data=data), _network(54), UNKNOWN


def compas_network_equal_rates(batch_size: int = 64) -> Case:
    """A network with the same mean risk in both groups: the two sampled equations of `compas_equal_rates`.

    Without the constraints the means are off by −0.050 and 0.026.
    """
    arrays, share = _compas_groups()
    data = Dataset(arrays, batch_size)

    def rates(params, batch):
        return jnp.mean(batch["groups"] * jax.nn.sigmoid(_score(params, batch["x"]))[:, None], axis=0)

    return Problem(_network_loss, equals(rates, share, data=data), data=data), _network(16), UNKNOWN


def mnist_network_unit_norms(batch_size: int = 64) -> Case:
    """A network for ten digits whose 32 hidden units have weights of norm 1: deterministic equations.

    Without the constraints the squares of the norms are between 1.1 and 2.8.
    """
    data = Dataset(_mnist_digits(), batch_size)

    def square_norms(params):
        return jnp.sum(params["hidden"] ** 2, axis=0)

    problem = Problem(_digit_loss, equals(square_norms, np.ones(HIDDEN)), data=data)
    return problem, _network(784, 10), UNKNOWN


def mnist_network_worst_digit(batch_size: int = 64) -> Case:
    """A small network for ten digits with a bound on the loss of the hardest: a sampled and a deterministic `at_most`.

    Mean loss on the eights ≤ 0.15 and the sum of squares of all parameters ≤ 60; 0.2 and 124 without the constraints, 0.36
    and 60 with the second alone.
    """
    arrays = _mnist_digits()
    data = Dataset(arrays | {"eight": _weights(arrays["y"] == 8)}, batch_size)

    def loss_on_eights(params, batch):
        return jnp.mean(batch["eight"] * _digit_losses(params, batch))

    constraints = [at_most(loss_on_eights, 0.15, data=data), at_most(_square_norm, 60.0, name="square_norm")]
    return Problem(_digit_loss, constraints, data=data), _network(784, 10), UNKNOWN


# ---------------------------------------------------------------------- generated data


def finite_logistic(examples: int = 20_000, features: int = 100, seed: int = 0, batch_size: int = 64) -> Case:
    """Logistic regression on generated data, its score almost uncorrelated with an attribute: linear `between`.

    |mean of (s − s̄) w·x| ≤ 0.05. x ~ N(0, I); labels with the logistic scores x·u, u along the diagonal with ‖u‖ = 2;
    s = 1 if the sum of the first quarter of x is positive, so that the mean is about 0.4 without the constraint. At w = 0 it is
    0. Convex; no solution is stated.
    """
    random = np.random.default_rng(seed)
    x = random.normal(size=(examples, features))
    score = x.sum(axis=1) * (2 / math.sqrt(features))
    y = np.where(random.uniform(size=examples) < 1 / (1 + np.exp(-score)), 1.0, -1.0)
    attribute = x[:, : math.ceil(features / 4)].sum(axis=1) > 0
    data = Dataset({"x": x, "y": y, "group": _centered(attribute)}, batch_size)

    def loss(w, batch):
        return _log_loss(batch["x"] @ w, batch["y"])

    problem = Problem(loss, between(_covariance, -0.05, 0.05, data=data, name="parity"), data=data)
    return problem, jnp.zeros(features), UNKNOWN


# ---------------------------------------------------------------------- shared parts

UNKNOWN = Solution(None, math.nan, None)


def _found(objective: float, **multipliers: Any) -> Solution:
    return Solution(None, objective, multipliers)


def _centered(group: Any) -> Column:
    return np.asarray(group - np.mean(group), np.float32)


def _weights(members: Any) -> Column:
    """Example weights with which a weighted mean over all examples is the mean over the members."""
    return np.asarray(members / np.mean(members), np.float32)


def _bank() -> dict[str, np.ndarray]:
    train = datasets.load("bank-additional").train
    y = train["y"]
    return {"x": train["x"], "y": y, "positive": _weights(y == 1), "negative": _weights(y == -1)}


def _compas_groups() -> tuple[dict[str, np.ndarray], float]:
    """Examples with one column of weights per group, and the share of positives."""
    train = datasets.load("compas").train
    groups = np.stack([_weights(train["group"] == 1), _weights(train["group"] == 0)], axis=1)
    return {"x": train["x"], "y": train["y"], "groups": groups}, float(np.mean(train["y"] == 1))


def _mnist_digits() -> dict[str, np.ndarray]:
    return dict(datasets.load("mnist").train)


def _log_loss(score: Float[Array, " examples"], y: Float[Array, " examples"]) -> Float[Array, ""]:
    return jnp.mean(jax.nn.softplus(-y * score))


def _ridge_loss(w, batch):
    return _log_loss(batch["x"] @ w, batch["y"]) + RIDGE * w @ w


def _covariance(w, batch):
    return jnp.mean(batch["group"] * (batch["x"] @ w))


def _recall(w, batch):
    return jnp.mean(batch["positive"] * jax.nn.sigmoid(batch["x"] @ w))


def _false_alarms(w, batch):
    return jnp.mean(batch["negative"] * jax.nn.sigmoid(batch["x"] @ w))


def _rates(w, batch):
    return jnp.mean(batch["groups"] * jax.nn.sigmoid(batch["x"] @ w)[:, None], axis=0)


def _network(features: int, outputs: int = 1) -> dict[str, Array]:
    """Initial parameters: weights of variance 1/(number of inputs) from a fixed seed, zero offsets."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(features, HIDDEN)) / math.sqrt(features)
    output = random.normal(size=(HIDDEN, outputs)) / math.sqrt(HIDDEN)
    parts = {"hidden": hidden, "hidden_offset": np.zeros(HIDDEN), "output": output, "output_offset": np.zeros(outputs)}
    return {name: jnp.asarray(part) for name, part in parts.items()}


def _scores(params: Mapping[str, Array], x: Float[Array, "examples features"]) -> Float[Array, "examples outputs"]:
    hidden = jnp.tanh(x @ params["hidden"] + params["hidden_offset"])
    return hidden @ params["output"] + params["output_offset"]


def _score(params: Mapping[str, Array], x: Float[Array, "examples features"]) -> Float[Array, " examples"]:
    return _scores(params, x)[:, 0]


def _square_norm(params: Mapping[str, Array]) -> Float[Array, ""]:
    return sum((jnp.sum(part**2) for part in params.values()), jnp.zeros(()))


def _network_loss(params, batch):
    return _log_loss(_score(params, batch["x"]), batch["y"]) + RIDGE * _square_norm(params)


def _digit_losses(params, batch):
    logits = _scores(params, batch["x"])
    chosen = jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(logits, axis=1) - chosen


def _digit_loss(params, batch):
    return jnp.mean(_digit_losses(params, batch)) + RIDGE * _square_norm(params)
