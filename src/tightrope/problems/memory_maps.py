"""Memory maps that go to another process: their place in a file instead of their numbers."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.lib.stride_tricks import as_strided


@dataclass(frozen=True)
class Place:
    """A memory map, or a view of one, by its place in its file.

    Attributes:
        file: the path of the file.
        size: the number of bytes of the file.
        offset: the byte at which the first entry begins.
        dtype: the type of the entries.
        shape: the shape of the array.
        strides: the bytes from one entry to the next, by axis.
    """

    file: str
    size: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: Any) -> Place:
        """The place of a memory map."""
        mapped = np.frombuffer(array._mmap, np.uint8)
        mapped_from = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        offset = mapped_from + array.ctypes.data - mapped.ctypes.data
        file = os.fspath(array.filename)
        return cls(file, os.path.getsize(file), offset, array.dtype, array.shape, array.strides)

    def open(self) -> np.ndarray[Any, Any]:
        """The memory map, to be read; an error unless the file has the size that it had."""
        size = os.path.getsize(self.file)
        if size != self.size:
            raise ValueError(f"Dataset: the memory map {self.file} has {size:,} bytes here; expected {self.size:,}")
        first = np.memmap(self.file, np.uint8, "r")[self.offset : self.offset + self.dtype.itemsize]
        return as_strided(first.view(self.dtype), self.shape, self.strides, subok=True)


def as_places(arrays: PyTree[Any]) -> PyTree[Any]:
    """The same tree with the places of memory maps; what is in memory, or changed there alone, stays as it is."""

    def place(leaf: Any) -> Any:
        in_file = getattr(leaf, "_mmap", None) is not None and leaf.filename is not None and leaf.mode != "c"
        return Place.of(leaf) if in_file else leaf

    return jax.tree.map(place, arrays)


def from_places(arrays: PyTree[Any]) -> PyTree[Any]:
    """The tree that `as_places` was given, with its memory maps opened again."""
    return jax.tree.map(lambda leaf: leaf.open() if isinstance(leaf, Place) else leaf, arrays)
