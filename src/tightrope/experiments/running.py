"""How an experiment is run: tune on one seed, run the final seeds together, save each curve, judge the claims, report.

The runs of an entry are a file of their own, written when they are done, so that a run that was stopped goes on with the
entries that are missing; a file whose entry has other numbers or other code by now is made again.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from .. import __version__
from ..methods import Method
from ..problems.problem import Problem
from ..runs.options import Record
from ..runs.progress import progress_bar
from ..runs.result import Result
from ..runs.solving import solve
from ..runs.sweeping import sweep
from .base import Check, Entry, Experiment, Part, slug
from .fingerprint import fingerprint

Metrics = Mapping[str, Callable[..., Any]]

TUNING_SEED = 1_000_003
"""The seed on which settings are chosen; final runs have seeds 0, 1, …"""
PILOT, ROUNDS, OFF = 100, 4, 0.01
"""Steps of the first run that counts rows, how many such runs at most, and by how much the rows drawn may differ."""


@dataclass(frozen=True)
class Outcome:
    """What an experiment gave: the parts with their tidy frames and how each entry was run, the checks, and where all lies.

    Attributes:
        experiment: what was run.
        quick: whether it was the short version.
        folder: where everything was written.
        parts: by name.
        frames: by part one row for each entry, seed and record.
        runs: by part and entry what the JSON beside its file says.
        checks: the claims.
        versions: of what it was run with.
    """

    experiment: Experiment
    quick: bool
    folder: Path
    parts: dict[str, Part]
    frames: dict[str, pd.DataFrame]
    runs: dict[str, dict[str, dict[str, Any]]]
    checks: list[Check]
    versions: dict[str, str] = field(default_factory=lambda: versions())

    @property
    def seconds(self) -> float:
        """What all runs took, tuning and compilation included."""
        return sum(run["seconds"] for entries in self.runs.values() for run in entries.values())


def versions() -> dict[str, str]:
    """What a run depends on.

    Example:
        >>> "jax" in versions()
        True
    """
    device = jax.devices()[0]
    return {
        "tightrope": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": f"{device.platform} ({device.device_kind})",
    }


def run_experiment(experiment: Experiment, out: str | os.PathLike[str], quick: bool = False) -> Outcome:
    """Run what is not done yet, judge the claims, and write runs, figures, report and `checks.json` to out/NAME.

    Args:
        experiment: what to run.
        out: the folder that the experiment's own folder lies in; made if need be.
        quick: the short version.

    Example:
        >>> import tempfile, tightrope as tr
        >>> part = Part(
        ...     "plane", tr.zoo.projection_on_plane, (Entry("auto", (tr.methods.AdaptivePenalty(),)),), steps=20
        ... )
        >>> tiny = Experiment(
        ...     "tiny", "Tiny", "no paper", "", lambda quick: [part], lambda runs: [Check("it ran", 1, True)]
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     outcome = run_experiment(tiny, folder)
        ...     sorted(path.name for path in outcome.folder.iterdir())
        ['checks.json', 'figure-time.png', 'figure-time.svg', 'figure.png', 'figure.svg', 'report.html', 'runs']
    """
    folder = Path(out) / experiment.name
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    parts = {part.name: part for part in experiment.parts(quick)}
    runs: dict[str, dict[str, Any]] = {}
    frames: dict[str, pd.DataFrame] = {}
    with _shown(sum(len(part.entries) for part in parts.values()), experiment.name) as show:
        for name, part in parts.items():
            work = _Work(part, folder / "runs")
            done = {}
            for entry in part.entries:
                show(f"{name}, {entry.label}")
                done[entry.label] = work.entry(entry)
            frames[name] = pd.concat([frame for frame, _ in done.values()], ignore_index=True)
            runs[name] = {label: about for label, (_, about) in done.items()}
    outcome = Outcome(experiment, quick, folder, parts, frames, runs, list(experiment.claims(frames)))
    _write(outcome)
    return outcome


def _write(outcome: Outcome) -> None:
    """Figures, report and checks; the last of them says that all is done."""
    from . import plots, report

    experiment, folder = outcome.experiment, outcome.folder
    draw = partial(plots.curves, outcome.frames, experiment.columns, log_samples=experiment.log_samples)
    figures = {"figure": draw("samples"), "figure-time": draw("seconds")}
    extra = dict(experiment.figures(outcome.frames)) if experiment.figures else {}
    for name, figure in (figures | extra).items():
        for ending in ("png", "svg"):
            figure.savefig(folder / f"{slug(name)}.{ending}")
    (folder / "report.html").write_text(report.page(outcome, extra), encoding="utf-8")
    text = {
        "experiment": experiment.name,
        "quick": outcome.quick,
        "versions": outcome.versions,
        "seconds": round(outcome.seconds),
        "checks": [asdict(check) for check in outcome.checks],
    }
    _save(folder / "checks.json", lambda path: path.write_text(as_json(text), encoding="utf-8"))


class _Work:
    """The entries of a part, one after the other; the problem is made once, and only if there is something to run."""

    def __init__(self, part: Part, folder: Path):
        self.part, self.folder = part, folder

    @cached_property
    def problem(self) -> tuple[Problem, PyTree[Any]]:
        assert self.part.make is not None
        problem, x0, *_ = self.part.make()
        return problem, x0

    def entry(self, entry: Entry) -> tuple[pd.DataFrame, dict[str, Any]]:
        """The tidy frame and what is known about its making: from their files, or made and saved now."""
        table = self.folder / f"{slug(self.part.name)}.{slug(entry.label)}.parquet"
        about, mark = table.with_suffix(".json"), fingerprint(self.part, entry)
        if about.exists() and table.exists():
            known = json.loads(about.read_text(encoding="utf-8"))
            if known["fingerprint"] == mark:
                return pd.read_parquet(table), known
        about.unlink(missing_ok=True)
        began = time.perf_counter()
        frame, found = self._measure(entry) if self.part.measure is not None else self._tuned(entry)
        frame.insert(0, "entry", entry.label)
        found |= {"note": entry.note, "seconds": round(time.perf_counter() - began, 2), "fingerprint": mark}
        text = as_json(found)
        _save(table, lambda path: frame.to_parquet(path, index=False))
        _save(about, lambda path: path.write_text(text, encoding="utf-8"))
        return frame, json.loads(text)

    def _measure(self, entry: Entry) -> tuple[pd.DataFrame, dict[str, Any]]:
        assert self.part.measure is not None
        frame = self.part.measure(entry)
        return frame, {"tuning": [], "chosen": _settings(entry.grid[0]), "steps": int(max(frame["step"]))}

    def _tuned(self, entry: Entry) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Choose a setting on the seed for that, with the budget of the final runs, and make these."""
        part, best, tried = self.part, 0, []
        steps = [part.steps or PILOT] * len(entry.grid)
        if len(entry.grid) > 1:
            found, steps = self._equal(entry.grid, [TUNING_SEED], steps, part.metrics())
            scores = [_score(part, run) for (run,) in found]
            best = min(range(len(scores)), key=lambda i: scores[i])
            tried = [
                {
                    "settings": repr(method),
                    "score": score,
                    "status": run.status,
                    "steps": run.steps,
                    "rows": run.samples,
                }
                for method, score, (run,) in zip(entry.grid, scores, found, strict=True)
            ]
        metrics = {**part.metrics(), **part.final_metrics()}
        (runs,), (count,) = self._equal([entry.grid[best]], range(part.seeds), [steps[best]], metrics)
        frame = pd.concat([_history(run) for run in runs], ignore_index=True)
        return frame, {
            "tuning": tried,
            "chosen": _settings(entry.grid[best]),
            "settings": runs[0].settings,
            "steps": count,
            "rows": [run.samples for run in runs],
            "statuses": dict(Counter(run.status for run in runs)),
        }

    def _equal(
        self, methods: Sequence[Method], seeds: Sequence[int], steps: list[int], metrics: Metrics
    ) -> tuple[list[list[Result]], list[int]]:
        """The runs of each method and its steps; run again with more or fewer where they drew other than the part's rows."""
        wanted, found = self.part.samples, []
        for _ in range(ROUNDS):
            found = self._runs(methods, seeds, steps, metrics)
            if wanted is None:
                break
            drawn = [float(np.mean([run.samples for run in runs])) for runs in found]
            if not min(drawn):
                raise ValueError(
                    f"Part {self.part.name!r}: samples is a budget of rows, and the problem draws none; use steps"
                )
            better = [max(1, int(count * wanted / rows)) for count, rows in zip(steps, drawn, strict=True)]
            if better == steps or all(abs(rows - wanted) <= OFF * wanted for rows in drawn):
                break
            steps = better
        return found, steps

    def _runs(
        self, methods: Sequence[Method], seeds: Sequence[int], steps: list[int], metrics: Metrics
    ) -> list[list[Result]]:
        """The runs of each method, one a seed, side by side where they take as many steps."""
        (problem, x0), lanes = self.problem, self.part.lanes or sys.maxsize
        found: dict[int, list[Result]] = {i: [] for i in range(len(methods))}
        for count in dict.fromkeys(steps):
            record = Record(-(-count // self.part.records), metrics)
            group = [i for i in found if steps[i] == count]
            for some in _batched(group, lanes):
                for few in _batched(seeds, lanes):
                    if lanes == 1:
                        alone = {"steps": count, "seed": few[0], "record": record, "progress": False}
                        several = [solve(problem, x0, methods[some[0]], **alone)]
                    else:
                        asked = [methods[i] for i in some]
                        several = sweep(problem, x0, asked, steps=count, seeds=few, record=record).results
                    for place, run in enumerate(several):
                        found[some[place // len(few)]].append(run)
                        if run.status == "interrupted":
                            raise KeyboardInterrupt
        return list(found.values())


def as_json(value: Any) -> str:
    """JSON that people can read; a number that is not finite becomes its name, which JSON has no other way to say.

    Example:
        >>> as_json({"ρ": float("inf")})
        '{\\n "ρ": "inf"\\n}\\n'
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple | np.ndarray):
            return [plain(each) for each in value]
        if isinstance(value, np.generic):
            value = value.item()
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _score(part: Part, run: Result) -> tuple[float, ...]:
    """The part's score of a run; where it diverged or the score is not a number, the worst there is."""
    scored = part.score(run.history.to_pandas())
    numbers = scored if isinstance(scored, tuple) else (scored,)
    return (math.inf,) if run.status == "diverged" or any(math.isnan(n) for n in numbers) else numbers


def _settings(method: Method) -> str:
    """The method with its settings in one line."""
    return re.sub(r"(?<=\() | (?=\))", "", " ".join(repr(method).split()))


def _history(run: Result) -> pd.DataFrame:
    frame = run.history.to_pandas()
    frame.insert(0, "seed", run.seed)
    return frame.assign(status=run.status)


def _save(target: Path, write: Callable[[Path], Any]) -> None:
    """Write under another name, then rename: the file is there whole or not at all."""
    part = target.with_name(target.name + ".part")
    write(part)
    os.replace(part, target)


def _batched(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    yield from (list(items[i : i + size]) for i in range(0, len(items), size))


@contextmanager
def _shown(total: int, title: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that tells what begins now: a bar on a terminal, lines elsewhere."""
    with progress_bar(None, total, title) as bar:
        begun = iter(range(total))

        def show(what: str) -> None:
            bar(next(begun), what)
            if not sys.stderr.isatty():
                print(f"{title}: {what}", file=sys.stderr, flush=True)

        yield show
