"""Data split over the devices of a mesh, along its first axis: each device holds a share of every data set.

With p devices and n examples, device d holds the examples d·q to (d+1)·q − 1, q = ⌊n/p⌋, in its first rows, and one of the
n − p·q others in the next row. Position s of a pass is row ⌊s/p⌋ of device s mod p. So a piece of a pass is a slice of the rows
of every device, and nothing moves; a pass is over all examples, in another order than that of the data.

The examples of a step are drawn with the same random numbers as on one device, and lie anywhere. Each device fills in those
that it has, and a sum over the devices (a reduce-scatter) hands every device its part of the batch. Everything that follows
is split by the compiler, from where the batch lies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree

from ..arguments import check_type
from .data import Batches, Dataset, Fetched, Given, Sampler, Source, Span
from .problem import Problem, on_sources, sharing_programs

_SPLIT: WeakKeyDictionary[Problem, dict[Mesh, Problem]] = WeakKeyDictionary()
"""What was split, while its problem lives."""
EVERYWHERE = PartitionSpec()
"""The partition of an array that every device has all of."""


def on_mesh(owner: str, problem: Problem, mesh: Any) -> Problem:
    """The problem with its data split over the first axis of a mesh; an error if they cannot be."""
    mesh = checked_mesh(owner, mesh)
    if not problem.sources:
        raise ValueError(f"{owner}: mesh splits batches and data, and the problem has none; leave mesh out")
    for source in problem.sources:
        _check_can_be_split(owner, source, mesh)

    split = _SPLIT.setdefault(problem, {})
    if mesh not in split:
        made = on_sources(problem, {id(source): _split(source, mesh) for source in problem.sources})
        split[mesh] = sharing_programs(problem, made, ("mesh", mesh))
    return split[mesh]


def checked_mesh(owner: str, mesh: Any) -> Mesh:
    """The mesh, with axes over which the compiler splits arrays; an error if it is none."""
    check_type(
        owner, "mesh", mesh, Mesh, "a jax.sharding.Mesh, such as jax.make_mesh((jax.device_count(),), ('data',))"
    )
    return Mesh(mesh.devices, mesh.axis_names, (AxisType.Auto,) * len(mesh.axis_names))


def _check_can_be_split(owner: str, source: Source, mesh: Mesh) -> None:
    if isinstance(source, Batches):
        raise ValueError(
            f"{owner}: mesh splits a Dataset or a Sampler, got a {type(source).__name__}; leave mesh out, or write the "
            "examples to files and give the problem a Dataset of memory maps"
        )
    axis, devices = mesh.axis_names[0], parts_of(mesh)
    if source.batch_size % devices:
        raise ValueError(
            f"{owner}: a batch of {source.batch_size} examples cannot be split evenly over the {devices} devices of the mesh's "
            f"first axis {axis!r}; use a batch_size that is a multiple of {devices}"
        )


def _split(source: Source, mesh: Mesh) -> Source:
    return SplitDataset(source, mesh) if isinstance(source, Dataset) else SplitSampler(source, mesh)  # pyright: ignore


def parts_of(mesh: Mesh | None) -> int:
    """The number of parts that a mesh splits a batch into."""
    return 1 if mesh is None else mesh.shape[mesh.axis_names[0]]


class SplitDataset(Dataset):
    """A `Dataset` whose examples are split over the devices; of memory maps, every host reads the share of its devices.

    Args:
        data: the data.
        mesh: the mesh, with axes of the type Auto.
    """

    def __init__(self, data: Dataset, mesh: Mesh):
        self.size, self.batch_size, self.on_host, self.mesh = data.size, data.batch_size, None, mesh
        self._data, self._parts, self._axis = data, parts_of(mesh), mesh.axis_names[0]
        self._rows, self._each = -(-data.size // self._parts), data.size // self._parts
        self._sharding = NamedSharding(mesh, PartitionSpec(self._axis))
        self._fetch_now = jax.jit(self._fetch)
        self.arrays = jax.tree.map(self._placed, data.whole)

    @property
    def whole(self) -> PyTree[Any]:
        """All examples, as the user gave them."""
        return self._data.whole

    def batch(self, arrays: PyTree[Array], sample: PyTree[Array]) -> PyTree[Array]:
        """The examples of a sample, split over the devices if their number is a multiple of them."""
        if isinstance(sample, Given):
            return sample.examples
        if not isinstance(sample, Span):
            return self._fetch(arrays, *self._place(sample))
        if sample.length % self._parts == 0:
            return self._slice(arrays, jnp.asarray(sample.first) // self._parts, sample.length // self._parts)
        row, device = jnp.divmod(sample.first + jnp.arange(sample.length), self._parts)
        return self._fetch(arrays, device, row)

    def fetched(self, arrays: PyTree[Array], indices: Int[Array, " examples"]) -> Fetched:
        """Drawn examples, fetched once for all that is evaluated on them; for a block of steps, all at once."""
        return Fetched(self.batch(arrays, indices), indices)

    def subset(self, arrays: PyTree[Array], indices: Int[np.ndarray, " examples"]) -> PyTree[Array]:
        """Some examples as data to pass over, in the order of positions."""
        rows = -(-len(indices) // self._parts)
        device, row = np.divmod(np.arange(self._parts * rows), rows)
        position = np.minimum(row * self._parts + device, len(indices) - 1)
        return self._fetch_now(arrays, *self._place(np.asarray(indices[position], np.int32)))

    def _placed(self, leaf: Any) -> Array:
        """An array split over the devices; where they hold different numbers of examples, the last row is padded."""
        leaf = leaf if isinstance(leaf, np.memmap) else np.asarray(leaf)
        dtype, even = jnp.result_type(leaf), self._parts * self._each

        def share(index: Any) -> np.ndarray:
            device = (index[0].start or 0) // self._rows
            other = min(even + device, self.size - 1)
            own = leaf[device * self._each : (device + 1) * self._each], leaf[other : other + self._rows - self._each]
            return np.asarray(np.concatenate(own), dtype)

        shape = self._rows * self._parts, *leaf.shape[1:]
        return jax.make_array_from_callback(shape, self._sharding, share)

    def _place(self, indices: Any) -> tuple[Any, Any]:
        """The device that holds each example, and its row there."""
        even, each = self._parts * self._each, max(self._each, 1)
        device = jnp.where(indices < even, indices // each, indices - even)
        return device, jnp.where(indices < even, indices % each, self._each)

    def _slice(self, arrays: PyTree[Array], first: Array, rows: int) -> PyTree[Array]:
        """The same rows of every device."""

        def own(arrays: PyTree[Array], first: Array) -> PyTree[Array]:
            return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, first, rows), arrays)

        split = PartitionSpec(self._axis)
        return jax.shard_map(own, mesh=self.mesh, in_specs=(split, EVERYWHERE), out_specs=split)(arrays, first)

    def _fetch(self, arrays: PyTree[Array], device: Array, row: Array) -> PyTree[Array]:
        """Rows of any device: a sum over the devices, in which all but one add zero."""
        axis, even = self._axis, len(row) % self._parts == 0

        def own(arrays: PyTree[Array], device: Array, row: Array) -> PyTree[Array]:
            mine = device == jax.lax.axis_index(axis)

            def rows(a: Array) -> Array:
                number = a.astype(jnp.uint8) if a.dtype == bool else a
                found = number[jnp.where(mine, row, 0)]
                found = jnp.where(mine.reshape(-1, *(1,) * (a.ndim - 1)), found, jnp.zeros_like(found))
                total = jax.lax.psum_scatter(found, axis, tiled=True) if even else jax.lax.psum(found, axis)
                return total.astype(a.dtype)

            return jax.tree.map(rows, arrays)

        split = PartitionSpec(axis)
        specs, out = (split, EVERYWHERE, EVERYWHERE), split if even else EVERYWHERE
        return jax.shard_map(own, mesh=self.mesh, in_specs=specs, out_specs=out)(arrays, device, row)


class SplitSampler(Sampler):
    """A `Sampler` whose batches are split over the devices: the random numbers are the same, whoever makes them."""

    def __init__(self, sampler: Sampler, mesh: Mesh):
        self.fn, self.batch_size, self.mesh = sampler.fn, sampler.batch_size, mesh
        whole, split = NamedSharding(mesh, EVERYWHERE), NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
        # No numbers, but a program runs where its arguments are.
        self.arrays = jax.make_array_from_callback((0,), whole, lambda _: np.zeros(0, np.float32))
        self._whole, self._split = (jax.jit(self.fn, static_argnums=1, out_shardings=to) for to in (whole, split))

    def draw(self, key: Array, examples: int) -> PyTree[Array]:
        """Fresh examples, split over the devices if their number is a multiple of them."""
        return (self._whole if examples % parts_of(self.mesh) else self._split)(key, examples)


def split_sample(source: Source, sample: PyTree[Array], axis: int) -> PyTree[Array]:
    """A sample with its examples split over the devices along an axis; indices, which are few numbers, stay whole."""
    if source.mesh is None or (isinstance(source, Dataset) and not isinstance(sample, Given)):
        return sample
    mesh, parts = source.mesh, parts_of(source.mesh)
    sharding = NamedSharding(mesh, PartitionSpec(*(None,) * axis, mesh.axis_names[0]))

    def split(a: Array) -> Array:
        return a if a.shape[axis] % parts else jax.lax.with_sharding_constraint(a, sharding)

    if isinstance(sample, Given):
        return replace(sample, examples=jax.tree.map(split, sample.examples))
    return jax.tree.map(split, sample)
