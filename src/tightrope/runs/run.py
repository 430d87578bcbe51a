"""A run on the way: the chunks of the compiled loop, the records, the candidates for the answer, and why it ended.

One class serves `solve` (one run) and `sweep` (many runs side by side, as lanes of one program).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..certificates.evaluation import RECORD_PRODUCTS, Evaluation, choose, evaluation_data, largest, rank_key
from ..certificates.judging import by_constraint, certify_point, evaluate_exactly, passed_in_full
from ..certificates.programs import programs_for
from ..methods.base import Info, Method, as_arrays, constants
from ..oracles.build import oracle_for
from ..oracles.oracle import Oracle
from ..problems.checks import check_values
from ..problems.data import Dataset
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from .loop import Snapshots
from .options import Record, Stop
from .programs import constant_counts, run_programs_for
from .progress import Interrupts
from .result import History, Result, Status

CHUNK_SECONDS = 0.5
"""A chunk is meant to take this long, so that Ctrl-C is heard within a second."""
FIRST_CHUNK, GROWTH = 16, 8
FAR = 1e8
"""An objective that fell by this many times its first size is called unbounded."""
RECORDS_A_CHUNK, SNAPSHOT_NUMBERS = 32, 4_000_000
"""A chunk goes through as many records where nobody waits for each, if their snapshots have no more numbers than this."""


class RecordPoint(NamedTuple):
    """A run at a record: the next step, and for every lane the iterate, the average and the calls so far."""

    k: int
    seconds: float
    x: Float[np.ndarray, "lanes n"]
    average: Float[np.ndarray, "lanes n"]
    calls: list[dict[str, int]]


class Run:
    """One run, or many side by side: where it is, what it recorded, and how it ends."""

    def __init__(
        self,
        problem: Problem,
        parameters: Parameters,
        method: Method,
        *,
        steps: int,
        seeds: list[int],
        record: Record,
        stop: Stop | None,
        lanes: bool = False,
        warm: Result | None = None,
        watched: bool = False,
    ):
        self.problem, self.parameters, self.steps, self.seeds = problem, parameters, steps, seeds
        self.record, self.lanes, self.name = record, lanes, type(method).__name__
        self.stop, self._may_stop = stop or Stop(), stop is not None
        self.original = oracle_for(problem, parameters)
        self._original_leaves, self._slices = self.original.leaves(), self.original.slices()
        self._evaluation = programs_for(problem, self.original)
        x, self.moved = self._first_look()
        fitted = oracle_for(problem, parameters, method.accepts.form)
        if warm is not None:
            fitted = _start_dual(fitted, problem, warm)
        self._leaves = fitted.leaves()
        self._programs = run_programs_for(problem, fitted, method.accepts.form, lanes)
        self._watched, self._sample = evaluation_data(self.original)
        self._watched_leaves = self._watched.leaves()
        self._key = jax.vmap(jax.random.key)(np.array(seeds, np.uint32)) if lanes else jax.random.key(seeds[0])
        self._asked, method = method, as_arrays(method, parameters.dtype)
        started, self.seconds = self._programs.timed_start(self._leaves, method, x, self._key, np.int32(steps))
        self.method, self.carry = started
        self._each_step = constant_counts(problem, fitted, self.method, self.carry, lanes)
        room = max(1, min(RECORDS_A_CHUNK, SNAPSHOT_NUMBERS // (2 * self.carry.average.size)))
        self._advance = self._programs.advance(self.method, self.carry, room)
        self._records = 1 if watched or self._may_stop else room
        self._numbers = self._leaves, jax.tree.leaves(self.method)
        self._no_counts = jax.tree.map(jnp.zeros_like, self.carry.counts)
        self.k, self.diverged = 1, False
        self.calls = [dict.fromkeys(Info._fields, 0) for _ in seeds]
        self.histories = [History({}) for _ in seeds]
        self._best = np.tile(np.asarray(x), (len(seeds), 1))
        self._best_objective = np.full(len(seeds), np.inf, parameters.dtype)
        self._best_violations = np.zeros((len(seeds), self.original.rows.raw_size), parameters.dtype)
        self._weights = np.zeros_like(self._best_violations)
        self._scales: list[tuple[float, float, float]] = []
        self._chunk = FIRST_CHUNK
        self.unfinished = 0  # moments of the last chunk that are not recorded yet: until then this is no state to save
        self._go(1, 1)  # no step: compiles, so that compilation is not timed

    def _first_look(self) -> tuple[Float[Array, " n"], bool]:
        """Where the run starts, x0 or its projection, once every function was finite there."""
        look = jax.device_get(self._evaluation.probe(self._original_leaves, self.parameters.start))
        slices = {"the objective": slice(0, 1)}
        slices |= {f"the constraint {n!r}": slice(s.start + 1, s.stop + 1) for n, s in self._slices.items()}
        rows = min((source.batch_size for source in self.original.sources), default=1)
        for what, entries in slices.items():
            check_values(what, look.whole[entries], look.halves[entries], rows)
        domain = self.problem.domain
        if not look.inside and not domain.can_project:
            raise ValueError(
                f"x0 lies outside the domain {type(domain).__name__}, which cannot project; start inside it"
            )
        return (self.parameters.start, False) if look.inside else (jnp.asarray(look.projected), True)

    # ------------------------------------------------------------------ going on

    def _go(self, first: int, last: int) -> tuple[int, Snapshots]:
        """Steps first … last − 1; the number of the next step, and the records on the way."""
        carry, structure = jax.tree.flatten(self.carry._replace(counts=self._no_counts))
        steps = np.array([first, last, self.steps, self.record.every], np.int32)
        carry, snapshots, k = jax.block_until_ready(self._advance(*self._numbers, carry, self._key, steps))
        self.carry = jax.tree.unflatten(structure, carry)
        return int(k), snapshots

    def advance(self) -> list[RecordPoint]:
        """One chunk, for about CHUNK_SECONDS and no more records than there is room for; the moments to record."""
        self.unfinished = 1
        before, first, every = self.carry, self.k, self.record.every
        last = min(((first - 1) // every + self._records) * every, self.steps, first - 1 + self._chunk) + 1
        began = time.perf_counter()
        self.k, snapshots = self._go(first, last)
        took = time.perf_counter() - began
        self._chunk = max(1, min(self._chunk * GROWTH, int(CHUNK_SECONDS * (last - first) / max(took, 1e-9))))
        if not self.lanes and not bool(self.carry.ok):
            self.diverged, self.carry = True, before
            self._go(first, self.k)  # the same steps again, up to the one before
        moments = self._moments(first, took, jax.device_get(snapshots))
        self.seconds += took
        self.calls = self._calls_after(self.k - first, jax.device_get(self.carry.counts))
        if self.k > self.steps and self.steps % every and not self.diverged:
            moments.append(self.now())
        self.unfinished = len(moments)
        return moments

    def _moments(self, first: int, took: float, snapshots: Snapshots) -> list[RecordPoint]:
        """The records of a chunk; seconds within it are shared out evenly."""
        every, before = self.record.every, (first - 1) // self.record.every
        found = []
        for number in range((self.k - 1) // every - before):
            done = (before + number + 1) * every
            calls = self._calls_after(done + 1 - first, jax.tree.map(lambda a, i=number: a[i], snapshots.counts))
            seconds = self.seconds + took * (done + 1 - first) / max(self.k - first, 1)
            points = self._points(snapshots.x[number]), self._points(snapshots.average[number])
            found.append(RecordPoint(done + 1, seconds, *points, calls))
        return found

    def _calls_after(self, steps: int, varying: dict[str, Any]) -> list[dict[str, int]]:
        """The calls of every lane, this many steps after the last chunk; `varying` are the counts that differ."""
        each = self._each_step
        return [
            {name: n + steps * each.get(name, 0) + self._lane(varying.get(name, 0), i) for name, n in calls.items()}
            for i, calls in enumerate(self.calls)
        ]

    def _lane(self, count: Any, lane: int) -> int:
        return int(np.reshape(count, -1)[lane if self.lanes and np.size(count) > 1 else 0])

    def now(self) -> RecordPoint:
        """The run as it is."""
        points = self._points(self.carry.state.x), self._points(self.carry.average)
        return RecordPoint(self.k, self.seconds, *points, self.calls)

    def status(self, interrupts: Interrupts) -> Status | None:
        """Why the run ends here; None where it goes on."""
        if self.diverged or not np.asarray(self.carry.ok).any():
            return "diverged"
        if self._may_stop and all(self._met(lane) for lane in range(len(self.seeds))):
            return "converged"
        if self.k > self.steps or (self.stop.seconds is not None and self.seconds >= self.stop.seconds):
            return "budget"
        return "interrupted" if interrupts.asked else None

    # ------------------------------------------------------------------ records

    def _points(self, vectors: Array) -> Float[np.ndarray, "lanes n"]:
        """The parameters of every lane, without slacks."""
        return np.asarray(vectors).reshape(len(self.seeds), -1)[:, : self.parameters.size]

    def _evaluate(self, points: Float[np.ndarray, "points n"]) -> list[Evaluation]:
        return self._evaluation.evaluate(self._watched_leaves, points, self._sample, RECORD_PRODUCTS)

    def _by_lane(
        self, evaluate: Callable[[np.ndarray], list[Evaluation]], candidates: list[Float[np.ndarray, "lanes n"]]
    ) -> list[list[Evaluation]]:
        """For every lane the evaluation of each candidate."""
        found = evaluate(np.stack(candidates, axis=1).reshape(-1, self.parameters.size))
        return [found[i : i + len(candidates)] for i in range(0, len(found), len(candidates))]

    def make_records(self, moments: list[RecordPoint]) -> Iterator[list[dict[str, Any]]]:
        """Evaluate all iterates and averages; moment by moment remember the best, append to every history, give the rows."""
        if not moments:
            return
        evaluated = self._by_lane(self._evaluate, [point for moment in moments for point in (moment.x, moment.average)])
        if not self._scales:
            self._scales = [(largest(e.violations), float(e.gradient_norm), float(e.objective)) for e, *_ in evaluated]
        for place, moment in enumerate(moments):
            rows = [self._record(moment, lane, *found[2 * place :][:2]) for lane, found in enumerate(evaluated)]
            self.unfinished = max(self.unfinished - 1, 0)
            yield rows

    def _record(self, moment: RecordPoint, lane: int, iterate: Evaluation, average: Evaluation) -> dict[str, Any]:
        self._compare(lane, iterate, moment.x[lane])
        self._compare(lane, average, moment.average[lane])
        row = self._row(moment, lane, iterate) | self._metrics(moment, lane)
        self.histories[lane].append(row)
        return row

    def params(self, moment: RecordPoint, lane: int = 0) -> Any:
        """The iterate, as the user's functions take it."""
        return self.parameters.unravel(jnp.asarray(moment.x[lane]))

    def _compare(self, lane: int, evaluation: Evaluation, point: Float[np.ndarray, " n"]) -> None:
        """Keep the point if it is better than the best so far, by the largest multipliers seen so far."""
        weights = self._weights[lane] = np.maximum(self._weights[lane], np.abs(evaluation.multipliers))
        tolerance, _ = self._tolerances(lane)
        best = rank_key(self._best_objective[lane], self._best_violations[lane], weights, tolerance)
        if rank_key(evaluation.objective, evaluation.violations, weights, tolerance) < best:
            self._best_objective[lane], self._best_violations[lane] = evaluation.objective, evaluation.violations
            self._best[lane] = point

    def _row(self, moment: RecordPoint, lane: int, evaluation: Evaluation) -> dict[str, float]:
        samples, source = moment.calls[lane]["samples"], self.problem.data
        violations = {n: largest(evaluation.violations[entries]) for n, entries in self._slices.items()}
        return {
            "step": moment.k - 1,
            "samples": samples,
            "epochs": samples / source.size if isinstance(source, Dataset) else math.nan,
            "seconds": moment.seconds,
            "objective": float(evaluation.objective),
            "violation": max(violations.values(), default=0.0),
            "stationarity": float(evaluation.stationarity),
        } | violations

    def _metrics(self, moment: RecordPoint, lane: int) -> dict[str, float]:
        if not self.record.metrics:
            return {}
        params, source, batch = self.params(moment, lane), self.problem.data, None
        if self.record.data is not None:
            batch = self.record.data.arrays
        elif source is not None:
            batch = source.batch(self._watched.data[0], self._sample[0])
        return {name: float(fn(params, batch)) for name, fn in self.record.metrics.items()}

    def _tolerances(self, lane: int) -> tuple[float, float]:
        """The violation and the stationarity that count as none."""
        violation, gradient, _ = self._scales[lane]
        return self.stop.violation * max(1.0, violation), self.stop.stationarity * max(1.0, gradient)

    def _fell(self, lane: int) -> bool:
        """Whether the objective, where the constraints held, fell so far that there seems to be no end."""
        history, first = self.histories[lane], self._scales[lane][2]
        within = history["violation"] <= self._tolerances(lane)[0]
        return bool(np.any(within & (history["objective"] < first - FAR * max(1.0, abs(first)))))

    def _met(self, lane: int) -> bool:
        history, (violation, stationarity) = self.histories[lane], self._tolerances(lane)
        return history["violation"][-1] <= violation and history["stationarity"][-1] <= stationarity

    # ------------------------------------------------------------------ saving and taking up again

    def arrays(self) -> Any:
        """The arrays of a checkpoint."""
        return self.carry, self._best, self._best_objective, self._best_violations, self._weights

    def notes(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""
        return {
            "k": self.k,
            "seconds": self.seconds,
            "diverged": self.diverged,
            "calls": self.calls,
            "scales": self._scales,
            "histories": [{name: column.tolist() for name, column in h.items()} for h in self.histories],
        }

    def restore(self, arrays: Any, notes: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.carry, *kept = arrays
        self._best, self._best_objective, self._best_violations, self._weights = map(np.array, kept)
        self.k, self.seconds, self.diverged = notes["k"], notes["seconds"], notes["diverged"]
        self.calls, self.histories = notes["calls"], [History(columns) for columns in notes["histories"]]
        self._scales = [tuple(scale) for scale in notes["scales"]]

    @property
    def recorded(self) -> bool:
        """Whether there is a record yet."""
        return len(self.histories[0]) > 0

    # ------------------------------------------------------------------ the answer

    def finish(self, status: Status, notes: list[str]) -> list[Result]:
        """A Result for every lane: the best candidate, certified on all data or on fresh samples."""
        output, multipliers = jax.device_get(self._programs.output(self.method, self.carry.state))
        points = [self._points(output), self._best, self._points(self.carry.state.x), self._points(self.carry.average)]
        in_full = all(map(passed_in_full, self.original.sources))
        # A sample cannot tell points apart that are nearly optimal.
        exactly = partial(evaluate_exactly, self.problem, self.original)
        judged = self._by_lane(exactly if in_full else self._evaluate, points)
        own = [None] * len(self.seeds) if multipliers is None else multipliers if self.lanes else [multipliers]
        return [
            self._answer(lane, status, notes, [p[lane] for p in points], judged[lane], in_full, own[lane])
            for lane in range(len(self.seeds))
        ]

    def _answer(
        self,
        lane: int,
        status: Status,
        notes: list[str],
        points: list[np.ndarray],
        evaluations: list[Evaluation],
        in_full: bool,
        multipliers: np.ndarray | None,
    ) -> Result:
        """The Result of one lane, from its four candidates, evaluated on all data or not, and the method's multipliers."""
        violation, stationarity = self._tolerances(lane)
        weights = self._weights[lane]
        if multipliers is not None and self.original.large_jacobian:  # those of records come from few products
            weights = np.maximum(weights, np.abs(multipliers))
        chosen = choose(evaluations, weights, violation, self._scales[lane][2])
        method, state, asked = self.method, self.carry.state, self._asked
        if self.lanes:
            method, state, asked = jax.tree.map(lambda a: a[lane], (method, state, asked))
            status = status if np.asarray(self.carry.ok)[lane] else "diverged"
        x, output = jnp.asarray(points[chosen]), ("method", "best", "last", "average")[chosen]
        exact = evaluations[chosen] if in_full else None
        certificate = certify_point(self.problem, self.original, x, violation, 0.95, self.seeds[lane], exact=exact)
        ended, concluded = status, method.termination(state)
        if concluded == "infeasible" and certificate.verdict != "infeasible":
            concluded = None
        if self._fell(lane):
            concluded = "unbounded"
        if status == "budget" and concluded is not None:
            status = concluded
        own = None if output != "method" else multipliers
        success = certificate.verdict == "feasible" and certificate.stationary_within <= stationarity
        remark = method.note(state)
        return Result(
            x=self.parameters.unravel(x),
            objective=certificate.objective.value,
            violation=certificate.largest_violation.value,
            stationarity=certificate.stationarity.value,
            multipliers=certificate.multipliers if own is None else by_constraint(self.problem, self.original, own),
            success=success,
            status=status,
            message="; ".join([_why(ended, concluded, self.k - 1, success), *notes, *([remark] if remark else [])])
            + ".",
            steps=self.k - 1,
            samples=self.calls[lane]["samples"],
            seconds=self.seconds,
            calls=self.calls[lane],
            history=self.histories[lane],
            certificate=certificate,
            method=self.name,
            output=output,
            constants=constants(asked, method),
            settings=_settings(method),
            seed=self.seeds[lane],
        )


def _start_dual(fitted: Oracle, problem: Problem, warm: Result) -> Oracle:
    """The oracle with dual variables started at the multipliers of a result."""
    missing = [c.name for c in problem.constraints if c.name not in warm.multipliers]
    if missing:
        raise ValueError(f"solve: warm_start has no multipliers for {missing}; it is the result of another problem")
    signed = [(-1.0 if c.kind == "at_least" else 1.0, warm.multipliers[c.name]) for c in problem.constraints]
    raw = np.concatenate([sign * np.atleast_1d(value) for sign, value in signed] or [np.zeros(0)])
    rows = fitted.rows.from_raw(jnp.asarray(raw, fitted.parameters.dtype))
    return eqx.tree_at(lambda oracle: oracle.multipliers, fitted, rows)


def _why(ended: Status, concluded: str | None, steps: int, success: bool) -> str:
    """Why the loop ended; what the method itself concluded adds to that only where it found no way to the constraints."""
    hint = "" if success else "; not certified yet: more steps, a larger batch or looser tolerances in stop= may help"
    if concluded == "infeasible":
        hint = "; the violation is stationary there and not zero: nearby, the constraints cannot be met"
    if concluded == "unbounded":
        hint = "; the objective falls without end where the constraints hold: add the bound that is missing"
    return {
        "converged": f"stopped after {steps:,} steps: violation and stationarity are within the tolerances",
        "budget": f"{steps:,} steps were taken{hint}",
        "interrupted": f"interrupted after {steps:,} steps; the answer is the best so far",
        "diverged": f"step {steps + 1:,} gave numbers that are not finite; the answer comes from the steps before it: "
        "try a smaller step_size",
    }[ended]


def _settings(method: Method) -> dict[str, Any]:
    """The hyper-parameters that were used: numbers and choices."""
    values = {spec.name: getattr(method, spec.name) for spec in fields(method)}  # pyright: ignore
    numbers = {name: float(value) for name, value in values.items() if eqx.is_array(value)}
    for name, inner in values.items():
        if isinstance(inner, Method):
            numbers |= {f"{name}.{key}": value for key, value in _settings(inner).items()}
    return numbers | {name: value for name, value in values.items() if isinstance(value, str | int)}
