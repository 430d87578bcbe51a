"""The definition of an experiment: parts (one problem each), entries (one curve each), claims and plotted columns.

All entries of a part have the same budget, in steps or in samples drawn. `running` runs experiments.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import pandas as pd

from ..figures import COLUMNS, Column
from ..methods import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Score = float | tuple[float, ...]
Basis = Literal["as printed", "tuned", "ours"]


def final_objective(run: pd.DataFrame) -> Score:
    """The final objective of a run.

    Example:
        >>> import pandas as pd
        >>> final_objective(pd.DataFrame({"objective": [3.0, 1.0]}))
        1.0
    """
    return float(run["objective"].iloc[-1])


def feasible_objective(run: pd.DataFrame, tolerance: float = 1e-3) -> Score:
    """The excess of the final violation over tolerance · max(1, violation at the start), then the final objective.

    Example:
        >>> import pandas as pd
        >>> feasible_objective(pd.DataFrame({"objective": [3.0, 1.0], "violation": [0.5, 0.0]}))
        (0.0, 1.0)
    """
    allowed = tolerance * max(1.0, float(run["violation"].iloc[0]))
    return max(float(run["violation"].iloc[-1]) - allowed, 0.0), float(run["objective"].iloc[-1])


@dataclass(frozen=True)
class Entry:
    """One curve: a method and the settings to try.

    Args:
        label: name in the legend.
        grid: the settings to try; a single one if nothing is tuned. All entries of a part should have equally many; if not,
            `note` gives the reason.
        note: source of the settings.

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
        name: name of the part.
        make: returns problem and x0; called only if something has to be run. None if there is a `measure`.
        entries: the curves.
        steps: budget of every run, tuning runs included, in steps; or
        samples: the same in samples drawn; the number of steps is then found from the samples that runs draw.
        seeds: number of final runs per entry.
        records: approximate number of records per run.
        metrics: returns extra columns, as `tightrope.Record` takes them.
        final_metrics: the same for the final runs alone: costly columns that the score does not use.
        score: score of a run's history; the setting with the smallest score is chosen. Runs that diverged are never chosen.
        score_text: the score in words.
        lanes: largest number of lanes per sweep. With 1, runs go one at a time through `tightrope.solve`; then `seconds` is
            the time of a single run, and branches that a method does not take cost nothing.
        measure: returns the tidy frame of an entry (without the column `entry`), in place of tuning and runs.
        scores: with `measure`, returns the scores of an entry's settings on the tuning seed; `measure` then gets the setting
            with the smallest. None: it gets all of them.

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
    scores: Callable[[Entry], Sequence[tuple[float, ...]]] | None = None

    def __post_init__(self) -> None:
        if self.make is None and self.measure is None:
            raise ValueError(f"Part {self.name!r}: give make or measure, got neither")
        if (self.steps is None) == (self.samples is None):
            raise ValueError(f"Part {self.name!r}: give steps or samples, got {self.steps} and {self.samples}")
        names = [slug(entry.label) for entry in self.entries]
        if len(set(names)) < len(names) or not names:
            raise ValueError(f"Part {self.name!r}: entries must have distinct labels, got {names}")
        for entry in self.entries:
            if not entry.grid:
                raise ValueError(
                    f"Part {self.name!r}: the grid of {entry.label!r} is empty; expected at least one method"
                )


@dataclass(frozen=True)
class Check:
    """A claim and its verdict.

    Args:
        claim: the claim in words; a paper's claim that is checked on two bases has the same words on both.
        measured: the measurements: anything that JSON can store.
        holds: whether the claim holds.
        detail: how it was measured.
        basis: 'as printed' (the paper's constants or grids, iterations and measure, as far as it states them), 'tuned'
            (constants that we tuned, the way the paper says it tuned its own) or 'ours' (an extension or a measure of ours:
            reported, not counted).
        why: if it does not hold, the reason and what holds instead; dropped if it holds.

    Example:
        >>> Check("x is lower than y", {"x": 1.0, "y": 2.0}, holds=True, why="x is higher")
        Check(claim='x is lower than y', measured={'x': 1.0, 'y': 2.0}, holds=True, detail='', basis='as printed', why='')
    """

    claim: str
    measured: Any
    holds: bool
    detail: str = ""
    basis: Basis = "as printed"
    why: str = ""

    def __post_init__(self) -> None:
        if self.basis not in get_args(Basis):
            raise ValueError(f"Check {self.claim!r}: basis must be one of {get_args(Basis)}, got {self.basis!r}")
        if self.holds:
            object.__setattr__(self, "why", "")


@dataclass(frozen=True)
class Experiment:
    """An experiment: its runs, its claims and its figures.

    Args:
        name: as in `tightrope reproduce NAME`.
        title: title of the report.
        paper: paper and figure.
        about: description: the setup, what the paper leaves open and what was chosen here. Paragraphs are separated by an
            empty line.
        parts: quick ↦ the parts.
        claims: {part: tidy frame} ↦ the checks.
        columns: plotted columns; a part shows those that it has.
        figures: {part: tidy frame} ↦ {caption: figure}, for results that curves do not show.
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
    """All experiments by name: every subfolder of this package that defines one.

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
    """By name, each experiment with the checks of its full run, if its folder has them.

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
    """The text as part of a file name.

    Example:
        >>> slug("SSG (ε = 0.1)")
        'SSG-ε-=-0_1'
    """
    return re.sub(r"[^\w=.-]+", "-", text).strip("-.").replace(".", "_")
