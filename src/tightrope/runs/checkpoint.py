"""Checkpoints of a run, saved with Orbax: arrays and JSON, written atomically, without pickle; runs resume bit for bit.

A checkpoint is written in the background while the run goes on. It has the number of its format, a fingerprint of the run, and
a checksum of all that it holds. One that cannot be saved, say because the disk is full, does not stop the run: those before
it stay, another is tried when the next is due, and the result says so if the last one was not saved.

Arrays that are split over devices are saved in parts, by the processes that have them, and restored so, possibly in another
number of parts.
"""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..arguments import number, positive_int
from ..problems.partition import checksums, is_split
from .fingerprint import changes
from .processes import largest, writes
from .result import checksum

logger = logging.getLogger("tightrope")

FORMAT = 1
"""The version of what a checkpoint holds; one of another version is refused."""
FIRST_WAIT = 1.0
"""Seconds from the start to the first checkpoint; each wait is twice the one before, up to `every`."""


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often `solve` saves a run; a folder that holds a checkpoint is resumed.

    Args:
        folder: the folder of the checkpoints.
        every: how often, in seconds of wall time. The first checkpoints come sooner, after 1, 2, 4, … seconds, so that a
            run that is killed early loses little. They are written in the background, one at a time. A checkpoint is also
            saved at the end, whatever ends the run.
        keep: the number of checkpoints to keep, the newest ones.

    Example:
        >>> import tightrope as tr
        >>> tr.Checkpoint("runs/first", every=30.0).keep
        2
    """

    folder: str | os.PathLike[str]
    every: float = 60.0
    keep: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike):
            raise TypeError(f"Checkpoint: folder must be a path, got {type(self.folder).__name__}")
        if not os.fspath(self.folder):
            raise ValueError("Checkpoint: folder must be a path, got an empty one")
        number("Checkpoint", "every", self.every, low=0.0, closed="[")
        positive_int("Checkpoint", "keep", self.keep)


class CheckpointStore:
    """The folder of the checkpoints of one run; every process of a run on many hosts reads it.

    One of them writes; if arrays are split, all do, and each its own parts.

    Attributes:
        folder: the folder.
        failure: why the last checkpoint could not be saved; None if it could.
    """

    def __init__(self, checkpoint: Checkpoint, marks: dict[str, str], mesh: Mesh | None = None, split: bool = False):
        import orbax.checkpoint as ocp

        self._ocp, self._marks, self._every, self._keep = ocp, marks, checkpoint.every, checkpoint.keep
        self._wait = min(FIRST_WAIT, self._every)
        self._writes, self._writing = split or writes(mesh), False
        self._alone, self._together = (None, mesh) if split else (mesh, None)
        self.failure: str | None = None
        self.folder = Path(checkpoint.folder).expanduser().absolute()
        try:
            if self.folder.exists() and not self.folder.is_dir():
                raise ValueError("it is a file; expected a folder")
            self.folder.mkdir(parents=True, exist_ok=True)
            self._manager: Any = self._open()
            self._last: int | None = self._manager.latest_step()
        except (OSError, ValueError) as error:
            raise ValueError(f"checkpoint: {self.folder} cannot be used: {error}") from error
        if self._last is None and self._writes and not os.access(self.folder, os.W_OK):
            raise ValueError(f"checkpoint: {self.folder} cannot be used: it cannot be written to")
        self._saved_at = time.monotonic()
        self._notes = {} if self._last is None else self._checked_notes()

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The arrays (a pytree like `like`) and the notes of the newest checkpoint; None if there is none."""
        if self._last is None:
            return None
        args = self._ocp.args
        leaves, structure = jax.tree.flatten(like, is_leaf=is_split)
        shapes = {str(i): _shape(a) for i, a in enumerate(leaves) if a.size}
        try:
            asked = args.StandardRestore(shapes, strict=not any(map(is_split, leaves)))  # the padding may differ
            arrays = self._manager.restore(self._last, args=args.Composite(arrays=asked))["arrays"]
            arrays = {name: _like(leaves[int(name)], array) for name, array in arrays.items()}
            if _checksum(self._notes["run"], arrays) != self._notes["checksum"]:
                raise ValueError("its checksum differs from that of its content")
        except Exception as error:
            raise self._damaged(error) from error
        found = [arrays.get(str(i), a) for i, a in enumerate(leaves)]
        return jax.tree.unflatten(structure, found), json.loads(self._notes["run"])

    def due(self) -> bool:
        """Whether it is time for another checkpoint, and the one before is written."""
        busy = self._writing and self._manager.is_saving_in_progress()
        due = self._writes and not busy and time.monotonic() - self._saved_at >= self._wait
        return bool(largest(self._together, due))

    def save(self, step: int, arrays: Any, notes: dict[str, Any]) -> None:
        """Begin to write a checkpoint, once the one before is written; it takes its place among the others atomically."""
        self._finish()
        if step == self._last or not self._writes:
            return
        args, run = self._ocp.args, json.dumps(notes)
        listed = enumerate(jax.tree.leaves(arrays, is_leaf=is_split))
        leaves = {str(i): a if is_split(a) else np.array(a) for i, a in listed if a.size}  # Orbax refuses empty ones
        saved = {"format": FORMAT, "fingerprint": self._marks, "run": run, "checksum": _checksum(run, leaves)}
        written = {name: a.padded if is_split(a) else a for name, a in leaves.items()}
        error = None
        try:
            self._manager = self._manager or self._open()
            self._manager.save(step, args=args.Composite(arrays=args.StandardSave(written), notes=args.JsonSave(saved)))
            self._last, self._writing = step, True
        except Exception as raised:
            error = raised
        self._fail_together(step, error)
        self._saved_at = time.monotonic()
        self._wait = min(2.0 * self._wait, self._every)

    def close(self) -> None:
        """Wait for the last checkpoint, and release the folder."""
        self._finish()
        if self._manager is not None:
            self._manager.close()

    def remarks(self) -> list[str]:
        """What the message of a run says about its checkpoints: nothing, unless the last one could not be saved."""
        if self.failure is None:
            return []
        last = "none" if self._last is None else f"that of step {self._last:,}"
        return [f"{self.failure}; the newest checkpoint in {self.folder} is {last}"]

    # ------------------------------------------------------------------ parts

    def _open(self) -> Any:
        """Orbax's manager of the folder; it removes what an interrupted save left."""
        at_once = self._ocp.AsyncOptions(
            create_directories_asynchronously=False
        )  # else threads wait for those that fail
        options = self._ocp.CheckpointManagerOptions(
            max_to_keep=self._keep,
            create=False,
            cleanup_tmp_directories=self._writes,
            async_options=at_once,
            multiprocessing_options=_alone(self._ocp, self._alone),
        )
        return self._ocp.CheckpointManager(self.folder, options=options)

    def _finish(self) -> None:
        """Wait until the checkpoint that is being written is on disk."""
        if not self._writing:
            return
        error = None
        try:
            self._manager.wait_until_finished()
            self._writing, self.failure = False, None
        except Exception as raised:
            error = raised
        self._fail_together(self._last, error)

    def _fail_together(self, step: int | None, error: Exception | None) -> None:
        """Fail if there is an error, in this process or in another one that writes a part."""
        if error is None and largest(self._together, False):
            error = OSError("another process could not write its part")
        elif error is not None:
            largest(self._together, True)
        if error is not None:
            self._fail(step, error)

    def _fail(self, step: int | None, error: Exception) -> None:
        """Note that a checkpoint could not be saved, and begin anew with those that are on disk."""
        self.failure = (
            f"the checkpoint of step {step:,} could not be saved ({type(error).__name__}: {str(error)[:200]})"
        )
        logger.warning("%s; the run goes on", self.failure)
        with suppress(Exception):
            self._manager.close()
        self._manager, self._writing = None, False
        with suppress(Exception):
            self._manager = self._open()
            self._last = self._manager.latest_step()

    def _checked_notes(self) -> dict[str, Any]:
        """The notes of the newest checkpoint; a ValueError that says what has changed since it was saved."""
        args = self._ocp.args
        try:
            notes = self._manager.restore(self._last, args=args.Composite(notes=args.JsonRestore()))["notes"]
            written, saved = notes.get("format"), dict(notes["fingerprint"])
        except Exception as error:
            raise self._damaged(error) from error
        if written != FORMAT:
            raise ValueError(
                f"checkpoint: step {self._last} in {self.folder} has format {written}, and this version of Tightrope reads "
                f"format {FORMAT}; resume it with the version that saved it, or choose another folder"
            )
        if changed := changes(self._marks, saved):
            raise ValueError(
                f"checkpoint: the folder {self.folder} holds another run, which differs in {changed}; "
                "choose another folder, or delete it to start anew"
            )
        return notes

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(
            f"checkpoint: step {self._last} in {self.folder} cannot be read, it is damaged or no checkpoint of Tightrope "
            f"({type(error).__name__}: {str(error)[:200]}); move that step's folder away to resume from an earlier one"
        )


def _checksum(notes: str, arrays: dict[str, Any]) -> int:
    """A checksum of the notes and arrays of a checkpoint."""
    split = {name: array for name, array in arrays.items() if is_split(array)}
    text = notes + json.dumps(checksums(split), sort_keys=True) if split else notes
    return checksum(text, (np.asarray(arrays[name]) for name in sorted(arrays) if name not in split))


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    """What Orbax is asked for in the place of an array: its parts on their devices if it is split."""
    if is_split(array):
        return jax.ShapeDtypeStruct(array.padded.shape, array.padded.dtype, sharding=array.sharding)
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _like(array: Any, restored: Any) -> Any:
    """What was restored, as an array that is split if this one is."""
    return replace(array, padded=restored) if is_split(array) else restored


def _alone(ocp: Any, mesh: Mesh | None) -> Any:
    """Options of Orbax with which a process of several waits for no other."""
    if mesh is None or not mesh.is_multi_process:
        return ocp.options.MultiprocessingOptions()
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )
