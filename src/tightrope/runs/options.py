"""What to record along a run, and when it may stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..arguments import number, positive_int
from ..certificates.evaluation import rows_for_records
from ..problems.data import Dataset, Source


@dataclass(frozen=True)
class Record:
    """What to record, and how often.

    Args:
        every: steps between two records.
        metrics: {name: fn}, `fn(params, batch) -> number` of your own, a column each.
        data: the batch for the metrics, used whole; None: the rows that the objective is evaluated on.

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
        for name, fn in self.metrics.items():
            if not callable(fn):
                raise TypeError(
                    f"Record: metrics[{name!r}] must be a function (params, batch), got {type(fn).__name__}"
                )
        if self.data is not None and not isinstance(self.data, Dataset):
            raise TypeError(f"Record: data must be a tightrope.Dataset, got {type(self.data).__name__}")


@dataclass(frozen=True)
class Stop:
    """When a run may stop, and what counts as success; checked at records.

    Args:
        violation: largest violation, relative to max(1, violation at x0).
        stationarity: distance of ∇F + Jᵀλ to −N_X, relative to max(1, ‖∇F(x0)‖).
        seconds: a budget for the loop; None: no limit.

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


FEW, MANY = 20, 100
"""Records along a run where nothing else is asked for."""


def as_record(record: int | Record | None, steps: int, sources: tuple[Source, ...]) -> Record:
    """`record` as a Record; None: MANY of them, or as many as look at no more rows than the steps draw, but FEW at least."""
    if record is not None:
        return record if isinstance(record, Record) else Record(record)
    drawn = steps * sum(source.batch_size for source in sources)
    looked_at = 2 * sum(rows_for_records(source) for source in sources)
    count = min(max(drawn // looked_at, FEW), MANY) if sources else MANY
    return Record(max(1, -(-steps // count)))
