"""Batches in order from an iterator on the host, such as a data loader or a generator over files, epoch after epoch."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from ..arguments import check_callable, number
from .data import Batches
from .tracing import arguments_of

_END = object()


class Stream(Batches):
    """Batches of a fixed size, in order, from iterators on the host: `solve` reads them ahead of its steps, on a thread.

    Every step takes one batch, split over the independent samples of the method. The end of an iterator is the end of an
    epoch: `make_iterator` is called again. Its last batch is dropped if it has fewer examples than the others.

    Args:
        make_iterator: `make_iterator()` returns an iterator (or anything to iterate over, such as a loader) over batches, each
            a pytree of NumPy arrays or Torch tensors that share their first axis, with one entry per example. It is called
            once here, to see what a batch looks like, and once per epoch of a run. If it has an argument without a default,
            `make_iterator(first)` begins with batch `first` of an epoch, counted from 0. Epochs begin with 0; a run that is
            resumed goes on with another number.
        timeout: the most seconds that a run waits for a batch, until it ends with the status 'data_error'.

    A run that is resumed from a checkpoint goes on with the next batch. It asks `make_iterator(first)` for it, or sets the
    iterator's state if that has `get_state` and `set_state`, as Grain's do; otherwise it reads all batches again up to there.

    Example:
        >>> import numpy as np, tightrope as tr
        >>> data = np.arange(12.0, dtype="float32").reshape(6, 2)
        >>> stream = tr.Stream(lambda: iter(np.split(data, 3)))
        >>> stream.batch_size
        2
    """

    def __init__(self, make_iterator: Callable[..., Iterable[PyTree[Any]]], *, timeout: float = 300.0):
        expected = "a function that returns an iterator over batches, such as lambda: iter(loader)"
        check_callable("Stream", "make_iterator", make_iterator, expected)
        self.make_iterator = make_iterator
        self.timeout = number("Stream", "timeout", timeout, low=0.0, high=threading.TIMEOUT_MAX)
        self._indexed = any(_is_required(p) for p in arguments_of(make_iterator).values())
        first = _first_batch(self)
        self._keep_shapes("Stream", "a batch", first)
        self._structure = jax.tree.structure(first)
        self._like = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(first)]
        self._names = ["batch" + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(first)]

    def _open(self, first: int = 0) -> Iterator[PyTree[Any]]:
        """An iterator over an epoch, from this batch on."""
        return iter(self.make_iterator(first) if self._indexed else self.make_iterator())

    def _is_short(self, batch: PyTree[np.ndarray]) -> bool:
        """Whether this is a batch with fewer examples than the others."""
        leaves = jax.tree.leaves(batch)
        return (
            jax.tree.structure(batch) == self._structure
            and all(leaf.shape[1:] == shape[1:] for leaf, (shape, _) in zip(leaves, self._like, strict=True))
            and all(leaf.ndim and 0 < len(leaf) < self.batch_size for leaf in leaves)
        )

    def _check(self, batch: PyTree[np.ndarray], place: int) -> None:
        """A ValueError that says what came and what was expected, unless the batch is like the first one."""
        found, leaves = jax.tree.structure(batch), jax.tree.leaves(batch)
        if found != self._structure:
            raise ValueError(f"batch {place:,} of the stream is a {found}; expected {self._structure}, as in the first")
        for name, leaf, (shape, dtype) in zip(self._names, leaves, self._like, strict=True):
            if (leaf.shape, leaf.dtype) != (shape, dtype):
                came, expected = f"{leaf.dtype}{list(leaf.shape)}", f"{dtype}{list(shape)}"
                raise ValueError(
                    f"{name} is {came} in batch {place:,} of the stream; expected {expected}, as in the first"
                )

    def __repr__(self) -> str:
        return f"Stream(batch_size={self.batch_size})"


class Position(NamedTuple):
    """Where a reader is.

    Attributes:
        batches: the batches given so far.
        epoch: the number of the epoch, from 0.
        of_epoch: the batches given so far in this epoch.
        state: the state of the iterator as JSON; None if it has none.
    """

    batches: int = 0
    epoch: int = 0
    of_epoch: int = 0
    state: str | None = None


class Reader:
    """Reads the batches of a stream, over its epochs, as NumPy arrays; a ValueError if one is unlike the first.

    Attributes:
        batches: the number of batches given so far.
        epoch: the number of the epoch, from 0.
    """

    def __init__(self, stream: Stream):
        self.stream, self.batches, self.epoch, self._of_epoch = stream, 0, 0, 0
        self._iterator: Iterator[PyTree[Any]] | None = None

    def read(self) -> PyTree[np.ndarray]:
        """The next batch."""
        while (batch := self._next_of_epoch()) is _END or (
            self.stream._is_short(batch) and self._next_of_epoch() is _END
        ):
            self._end_epoch()
        self.stream._check(batch, self.batches + 1)
        self.batches, self._of_epoch = self.batches + 1, self._of_epoch + 1
        return batch

    @property
    def position(self) -> Position:
        """Where the reader is."""
        return Position(self.batches, self.epoch, self._of_epoch, _state_of(self._iterator))

    def jump(self, to: Position) -> bool:
        """Go to a position without reading what lies before it; False if the stream cannot."""
        if self.stream._indexed:
            self._iterator = None
        elif to.state is not None and (iterator := self._iterator_of(to.epoch)) is not None:
            _set_state(iterator, to.state)
        else:
            return False
        self.batches, self.epoch, self._of_epoch = to.batches, to.epoch, to.of_epoch
        return True

    def _iterator_of(self, epoch: int) -> Any:
        """An iterator of this epoch whose state can be set; None if it cannot."""
        for _ in range(epoch - self.epoch + (self._iterator is None)):
            self._iterator = self.stream._open()
        return self._iterator if hasattr(self._iterator, "set_state") else None

    def _next_of_epoch(self) -> Any:
        if self._iterator is None:
            self._iterator = self.stream._open(self._of_epoch)
        batch = next(self._iterator, _END)
        return batch if batch is _END else as_numpy(batch)

    def _end_epoch(self) -> None:
        if not self._of_epoch:
            raise ValueError(
                f"after {self.batches:,} batches make_iterator returned an iterator without a whole batch; "
                "each call must return a new one, from the beginning"
            )
        self._iterator, self._of_epoch, self.epoch = None, 0, self.epoch + 1


def as_numpy(batch: PyTree[Any]) -> PyTree[np.ndarray]:
    """The batch with NumPy arrays for leaves; Torch tensors are brought to the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf), batch)


