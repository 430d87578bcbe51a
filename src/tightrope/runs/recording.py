"""Records along a run: evaluates iterates and averages, keeps the history and the best point so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ..certificates.choosing import GROSS_VIOLATION, Candidate, rank_key, ranks_before
from ..certificates.evaluation import (
    EVALUATION_EXAMPLES,
    RECORD_PRODUCTS,
    Evaluation,
    evaluation_data,
    largest_violation,
)
from ..certificates.judging import evaluate_exactly, passed_in_full
from ..certificates.programs import programs_for
from ..certificates.scales import ConstraintScales, objective_scale
from ..problems.data import Dataset
from ..problems.lifting import unlifted
from ..problems.model_state import call
from .fitting import Fitted
from .options import Record, Stop
from .run import RecordPoint

UNBOUNDED_FALL = 1e8
"""An objective that fell by this many times its unit is called unbounded, where its gradient is not small compared with that
fall over the distance. The unit is the larger of |F(x0)| and the largest gradient times the length of x, both up to the first
record away from x0 where the constraints hold. The gradient at x0 alone is no unit: it is 0 at a stationary point, and small
near one, from where bounded objectives fall by many times as much."""
UNBOUNDED_GROWTH = 1 / 3
"""The power of the growth of the gradient since then that the unit grows with: leaving a saddle point looks like falling
without bound at first, but its gradients grow with the distance."""
UNBOUNDED_SLOPE = 1e-3
"""What counts as small there: a minimum that is very far away is approached with slopes that vanish."""
UNBOUNDED_ROUNDING = 1e5
"""In units of machine epsilon and of the tolerance: by how much a violation may grow with the distance from x0, in units of
‖x0‖, until it is more than rounding."""

REST_CHANGE, REST_VIOLATION = 8.0, 100.0
"""A record is at rest if the objective changed by less and the violation is less than this, in units of eps and scale."""
REST_RECORDS = 2
"""Records at rest, one after the other, after which a run may end."""
RECORD_ERROR = 4.0 / math.sqrt(EVALUATION_EXAMPLES)
"""The error of a record's values on a sample, relative to scales, which are no smaller than the spread of single examples."""
PASS_SHARE = 0.5
"""Full passes of records evaluate at most this share of the examples that the steps drew."""

Evaluate = Callable[[Float[np.ndarray, "points n"]], Evaluation]


