"""Sources of data: a finite data set, an endless sampler, or batches that the user passes to every step.

`Stream`, batches from an iterator, has a file of its own.

A *sample* of a source is a pytree whose leaves share their first axis, with one entry per example. For a `Dataset` it holds
the indices of the examples (gathered where they are used), a `Span` of consecutive ones, or, as `Given`, the examples
themselves. For a `Sampler` and for `Batches` a sample is the batch. `examples_in` and `part_of` work on all of them, so that
the oracle can split a sample without knowing its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from ..arguments import check_callable, leaves_of, positive_int
from .calls import note_call
from .memory_maps import as_places, from_places
from .structure import UnknownStructure, shapes_of
from .tracing import changes, trace, unjitted, uses_inputs


class Span(eqx.Module):
    """The `length` examples of a `Dataset` from index `first` on: a slice, cheaper than gathering indices."""

    first: Int[Array, ""] | int
    length: int = eqx.field(static=True)


class Given(eqx.Module):
    """Examples to use in place of a `Dataset`'s own: a batch of the same structure, with any number of examples."""

    examples: PyTree[Array]


class Fetched(Given):
    """Examples of a `Dataset` that were drawn and fetched from the devices that hold them, and their indices."""

    indices: Int[Array, " examples"]


def examples_in(sample: PyTree[Array]) -> int:
    """The number of examples in a sample."""
    return sample.length if isinstance(sample, Span) else jax.tree.leaves(sample)[0].shape[0]


def part_of(sample: PyTree[Array], first: Int[Array, ""] | int, length: int) -> PyTree[Array]:
    """The `length` examples of a sample from position `first` on."""
    if length == examples_in(sample):
        return sample
    if isinstance(sample, Span):
        return Span(sample.first + first, length)
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(jnp.asarray(a), first, length), sample)


def key_of(sample: PyTree[Array]) -> Array:
    """A random key that is a function of the sample, so that two points on one sample have the same."""

    def mix(leaf: Array) -> Array:
        bits = jnp.ravel(jnp.asarray(leaf))
        if jnp.issubdtype(bits.dtype, jnp.floating):
            bits = jax.lax.bitcast_convert_type(bits.astype(jnp.float32), jnp.uint32)
        weights = 2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1
        return jnp.sum(bits.astype(jnp.uint32) * weights * np.uint32(2654435761), dtype=jnp.uint32)

    numbers = jax.tree.leaves(sample.indices if isinstance(sample, Fetched) else sample)
    return jax.random.fold_in(jax.random.key(0), sum(map(mix, numbers), jnp.uint32(0)))


class Dataset:
    """Finite data: examples are drawn independently with replacement, or passed over in full.

    Memory maps (`np.memmap`) stay on disk: the host reads the examples of a block of steps at once, and passes over all data
    piece by piece. They are not searched for NaN and infinity beforehand. A data set that is pickled holds their places in
    their files, and opens them there.

    Args:
        arrays: a pytree of arrays that share their first axis, with one entry per example. A batch is the same pytree with
            fewer examples. If one of them is a memory map, all stay on the host.
        batch_size: the number of examples drawn per step.

    Attributes:
        on_host: the arrays, if they stay on the host; None otherwise.
        mesh: the devices that its examples are split over; None: it is not split.

    Example:
        >>> import numpy as np, tightrope as tr
        >>> data = tr.Dataset({"x": np.ones((10, 3)), "y": np.zeros(10)}, batch_size=4)
        >>> data.size, data.batch_size
        (10, 4)
    """

    mesh: Mesh | None = None

    def __init__(self, arrays: PyTree[Any], batch_size: int):
        _check_numbers("Dataset", "arrays", arrays)
        self.size = _shared_length("Dataset", "arrays", arrays)
        self.batch_size = positive_int("Dataset", "batch_size", batch_size)
        if any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(arrays)):
            self.on_host: PyTree[Any] = jax.tree.map(np.asanyarray, arrays)
            self.arrays: PyTree[Any] = ()
            return
        for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
            where = f"Dataset: arrays{jax.tree_util.keystr(path)}"
            if isinstance(leaf, jax.ShapeDtypeStruct):
                raise TypeError(
                    f"{where} is the shape of an array; expected its numbers (shapes are for tightrope.Batches)"
                )
            if np.issubdtype(np.asarray(leaf).dtype, np.floating) and not np.isfinite(np.asarray(leaf)).all():
                raise ValueError(f"{where} contains NaN or infinity; expected finite numbers")
        self.on_host, self.arrays = None, jax.tree.map(jnp.asarray, arrays)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"on_host": as_places(self.on_host)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"on_host": from_places(state["on_host"])}

    @property
    def whole(self) -> PyTree[Any]:
        """All examples, on the device or on the host."""
        return self.arrays if self.on_host is None else self.on_host

    def draw(self, key: Array, examples: int) -> PyTree[Array]:
        """Independent examples: their indices, or the examples themselves if they must be read from the host.

        Indices are uniform to a relative 2⁻¹² (one random word per index; two for larger data).
        """
        indices = self._indices(key, examples)
        return indices if self.on_host is None else Given(self._read(indices))

    def _static_parts(self) -> list[Any]:
        """What programs depend on, apart from the numbers of the arrays; see `structure`."""
        if self.on_host is not None or self.mesh is not None:
            raise UnknownStructure("data on the host or on several devices")
        return [self.size, self.batch_size, str(jax.tree.structure(self.arrays)), shapes_of(self.arrays)]

    def _indices(self, key: Array, examples: int) -> Int[Array, " examples"]:
        if self.size > 2**20:
            return jax.random.randint(key, (examples,), 0, self.size)
        return (jax.random.bits(key, (examples,), "uint32") % np.uint32(self.size)).astype(jnp.int32)

    def _read(self, indices: Int[Array, " examples"]) -> PyTree[Array]:
        """Read examples from the host, also from within a compiled program; for a block of steps, all at once."""

        def shape(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*indices.shape, *leaf.shape[1:]), jnp.result_type(leaf))

        shapes = jax.tree.map(shape, self.on_host)

        def read(indices: Any) -> PyTree[np.ndarray]:
            places = np.asarray(indices)
            return jax.tree.map(lambda leaf, like: np.asarray(leaf[places], like.dtype), self.on_host, shapes)

        return jax.pure_callback(read, shapes, indices, vmap_method="broadcast_all")

    def batch(self, arrays: PyTree[Array], sample: PyTree[Array]) -> PyTree[Array]:
        """The examples of a sample; `arrays` is passed in so that compiled programs take data as arguments."""
        if isinstance(sample, Given):
            return sample.examples
        if self.on_host is not None and not jax.tree.leaves(arrays):
            return self._read(sample.first + jnp.arange(sample.length) if isinstance(sample, Span) else sample)
        if not isinstance(sample, Span):
            return jax.tree.map(lambda array: array[sample], arrays)
        first, length = sample.first, sample.length
        return jax.tree.map(lambda a: a if len(a) == length else jax.lax.dynamic_slice_in_dim(a, first, length), arrays)

    def __repr__(self) -> str:
        return f"Dataset({self.size} examples, batch_size={self.batch_size})"