def _first_batch(stream: Stream) -> PyTree[np.ndarray]:
    """The first batch of a new iterator; an error if none comes in time."""
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(next(stream._open(), _END))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(stream.timeout)
    batch = found[0] if found else TimeoutError(f"none came within {stream.timeout:g} s")
    if isinstance(batch, Exception):
        raise ValueError(
            f"Stream: make_iterator gave no first batch ({type(batch).__name__}: {batch}); expected {_EXPECTED}"
        ) from batch
    if batch is _END:
        raise ValueError(f"Stream: make_iterator returned an iterator without a batch; expected {_EXPECTED}")
    return as_numpy(batch)


_EXPECTED = "make_iterator() to return a new iterator over batches each time it is called"


def _is_required(parameter: inspect.Parameter) -> bool:
    positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return positional and parameter.default is parameter.empty


def _state_of(iterator: Any) -> str | None:
    """The state of an iterator as JSON; None if it has none, or one that JSON cannot hold."""
    if not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state")):
        return None
    state = iterator.get_state()
    try:
        return json.dumps({"bytes": state.decode("latin-1")} if isinstance(state, bytes) else {"value": state})
    except (TypeError, ValueError):
        return None


def _set_state(iterator: Any, state: str) -> None:
    saved = json.loads(state)
    iterator.set_state(saved["bytes"].encode("latin-1") if "bytes" in saved else saved["value"])
