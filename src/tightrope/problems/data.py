"""Where samples come from: a finite data set, or an endless sampler.

A *sample* of a source is a pytree whose leaves share their first axis, one entry a row: row numbers for a `Dataset`
(the rows are gathered where they are used), the rows themselves for a `Sampler`. Rows of a `Dataset` that stand side by side
are a `Span`. `examples_in` and `part_of` let the oracle cut any of them into pieces without knowing where it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree


class Span(eqx.Module):
    """Rows `first`, `first` + 1, … of a `Dataset`, as many as `length`: a sample that is cut out, not gathered."""

    first: Int[Array, ""] | int
    length: int = eqx.field(static=True)


def examples_in(sample: PyTree[Array]) -> int:
    """How many rows a sample has."""
    return sample.length if isinstance(sample, Span) else jax.tree.leaves(sample)[0].shape[0]


def part_of(sample: PyTree[Array], first: Int[Array, ""] | int, length: int) -> PyTree[Array]:
    """As many rows of a sample as `length`, from the row with this number on."""
    if length == examples_in(sample):
        return sample
    if isinstance(sample, Span):
        return Span(sample.first + first, length)
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(jnp.asarray(a), first, length), sample)


class Dataset:
    """Finite data: rows drawn independently with replacement, or passed over in full.

    Args:
        arrays: a pytree of arrays with the same first axis, one entry a row. A batch is the same pytree with fewer rows.
        batch_size: how many rows a step draws.

    Example:
        >>> import numpy as np, tightrope as tr
        >>> data = tr.Dataset({"x": np.ones((10, 3)), "y": np.zeros(10)}, batch_size=4)
        >>> data.size, data.batch_size
        (10, 4)
    """

    def __init__(self, arrays: PyTree[Any], batch_size: int):
        named = jax.tree_util.tree_leaves_with_path(arrays)
        if not named:
            raise ValueError("Dataset: arrays is empty; expected at least one array with one entry a row")
        lengths = {"arrays" + jax.tree_util.keystr(path): np.shape(leaf)[:1] for path, leaf in named}
        if any(not length for length in lengths.values()):
            raise ValueError(f"Dataset: every leaf needs a first axis of rows, got shapes starting with {lengths}")
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{name} has {length[0]}" for name, length in lengths.items())
            raise ValueError(f"Dataset: all leaves must have the same number of rows, but {sizes}")
        self.size = next(iter(lengths.values()))[0]
        if self.size == 0:
            raise ValueError("Dataset: arrays has no rows; expected at least one")
        for path, leaf in named:
            if np.issubdtype(np.asarray(leaf).dtype, np.floating) and not np.isfinite(np.asarray(leaf)).all():
                raise ValueError(
                    f"Dataset: arrays{jax.tree_util.keystr(path)} contains NaN or infinity; expected finite numbers"
                )
        self.batch_size = positive_int("Dataset", "batch_size", batch_size)
        self.arrays = jax.tree.map(jnp.asarray, arrays)

    def draw(self, key: Array, rows: int) -> PyTree[Array]:
        """Row numbers, independent and uniform (to 2^-12 relative: one random word a row, two where that is too coarse)."""
        if self.size > 2**20:
            return jax.random.randint(key, (rows,), 0, self.size)
        return (jax.random.bits(key, (rows,), "uint32") % np.uint32(self.size)).astype(jnp.int32)

    def batch(self, arrays: PyTree[Array], sample: PyTree[Array]) -> PyTree[Array]:
        """The rows that a sample names; `arrays` are passed in so that compiled programs take data as arguments."""
        if not isinstance(sample, Span):
            return jax.tree.map(lambda array: array[sample], arrays)
        first, length = sample.first, sample.length
        return jax.tree.map(lambda a: a if len(a) == length else jax.lax.dynamic_slice_in_dim(a, first, length), arrays)

    def __repr__(self) -> str:
        return f"Dataset({self.size} rows, batch_size={self.batch_size})"


class Sampler:
    """Endless data: fresh rows made by a function of a random key.

    Args:
        fn: `fn(key, n) -> batch`, a pytree of arrays with `n` rows each; any function that JAX can trace.
        batch_size: how many rows a step draws.

    Example:
        >>> import jax, tightrope as tr
        >>> noise = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 2)), batch_size=8)
        >>> noise.draw(jax.random.key(0), 3).shape
        (3, 2)
    """

    def __init__(self, fn: Callable[[Array, int], PyTree[Array]], batch_size: int):
        if not callable(fn):
            raise TypeError(f"Sampler: fn must be a function fn(key, n) -> batch, got {type(fn).__name__}")
        self.fn = fn
        self.batch_size = positive_int("Sampler", "batch_size", batch_size)
        self.arrays = ()
        made = jax.eval_shape(lambda key: fn(key, self.batch_size), jax.random.key(0))
        wrong = [leaf.shape for leaf in jax.tree.leaves(made) if leaf.shape[:1] != (self.batch_size,)]
        if wrong or not jax.tree.leaves(made):
            raise ValueError(
                f"Sampler: fn(key, {self.batch_size}) must return arrays with {self.batch_size} rows, got shapes {wrong}"
            )

    def draw(self, key: Array, rows: int) -> PyTree[Array]:
        """Fresh rows."""
        return self.fn(key, rows)

    def batch(self, arrays: PyTree[Array], sample: PyTree[Array]) -> PyTree[Array]:
        """A sampler's sample is the batch."""
        return sample

    def __repr__(self) -> str:
        return f"Sampler({getattr(self.fn, '__name__', 'fn')}, batch_size={self.batch_size})"


Source = Dataset | Sampler


def positive_int(owner: str, argument: str, value: Any) -> int:
    """`value` as an int, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{owner}: {argument} must be a positive integer, got {value!r} ({type(value).__name__})")
    if value <= 0:
        raise ValueError(f"{owner}: {argument} must be a positive integer, got {value}")
    return int(value)
