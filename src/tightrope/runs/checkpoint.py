"""Checkpoints of a run, saved with Orbax: arrays and JSON, written atomically, without pickle; runs resume bit for bit."""

from __future__ import annotations

import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..arguments import number, positive_int
from ..problems.data import Dataset
from ..problems.problem import Problem


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often `solve` saves a run; a folder that holds a checkpoint is resumed.

    Args:
        folder: the folder of the checkpoints.
        every: how often, in seconds of wall time; they are saved at records, and always at the end.
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


def fingerprint(problem: Problem, structure: Any, settings: dict[str, Any]) -> str:
    """A hash of shapes, settings, constraint names and bounds, and some examples; a checkpoint must match it."""
    described = repr((str(structure), sorted(settings.items())))
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-fA-F]+", "", described).encode())  # functions by name: no addresses
    for constraint in problem.constraints:
        digest.update(repr((constraint.name, constraint.kind)).encode())
        digest.update(constraint.low.tobytes() + constraint.high.tobytes())
    for source in problem.sources:
        digest.update(repr((type(source).__name__, source.batch_size)).encode())
        if isinstance(source, Dataset):
            picked = np.linspace(0, source.size - 1, min(source.size, 64)).astype(int)
            for leaf in jax.tree.leaves(source.arrays):
                digest.update(repr((leaf.shape, str(leaf.dtype))).encode() + np.asarray(leaf[picked]).tobytes())
    for leaf in jax.tree.leaves(problem.domain):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


class CheckpointStore:
    """The folder of the checkpoints of one run."""

    def __init__(self, checkpoint: Checkpoint, mark: str):
        import orbax.checkpoint as ocp

        self._ocp, self._mark, self._every = ocp, mark, checkpoint.every
        self.folder = Path(checkpoint.folder).absolute()
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"checkpoint: {self.folder} is a file; expected a folder")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=checkpoint.keep, enable_async_checkpointing=False, create=True, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)
        self._saved_at = time.monotonic()
        self._last = self._manager.latest_step()

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The arrays (a pytree like `like`) and the notes of the newest checkpoint; None if there is none."""
        if self._last is None:
            return None
        args = self._ocp.args
        try:
            notes = self._manager.restore(self._last, args=args.Composite(notes=args.JsonRestore()))["notes"]
        except Exception as error:
            raise self._damaged(error) from error
        if notes["fingerprint"] != self._mark:
            raise ValueError(
                f"checkpoint: the folder {self.folder} holds a run of another problem, method, seed or recording interval; "
                "choose another folder, or delete it to start anew"
            )
        leaves, structure = jax.tree.flatten(like)
        shapes = {str(i): jax.ShapeDtypeStruct(a.shape, a.dtype) for i, a in enumerate(leaves) if a.size}
        try:
            arrays = self._manager.restore(self._last, args=args.Composite(arrays=args.StandardRestore(shapes)))[
                "arrays"
            ]
        except Exception as error:
            raise self._damaged(error) from error
        restored = [arrays.get(str(i), a) for i, a in enumerate(leaves)]
        return jax.tree.unflatten(structure, restored), notes

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(
            f"checkpoint: step {self._last} in {self.folder} cannot be read, it is damaged "
            f"({type(error).__name__}: {str(error)[:200]}); delete that step's folder to resume from an earlier one"
        )

    def due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return time.monotonic() - self._saved_at >= self._every

    def save(self, step: int, arrays: Any, notes: dict[str, Any]) -> None:
        """Write a checkpoint, atomically."""
        if step == self._last:
            return
        args = self._ocp.args
        leaves = {
            str(i): np.asarray(a) for i, a in enumerate(jax.tree.leaves(arrays)) if a.size
        }  # Orbax refuses empty ones
        self._manager.save(
            step,
            args=args.Composite(
                arrays=args.StandardSave(leaves), notes=args.JsonSave(notes | {"fingerprint": self._mark})
            ),
        )
        self._manager.wait_until_finished()
        self._saved_at, self._last = time.monotonic(), step

    def close(self) -> None:
        """Release the folder."""
        self._manager.close()
