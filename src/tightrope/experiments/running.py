"""Running an experiment: the runs of every entry, the claims, the figures and the report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ..figures import curves
from ..runs.progress import progress_bar
from . import report
from .base import Experiment, slug
from .entries import PartRunner, as_json, save
from .outcome import Outcome


def run_experiment(experiment: Experiment, out: str | os.PathLike[str], quick: bool = False) -> Outcome:
    """Run the missing entries, judge the claims, and write runs, figures, report and `checks.json` to out/NAME.

    Args:
        experiment: the experiment.
        out: parent of the experiment's folder; created if missing.
        quick: whether to run the short version.
    """
    folder = Path(out) / experiment.name
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    parts = {part.name: part for part in experiment.parts(quick)}
    runs: dict[str, dict[str, Any]] = {}
    frames: dict[str, pd.DataFrame] = {}
    with _progress(sum(len(part.entries) for part in parts.values()), experiment.name) as show:
        for name, part in parts.items():
            runner = PartRunner(part, folder / "runs")
            done = {}
            for entry in part.entries:
                show(f"{name}, {entry.label}")
                done[entry.label] = runner.run_entry(entry)
            frames[name] = pd.concat([frame for frame, _ in done.values()], ignore_index=True)
            runs[name] = {label: about for label, (_, about) in done.items()}
    outcome = Outcome(experiment, quick, folder, parts, frames, runs, list(experiment.claims(frames)))
    write_files(outcome)
    return outcome


def write_files(outcome: Outcome) -> None:
    """Write figures, report and checks; `checks.json` comes last, so that it marks a complete experiment."""
    experiment, folder = outcome.experiment, outcome.folder
    draw = partial(curves, outcome.frames, experiment.columns, log_samples=experiment.log_samples)
    figures = {"figure": draw("samples"), "figure-time": draw("seconds")}
    extra = dict(experiment.figures(outcome.frames)) if experiment.figures else {}
    for name, figure in (figures | extra).items():
        for ending in ("png", "svg"):
            figure.savefig(folder / f"{slug(name)}.{ending}")
    (folder / "report.html").write_text(report.page(outcome, extra), encoding="utf-8")
    checks = {
        "experiment": experiment.name,
        "quick": outcome.quick,
        "versions": outcome.versions,
        "seconds": round(outcome.seconds),
        "checks": [asdict(check) for check in outcome.checks],
    }
    save(folder / "checks.json", lambda path: path.write_text(as_json(checks), encoding="utf-8"))


@contextmanager
def _progress(total: int, title: str) -> Iterator[Callable[[str], None]]:
    """A function that announces the next entry: on a progress bar in a terminal, as lines otherwise."""
    with progress_bar(None, total, title) as bar:
        begun = iter(range(total))

        def show(entry: str) -> None:
            bar(next(begun), entry)
            if not sys.stderr.isatty():
                print(f"{title}: {entry}", file=sys.stderr, flush=True)

        yield show