class Window(Dataset):
    """Examples of a stream to evaluate on. It says what they look like; a run has the examples themselves.

    Nothing says that they are independent or typical of what follows, so estimates on them are labeled 'as streamed'.
    """

    def __init__(self, shapes: PyTree[jax.ShapeDtypeStruct], size: int, batch_size: int):
        self.size, self.batch_size, self.on_host = size, batch_size, None
        self.arrays = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), shapes)


class Sampler:
    """Endless data: a function of a random key makes fresh examples.

    Args:
        fn: `fn(key, n) -> batch`, a pytree of arrays with `n` examples each; any function of the key that JAX can trace.
            It is traced here, for two numbers of examples, and refused if it does not use its key or changes from one
            trace to the next. `jax.pure_callback` calls NumPy code; pass it the key: `jax.random.key_data(key)`.
        batch_size: the number of examples drawn per step.

    Example:
        >>> import jax, tightrope as tr
        >>> noise = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 2)), batch_size=8)
        >>> noise.draw(jax.random.key(0), 3).shape
        (3, 2)
    """

    mesh: Mesh | None = None

    def __init__(self, fn: Callable[[Array, int], PyTree[Array]], batch_size: int):
        check_callable("Sampler", "fn", fn, "a function fn(key, n) -> batch", arguments=2)
        self.fn = fn
        self.batch_size = positive_int("Sampler", "batch_size", batch_size)
        self.arrays = ()
        _check_sampler(fn, self.batch_size)

    def draw(self, key: Array, examples: int) -> PyTree[Array]:
        """Fresh examples."""
        note_call(self.fn, examples)
        return self.fn(key, examples)

    def batch(self, arrays: PyTree[Array], sample: PyTree[Array]) -> PyTree[Array]:
        """The sample itself."""
        return sample

    def _static_parts(self) -> list[Any]:
        """What programs depend on; see `structure`."""
        if self.mesh is not None:
            raise UnknownStructure("data on several devices")
        return [self.batch_size, self.fn]

    def __repr__(self) -> str:
        return f"Sampler({getattr(self.fn, '__name__', 'fn')}, batch_size={self.batch_size})"


