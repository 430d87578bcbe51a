"""The problems of networks.py, and whether constants of the method were chosen on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr

BATCH = 64
ZOO = (
    "a9a_network_parity",
    "bank_network_recall",
    "compas_network_equal_rates",
    "mnist_network_unit_norms",
    "mnist_network_worst_digit",
)
Case = tuple[tr.Problem, Any]


def weights(members: Any) -> np.ndarray:
    """Example weights with which a mean over all examples is the mean over the members."""
    return np.asarray(members / np.mean(members), np.float32)


def dense(random: np.random.Generator, *sizes: int) -> dict[str, Any]:
    """Layers with weights of variance 1/(number of inputs) and zero offsets."""
    layers: dict[str, Any] = {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers[f"w{i}"] = jnp.asarray(random.normal(size=(inputs, outputs)) / math.sqrt(inputs), jnp.float32)
        layers[f"b{i}"] = jnp.zeros(outputs)
    return layers


def tanh_score(params: Any, x: Any) -> Any:
    return (jnp.tanh(x @ params["w0"] + params["b0"]) @ params["w1"] + params["b1"])[:, 0]


def log_loss(params: Any, batch: Any) -> Any:
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return jnp.mean(jax.nn.softplus(-batch["y"] * tanh_score(params, batch["x"]))) + 1e-3 * squares


def recall_and_alarms(name: str, recall: float, alarms: float) -> Case:
    """32 tanh units on tabular data, with a lower bound on recall and an upper one on false alarms."""
    train = tr.datasets.load(name).train
    x, y = train["x"], train["y"]
    data = tr.Dataset({"x": x, "y": y, "positive": weights(y == 1), "negative": weights(y == -1)}, BATCH)

    def rate(members: str) -> Callable[[Any, Any], Any]:
        return lambda params, batch: jnp.mean(batch[members] * jax.nn.sigmoid(tanh_score(params, batch["x"])))

    constraints = [
        tr.at_least(rate("positive"), recall, data=data, name="recall"),
        tr.at_most(rate("negative"), alarms, data=data, name="false_alarms"),
    ]
    return tr.Problem(log_loss, constraints, data=data), dense(np.random.default_rng(0), x.shape[1], 32, 1)


def many_groups(name: str) -> Case:
    """32 tanh units on tabular data; the mean probability of each group within 0.6 and 1.25 of the share of positives."""
    train = tr.datasets.load(name).train
    features = train["x"].shape[1]
    group = np.argmax(train["x"] @ np.random.default_rng(3).normal(size=(features, 50)), axis=1)
    large = [i for i in range(50) if np.mean(group == i) > 0.004]
    members = np.stack([weights(group == i) for i in large], axis=1)
    data = tr.Dataset({"x": train["x"], "y": train["y"], "groups": members}, BATCH)
    share = float(np.mean(train["y"] == 1))

    def rates(params: Any, batch: Any) -> Any:
        return jnp.mean(batch["groups"] * jax.nn.sigmoid(tanh_score(params, batch["x"]))[:, None], axis=0)

    problem = tr.Problem(log_loss, tr.between(rates, 0.6 * share, 1.25 * share, data=data), data=data)
    return problem, dense(np.random.default_rng(0), features, 32, 1)


def convolved(x: Any, kernel: Any, stride: int) -> Any:
    """A convolution without padding, and rectified units."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=numbers))


def kernel(random: np.random.Generator, size: int, inputs: int, outputs: int, variance: float = 1.0) -> Any:
    """A square kernel whose weights have this variance over the number of inputs."""
    scale = math.sqrt(variance / (size * size * inputs))
    return jnp.asarray(scale * random.normal(size=(size, size, inputs, outputs)), jnp.float32)


def digits() -> tuple[tr.Dataset, np.ndarray]:
    """Images of digits, and the share of each digit."""
    train = tr.datasets.load("mnist").train
    images, y = train["x"].reshape(-1, 28, 28, 1).astype(np.float32), train["y"]
    return tr.Dataset({"x": images, "y": y}, BATCH), np.array([np.mean(y == i) for i in range(10)], np.float32)


def cross_entropy(logits: Any, y: Any) -> Any:
    return jax.nn.logsumexp(logits, axis=1) - jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]


