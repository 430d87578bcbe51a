"""A sample in two independent halves: their mean is the sample's, and their difference shows its noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ...oracles.oracle import Oracle, Sample
from ...problems.splitting import split_sample


def even_batch_size(oracle: Oracle) -> int | None:
    """The batch size of a sample that has halves: None, each source's own, if all are even."""
    sizes = [source.batch_size for source in oracle.sources]
    return None if all(size % 2 == 0 for size in sizes) else (max(sizes) + 1) // 2 * 2


def halves_of(oracle: Oracle, sample: Sample) -> Sample:
    """Return the two halves of a sample, stacked."""
    halves = jax.tree.map(lambda a: a.reshape(2, a.shape[0] // 2, *a.shape[1:]), sample)
    return tuple(split_sample(source, half, 1) for source, half in zip(oracle.sources, halves, strict=True))


def parts_of(oracle: Oracle, sample: Sample) -> tuple[Sample, Sample]:
    """Return the two halves of a sample."""
    halves = halves_of(oracle, sample)
    return jax.tree.map(lambda a: a[0], halves), jax.tree.map(lambda a: a[1], halves)


def on_halves(oracle: Oracle, fn: Callable[[Sample], PyTree[Array]], sample: Sample) -> Any:
    """Return the function's values on the halves of a sample, stacked; without data, its value twice."""
    if not jax.tree.leaves(sample):
        return jax.tree.map(lambda value: jnp.stack([value] * 2), fn(sample))
    return jax.vmap(fn)(halves_of(oracle, sample))


def variance_from_halves(halves: Float[Array, "2 rows ..."]) -> Float[Array, " rows"]:
    """Return the variance of the mean of two independent halves, for each row the sum over its entries."""
    squares = 0.25 * (halves[0] - halves[1]) ** 2
    return jnp.sum(squares, axis=tuple(range(1, squares.ndim)))
