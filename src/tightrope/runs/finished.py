"""The folder in which a sweep keeps its finished runs: one Result for each method and seed."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from ..arguments import check_type
from ..problems.canonical import digest
from .fingerprint import changes, fingerprint
from .fitting import Fitted
from .options import Record, Stop
from .result import Result, load
from .spreading import Lane

logger = logging.getLogger("tightrope")

OF_ONE_RUN = ("the method", "the seed")
"""Parts of the fingerprint in which the runs of a sweep differ."""


class FinishedRuns:
    """The finished runs of a sweep, each in a file that `Result.save` wrote, with x as a vector.

    A run is found again by its method and seed, so a sweep may be divided otherwise, or have more methods and seeds, when it
    goes on. A sweep that differs in anything else is refused.

    Args:
        folder: the folder; it is made if it does not exist.
        settings: the problem, fitted to each method.
        record: what is recorded.
        stop: when a run may stop.
    """

    def __init__(self, folder: Any, settings: list[Fitted], record: Record, stop: Stop | None):
        check_type("sweep", "checkpoint", folder, (str, os.PathLike), "the name of a folder")
        if not os.fspath(folder):
            raise ValueError("sweep: checkpoint must be the name of a folder, got an empty one")
        self.folder = Path(folder).absolute()
        self._methods = [f"{fitted.name}-{digest(fitted.method)[:16]}" for fitted in settings]
        marks = {name: mark for name, mark in fingerprint(settings[0], record, 0).items() if name not in OF_ONE_RUN}
        marks |= {"the number of steps": digest(settings[0].steps), "stop": digest(stop)}
        self._check(marks)

    def load(self, lane: Lane) -> Result | None:
        """The result of a run; None if it is not finished."""
        file = self._file(lane)
        try:
            return load(file) if file.exists() else None
        except ValueError as error:
            error.add_note("it is the checkpoint of a sweep: delete this file to take its run anew")
            raise

    def save(self, lane: Lane, result: Result) -> None:
        """Keep the result of a run, unless it was interrupted; the sweep goes on if that fails, as on a full disk."""
        if result.status == "interrupted":
            return
        try:
            result.save(self._file(lane))
        except OSError as error:
            logger.warning("sweep: a run could not be kept in %s (%s); the sweep goes on", self.folder, error)

    def _file(self, lane: Lane) -> Path:
        return self.folder / f"{self._methods[lane.place]}-seed{lane.seed}.npz"

    def _check(self, marks: dict[str, str]) -> None:
        """A ValueError if the folder holds another sweep."""
        file = self.folder / "sweep.json"
        try:
            if self.folder.is_file():
                raise ValueError("it is a file; expected a folder")
            if not file.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                written = self.folder / f"sweep-{os.getpid()}.part"
                written.write_text(json.dumps(marks, indent=1))
                os.replace(written, file)
            saved = dict(json.loads(file.read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"checkpoint: {self.folder} cannot be used for a sweep: {error}") from error
        if changed := changes(marks, saved):
            raise ValueError(
                f"checkpoint: the folder {self.folder} holds another sweep, which differs in {changed}; "
                "choose another folder, or delete it to start anew"
            )
