"""Options of a run: what to record along it, and when it may stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..arguments import check_callable, check_type, number, positive_int
from ..certificates.evaluation import examples_for_records
from ..problems.data import Dataset, Source


@dataclass(frozen=True)
class Record:
    """What to record, and how often.

    Args:
        every: how often, in steps.
        metrics: {name: fn}, `fn(params, batch) -> number` of your own; each is a column of the history.
        data: the batch for the metrics, used whole; None: the examples that the objective is evaluated on.

    Example:
        >>> import tightrope as tr
        >>> tr.Record(100, metrics={"norm": lambda w, batch: (w**2).sum()}).every
        100
    """

    every: int
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    data: Dataset | None = None

    def __post_init__(self) -> None:
        positive_int("Record", "every", self.every)
        check_type("Record", "metrics", self.metrics, Mapping, "a dict {name: fn}")  # pyright: ignore[reportArgumentType]
        for name, fn in self.metrics.items():
            check_callable("Record", f"metrics[{name!r}]", fn, "a function (params, batch)")
        if self.data is not None:
            check_type("Record", "data", self.data, Dataset, "a tightrope.Dataset")


@dataclass(frozen=True)
class Stop:
    """When a run may stop, and what counts as success; checked at records.

    Args:
        violation: the largest violation, relative to max(1, violation at x0).
        stationarity: the distance of ∇F + Jᵀλ to −N_X, relative to max(1, ‖∇F(x0)‖).
        seconds: a time limit for the loop; None: no limit.

    Example:
        >>> import tightrope as tr
        >>> tr.Stop(violation=1e-4).stationarity
        0.01
    """

    violation: float = 1e-3
    stationarity: float = 1e-2
    seconds: float | None = None

    def __post_init__(self) -> None:
        number("Stop", "violation", self.violation, low=0.0, closed="[")
        number("Stop", "stationarity", self.stationarity, low=0.0, closed="[")
        if self.seconds is not None:
            number("Stop", "seconds", self.seconds, low=0.0)

    def tolerances(self, violation: float, gradient_norm: float) -> tuple[float, float]:
        """The violation and the stationarity that count as none, from those at the start."""
        return self.violation * max(1.0, violation), self.stationarity * max(1.0, gradient_norm)


def check_stop(owner: str, stop: Any) -> None:
    """A TypeError unless this is a `Stop` or None."""
    if stop is not None:
        check_type(owner, "stop", stop, Stop, "a tightrope.Stop")


FEWEST_RECORDS, MOST_RECORDS = 20, 100
"""The number of records along a run if `record` is None."""


def as_record(owner: str, record: Any, steps: int, sources: tuple[Source, ...]) -> Record:
    """`record` as a Record; None: as many records as evaluate no more examples than the steps draw, within limits."""
    if record is not None:
        return record if isinstance(record, Record) else Record(positive_int(owner, "record", record))
    drawn = steps * sum(source.batch_size for source in sources)
    evaluated = 2 * sum(examples_for_records(source) for source in sources)
    count = min(max(drawn // evaluated, FEWEST_RECORDS), MOST_RECORDS) if sources else MOST_RECORDS
    return Record(max(1, -(-steps // count)))
