"""Parameters and the state of a method split over devices of a mesh, where `solve` is given a spec.

A method works on flat vectors, and a piece of a flat vector is no piece of a layer. So what is split is what a run carries from
step to step: x, its average, moments, kept rows. Updates, entry by entry, are computed where the entries lie. For an
evaluation x is gathered on every device, and its gradient is summed there.

Every floating-point array with a long axis is split along its longest one, the others are whole. Between programs an array
that is split is padded with zeros, because devices hold parts of one size there (see `Split`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from ..arguments import check_type
from .data import Given
from .splitting import EVERYWHERE, checked_mesh

LONG = 1024
"""Arrays whose longest axis is shorter are not split. Matrices that are solved with must not be: with the 20 × 20 products of a
quasi-Newton memory split, compiled programs of jaxlib 0.10.1 gave other numbers."""
PLACES = 2654435761, 2246822519, 3266489917, 668265263, 374761393
"""Odd numbers, for the places of bytes in a checksum."""


class Split(eqx.Module):
    """An array that is split over devices along one axis.

    Attributes:
        padded: the array, padded with zeros along that axis to a multiple of the number of parts.
        shape: its shape without padding.
        sharding: where its parts lie.
    """

    padded: Array
    shape: tuple[int, ...] = eqx.field(static=True)
    sharding: NamedSharding = eqx.field(static=True)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def unpadded(self, padded: Any) -> Any:
        """An array like `padded` without its padding."""
        return padded[tuple(map(slice, self.shape))]


@dataclass(frozen=True)
class Partition:
    """The axes of a mesh over which large arrays are split."""

    mesh: Mesh
    axes: tuple[str, ...]

    @property
    def parts(self) -> int:
        """The number of parts of an array."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    def gathered(self, x: Array) -> Array:
        """The same array, with all of it on every device."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, EVERYWHERE))

    def constrained(self, array: Array) -> Array:
        """The same array, split if it is large."""
        sharding = self._sharding(array)
        return array if sharding is None else jax.lax.with_sharding_constraint(array, sharding)

    def padded(self, array: Array) -> Array | Split:
        """A large array as it lies between two programs."""
        sharding = self._sharding(array)
        if sharding is None:
            return array
        widths = [(0, 0)] * array.ndim
        widths[len(sharding.spec) - 1] = 0, -max(array.shape) % self.parts
        return Split(jax.lax.with_sharding_constraint(jnp.pad(array, widths), sharding), array.shape, sharding)

    def _sharding(self, array: Array) -> NamedSharding | None:
        """Where the parts of an array lie; None if it is not split."""
        if max(array.shape, default=0) < LONG or not jnp.issubdtype(array.dtype, jnp.floating):
            return None
        axes = self.axes[0] if len(self.axes) == 1 else self.axes
        return NamedSharding(self.mesh, PartitionSpec(*(None,) * array.shape.index(max(array.shape)), axes))


def partition_over(owner: str, mesh: Any, spec: Any) -> Partition | None:
    """The partition of parameters by a spec; None without one."""
    if spec is None:
        return None
    expected = "a jax.sharding.PartitionSpec of one entry, such as PartitionSpec('model')"
    check_type(owner, "spec", spec, PartitionSpec, expected)
    if mesh is None:
        raise ValueError(f"{owner}: spec names axes of a mesh to split parameters over; give mesh too")
    mesh = checked_mesh(owner, mesh)
    entry = spec[0] if len(spec) == 1 else None
    axes = tuple(axis for axis in (entry if isinstance(entry, tuple) else (entry,)) if isinstance(axis, str))
    if not axes:
        raise ValueError(f"{owner}: spec must be {expected}, because parameters are one flat vector; got {spec}")
    if len(set(axes)) < len(axes) or set(axes) - set(mesh.axis_names):
        raise ValueError(f"{owner}: spec must name axes of the mesh, {mesh.axis_names}, each once; got {spec}")
    return Partition(mesh, axes)


def keep_split(partition: Partition | None, tree: PyTree[Array]) -> PyTree[Array]:
    """The same arrays; within a program, the large ones are split from here on."""
    return tree if partition is None else _map_numbers(partition.constrained, tree)


def pad_split(partition: Partition | None, tree: PyTree[Array]) -> PyTree[Any]:
    """What a program returns: large arrays split and padded."""
    return tree if partition is None else _map_numbers(partition.padded, tree)


def _map_numbers(fn: Callable[[Array], Any], tree: PyTree[Array]) -> PyTree[Any]:
    """The tree with this function of its arrays; examples that a method keeps lie where the data lie."""

    def one(node: Any) -> Any:
        return node if isinstance(node, Given) else fn(node)

    return jax.tree.map(one, tree, is_leaf=lambda node: isinstance(node, Given))


def is_split(node: Any) -> TypeGuard[Split]:
    """Whether a node of a pytree is an array that is split."""
    return isinstance(node, Split)


def unpadded(tree: PyTree[Any]) -> PyTree[Array]:
    """Within a program, the arrays that it was given, split and without padding."""

    def one(node: Any) -> Any:
        if not is_split(node):
            return node
        return jax.lax.with_sharding_constraint(node.unpadded(node.padded), node.sharding)

    return jax.tree.map(one, tree, is_leaf=is_split)


def on_host(tree: PyTree[Any]) -> PyTree[np.ndarray]:
    """All arrays on the host, whole; where a run has several processes, all of them take part."""

    def one(node: Any) -> Any:
        if not is_split(node):
            return node
        if node.padded.is_fully_addressable:
            return node.unpadded(np.asarray(node.padded))
        return node.unpadded(multihost_utils.process_allgather(node.padded, tiled=True))

    return jax.device_get(jax.tree.map(one, tree, is_leaf=is_split))


def checksums(arrays: dict[str, Split]) -> dict[str, int]:
    """A checksum of each array, by the devices that have its parts; the number of parts does not matter, nor does padding.

    It is the sum, modulo 2³², of all bytes, each times an odd number that depends on its place.
    """

    def one(array: Array) -> Array:
        octets = jax.lax.bitcast_convert_type(array, jnp.uint8).astype(jnp.uint32)
        place = sum(
            jax.lax.broadcasted_iota(jnp.uint32, octets.shape, axis) * np.uint32(factor)
            for axis, factor in zip(range(octets.ndim), PLACES, strict=False)
        )
        place = (place ^ (place >> 15)) * np.uint32(PLACES[-1])
        return jnp.sum(octets * (place | 1), dtype=jnp.uint32)

    sums = jax.jit(lambda given: jax.tree.map(one, given))({name: array.padded for name, array in arrays.items()})
    return {name: int(found) for name, found in sums.items()}


def shardings(tree: PyTree[Any], others: NamedSharding | None) -> list[NamedSharding | None]:
    """Where every array that a program returns lies: those that are split, and all others."""
    return [node.sharding if is_split(node) else others for node in jax.tree.leaves(tree, is_leaf=is_split)]
