"""Records along a run: evaluates iterates and averages, keeps the history and the best point so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..certificates.choosing import GROSS_VIOLATION, Candidate, rank_key
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
from .result import History
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

Evaluate = Callable[[Float[np.ndarray, "points n"]], list[Evaluation]]


class Recorder:
    """The records of a run, or of many runs as lanes.

    Data that can be passed over in full are passed over at as many records as their steps pay for (`PASS_SHARE`), and at the
    last one. At the others, values on a sample are corrected by their error at the last full pass, so what is left of
    it is the error of the difference between two iterates. Endless data are evaluated on one sample per seed, so that runs with
    different seeds are independent; no answer is chosen on it alone.

    Attributes:
        histories: for every lane the columns of its history.
        best: for every lane the best point at a record so far, iterate or average.
        weights: for every lane the largest multipliers at a record so far; they weigh violations against the objective.
        first_objectives: for every lane the objective at the start.
        unbounded: for every lane whether its objective falls without bound; `best` is then where this was noticed.
        last: for every lane the candidates at the last record: iterate and average.
        exact: whether the last record was evaluated on all data.
        resting: for every lane the number of records at rest, up to the last one.
        rest_step: the first record at which all lanes were at rest; None before it.
        waiting: points of the last chunk that are not recorded yet; until then the run is not in a state to be saved.
    """

    def __init__(self, fitted: Fitted, record: Record, stop: Stop, seeds: list[int]):
        self._fitted, self._record, self._stop, lanes = fitted, record, stop, len(seeds)
        self._seeds = seeds[:1] * lanes if all(map(passed_in_full, fitted.original.sources)) else seeds
        size, dtype = fitted.original.rows.raw_size, fitted.parameters.dtype
        self._slices = fitted.original.slices()
        self._scale_rule = ConstraintScales.of(fitted.problem, fitted.original)
        self.histories: list[dict[str, list[float]]] = [{} for _ in range(lanes)]
        self.best = np.tile(np.asarray(fitted.parameters.start), (lanes, 1))
        self._best = [Candidate(np.inf, np.zeros(size, dtype), np.zeros(size), np.inf)] * lanes
        self.weights = np.zeros((lanes, size), dtype)
        self._scales = np.zeros((lanes, size))
        self._shifts = np.zeros((lanes, 1 + size), dtype)
        self._passed = 0
        self.first_objectives: list[float] = []
        self._start = np.array(self.best)
        self._first_gradients, self._gradients, self._lengths = [0.0] * lanes, [0.0] * lanes, [0.0] * lanes
        self.unbounded = [False] * lanes
        self.last: list[tuple[Candidate, Candidate]] = []
        self.exact = False
        self.resting = [0] * lanes
        self.rest_step: int | None = None
        self.waiting = 0
        self._samples: dict[int, tuple[Any, Any, Any]] = {}

    # ------------------------------------------------------------------ records

    def begin(self) -> None:
        """Trace the programs of records; they are compiled in threads."""
        oracle, leaves, sample = self._sample_of_records(0)
        programs = programs_for(self._fitted.problem, oracle)
        programs.begin(leaves, sample, self._fitted.parameters.start, len(self.histories))

    def record(self, points: list[RecordPoint]) -> Iterator[list[dict[str, Any]]]:
        """Evaluate all points; then, one by one, add them to every history and give their rows."""
        while points:
            end = next((i for i, point in enumerate(points, 1) if self._pass_pays(point)), len(points))
            stretch, points = points[:end], points[end:]
            evaluated = self._evaluate_stretch(stretch)
            if not self.first_objectives:
                self._start = stretch[0].x
                self.first_objectives = [float(e.objective) for e, *_ in evaluated]
            for place, point in enumerate(stretch):
                yield [self._record_lane(point, lane, *found[2 * place :][:2]) for lane, found in enumerate(evaluated)]
                if self.rest_step is None and min(self.resting) >= REST_RECORDS:
                    self.rest_step = point.step
                self.waiting = max(self.waiting - 1, 0)

    def _evaluate_stretch(self, stretch: list[RecordPoint]) -> list[list[Evaluation]]:
        """For every lane the evaluation of iterate and average at each point; the last point on all data, if that pays."""
        fitted = self._fitted
        vectors = [vector for point in stretch for vector in (point.x, point.average)]
        start = fitted.parameters.start

        def evaluate(lanes: list[int], x: Float[np.ndarray, "points n"]) -> list[Evaluation]:
            oracle, leaves, sample = self._sample_of_records(lanes[0])
            shifts = np.repeat(self._shifts[lanes], len(vectors), axis=0)
            program = programs_for(fitted.problem, oracle).evaluate
            return program((leaves, sample), x, start, RECORD_PRODUCTS, shifts)

        evaluated = by_seed(self._seeds, evaluate, vectors)
        sources = fitted.original.sources
        self.exact = all(isinstance(s, Dataset) and s.size <= EVALUATION_EXAMPLES for s in sources)
        if self._pass_pays(stretch[-1]):
            passed = by_lane(lambda x: evaluate_exactly(fitted.problem, fitted.original, x, start), vectors[-2:])
            for lane, (found, exactly) in enumerate(zip(evaluated, passed, strict=True)):
                now, before = exactly[0], found[-2]
                self._shifts[lane] += np.append(now.objective - before.objective, now.raw - before.raw)
                found[-2:] = exactly
            self._passed += 2 * self._pass_size()
            self.exact = True
        return evaluated

    def _pass_size(self) -> int:
        """The number of examples in a full pass; 0 if records use all of them anyway, or if some source has no end."""
        sources = self._fitted.original.sources
        large = any(isinstance(s, Dataset) and s.size > EVALUATION_EXAMPLES for s in sources)
        if not large or not all(map(passed_in_full, sources)):
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

    def _record_lane(self, point: RecordPoint, lane: int, iterate: Evaluation, average: Evaluation) -> dict[str, Any]:
        now = self._compare(lane, iterate, point.x)
        self._note_rest(lane, iterate, now.relative)
        self.last[lane:] = [(now, self._compare(lane, average, point.average))]
        if not self.unbounded[lane] and self._falls_without_bound(lane, iterate, point.x[lane]):
            self.unbounded[lane], self.best[lane] = True, point.x[lane]
        row = self._row(point, lane, iterate) | self._metrics(point, lane)
        for name, value in row.items():
            self.histories[lane].setdefault(name, []).append(value)
        return row

    def _compare(self, lane: int, evaluation: Evaluation, points: Float[np.ndarray, "lanes n"]) -> Candidate:
        """Keep the point if it is better than the best so far, by the largest multipliers so far."""
        candidate = Candidate.of(self._scale_rule, evaluation)
        weights = self.weights[lane] = np.maximum(self.weights[lane], np.abs(evaluation.multipliers))
        scales = self._scales[lane] = np.maximum(self._scales[lane], candidate.scales)
        gross = GROSS_VIOLATION * scales
        better = rank_key(candidate, weights, gross) < rank_key(self._best[lane], weights, gross)
        if better and not self.unbounded[lane]:
            self._best[lane], self.best[lane] = candidate, points[lane]
        return candidate

    def _falls_without_bound(self, lane: int, iterate: Evaluation, x: Float[np.ndarray, " n"]) -> bool:
        """Whether the objective, while the constraints hold, fell so far that it seems to have no bound."""
        (start, _), (x, _) = map(self._fitted.parameters.split, (self._start[lane].astype(float), x))
        first = self.first_objectives[lane]
        size, distance = float(np.linalg.norm(start)), float(np.linalg.norm(x.astype(float) - start))
        gradient, fall = float(iterate.gradient_norm), first - float(iterate.objective)
        if math.isfinite(gradient):
            self._gradients[lane] = max(self._gradients[lane], gradient)
        ratio = distance / (size or self._lengths[lane] or distance or 1.0)
        rounding = UNBOUNDED_ROUNDING * float(np.finfo(x.dtype).eps) * ratio
        holds = self.last[lane][0].relative <= self._stop.violation * (1.0 + rounding)
        if not (holds and distance > 0.0 and 0.0 < gradient < math.inf):
            return False
        if not self._lengths[lane]:
            self._lengths[lane], self._first_gradients[lane] = max(size, distance), self._gradients[lane]
        growth = (self._gradients[lane] / self._first_gradients[lane]) ** UNBOUNDED_GROWTH
        unit = max(abs(first), growth * self._first_gradients[lane] * self._lengths[lane])
        return fall > UNBOUNDED_FALL * unit and gradient * distance > UNBOUNDED_SLOPE * fall

    def _note_rest(self, lane: int, now: Evaluation, violation: float) -> None:
        """Count the records at which nothing changes but by rounding; only where records know all data."""
        before, eps = self.histories[lane].get("objective", []), float(np.finfo(self._fitted.parameters.dtype).eps)
        if not before or not all(map(passed_in_full, self._fitted.original.sources)):
            return
        change = abs(float(now.objective) - before[-1])
        calm = change <= REST_CHANGE * eps * objective_scale(now.objective, now.sizes)
        self.resting[lane] = self.resting[lane] + 1 if calm and violation <= REST_VIOLATION * eps else 0

    def _row(self, point: RecordPoint, lane: int, evaluation: Evaluation) -> dict[str, float]:
        samples, oracle = point.calls[lane]["samples"], self._fitted.oracle
        source = None if oracle.objective.source is None else oracle.sources[oracle.objective.source]
        violations = {n: largest_violation(evaluation.violations[entries]) for n, entries in self._slices.items()}
        return {
            "step": point.step,
            "samples": samples,
            "epochs": samples / source.size if isinstance(source, Dataset) else math.nan,
            "seconds": point.seconds,
            "objective": float(evaluation.objective),
            "violation": max(violations.values(), default=0.0),
            "stationarity": float(evaluation.stationarity),
        } | violations

    def _metrics(self, point: RecordPoint, lane: int) -> dict[str, float]:
        if not self._record.metrics:
            return {}
        params, source, batch = self.params(point, lane), self._fitted.problem.data, None
        if self._record.data is not None:
            batch = self._record.data.whole
        elif source is not None:
            oracle, _, sample = self._sample_of_records(lane)
            batch = source.batch(oracle.data[0], sample[0])
        return {name: float(call(fn, params, batch)[0]) for name, fn in self._record.metrics.items()}

    # ------------------------------------------------------------------ what the records say

    @property
    def recorded(self) -> bool:
        """Whether there is a record yet."""
        return bool(self.histories[0])

    def may_stop(self, stop: Stop, gradient_scales: list[float]) -> bool:
        """Whether an answer within the tolerances may be at hand in every lane, as far as the last record shows.

        `gradient_scales` are those of the last certificates, or 0; stationarity is not compared before one is known.
        """
        error = 0.0 if self.exact else RECORD_ERROR

        def near(candidate: Candidate, scale: float) -> bool:
            stationary = not scale or candidate.stationarity <= (stop.stationarity + error) * scale
            return candidate.relative <= stop.violation + error and stationary

        if not self.last:
            return False
        lanes = zip(self.last, gradient_scales, strict=True)
        return all(any(near(candidate, scale) for candidate in pair) for pair, scale in lanes)

    def history(self, lane: int) -> History:
        """The history of a lane."""
        return History(self.histories[lane])

    # ------------------------------------------------------------------ checkpoints

    def arrays(self) -> Any:
        """The arrays of a checkpoint."""
        violations, scales = (np.array(a) for a in zip(*((c.violations, c.scales) for c in self._best), strict=True))
        found = self.best, violations, scales, self.weights, self._scales, self._shifts, self._start
        return tuple(array.astype(self._fitted.parameters.dtype) for array in found)

    def notes(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""
        return {
            "histories": self.histories,
            "first_objectives": self.first_objectives,
            "first_gradients": self._first_gradients,
            "gradients": self._gradients,
            "lengths": self._lengths,
            "unbounded": self.unbounded,
            "best": [[float(c.objective), c.stationarity] for c in self._best],
            "passed": self._passed,
            "resting": self.resting,
        }

    def restore(self, arrays: Any, notes: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best, violations, scales, self.weights, self._scales, self._shifts, self._start = map(np.array, arrays)
        self._best = [
            Candidate(objective, violation, scale, stationarity)
            for violation, scale, (objective, stationarity) in zip(violations, scales, notes["best"], strict=True)
        ]
        self.histories, self.first_objectives = notes["histories"], notes["first_objectives"]
        self._first_gradients, self._gradients = notes["first_gradients"], notes["gradients"]
        self._lengths, self.unbounded = notes["lengths"], notes["unbounded"]
        self._passed, self.resting = notes["passed"], notes["resting"]

    def cut(self, step: int) -> None:
        """Forget the records after this step."""
        for history in self.histories:
            count = int(np.searchsorted(history["step"], step, side="right"))
            for column in history.values():
                del column[count:]


def by_lane(evaluate: Evaluate, candidates: list[Float[np.ndarray, "lanes n"]]) -> list[list[Evaluation]]:
    """For every lane the evaluation of each candidate."""
    found = evaluate(np.stack(candidates, axis=1).reshape(-1, candidates[0].shape[1]))
    return [found[i : i + len(candidates)] for i in range(0, len(found), len(candidates))]


def by_seed(
    seeds: list[int],
    evaluate: Callable[[list[int], Float[np.ndarray, "points n"]], list[Evaluation]],
    candidates: list[Float[np.ndarray, "lanes n"]],
) -> list[list[Evaluation]]:
    """For every lane the evaluation of each candidate, where `evaluate` takes the lanes of one seed and their points."""
    found: list[list[Evaluation]] = [[] for _ in seeds]
    for seed in dict.fromkeys(seeds):
        lanes = [lane for lane, own in enumerate(seeds) if own == seed]
        evaluated = by_lane(partial(evaluate, lanes), [points[lanes] for points in candidates])
        for lane, evaluations in zip(lanes, evaluated, strict=True):
            found[lane] = evaluations
    return found
