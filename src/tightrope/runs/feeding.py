"""Feeds a run with the batches of its streams: a thread reads them ahead of the steps and sends them to the device in blocks.

Batch k of a stream is for step k. A block holds the batches of as many steps as fit in `BLOCK_BYTES`; one that is not full is
handed over too if the run would have to wait for the rest. While the steps of a block are taken, the next lies on the device
and a third is being filled, so the run waits only for a stream that is slower than its steps.
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..problems.data import Window
from ..problems.stream import Position, Reader, Stream
from .loop import NO_STREAMS, Fed

BLOCK_STEPS, BLOCK_BYTES = 1024, 2**24
"""The most steps and bytes of a block; it has at least one step. No result depends on either."""
GATHER_SECONDS = 0.1
"""The seconds that a run waits for a block to fill up, before it takes what is there or looks for Ctrl-C."""
WAITED_SHARE = 0.05
"""A run that waited for batches for more than this share of its time says so."""
WINDOW_BYTES = 2**26
"""The most bytes of a stream's first batches that are kept to evaluate on; at least one is."""

Batches = tuple[PyTree[np.ndarray], ...]
"""A batch of every stream."""
Positions = tuple[Position, ...]
"""Where every stream is."""


@dataclass
class Block:
    """The batches of some steps.

    Attributes:
        first: the first of these steps.
        room: the number of steps that fit.
        streams: the streams.
        before: where the streams are before the first step.
        positions: for every step so far where they are after it.
    """

    first: int
    room: int
    streams: tuple[Stream, ...]
    before: Positions
    positions: list[Positions] = field(default_factory=list)

    def __post_init__(self) -> None:
        def buffer(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
            return np.zeros((self.room, *leaf.shape), leaf.dtype)

        self._buffers: Any = tuple(jax.tree.map(buffer, stream.shapes) for stream in self.streams)
        self.fed: Fed | None = None

    @property
    def last(self) -> int:
        """The last step that has its batches."""
        return self.first + len(self.positions) - 1

    @property
    def full(self) -> bool:
        """Whether there is no room left."""
        return len(self.positions) == self.room

    def next(self) -> Block:
        """An empty block for the steps that follow."""
        return Block(self.last + 1, self.room, self.streams, self.after(self.last))

    def after(self, step: int) -> Positions:
        """Where the streams are after a step of this block, or after the one before it."""
        return self.before if step < self.first else self.positions[step - self.first]

    def add(self, batches: Batches, positions: Positions) -> None:
        """Copy the batches of the next step."""
        place = len(self.positions)

        def copy(buffer: np.ndarray, leaf: np.ndarray) -> None:
            buffer[place] = leaf

        jax.tree.map(copy, self._buffers, batches)
        self.positions.append(positions)

    def send(self) -> Block:
        """Copy the batches to the device."""
        self.fed = Fed(*jax.device_put((np.int32(self.first), self._buffers)))
        self._buffers = ()
        return self


class Feed:
    """The batches of all streams of a run, read on a thread.

    Args:
        streams: the streams.
        steps: the number of steps of the run.
        examples: the number of examples of each stream to keep for evaluation.

    Attributes:
        failure: what ended the streams before the run; None: nothing did.
        waited: the seconds that the run waited for batches.
        read_again: the batches that were read again, and discarded, to resume a run.
    """

    def __init__(self, streams: tuple[Stream, ...], steps: int, examples: int):
        self._streams, self._steps, self._examples = streams, steps, examples
        self.failure: Exception | None = None
        self.waited, self.read_again = 0.0, 0
        size = sum(_bytes(stream) for stream in streams)
        self._room = max(1, min(BLOCK_STEPS, BLOCK_BYTES // size))
        self._kept: list[tuple[Batches, Positions]] = []
        self._current: Block | None = None
        self._filling: Block | None = None
        self._ready: deque[Block] = deque()
        self._start: tuple[int, Positions] | None = None
        self._reading: tuple[Stream, float] | None = None
        self._error: Exception | None = None
        self._opened = self._ended = self._closed = False
        self._changed = threading.Condition()
        self._settings = bool(jax.config.jax_enable_x64), jax.config.jax_default_device  # pyright: ignore
        threading.Thread(target=self._work, name="tightrope-stream", daemon=True).start()

    def close(self) -> None:
        """Let the thread end, as soon as the iterator that it reads from gives a batch."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ------------------------------------------------------------------ the run's side

    @property
    def like(self) -> Fed:
        """What blocks look like on the device, to compile for."""
        return Block(0, self._room, self._streams, self._beginning()).send().fed or NO_STREAMS

    def first_batches(self) -> Batches:
        """The first batch of every stream; a ValueError if there is none."""
        with self._changed:
            while not (self._opened or self._ended or self._hangs()):
                self._changed.wait(GATHER_SECONDS)
        if not self._kept:
            raise ValueError(f"the stream gave no first batch ({_described(self._error)})") from self._error
        return self._kept[0][0]

    def windows(self) -> list[tuple[Window, PyTree[np.ndarray]]]:
        """For every stream the first examples, up to the end of the epoch or to one that is not finite."""
        self.first_batches()
        return [self._window(place, stream) for place, stream in enumerate(self._streams)]

    def block(self, step: int) -> Block | None:
        """The block with the batches of this step; None: they are not there yet, or never will be, and `failure` says why."""
        if self._current is not None and self._current.first <= step <= self._current.last:
            return self._current
        began = time.perf_counter()
        with self._changed:
            if self._start is None:
                self._start = step, self._beginning()
                self._changed.notify_all()
            block = self._of_kept(step)
            if block is None:
                self._changed.wait_for(lambda: self._ready or self._ended, GATHER_SECONDS)
                block = self._take()
                self._changed.notify_all()
            if block is None and (self._ended or self._hangs()):
                self.failure = self._error
        self.waited += time.perf_counter() - began
        if block is not None:
            self._current = block if block.fed is not None else block.send()
        return block

    def remarks(self, seconds: float) -> list[str]:
        """What the message of a run that took this long says about its streams."""
        said = []
        if self.failure is not None:
            said.append(f"the stream failed: {_described(self.failure)}")
        if self.read_again:
            said.append(f"the first {self.read_again:,} batches of the stream were read again to get there")
        if self.waited > WAITED_SHARE * seconds:
            said.append(f"{self.waited / seconds:.0%} of the time went to waiting for the stream")
        return said

    # ------------------------------------------------------------------ checkpoints

    def notes(self, step: int) -> dict[str, Any]:
        """Where the streams are after this step, and a checksum of their first batch, as JSON."""
        start = self._beginning() if self._start is None else self._start[1]
        found = start if self._current is None else self._current.after(step)
        return {"positions": [list(position) for position in found], "first": self._checksum()}

    def resume(self, step: int, notes: dict[str, Any]) -> str | None:
        """Go on after this step, from where the streams were; a sentence if they are not what they were."""
        self.first_batches()
        with self._changed:
            self._start = step + 1, tuple(Position(*position) for position in notes["positions"])
            self._changed.notify_all()
        if notes["first"] == self._checksum():
            return None
        return "the stream begins with another batch than when the checkpoint was saved, so this is not the run it was"

    # ------------------------------------------------------------------ the thread's side

    def _work(self) -> None:
        x64, device = self._settings
        with jax.enable_x64(x64), jax.default_device(device):
            try:
                for batches, positions in self._batches():
                    with self._changed:
                        assert self._filling is not None
                        self._filling.add(batches, positions)
                    self._hand_over_if_full()
            except Exception as error:  # whatever the user's iterator raises ends the stream, and the run says so
                self._error = self._error or error
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _batches(self) -> Iterator[tuple[Batches, Positions]]:
        """The batches of every step of the run, without those that are kept."""
        readers = [Reader(stream) for stream in self._streams]
        for _ in range(self._count_kept()):
            batch = self._read(readers)
            if self._closed:
                return
            self._kept.append(batch)
        with self._changed:
            self._opened = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._start is not None or self._closed)
        first, positions = self._start or (self._steps + 1, self._beginning())
        if first > len(self._kept):
            self._go_to(readers, positions)
        else:
            first, positions = len(self._kept) + 1, self._kept[-1][1]
        self._filling = Block(first, self._room, self._streams, positions)
        for _ in range(first, self._steps + 1):
            if self._closed:
                return
            yield self._read(readers)

    def _read(self, readers: list[Reader]) -> tuple[Batches, Positions]:
        """The next batch of every stream, as arrays of their own, and where the streams are then."""
        found = []
        for reader in readers:
            self._reading = reader.stream, time.monotonic()
            found.append(jax.tree.map(np.array, reader.read()))
            self._reading = None
        return tuple(found), tuple(reader.position for reader in readers)

    def _go_to(self, readers: list[Reader], positions: Positions) -> None:
        """Move the readers on, by reading all batches up to there if there is no other way."""
        for reader, position in zip(readers, positions, strict=True):
            self._reading = reader.stream, time.monotonic()
            if not reader.jump(position):
                self.read_again = position.batches
                while reader.batches < position.batches and not self._closed:
                    self._reading = reader.stream, time.monotonic()
                    reader.read()
            self._reading = None

    def _hand_over_if_full(self) -> None:
        """Send a full block to the device and begin another, when there is room for it."""
        with self._changed:
            full = self._filling
            if full is None or not full.full:
                return
            self._filling = None
        full.send()
        with self._changed:
            self._filling = full.next()
            self._changed.wait_for(lambda: not self._ready or self._closed)
            self._ready.append(full)
            self._changed.notify_all()

    # ------------------------------------------------------------------ parts

    def _of_kept(self, step: int) -> Block | None:
        """The block of steps whose batches are kept; None if that of this step is not."""
        kept = self._kept[step - 1 : step - 1 + self._room]
        if not kept:
            return None
        before = self._beginning() if step == 1 else self._kept[step - 2][1]
        block = Block(step, self._room, self._streams, before)
        for batches, positions in kept:
            block.add(batches, positions)
        return block

    def _take(self) -> Block | None:
        """The next block; one that is not full is replaced by an empty one."""
        if self._ready:
            return self._ready.popleft()
        block = self._filling
        if block is None or not block.positions:
            return None
        self._filling = block.next()
        return block

    def _hangs(self) -> bool:
        """Whether the batch that is being read takes too long; the streams have ended then."""
        reading = self._reading
        if reading is None or time.monotonic() - reading[1] <= reading[0].timeout:
            return False
        self._closed = self._ended = True
        self._error = TimeoutError(
            f"no batch came within {reading[0].timeout:g} s; give a slow stream more: tightrope.Stream(…, timeout=…)"
        )
        return True

    def _beginning(self) -> Positions:
        return tuple(Position() for _ in self._streams)

    def _count_kept(self) -> int:
        """The number of first batches to keep."""
        wanted = (
            min(math.ceil(self._examples / stream.batch_size), WINDOW_BYTES // _bytes(stream))
            for stream in self._streams
        )
        return max(1, *wanted)

    def _window(self, place: int, stream: Stream) -> tuple[Window, PyTree[np.ndarray]]:
        usable = []
        for batches, positions in self._kept:
            if usable and (positions[place].epoch or not _finite(batches[place])):
                break
            usable.append(batches[place])
        arrays = jax.tree.map(lambda *leaves: np.concatenate(leaves), *usable)
        size = len(usable) * stream.batch_size
        window = Window(stream.shapes, size, stream.batch_size)
        return window, jax.tree.map(lambda a, like: a.astype(like.dtype), arrays, stream.shapes)

    def _checksum(self) -> int:
        """A checksum of the first batch of every stream."""
        sums = [zlib.crc32(np.ascontiguousarray(leaf).tobytes()) for leaf in jax.tree.leaves(self._kept[0][0])]
        return zlib.crc32(repr(sums).encode())


def _finite(batch: PyTree[np.ndarray]) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(batch))


def _bytes(stream: Stream) -> int:
    """The bytes of a batch."""
    return max(1, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stream.shapes)))


def _described(error: Exception | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"
