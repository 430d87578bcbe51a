"""Linear models and small networks: one function for JAX, where they are trained, and for NumPy, where they predict."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

Layers = list[tuple[Any, Any]]
"""Weights and biases of every layer; a linear model has one layer."""


def outputs(layers: Layers, x: Any) -> Any:
    """What the last layer gives for each row of x; rectified linear units lie between layers."""
    *inner, (weights, bias) = layers
    for inner_weights, inner_bias in inner:
        x = x @ inner_weights + inner_bias
        x = x * (x > 0)
    return x @ weights + bias


def first_layers(sizes: list[int], bias: Float[np.ndarray, " outputs"], random: np.random.RandomState) -> Layers:
    """A start: random inner layers, and a last one that gives this bias for every input."""
    inner = [
        (random.normal(scale=np.sqrt(2.0 / rows), size=(rows, columns)), np.zeros(columns))
        for rows, columns in itertools.pairwise(sizes[:-1])
    ]
    layers = [*inner, (np.zeros(sizes[-2:]), bias)]
    return [(weights.astype(np.float32), bias.astype(np.float32)) for weights, bias in layers]


def weight_squares(layers: Layers) -> Any:
    """The sum of the squares of all weights, without biases."""
    return sum((weights**2).sum() for weights, _ in layers)


def on_raw_features(layers: Layers, mean: np.ndarray, deviation: np.ndarray) -> Layers:
    """The same model for features that are not standardized, in double precision."""
    (weights, bias), *rest = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), layers)
    weights = weights / deviation[:, None]
    return [(weights, bias - mean @ weights), *rest]
