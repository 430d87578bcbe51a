"""What an experiment is: parts with one problem each, entries with one curve each, claims, and what is drawn; all there are.

Every entry of a part has the same budget, in steps or in rows drawn. How experiments are run is in `running`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..methods import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Score = float | tuple[float, ...]


def final_objective(run: pd.DataFrame) -> Score:
    """The objective at the end of a run.

    Example:
        >>> import pandas as pd
        >>> final_objective(pd.DataFrame({"objective": [3.0, 1.0]}))
        1.0
    """
    return float(run["objective"].iloc[-1])


def feasible_objective(run: pd.DataFrame, tolerance: float = 1e-3) -> Score:
    """How far the violation at the end exceeds tolerance · max(1, violation at the start), then the objective.

    Example:
        >>> import pandas as pd
        >>> feasible_objective(pd.DataFrame({"objective": [3.0, 1.0], "violation": [0.5, 0.0]}))
        (0.0, 1.0)
    """
    allowed = tolerance * max(1.0, float(run["violation"].iloc[0]))
    return max(float(run["violation"].iloc[-1]) - allowed, 0.0), float(run["objective"].iloc[-1])


@dataclass(frozen=True)
class Entry:
    """One curve.

    Args:
        label: its name in the legend.
        grid: the settings tried; one where nothing is tuned. As many for every entry of a part, or `note` says why not.
        note: where the settings come from.

    Example:
        >>> import tightrope as tr
        >>> Entry("SSG", tuple(tr.methods.SwitchingSubgradient(step_size=s) for s in (0.1, 0.3))).label
        'SSG'
    """

    label: str
    grid: tuple[Method, ...]
    note: str = ""


@dataclass(frozen=True)
class Part:
    """One problem and its entries, all with the same budget: a row of panels.

    Args:
        name: of the part.
        make: gives problem and x0 (None: with `measure`); called only when something has to be run. What is run again when
            code changes is said in `fingerprint`.
        entries: the curves.
        steps: the budget of a run, tuning runs included; or
        samples: the same as rows drawn: the steps follow from what runs are seen to draw.
        seeds: final runs of an entry.
        records: about how many along a run.
        metrics: gives columns of your own, as `tightrope.Record` takes them.
        final_metrics: the same for the final runs alone: columns that the score does not look at, where they are costly.
        score: of a run's history: the setting with the smallest is chosen; a run that diverged is never chosen.
        score_text: the same in words.
        lanes: how many runs go side by side at most. 1: one after the other, as `tightrope.solve` runs them; then `seconds`
            are those of a run alone, and what a method skips costs nothing.
        measure: in place of all this, gives the tidy frame of an entry (without the column `entry`).

    Example:
        >>> import tightrope as tr
        >>> Part("circle", tr.zoo.linear_on_circle, (Entry("auto", (tr.methods.AdaptivePenalty(),)),), steps=100).seeds
        5
    """

    name: str
    make: Callable[[], tuple[Any, ...]] | None
    entries: tuple[Entry, ...]
    steps: int | None = None
    samples: int | None = None
    seeds: int = 5
    records: int = 50
    metrics: Callable[[], Mapping[str, Callable[..., Any]]] = dict
    final_metrics: Callable[[], Mapping[str, Callable[..., Any]]] = dict
    score: Callable[[pd.DataFrame], Score] = final_objective
    score_text: str = "the smallest objective at the end"
    lanes: int | None = None
    measure: Callable[[Entry], pd.DataFrame] | None = None

    def __post_init__(self) -> None:
        if self.make is None and self.measure is None:
            raise ValueError(f"Part {self.name!r}: give make or measure, got neither")
        if (self.steps is None) == (self.samples is None):
            raise ValueError(f"Part {self.name!r}: give steps or samples, got {self.steps} and {self.samples}")
        names = [slug(entry.label) for entry in self.entries]
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"Part {self.name!r}: entries must have labels that differ, got {names}")
        for entry in self.entries:
            if not entry.grid:
                raise ValueError(
                    f"Part {self.name!r}: the grid of {entry.label!r} is empty; expected at least one method"
                )


@dataclass(frozen=True)
class Check:
    """A claim, and what became of it.

    Args:
        claim: in words.
        measured: the number, or several: anything that JSON holds.
        holds: whether the claim holds.
        detail: how it was measured; what was tried where it does not hold.

    Example:
        >>> Check("x is lower than y", {"x": 1.0, "y": 2.0}, holds=True).holds
        True
    """

    claim: str
    measured: Any
    holds: bool
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """What is drawn.

    Args:
        name: of the column in the tidy frame.
        label: of its axis, with the unit.
        log: whether the axis is logarithmic.
        start: whether x0 is drawn; not where the column says nothing about it.

    Example:
        >>> Column("violation", "largest violation", log=True).name
        'violation'
    """

    name: str
    label: str
    log: bool = False
    start: bool = True


COLUMNS = (
    Column("objective", "objective"),
    Column("violation", "largest violation", log=True),
    Column("stationarity", "stationarity", log=True),
)


@dataclass(frozen=True)
class Experiment:
    """What is run, what is claimed about it and what is drawn.

    Args:
        name: as in `tightrope reproduce NAME`.
        title: for people.
        paper: paper and figure.
        about: what is done; what the paper leaves open and what was chosen here. Paragraphs, an empty line between them.
        parts: quick ↦ the parts.
        claims: {part: tidy frame} ↦ the checks.
        columns: what is drawn of every part that has it.
        figures: {part: tidy frame} ↦ {caption: figure}, where curves do not show it.
        log_samples: whether the axis of samples is logarithmic.

    Example:
        >>> experiment = Experiment(
        ...     "nothing", "Nothing", "no paper", "", parts=lambda quick: [], claims=lambda runs: []
        ... )
        >>> experiment.columns[0].name
        'objective'
    """

    name: str
    title: str
    paper: str
    about: str
    parts: Callable[[bool], Sequence[Part]]
    claims: Callable[[dict[str, pd.DataFrame]], Sequence[Check]]
    columns: tuple[Column, ...] = COLUMNS
    figures: Callable[[dict[str, pd.DataFrame]], Mapping[str, Figure]] | None = None
    log_samples: bool = False


def available() -> dict[str, Experiment]:
    """All experiments, by name: every folder beside this file that has one.

    Example:
        >>> available()["rates"].paper
        'papers 1, 2 and 5'
    """
    package = __name__.rpartition(".")[0]
    folders = [found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]) if found.ispkg]
    experiments = [getattr(importlib.import_module(f"{package}.{name}"), "experiment", None) for name in folders]
    return {experiment.name: experiment for experiment in experiments if experiment is not None}


def folder_of(name: str) -> Path:
    """The folder of an experiment in the package.

    Example:
        >>> folder_of("exact-penalty-bank").name
        'exact_penalty_bank'
    """
    return Path(__file__).parent / name.replace("-", "_")


def committed() -> dict[str, tuple[Experiment, dict[str, Any]]]:
    """By name each experiment with the checks of its full run, where its folder has them.

    Example:
        >>> experiment, report = committed()["rates"]
        >>> sorted(report)
        ['checks', 'experiment', 'quick', 'seconds', 'versions']
    """
    files = {name: (experiment, folder_of(name) / "checks.json") for name, experiment in available().items()}
    return {
        name: (experiment, json.loads(file.read_text(encoding="utf-8")))
        for name, (experiment, file) in files.items()
        if file.exists()
    }


def slug(text: str) -> str:
    """The text as part of a file's name.

    Example:
        >>> slug("SSG (ε = 0.1)")
        'SSG-ε-=-0_1'
    """
    return re.sub(r"[^\w=.-]+", "-", text).strip("-.").replace(".", "_")
