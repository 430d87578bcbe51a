"""The state of a run: the carry of the compiled loop, the steps taken, and their cost.

One class serves `solve` (one run) and `sweep` (many runs side by side, as lanes of one program).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..methods.base import Info, as_arrays
from ..problems.partition import on_host
from ..problems.probing import check_start
from .feeding import Feed
from .fitting import Fitted
from .loop import NO_STREAMS, Carry, Counts, Fed, Snapshots
from .processes import largest
from .programs import RunPrograms, run_programs_for

CHUNK_SECONDS = 0.5
"""A chunk is meant to take this long, so that Ctrl-C is answered within a second."""
FIRST_CHUNK, GROWTH = 16, 8
"""The steps of the first chunk, and the most times longer that the next one may be."""
RUNAWAY_GROWTH = 1e3
"""A run in which a chunk moves x this many times further than the chunk before it runs away: it is looked at after each chunk,
and chunks do not grow."""
RECORDS_PER_CHUNK, SNAPSHOT_NUMBERS = 32, 4_000_000
"""A chunk passes this many records if nothing waits for each of them, and if their snapshots have no more numbers."""


class RecordPoint(NamedTuple):
    """A run at a record: the steps taken, and for every lane the iterate, the average and the calls so far."""

    step: int
    seconds: float
    x: Float[np.ndarray, "lanes n"]
    average: Float[np.ndarray, "lanes n"]
    calls: list[dict[str, int]]


@dataclass(eq=False)
class Run:
    """A run between two chunks of the compiled loop; see `start_run`."""

    fitted: Fitted
    seeds: list[int]
    lanes: bool
    programs: RunPrograms
    leaves: list[Array]
    """The numbers of the oracle."""
    carry: Carry
    every: int
    """Steps between two records."""
    room: int
    """Records that fit in a chunk."""
    seconds: float
    """Time of the start and of all chunks, without compilation and evaluation."""
    calls: list[dict[str, int]]
    step: int = 0
    """Steps taken."""
    chunk: int = FIRST_CHUNK
    """Steps of the next chunk."""
    diverged: bool = False
    before: tuple[Carry, int, float, list[dict[str, int]]] | None = None
    """The carry, the steps, the time and the calls before the last chunk."""
    moved: float = 0.0
    """How far the last chunk moved an entry of x."""
    runs_away: bool = False
    """Whether the last chunk moved x much further than the one before it."""
    feed: Feed | None = None
    """The batches of its streams, if it has any."""
    fed: Fed = NO_STREAMS
    """Those of the last chunk."""

    def advance(self, records: int) -> list[RecordPoint]:
        """One chunk: about CHUNK_SECONDS and at most this many records; no step if its batches are not there yet."""
        last_fed = self._take_batches()
        before, first = self.carry, self.step
        if last_fed == first:
            return []
        self.before = before, first, self.seconds, self.calls
        last = min((first // self.every + records) * self.every, last_fed, first + self.chunk)
        loop = partial(self._loop, before)
        began = time.perf_counter()
        self.carry, snapshots = jax.block_until_ready(loop(last))
        took = largest(self.fitted.mesh, time.perf_counter() - began)
        growth = self._growth(before)
        self.chunk = max(1, min(self.chunk * growth, int(CHUNK_SECONDS * (last - first) / max(took, 1e-9))))
        if not self.lanes and not bool(self.carry.finite):
            self.diverged, last_finite = True, int(self.carry.run.k) - 1
            self.carry, snapshots = loop(last_finite)  # the same steps again
        self.step = int(self.carry.run.k)
        points = self._points_of_chunk(first, took, on_host(snapshots))
        self.seconds += took
        self.calls = self._calls_after(self.step - first, jax.device_get(self.carry.counts))
        ended = self.step == self.fitted.steps and not self.diverged
        if self.step % self.every and (ended or self.runs_away):
            points.append(self.now())
        return points

    def rewind(self, step: int) -> None:
        """Go back to this step of the last chunk, by taking its first steps again."""
        assert self.before is not None
        taken = self.step - self.before[1]
        self.carry, self.step, before, self.calls = self.before
        self.seconds = before + (self.seconds - before) * (step - self.step) / max(taken, 1)
        self.carry, _ = self._loop(self.carry, step)
        self.calls = self._calls_after(step - self.step, jax.device_get(self.carry.counts))
        self.step = step

    def now(self) -> RecordPoint:
        """The run as it is."""
        run = self.carry.run
        return RecordPoint(self.step, self.seconds, self.vectors(run.state.x), self.vectors(run.average), self.calls)

    def vectors(self, x: Any) -> Float[np.ndarray, "lanes n"]:
        """The parameters of every lane, without slacks."""
        return np.asarray(on_host(x)).reshape(len(self.seeds), -1)[:, : self.fitted.parameters.size]

    def output(self) -> tuple[Any, Any]:
        """The method's output and its own multipliers, of every lane."""
        run = self.carry.run
        return jax.device_get(self.programs.output(self.leaves, run.method, run.state))

    # ------------------------------------------------------------------ checkpoints

    def arrays(self) -> Any:
        """The arrays of a checkpoint."""
        run = self.carry.run
        return run.state, run.average, self.carry.finite, self.carry.counts.varying

    def notes(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""
        streams = {} if self.feed is None else {"streams": self.feed.notes(self.step)}
        return {"step": self.step, "seconds": self.seconds, "diverged": self.diverged, "calls": self.calls} | streams

    def restore(self, arrays: Any, notes: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        state, average, finite, varying = arrays
        self.step, self.seconds, self.diverged = notes["step"], notes["seconds"], notes["diverged"]
        self.calls = notes["calls"]
        run = replace(self.carry.run, state=state, average=average, k=jnp.int32(self.step))
        self.carry = Carry(run, finite, replace(self.carry.counts, varying=varying))

    # ------------------------------------------------------------------ parts of a chunk

    def _take_batches(self) -> int:
        """The last step that has its batches; waiting for them counts as time of the run."""
        if self.feed is None:
            return self.fitted.steps
        before = self.feed.waited
        block = self.feed.block(self.step + 1)
        self.seconds += self.feed.waited - before
        if block is None or block.fed is None:
            return self.step
        self.fed = block.fed
        return block.last

    def _loop(self, carry: Carry, last: int) -> tuple[Carry, Snapshots]:
        """The compiled loop, up to this step."""
        numbers = np.array([last, self.every], np.int32)
        return self.programs.loop(self.room)(self.leaves, carry.run, carry.finite, numbers, self.fed)

    def _points_of_chunk(self, first: int, took: float, snapshots: Snapshots) -> list[RecordPoint]:
        """The records of a chunk; the time within it is shared out evenly."""
        before, found = first // self.every, []
        for number in range(self.step // self.every - before):
            step = (before + number + 1) * self.every
            calls = self._calls_after(step - first, jax.tree.map(lambda a, i=number: a[i], snapshots.counts))
            seconds = self.seconds + took * (step - first) / max(self.step - first, 1)
            points = self.vectors(snapshots.x[number]), self.vectors(snapshots.average[number])
            found.append(RecordPoint(step, seconds, *points, calls))
        return found

    def _growth(self, before: Carry) -> int:
        """The most times longer that the next chunk may be, after the one that began with this carry."""
        moves = np.abs(self.vectors(self.carry.run.state.x) - self.vectors(before.run.state.x))
        moved, known = float(np.max(moves, initial=0.0)), self.moved > 0.0
        self.runs_away, self.moved = known and moved > RUNAWAY_GROWTH * self.moved, moved
        return GROWTH if known and not self.runs_away else 1

    def _calls_after(self, steps: int, counts: Counts) -> list[dict[str, int]]:
        """The calls of every lane, this many steps after the last chunk."""
        lanes, each_step = len(self.seeds), dict(counts.each_step)
        varying = {name: np.broadcast_to(np.ravel(n), lanes).tolist() for name, n in counts.varying.items()}
        more = {name: steps * each_step.get(name, 0) for name in Info._fields}
        return [
            {name: n + more[name] + (varying[name][i] if name in varying else 0) for name, n in calls.items()}
            for i, calls in enumerate(self.calls)
        ]


def first_point(fitted: Fitted) -> tuple[Float[Array, " n"], bool]:
    """The start, and whether it is x0 projected into the domain; an error if a function is not finite there."""
    problem, parameters = fitted.problem, fitted.parameters
    found = check_start(problem, parameters, fitted.original.data)
    if not found.inside and not problem.domain.can_project:
        domain = type(problem.domain).__name__
        raise ValueError(f"x0 lies outside the domain {domain}, which cannot project; start inside it")
    return (parameters.start, False) if found.inside else (jnp.asarray(found.start), True)


def begin_start(fitted: Fitted, seeds: list[int], lanes: bool = False, feed: Feed | None = None) -> Any:
    """Trace the program that starts a run; it is compiled in a thread. Return the shapes of its state."""
    programs, arguments = _start_of(fitted, fitted.parameters.start, seeds, lanes, feed)
    return programs.start.begin(*arguments)


def begin_run(fitted: Fitted, seeds: list[int], lanes: bool = False, feed: Feed | None = None) -> None:
    """Trace the other programs of a run; they are compiled in threads."""
    state, programs = begin_start(fitted, seeds, lanes, feed), run_programs_for(fitted, lanes)
    leaves, numbers = fitted.oracle.leaves(), np.zeros(2, np.int32)
    programs.loop(_room_for(state)).begin(leaves, state, _all_finite(seeds, lanes), numbers, _like(feed))
    programs.output.begin(leaves, state.method, state.state)


def start_run(
    fitted: Fitted,
    x: Float[Array, " n"],
    seeds: list[int],
    every: int,
    lanes: bool = False,
    feed: Feed | None = None,
) -> Run:
    """Estimate the method's constants, initialize it, and compile the loop.

    With lanes, the numbers of the method have a leading axis, one entry per seed.
    """
    programs, arguments = _start_of(fitted, x, seeds, lanes, feed)
    leaves = arguments[0]
    state, seconds = programs.timed_start(*arguments)
    seconds = largest(fitted.mesh, seconds)
    room, rest = _room_for(state), (_all_finite(seeds, lanes), np.array([0, every], np.int32), _like(feed))
    carry, _ = programs.loop(room)(leaves, state, *rest)  # no step: waits for the compiler, so that this is not timed
    return Run(
        fitted=fitted,
        seeds=seeds,
        lanes=lanes,
        programs=programs,
        leaves=leaves,
        carry=carry,
        every=every,
        room=room,
        seconds=seconds,
        calls=[dict.fromkeys(Info._fields, 0) for _ in seeds],
        feed=feed,
    )


def _start_of(
    fitted: Fitted, x: Float[Array, " n"], seeds: list[int], lanes: bool, feed: Feed | None
) -> tuple[RunPrograms, tuple[Any, ...]]:
    """The programs of a run, and the arguments of the one that starts it; the first are the numbers of the oracle."""
    key = jax.vmap(jax.random.key)(np.array(seeds, np.uint32)) if lanes else jax.random.key(seeds[0])
    method = as_arrays(fitted.method, fitted.parameters.dtype)
    first = () if feed is None else feed.first_batches()
    return run_programs_for(fitted, lanes), (fitted.oracle.leaves(), first, method, x, key, np.int32(fitted.steps))


def _like(feed: Feed | None) -> Fed:
    """Batches like those of the streams."""
    return NO_STREAMS if feed is None else feed.like


def _all_finite(seeds: list[int], lanes: bool) -> np.ndarray:
    return np.ones(len(seeds) if lanes else (), bool)


def _room_for(state: Any) -> int:
    """The records that fit in a chunk."""
    return max(1, min(RECORDS_PER_CHUNK, SNAPSHOT_NUMBERS // (2 * state.average.size)))
