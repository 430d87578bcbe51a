"""Records along a run: evaluates iterates and averages, keeps the history and the best point so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..certificates.evaluation import RECORD_PRODUCTS, Evaluation, evaluation_data, largest_violation, rank_key
from ..certificates.programs import programs_for
from ..problems.data import Dataset
from .fitting import Fitted
from .options import Record, Stop
from .result import History
from .run import RecordPoint

UNBOUNDED_FALL = 1e8
"""An objective that fell by this many times its first size is called unbounded."""

Evaluate = Callable[[Float[np.ndarray, "points n"]], list[Evaluation]]


class Recorder:
    """The records of a run, or of many runs as lanes.

    Attributes:
        histories: for every lane the columns of its history.
        best: for every lane the best point at a record so far, iterate or average.
        weights: for every lane the largest multipliers at a record so far; they weigh violations against the objective.
        scales: for every lane the violation, the gradient's norm and the objective at the start.
        waiting: points of the last chunk that are not recorded yet; until then the run is not in a state to be saved.
    """

    def __init__(self, fitted: Fitted, record: Record, stop: Stop, lanes: int):
        self._fitted, self._record, self._stop = fitted, record, stop
        size = fitted.original.rows.raw_size
        self._slices = fitted.original.slices()
        self.histories: list[dict[str, list[float]]] = [{} for _ in range(lanes)]
        self.best = np.tile(np.asarray(fitted.parameters.start), (lanes, 1))
        self._best_objective = np.full(lanes, np.inf, fitted.parameters.dtype)
        self._best_violations = np.zeros((lanes, size), fitted.parameters.dtype)
        self.weights = np.zeros_like(self._best_violations)
        self.scales: list[tuple[float, float, float]] = []
        self.waiting = 0
        self._evaluation: tuple[Any, Any, Any] | None = None

    # ------------------------------------------------------------------ records

    def record(self, points: list[RecordPoint]) -> Iterator[list[dict[str, Any]]]:
        """Evaluate all points at once; then, one by one, add them to every history and give their rows."""
        if not points:
            return
        evaluated = by_lane(self.evaluate, [vector for point in points for vector in (point.x, point.average)])
        if not self.scales:
            self.scales = [
                (largest_violation(e.violations), float(e.gradient_norm), float(e.objective)) for e, *_ in evaluated
            ]
        for place, point in enumerate(points):
            yield [self._record_lane(point, lane, *found[2 * place :][:2]) for lane, found in enumerate(evaluated)]
            self.waiting = max(self.waiting - 1, 0)

    def evaluate(self, points: Float[np.ndarray, "points n"]) -> list[Evaluation]:
        """Each point on the sample of records."""
        oracle, leaves, sample = self._sample_of_records()
        return programs_for(self._fitted.problem, oracle).evaluate(leaves, points, sample, RECORD_PRODUCTS)

    def params(self, point: RecordPoint, lane: int = 0) -> Any:
        """The iterate as the user's functions take it."""
        return self._fitted.parameters.unravel(jnp.asarray(point.x[lane]))

    def _sample_of_records(self) -> tuple[Any, Any, Any]:
        if self._evaluation is None:
            oracle, sample = evaluation_data(self._fitted.original)
            self._evaluation = oracle, oracle.leaves(), sample
        return self._evaluation

    def _record_lane(self, point: RecordPoint, lane: int, iterate: Evaluation, average: Evaluation) -> dict[str, Any]:
        self._compare(lane, iterate, point.x[lane])
        self._compare(lane, average, point.average[lane])
        row = self._row(point, lane, iterate) | self._metrics(point, lane)
        for name, value in row.items():
            self.histories[lane].setdefault(name, []).append(value)
        return row

    def _compare(self, lane: int, evaluation: Evaluation, point: Float[np.ndarray, " n"]) -> None:
        """Keep the point if it is better than the best so far, by the largest multipliers so far."""
        weights = self.weights[lane] = np.maximum(self.weights[lane], np.abs(evaluation.multipliers))
        tolerance, _ = self.tolerances(lane)
        best = rank_key(self._best_objective[lane], self._best_violations[lane], weights, tolerance)
        if rank_key(evaluation.objective, evaluation.violations, weights, tolerance) < best:
            self._best_objective[lane], self._best_violations[lane] = evaluation.objective, evaluation.violations
            self.best[lane] = point

    def _row(self, point: RecordPoint, lane: int, evaluation: Evaluation) -> dict[str, float]:
        samples, source = point.calls[lane]["samples"], self._fitted.problem.data
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
            batch = self._record.data.arrays
        elif source is not None:
            oracle, _, sample = self._sample_of_records()
            batch = source.batch(oracle.data[0], sample[0])
        return {name: float(fn(params, batch)) for name, fn in self._record.metrics.items()}

    # ------------------------------------------------------------------ what the records say

    @property
    def recorded(self) -> bool:
        """Whether there is a record yet."""
        return bool(self.histories[0])

    def tolerances(self, lane: int) -> tuple[float, float]:
        """The violation and the stationarity that count as none."""
        violation, gradient, _ = self.scales[lane]
        return self._stop.tolerances(violation, gradient)

    def stop_met(self) -> bool:
        """Whether the last record of every lane is within the tolerances."""

        def met(lane: int) -> bool:
            history, (violation, stationarity) = self.histories[lane], self.tolerances(lane)
            return history["violation"][-1] <= violation and history["stationarity"][-1] <= stationarity

        return all(met(lane) for lane in range(len(self.histories)))

    def falls_without_bound(self, lane: int) -> bool:
        """Whether the objective, while the constraints held, fell so far that it seems to have no bound."""
        history, first = self.history(lane), self.scales[lane][2]
        within = history["violation"] <= self.tolerances(lane)[0]
        return bool(np.any(within & (history["objective"] < first - UNBOUNDED_FALL * max(1.0, abs(first)))))

    def history(self, lane: int) -> History:
        """The history of a lane."""
        return History(self.histories[lane])

    # ------------------------------------------------------------------ checkpoints

    def arrays(self) -> Any:
        """The arrays of a checkpoint."""
        return self.best, self._best_objective, self._best_violations, self.weights

    def notes(self) -> dict[str, Any]:
        """The rest of a checkpoint, as JSON."""
        return {"scales": self.scales, "histories": self.histories}

    def restore(self, arrays: Any, notes: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.best, self._best_objective, self._best_violations, self.weights = map(np.array, arrays)
        self.histories = notes["histories"]
        self.scales = [tuple(scale) for scale in notes["scales"]]


def by_lane(evaluate: Evaluate, candidates: list[Float[np.ndarray, "lanes n"]]) -> list[list[Evaluation]]:
    """For every lane the evaluation of each candidate."""
    found = evaluate(np.stack(candidates, axis=1).reshape(-1, candidates[0].shape[1]))
    return [found[i : i + len(candidates)] for i in range(0, len(found), len(candidates))]