def convolution(bound: float = 0.06) -> Case:
    """A convolutional network for ten digits, with an upper bound on the mean loss of each."""
    data, share = digits()
    random = np.random.default_rng(0)
    start = {"first": kernel(random, 5, 1, 8), "second": kernel(random, 5, 8, 16), **dense(random, 256, 10)}

    def losses(params: Any, batch: Any) -> Any:
        hidden = convolved(convolved(batch["x"], params["first"], 2), params["second"], 2)
        return cross_entropy(hidden.reshape(len(hidden), -1) @ params["w0"] + params["b0"], batch["y"])

    def by_digit(params: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.one_hot(batch["y"], 10) / share * losses(params, batch)[:, None], axis=0)

    problem = tr.Problem(lambda p, batch: jnp.mean(losses(p, batch)), tr.at_most(by_digit, bound, data=data), data=data)
    return problem, start


def convolution_recall(bound: float = 0.975) -> Case:
    """Three convolutions and two dense layers for ten digits, with a lower bound on the mean probability of each."""
    data, share = digits()
    random = np.random.default_rng(1)
    start = {
        "first": kernel(random, 3, 1, 8, 2.0),
        "second": kernel(random, 3, 8, 16, 2.0),
        "third": kernel(random, 3, 16, 16, 2.0),
        **dense(random, 16 * 2 * 2, 32, 10),
    }

    def logits(params: Any, batch: Any) -> Any:
        hidden = batch["x"]
        for name in ("first", "second", "third"):
            hidden = convolved(hidden, params[name], 2)
        hidden = jax.nn.relu(hidden.reshape(len(hidden), -1) @ params["w0"] + params["b0"])
        return hidden @ params["w1"] + params["b1"]

    def loss(params: Any, batch: Any) -> Any:
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return jnp.mean(cross_entropy(logits(params, batch), batch["y"])) + 1e-4 * squares

    def recall(params: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.one_hot(batch["y"], 10) / share * jax.nn.softmax(logits(params, batch)), axis=0)

    return tr.Problem(loss, tr.at_least(recall, bound, data=data), data=data), start


def pendulum() -> Case:
    """A physics-informed network: u″ = −2 sin u on [0, 1], with both ends and the mean of u as equations."""
    random = np.random.default_rng(0)
    data = tr.Dataset({"t": random.uniform(size=4096).astype(np.float32)}, BATCH)

    def u(params: Any, t: Any) -> Any:
        hidden = jnp.tanh(t * params["w0"][0] + params["b0"])
        return jnp.dot(jnp.tanh(hidden @ params["w1"] + params["b1"]), params["w2"][:, 0]) + params["b2"][0]

    def residual(params: Any, batch: Any) -> Any:
        second = jax.vmap(lambda t: jax.grad(jax.grad(lambda s: u(params, s)))(t) + 2.0 * jnp.sin(u(params, t)))
        return jnp.mean(second(batch["t"]) ** 2)

    constraints = [
        tr.equals(lambda params: u(params, jnp.float32(0.0)), 0.0, name="left"),
        tr.equals(lambda params: u(params, jnp.float32(1.0)), 1.0, name="right"),
        tr.equals(
            lambda params, batch: jnp.mean(jax.vmap(lambda t: u(params, t))(batch["t"])), 0.6, data=data, name="mean"
        ),
    ]
    return tr.Problem(residual, constraints, data=data), dense(random, 1, 32, 32, 1)


PROBLEMS: dict[str, tuple[Callable[[], Case], bool]] = {
    **{name: (lambda name=name: tr.zoo.learning.available()[name](batch_size=BATCH)[:2], True) for name in ZOO},
    "a9a, recall 0.7, alarms 0.12": (lambda: recall_and_alarms("a9a", 0.7, 0.12), True),
    "loan, recall 0.6, alarms 0.3": (lambda: recall_and_alarms("loan", 0.6, 0.3), True),
    "phishing, recall 0.93, alarms 0.1": (lambda: recall_and_alarms("phishing", 0.93, 0.1), True),
    "bank-full, recall 0.65, alarms 0.15": (lambda: recall_and_alarms("bank-full", 0.65, 0.15), True),
    "adult, recall 0.6, alarms 0.1": (lambda: recall_and_alarms("adult", 0.6, 0.1), False),
    "a9a, fifty groups": (lambda: many_groups("a9a"), True),
    "adult, fifty groups": (lambda: many_groups("adult"), False),
    "bank-full, fifty groups": (lambda: many_groups("bank-full"), False),
    "convolution, ten digits": (convolution, True),
    "convolution, recall of ten digits": (convolution_recall, True),
    "pendulum": (pendulum, False),
}
"""Each problem, and whether constants were chosen on it."""
