"""Checkpoints of a run, saved with Orbax: arrays and JSON, written atomically, without pickle; runs resume bit for bit."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..arguments import number, positive_int
from .fingerprint import changes
from .processes import writes

FIRST_WAIT = 1.0
"""Seconds from the start to the first checkpoint; each wait is twice the one before, up to `every`."""


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often `solve` saves a run; a folder that holds a checkpoint is resumed.

    Args:
        folder: the folder of the checkpoints.
        every: how often, in seconds of wall time. The first checkpoints come sooner, after 1, 2, 4, … seconds, so that a
            run that is killed early loses little. A checkpoint is also saved at the end, whatever ends the run.
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
        number("Checkpoint", "every", self.every, low=0.0, closed="[")
        positive_int("Checkpoint", "keep", self.keep)


class CheckpointStore:
    """The folder of the checkpoints of one run; every process of a run on many hosts reads it, and one writes."""

    def __init__(self, checkpoint: Checkpoint, marks: dict[str, str], mesh: Mesh | None = None):
        import orbax.checkpoint as ocp

        self._ocp, self._marks, self._every, self._writes = ocp, marks, checkpoint.every, writes(mesh)
        self._wait = min(FIRST_WAIT, self._every)
        self.folder = Path(checkpoint.folder).absolute()
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"checkpoint: {self.folder} is a file; expected a folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=checkpoint.keep,
            enable_async_checkpointing=False,
            create=False,
            cleanup_tmp_directories=self._writes,
            multiprocessing_options=_alone(ocp, mesh),
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)
        self._saved_at = time.monotonic()
        self._last = self._manager.latest_step()
        self._notes = {} if self._last is None else self._checked_notes()

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The arrays (a pytree like `like`) and the notes of the newest checkpoint; None if there is none."""
        if self._last is None:
            return None
        args = self._ocp.args
        leaves, structure = jax.tree.flatten(like)
        shapes = {str(i): jax.ShapeDtypeStruct(a.shape, a.dtype) for i, a in enumerate(leaves) if a.size}
        try:
            arrays = self._manager.restore(self._last, args=args.Composite(arrays=args.StandardRestore(shapes)))[
                "arrays"
            ]
        except Exception as error:
            raise self._damaged(error) from error
        restored = [arrays.get(str(i), a) for i, a in enumerate(leaves)]
        return jax.tree.unflatten(structure, restored), self._notes

    def _checked_notes(self) -> dict[str, Any]:
        """The notes of the newest checkpoint; a ValueError that says what has changed since it was saved."""
        args = self._ocp.args
        try:
            notes = self._manager.restore(self._last, args=args.Composite(notes=args.JsonRestore()))["notes"]
            saved = dict(notes["fingerprint"])
        except Exception as error:
            raise self._damaged(error) from error
        if changed := changes(self._marks, saved):
            raise ValueError(
                f"checkpoint: the folder {self.folder} holds another run, which differs in {changed}; "
                "choose another folder, or delete it to start anew"
            )
        return notes

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(
            f"checkpoint: step {self._last} in {self.folder} cannot be read, it is damaged "
            f"({type(error).__name__}: {str(error)[:200]}); delete that step's folder to resume from an earlier one"
        )

    def due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return self._writes and time.monotonic() - self._saved_at >= self._wait

    def save(self, step: int, arrays: Any, notes: dict[str, Any]) -> None:
        """Write a checkpoint, atomically."""
        if step == self._last or not self._writes:
            return
        args = self._ocp.args
        leaves = {
            str(i): np.asarray(a) for i, a in enumerate(jax.tree.leaves(arrays)) if a.size
        }  # Orbax refuses empty ones
        self._manager.save(
            step,
            args=args.Composite(
                arrays=args.StandardSave(leaves), notes=args.JsonSave(notes | {"fingerprint": self._marks})
            ),
        )
        self._manager.wait_until_finished()
        self._saved_at, self._last = time.monotonic(), step
        self._wait = min(2.0 * self._wait, self._every)

    def close(self) -> None:
        """Release the folder."""
        self._manager.close()


def _alone(ocp: Any, mesh: Mesh | None) -> Any:
    """Options of Orbax with which a process of several waits for no other."""
    if mesh is None or not mesh.is_multi_process:
        return ocp.options.MultiprocessingOptions()
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"process{me}"
    )