class Recorder:
    """The records of a run, or of many runs as lanes; all arrays have an axis for the lanes.

    Data that can be passed over in full are passed over at as many records as their steps pay for (`PASS_SHARE`), and at the
    last one. At the others, values on a sample are corrected by their error at the last full pass, so what is left of
    it is the error of the difference between two iterates. Endless data are evaluated on one sample per seed, so that runs with
    different seeds are independent; no answer is chosen on it alone.

    Attributes:
        columns: the history: by name, one entry for each record.
        best: for every lane the best point at a record so far, iterate or average.
        weights: for every lane the largest multipliers at a record so far; they weigh violations against the objective.
        first_objectives: the objectives at the start; None before the first record.
        unbounded: whether the objective falls without bound; `best` is then where this was noticed.
        last: the candidates at the last record: iterates and averages; None before the first one.
        exact: whether the last record was evaluated on all data.
        resting: the number of records at rest, up to the last one.
        rest_step: the first record at which all lanes were at rest; None before it.
        waiting: points of the last chunk that are not recorded yet; until then the run is not in a state to be saved.
    """

    def __init__(self, fitted: Fitted, record: Record, stop: Stop, seeds: list[int]):
        self._fitted, self._record, self._stop, lanes = fitted, record, stop, len(seeds)
        self._knows_all = all(map(passed_in_full, fitted.original.sources))
        self._seeds = seeds[:1] * lanes if self._knows_all else seeds
        size, dtype = fitted.original.rows.raw_size, fitted.parameters.dtype
        self._eps, self._epoch = float(np.finfo(dtype).eps), _epoch_size(fitted)
        self._slices = fitted.original.slices()
        self._scale_rule = ConstraintScales.of(fitted.problem, fitted.original)
        self.columns: dict[str, list[Any]] = {}
        self.best = np.tile(np.asarray(fitted.parameters.start), (lanes, 1))
        self._best = Candidate(
            np.full(lanes, np.inf), np.zeros((lanes, size), dtype), np.zeros((lanes, size)), np.full(lanes, np.inf)
        )
        self.weights = np.zeros((lanes, size), dtype)
        self._scales = np.zeros((lanes, size))
        self._shifts = np.zeros((lanes, 1 + size), dtype)
        self._passed = 0
        self.first_objectives: Float[np.ndarray, " lanes"] | None = None
        self._start = np.array(self.best)
        self._first_gradients, self._gradients, self._lengths = np.zeros((3, lanes))
        self.unbounded = np.zeros(lanes, bool)
        self.last: tuple[Candidate, Candidate] | None = None
        self.exact = False
        self.resting = np.zeros(lanes, int)
        self.rest_step: int | None = None
        self.waiting = 0
        self._samples: dict[int, tuple[Any, Any, Any]] = {}

    # ------------------------------------------------------------------ records

    def begin(self) -> None:
        """Trace the programs of records; they are compiled in threads."""
        oracle, leaves, sample = self._sample_of_records(0)
        programs = programs_for(self._fitted.problem, oracle)
        programs.begin(leaves, sample, self._fitted.parameters.start, len(self._seeds))

    def record(self, points: list[RecordPoint]) -> Iterator[dict[str, Any]]:
        """Evaluate all points; then, one by one, add them to the history and give the row of the first lane."""
        while points:
            end = next((i for i, point in enumerate(points, 1) if self._pass_pays(point)), len(points))
            stretch, points = points[:end], points[end:]
            evaluated = self._evaluate_stretch(stretch)
            if self.first_objectives is None:
                self._start = stretch[0].x
                self.first_objectives = np.array(evaluated.objective[:, 0], float)
            candidates = _by_candidate(evaluated)
            for point in stretch:
                yield self._record_point(point, next(candidates), next(candidates))
                if self.rest_step is None and min(self.resting) >= REST_RECORDS:
                    self.rest_step = point.step
                self.waiting = max(self.waiting - 1, 0)

    def _evaluate_stretch(self, stretch: list[RecordPoint]) -> Evaluation:
        """For every lane the evaluation of iterate and average at each point; the last point on all data, if that pays."""
        fitted = self._fitted
        vectors = [vector for point in stretch for vector in (point.x, point.average)]
        start = fitted.parameters.start

        def evaluate(lanes: list[int], x: Float[np.ndarray, "points n"]) -> Evaluation:
            oracle, leaves, sample = self._sample_of_records(lanes[0])
            shifts = np.repeat(self._shifts[lanes], len(vectors), axis=0)
            program = programs_for(fitted.problem, oracle).evaluate
            return program((leaves, sample), x, start, RECORD_PRODUCTS, shifts)

        evaluated = by_seed(self._seeds, evaluate, vectors)
        sources = fitted.original.sources
        self.exact = all(isinstance(s, Dataset) and s.size <= EVALUATION_EXAMPLES for s in sources)
        if self._pass_pays(stretch[-1]):
            exactly = by_lane(lambda x: evaluate_exactly(fitted.problem, fitted.original, x, start), vectors[-2:])
            self._shifts[:, 0] += exactly.objective[:, 0] - evaluated.objective[:, -2]
            self._shifts[:, 1:] += exactly.raw[:, 0] - evaluated.raw[:, -2]
            evaluated = jax.tree.map(lambda a, b: np.concatenate([a[:, :-2], b], axis=1), evaluated, exactly)
            self._passed += 2 * self._pass_size()
            self.exact = True
        return evaluated

    def _pass_size(self) -> int:
        """The number of examples in a full pass; 0 if records use all of them anyway, or if some source has no end."""
        sources = self._fitted.original.sources
        large = any(isinstance(s, Dataset) and s.size > EVALUATION_EXAMPLES for s in sources)
        if not large or not self._knows_all:
            return 0
        return sum(s.size for s in sources if isinstance(s, Dataset))

    def _pass_pays(self, point: RecordPoint) -> bool:
        """Whether this record is to be evaluated on all data, which are not the examples of every record."""
        size, drawn = self._pass_size(), point.calls[0]["samples"]
        return size > 0 and (point.step == self._fitted.steps or self._passed + 2 * size <= PASS_SHARE * drawn)

    def params(self, point: RecordPoint, lane: int = 0) -> Any:
        """The iterate as the user's functions take it."""
        return unlifted(self._fitted.parameters.unravel(jnp.asarray(point.x[lane])))

    def _sample_of_records(self, lane: int) -> tuple[Any, Any, Any]:
        seed = self._seeds[lane]
        if seed not in self._samples:
            oracle, sample = evaluation_data(self._fitted.original, seed)
            self._samples[seed] = oracle, oracle.leaves(), sample
        return self._samples[seed]

    def _record_point(self, point: RecordPoint, iterate: Evaluation, average: Evaluation) -> dict[str, Any]:
        now = self._compare(iterate, point.x)
        self._note_rest(iterate, now.relative)
        self.last = now, self._compare(average, point.average)
        falls = self._falls_without_bound(iterate, point.x) & ~self.unbounded
        self.unbounded |= falls
        self.best[falls] = point.x[falls]
        row = self._row(point, iterate) | self._metrics(point)
        for name, values in row.items():
            self.columns.setdefault(name, []).append(values)
        return {name: np.ravel(values)[0].item() for name, values in row.items()}

    def _compare(self, evaluation: Evaluation, points: Float[np.ndarray, "lanes n"]) -> Candidate:
        """Keep the points that are better than the best so far, by the largest multipliers so far."""
        candidate = Candidate.of(self._scale_rule, evaluation)
        self.weights = np.maximum(self.weights, np.abs(evaluation.multipliers))
        self._scales = np.maximum(self._scales, candidate.scales)
        gross = GROSS_VIOLATION * self._scales
        keys = (rank_key(one, self.weights, gross) for one in (candidate, self._best))
        better = ranks_before(*keys) & ~self.unbounded
        for kept, found in zip((*self._best, self.best), (*candidate, points), strict=True):
            kept[better] = found[better]
        return candidate

    def _falls_without_bound(
        self, iterate: Evaluation, points: Float[np.ndarray, "lanes n"]
    ) -> Bool[np.ndarray, " lanes"]:
        """Whether the objective, while the constraints hold, fell so far that it seems to have no bound."""
        assert self.first_objectives is not None
        assert self.last is not None
        trained, first = self._fitted.parameters.trained.size, self.first_objectives
        start, x = (a[:, :trained].astype(float) for a in (self._start, points))
        size, distance = np.linalg.norm(start, axis=1), np.linalg.norm(x - start, axis=1)
        gradient = np.asarray(iterate.gradient_norm, float)
        fall = first - np.asarray(iterate.objective, float)
        self._gradients = np.fmax(self._gradients, np.where(np.isfinite(gradient), gradient, 0.0))
        with np.errstate(all="ignore"):
            unit = np.where(size > 0, size, np.where(self._lengths > 0, self._lengths, distance))
            ratio = np.where(unit > 0, distance / unit, 0.0)
            allowed = self._stop.violation * (1.0 + UNBOUNDED_ROUNDING * self._eps * ratio)
            known = (self.last[0].relative <= allowed) & (distance > 0.0) & (gradient > 0.0) & np.isfinite(gradient)
            new = known & (self._lengths == 0.0)
            self._lengths = np.where(new, np.maximum(size, distance), self._lengths)
            self._first_gradients = np.where(new, self._gradients, self._first_gradients)
            growth = (self._gradients / self._first_gradients) ** UNBOUNDED_GROWTH
            unit = np.maximum(np.abs(first), growth * self._first_gradients * self._lengths)
            return known & (fall > UNBOUNDED_FALL * unit) & (gradient * distance > UNBOUNDED_SLOPE * fall)

    def _note_rest(self, now: Evaluation, violation: Float[np.ndarray, " lanes"]) -> None:
        """Count the records at which nothing changes but by rounding; only where records know all data."""
        if "objective" not in self.columns or not self._knows_all:
            return
        with np.errstate(invalid="ignore"):  # of a lane that diverged
            change = np.abs(now.objective - self.columns["objective"][-1])
        calm = change <= REST_CHANGE * self._eps * objective_scale(now.objective, now.sizes)
        self.resting = np.where(calm & (violation <= REST_VIOLATION * self._eps), self.resting + 1, 0)

    def _row(self, point: RecordPoint, evaluation: Evaluation) -> dict[str, Any]:
        """The entries of a record, for all lanes."""
        samples = np.array([calls["samples"] for calls in point.calls])
        violations = {n: largest_violation(evaluation.violations[:, entries]) for n, entries in self._slices.items()}
        return {
            "step": point.step,
            "samples": samples,
            "epochs": samples / self._epoch,
            "seconds": point.seconds,
            "objective": evaluation.objective,
            "violation": np.max([*violations.values()], axis=0) if violations else 0.0,
            "stationarity": evaluation.stationarity,
        } | violations

    def _metrics(self, point: RecordPoint) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {name: [] for name in self._record.metrics}
        for lane in range(len(self._seeds) if found else 0):
            params, source, batch = self.params(point, lane), self._fitted.problem.data, None
            if self._record.data is not None:
                batch = self._record.data.whole
            elif source is not None:
                oracle, _, sample = self._sample_of_records(lane)
                batch = source.batch(oracle.data[0], sample[0])
            for name, fn in self._record.metrics.items():
                found[name].append(float(call(fn, params, batch)[0]))
        return found

    # ------------------------------------------------------------------ what the records say

    @property
    def recorded(self) -> bool:
        """Whether there is a record yet."""
        return bool(self.columns)

    def may_stop(self, stop: Stop, gradient_scales: list[float]) -> bool:
        """Whether an answer within the tolerances may be at hand in every lane, as far as the last record shows.

        `gradient_scales` are those of the last certificates, or 0; stationarity is not compared before one is known.
        """
        error, scales = 0.0 if self.exact else RECORD_ERROR, np.asarray(gradient_scales)

        def near(candidate: Candidate) -> Bool[np.ndarray, " lanes"]:
            stationary = (scales == 0.0) | (candidate.stationarity <= (stop.stationarity + error) * scales)
            return (candidate.relative <= stop.violation + error) & stationary

        return self.last is not None and bool(np.all(near(self.last[0]) | near(self.last[1])))

    def histories(self) -> list[dict[str, list[float]]]:
        """For every lane the columns of its history."""
        lanes = len(self._seeds)
        spread = {name: [np.broadcast_to(value, lanes) for value in column] for name, column in self.columns.items()}
        lists = {name: np.stack(column, axis=1).tolist() for name, column in spread.items()}
        return [{name: of_lanes[lane] for name, of_lanes in lists.items()} for lane in range(lanes)]

    # ------------------------------------------------------------------ checkpoints

    def arrays(self) -> Any:
        """The arrays of a checkpoint."""
        found = (
            self.best,
            self._best.violations,
            self._best.scales,
            self.weights,
            self._scales,
            self._shifts,
            self._start,
        )
        return tuple(array.astype(self._fitted.parameters.dtype) for array in found)

    def notes(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""
        numbers = {
            "first_objectives": [] if self.first_objectives is None else self.first_objectives,
            "first_gradients": self._first_gradients,
            "gradients": self._gradients,
            "lengths": self._lengths,
            "unbounded": self.unbounded,
            "best": np.stack([self._best.objective, self._best.stationarity], axis=1),
            "resting": self.resting,
        }
        lists = {name: np.asarray(values).tolist() for name, values in numbers.items()}
        return {"histories": self.histories(), "passed": self._passed} | lists

    def restore(self, arrays: Any, notes: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best, violations, scales, self.weights, self._scales, self._shifts, self._start = map(np.array, arrays)
        self._best = Candidate(np.array(notes["best"])[:, 0], violations, scales, np.array(notes["best"])[:, 1])
        first = notes["histories"][0]
        self.columns = {n: list(np.array([history[n] for history in notes["histories"]]).T) for n in first}
        self.columns |= {"step": first["step"]} if first else {}
        self.first_objectives = np.array(notes["first_objectives"]) if first else None
        self._first_gradients, self._gradients, self._lengths = (
            np.array(notes[name]) for name in ("first_gradients", "gradients", "lengths")
        )
        self.unbounded, self.resting = np.array(notes["unbounded"]), np.array(notes["resting"])
        self._passed = notes["passed"]

    def cut(self, step: int) -> None:
        """Forget the records after this step."""
        count = int(np.searchsorted(self.columns["step"], step, side="right"))
        for column in self.columns.values():
            del column[count:]


def _epoch_size(fitted: Fitted) -> float:
    """The number of examples of the objective's data; NaN if they have no end, or if there are none."""
    oracle = fitted.oracle
    source = None if oracle.objective.source is None else oracle.sources[oracle.objective.source]
    return source.size if isinstance(source, Dataset) else math.nan


def _by_candidate(found: Evaluation) -> Iterator[Evaluation]:
    """The evaluations of the first candidate of every lane, of the second, and so on."""
    leaves, structure = jax.tree.flatten(found)
    for place in range(found.objective.shape[1]):
        yield jax.tree.unflatten(structure, [a[:, place] for a in leaves])


def by_lane(evaluate: Evaluate, candidates: list[Float[np.ndarray, "lanes n"]]) -> Evaluation:
    """The evaluation of each candidate of each lane: arrays with an axis for the lanes and one for the candidates."""
    lanes, n = candidates[0].shape
    found = evaluate(np.stack(candidates, axis=1).reshape(-1, n))
    return jax.tree.map(lambda a: a.reshape(lanes, len(candidates), *a.shape[1:]), found)


def by_seed(
    seeds: list[int],
    evaluate: Callable[[list[int], Float[np.ndarray, "points n"]], Evaluation],
    candidates: list[Float[np.ndarray, "lanes n"]],
) -> Evaluation:
    """`by_lane`, where `evaluate` takes the lanes of one seed and their points."""
    groups = [[lane for lane, own in enumerate(seeds) if own == seed] for seed in dict.fromkeys(seeds)]
    found = [by_lane(partial(evaluate, lanes), [points[lanes] for points in candidates]) for lanes in groups]
    place = np.argsort(np.concatenate(groups))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[place], *found)
