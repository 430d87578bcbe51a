"""The loop from record to record, of `solve` and `sweep` alike, until a status is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checkpoint import CheckpointStore
from .options import Stop
from .progress import Interrupts
from .recording import Recorder
from .result import Status
from .run import RecordPoint, Run


@dataclass
class Observer:
    """Shows progress and calls the user's callback after each record.

    Attributes:
        show: moves the progress bar: (step, note).
        callback: the user's; None: there is none.
        stopped: whether the callback returned True or raised StopIteration.
    """

    show: Callable[[int, str], None]
    callback: Callable[[dict[str, Any]], Any] | None
    stopped: bool = False

    def observe(self, row: dict[str, Any], params: Callable[[], Any]) -> None:
        """Tell of a record; `params` gives its iterate."""
        self.show(row["step"], f"objective {row['objective']:.4g}  violation {row['violation']:.2g}")
        if self.callback is not None:
            try:
                self.stopped = self.callback(row | {"x": params()}) is True
            except StopIteration:
                self.stopped = True


def run_to_end(
    run: Run,
    recorder: Recorder,
    stop: Stop | None,
    observer: Observer | None = None,
    store: CheckpointStore | None = None,
) -> Status:
    """Advance from record to record; the status says why the run ended."""
    each = stop is not None or (observer is not None and observer.callback is not None)
    with Interrupts() as interrupts:
        try:
            if not recorder.recorded:
                _record(recorder, [run.now()], observer)
            while (status := _status(run, recorder, stop, observer, interrupts)) is None:
                recorder.waiting = 1  # until its points are recorded the run must not be saved
                points = run.advance(1 if each else run.room)
                recorder.waiting = len(points)
                _record(recorder, points, observer)
                if store is not None and store.due():
                    _save(store, run, recorder)
        finally:  # also if the callback or a second Ctrl-C raises: nothing is lost
            if store is not None and not recorder.waiting:
                _save(store, run, recorder)
    return status


def resume(store: CheckpointStore, run: Run, recorder: Recorder) -> bool:
    """Go on from the newest checkpoint; whether there was one."""
    saved = store.restore((run.arrays(), recorder.arrays()))
    if saved is None:
        return False
    (of_run, of_recorder), notes = saved
    run.restore(of_run, notes)
    recorder.restore(of_recorder, notes)
    return True


def _save(store: CheckpointStore, run: Run, recorder: Recorder) -> None:
    store.save(run.step, (run.arrays(), recorder.arrays()), run.notes() | recorder.notes())


def _record(recorder: Recorder, points: list[RecordPoint], observer: Observer | None) -> None:
    for point, (row, *_) in zip(points, recorder.record(points), strict=True):
        if observer is not None:
            observer.observe(row, lambda point=point: recorder.params(point))


def _status(
    run: Run, recorder: Recorder, stop: Stop | None, observer: Observer | None, interrupts: Interrupts
) -> Status | None:
    """Why the run ends here; None if it goes on."""
    if run.diverged or not np.asarray(run.carry.finite).any():
        return "diverged"
    if stop is not None and recorder.stop_met():
        return "converged"
    if run.step >= run.fitted.steps or (stop is not None and stop.seconds is not None and run.seconds >= stop.seconds):
        return "budget"
    return "interrupted" if interrupts.asked or (observer is not None and observer.stopped) else None
