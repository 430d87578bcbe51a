"""Options of a run: what to record along it, and when it may stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..arguments import check_callable, check_type, number, step_count
from ..certificates.certificate import Certificate
from ..certificates.evaluation import examples_for_records
from ..certificates.programs import MAX_GROUP_ROWS
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
        step_count("Record", "every", self.every)
        check_type("Record", "metrics", self.metrics, Mapping, "a dict {name: fn}")  # pyright: ignore[reportArgumentType]
        for name, fn in self.metrics.items():
            check_callable("Record", f"metrics[{name!r}]", fn, "a function (params, batch)")
        if self.data is not None:
            check_type("Record", "data", self.data, Dataset, "a tightrope.Dataset")


@dataclass(frozen=True)
class Stop:
    """When a run may stop, and what counts as success. All tolerances are relative to scales measured at the answer.

    Args:
        violation: the largest violation, relative to the scale of its constraint.
        stationarity: the distance of ∇F + Jᵀλ to −N_X near x, relative to the scale of the gradient.
        seconds: a time limit for the loop; None: no limit.
        gap: the estimated F(x) − F*, relative to the scale of the objective.

    Example:
        >>> import tightrope as tr
        >>> tr.Stop(violation=1e-4).stationarity
        0.01
    """

    violation: float = 1e-3
    stationarity: float = 1e-2
    seconds: float | None = None
    gap: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("violation", "stationarity", "gap"):
            number("Stop", name, getattr(self, name), low=0.0, closed="[")
        if self.seconds is not None:
            number("Stop", "seconds", self.seconds, low=0.0)


def missing(stop: Stop, certificate: Certificate) -> list[str]:
    """Return what keeps a certificate, at the tolerance `stop.violation`, from being a success; nothing if it is one."""
    found = {
        "stationarity": (certificate.relative_stationarity, stop.stationarity),
        "optimality gap": (certificate.relative_gap, stop.gap),
    }
    largest = max((e.value for e in certificate.relative_violation.values()), default=0.0)
    verdict = f"the verdict is {certificate.verdict} (relative violation {largest:.2g})"
    parts = [] if certificate.verdict == "feasible" else [verdict]
    return parts + [
        f"the relative {name} is {value:.2g} (above {most:g})"
        for name, (value, most) in found.items()
        if not value <= most
    ]


def check_stop(owner: str, stop: Any) -> None:
    """A TypeError unless this is a `Stop` or None."""
    if stop is not None:
        check_type(owner, "stop", stop, Stop, "a tightrope.Stop")


FEWEST_RECORDS, MOST_RECORDS = 20, 100
"""The number of records along a run if `record` is None."""


def as_record(owner: str, record: Any, steps: int, sources: tuple[Source, ...], rows: int) -> Record:
    """`record` as a Record; None: as many records as evaluate no more examples than the steps draw, within limits.

    With many rows it is the fewest: their multipliers take longer than a step, and are computed anew at each record.
    """
    if record is not None:
        return record if isinstance(record, Record) else Record(step_count(owner, "record", record))
    drawn = steps * sum(source.batch_size for source in sources)
    evaluated = 2 * sum(examples_for_records(source) for source in sources)
    count = min(max(drawn // evaluated, FEWEST_RECORDS), MOST_RECORDS) if sources else MOST_RECORDS
    count = FEWEST_RECORDS if rows > MAX_GROUP_ROWS else count
    return Record(max(1, -(-steps // count)))