class Batches:
    """Batches that you pass to every step of a `Stepper`: no data to draw from, only the shapes of a batch.

    Args:
        like: an example of a batch, a pytree of arrays (or `jax.ShapeDtypeStruct`) that share their first axis, with one
            entry per example. Only shapes and dtypes are kept.

    Example:
        >>> import numpy as np, tightrope as tr
        >>> batches = tr.Batches(like={"x": np.ones((16, 3)), "y": np.zeros(16)})
        >>> batches.batch_size
        16
    """

    mesh: Mesh | None = None

    def __init__(self, like: PyTree[Any]):
        self._keep_shapes("Batches", "like", like)

    def _keep_shapes(self, owner: str, argument: str, like: PyTree[Any]) -> None:
        _check_numbers(owner, argument, like)
        self.batch_size = _shared_length(owner, argument, like)
        self.shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), like)
        self.arrays = ()

    def draw(self, key: Array, examples: int) -> PyTree[Array]:
        """A TypeError: there is nothing to draw from."""
        raise TypeError(
            "Batches has nothing to draw from; pass batches to Stepper.step, or use a tightrope.Dataset or Sampler"
        )

    def batch(self, arrays: PyTree[Array], sample: PyTree[Array]) -> PyTree[Array]:
        """The sample itself."""
        return sample

    def _static_parts(self) -> list[Any]:
        """What programs depend on; see `structure`."""
        if self.mesh is not None:
            raise UnknownStructure("data on several devices")
        return [self.batch_size, str(jax.tree.structure(self.shapes)), shapes_of(self.shapes)]

    def __repr__(self) -> str:
        return f"Batches(batch_size={self.batch_size})"


Source = Dataset | Sampler | Batches


def check_source(owner: str, argument: str, data: Any) -> None:
    """A TypeError unless `data` is a source or None."""
    if data is not None and not isinstance(data, Source):
        raise TypeError(
            f"{owner}: {argument} must be a tightrope.Dataset, Sampler, Stream or Batches, got {type(data).__name__}; "
            "wrap your arrays: tightrope.Dataset(arrays, batch_size=64)"
        )


def batch_shape(source: Source) -> PyTree[jax.ShapeDtypeStruct]:
    """The shapes and dtypes of one of the source's batches."""
    if isinstance(source, Batches):
        return source.shapes
    if isinstance(source, Dataset):
        examples, arrays = min(source.batch_size, source.size), source.whole
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((examples, *a.shape[1:]), jnp.result_type(a)), arrays)
    return jax.eval_shape(lambda key: source.draw(key, source.batch_size), jax.random.key(0))


def _check_sampler(fn: Callable[[Array, int], PyTree[Array]], batch_size: int) -> None:
    """An error unless fn is a function of the key that gives as many examples as it is asked for."""
    instead = (
        "Draw with jax.random and the key, such as jax.random.normal(key, (n, 2)); for examples of your own use a "
        "tightrope.Dataset, or tightrope.Batches with a Stepper"
    )

    def traced(examples: int) -> Any:
        jaxpr, made = trace(lambda key: unjitted(fn)(key, examples), jax.random.key(0))
        wrong = [leaf.shape for leaf in jax.tree.leaves(made) if leaf.shape[:1] != (examples,)]
        if wrong or not jax.tree.leaves(made):
            raise ValueError(
                f"Sampler: fn(key, {examples}) must return arrays with {examples} examples, "
                f"got {f'shapes {wrong}' if wrong else 'no arrays'}"
            )
        return jaxpr

    first = traced(batch_size)
    if changes(first, lambda: traced(batch_size)):
        raise ValueError(
            "Sampler: fn(key, n) changes from call to call with the same key (an iterator, NumPy's random numbers, the time). "
            f"It is traced once, so every batch would be the same. {instead}"
        )
    if not any(uses_inputs(first)):
        raise ValueError(
            f"Sampler: fn(key, n) does not use its key, so every batch would be the same. {instead}; "
            "pass jax.random.key_data(key) to a jax.pure_callback"
        )
    traced(2 * batch_size + 1)


def _check_numbers(owner: str, argument: str, tree: PyTree[Any]) -> None:
    """A TypeError unless every leaf holds numbers."""
    leaves_of(owner, argument, tree)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: isinstance(node, Iterator)):
        where = f"{owner}: {argument}{jax.tree_util.keystr(path)}"
        if isinstance(leaf, Iterable) and not isinstance(leaf, str | bytes) and not hasattr(leaf, "__array__"):
            raise TypeError(
                f"{where} is a {type(leaf).__name__}; expected arrays. Collect its examples, such as "
                "np.stack(list(examples)), or step on batches of your own with tightrope.Batches and a Stepper"
            )
        dtype = leaf.dtype if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array) else np.asarray(leaf).dtype
        if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
            raise TypeError(
                f"{where} has dtype {dtype}; expected numbers. Encode text or categories as numbers first: "
                "np.unique(column, return_inverse=True)[1]"
            )


def _shared_length(owner: str, argument: str, tree: PyTree[Any]) -> int:
    """The length of the first axis, which all leaves must share."""
    named = jax.tree_util.tree_leaves_with_path(tree)
    if not named:
        raise ValueError(f"{owner}: {argument} is empty; expected at least one array with one entry per example")
    lengths = {argument + jax.tree_util.keystr(path): np.shape(leaf)[:1] for path, leaf in named}
    if any(not length for length in lengths.values()):
        raise ValueError(f"{owner}: every leaf needs a first axis of examples, got shapes starting with {lengths}")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length[0]}" for name, length in lengths.items())
        raise ValueError(f"{owner}: all leaves must have the same number of examples, but {listed}")
    (length,) = next(iter(lengths.values()))
    if length == 0:
        raise ValueError(f"{owner}: {argument} has no examples; expected at least one")
    return length
