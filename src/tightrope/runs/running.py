"""The loop from record to record, of `solve` and `sweep` alike, until a status is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .answer import answers
from .checkpoint import CheckpointStore
from .options import Stop
from .processes import largest
from .progress import Interrupts
from .recording import Recorder
from .result import Result, Status
from .run import RecordPoint, Run

RETRY_AFTER = 1.1
"""After an answer was no success, the next one is certified once the run is this many times longer."""
REST_GAP = 1000.0
"""At rounding level the optimality gap is at most this, in units of eps and of the objective's scale."""


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
            except Exception as error:
                error.add_note(f"in the callback, at the record of step {row['step']:,}")
                raise


@dataclass
class Finish:
    """Certifies the answer where a run may end before its budget is spent; the run ends if the answer is a success.

    Attributes:
        run: the run.
        recorder: its records.
        stop: when to stop; None: only where the iterates are at rounding level.
        notes: what the message says besides.
        results: the results, once the run has ended here.
        attempts: how often the answer was certified.
        next_step: no sooner than at this step it is certified again for `stop`.
        next_rest: no sooner than at this step it is certified again because the iterates are at rest.
        gradient_scales: the gradient's scale in the last certificate of each lane; empty before one.
    """

    run: Run
    recorder: Recorder
    stop: Stop | None
    notes: list[str]
    results: list[Result] | None = None
    attempts: int = 0
    next_step: int = 0
    next_rest: int = 0
    gradient_scales: list[float] = field(default_factory=list)

    def reached(self) -> bool:
        """Whether the run may end here."""
        return self._at_rest() or self._stop_met()

    def answers(self, status: Status) -> list[Result]:
        """The results of the run, certified unless they are already."""
        if self.results is None:
            attempt = self.attempts + 1 if self.stop is not None else 0
            self.results = answers(self.run, self.recorder, self.stop or Stop(), status, self.notes, attempt)
        return self.results

    def _stop_met(self) -> bool:
        recorder, stop = self.recorder, self.stop
        scales = self.gradient_scales or [0.0] * len(self.run.seeds)
        if stop is None or self.run.step < self.next_step or not recorder.may_stop(stop, scales):
            return False
        self.attempts += 1
        found = answers(self.run, recorder, stop, "converged", self.notes, self.attempts)
        self.next_step = int(RETRY_AFTER * self.run.step) + 1
        self.gradient_scales = [result.certificate.gradient_scale for result in found]
        self.results = found if all(result.success for result in found) else None
        return self.results is not None

    def _at_rest(self) -> bool:
        step, eps = self.recorder.rest_step, float(np.finfo(self.run.fitted.parameters.dtype).eps)
        self.recorder.rest_step = None
        if step is None or step < self.next_rest:
            return False
        self.run.rewind(step)
        self.recorder.cut(step)
        notes = [*self.notes, "the iterates are at rounding level: more steps would not change the answer"]
        found = answers(self.run, self.recorder, self.stop or Stop(), "converged", notes)
        if all(result.success and result.certificate.relative_gap <= REST_GAP * eps for result in found):
            self.results = found
            return True
        self.next_rest = int(RETRY_AFTER * step) + 1
        return False


def run_to_end(finish: Finish, observer: Observer | None = None, store: CheckpointStore | None = None) -> Status:
    """Advance from record to record; the status says why the run ended."""
    run, recorder, stop = finish.run, finish.recorder, finish.stop
    each = stop is not None or (observer is not None and observer.callback is not None)
    with Interrupts() as interrupts:
        try:
            if not recorder.recorded:
                _record(recorder, [run.now()], observer)
            while (status := _status(finish, observer, interrupts)) is None:
                if store is not None and store.due():
                    _save(store, run, recorder)
                recorder.waiting = 1  # until its points are recorded the run must not be saved
                points = run.advance(1 if each else run.room)
                recorder.waiting = len(points)
                _record(recorder, points, observer)
        finally:  # also if the callback or a second Ctrl-C raises: nothing is lost
            if store is not None and not recorder.waiting:
                _save(store, run, recorder)
    return status


def resume(store: CheckpointStore, run: Run, recorder: Recorder) -> list[str]:
    """Go on from the newest checkpoint, and say so; nothing to say if there is none."""
    saved = store.restore((run.arrays(), recorder.arrays()))
    if saved is None:
        return []
    (of_run, of_recorder), notes = saved
    run.restore(of_run, notes)
    recorder.restore(of_recorder, notes)
    said = [f"resumed at step {run.step:,} from {store.folder}"]
    if run.feed is not None and (changed := run.feed.resume(run.step, notes["streams"])):
        said.append(changed)
    return said


def _save(store: CheckpointStore, run: Run, recorder: Recorder) -> None:
    store.save(run.step, (run.arrays(), recorder.arrays()), run.notes() | recorder.notes())


def _record(recorder: Recorder, points: list[RecordPoint], observer: Observer | None) -> None:
    for point, row in zip(points, recorder.record(points), strict=True):
        if observer is not None:
            observer.observe(row, lambda point=point: recorder.params(point))


def _status(finish: Finish, observer: Observer | None, interrupts: Interrupts) -> Status | None:
    """Why the run ends here; None if it goes on."""
    run, stop = finish.run, finish.stop
    if run.diverged or not np.asarray(run.carry.finite).any():
        return "diverged"
    if all(finish.recorder.unbounded):
        return "unbounded"
    if finish.reached():
        return "converged"
    if run.feed is not None and run.feed.failure is not None:
        return "data_error"
    if run.step >= run.fitted.steps or (stop is not None and stop.seconds is not None and run.seconds >= stop.seconds):
        return "budget"
    asked = interrupts.asked or (observer is not None and observer.stopped)
    return "interrupted" if largest(run.fitted.mesh, asked) else None
