"""The runs of an entry: tune on a separate seed, run the final seeds, save the curves.

The runs of an entry have a file of their own, written when they are done, so that an interrupted experiment resumes with the
missing entries. A file is replaced if the settings or the code of its entry have changed since (`fingerprint`).
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import PyTree

from ..methods import Method
from ..problems.problem import Problem
from ..runs.options import Record
from ..runs.result import Result
from ..runs.solving import solve
from ..runs.sweeping import sweep
from .base import Entry, Part, slug
from .fingerprint import fingerprint

Metrics = Mapping[str, Callable[..., Any]]

TUNING_SEED = 1_000_003
"""The seed on which settings are chosen; final runs have seeds 0, 1, …"""
PILOT_STEPS = 100
"""Steps of the first run that counts samples, if the budget is in samples."""
MAX_ROUNDS = 4
"""Largest number of times that runs are repeated to meet a budget in samples."""
BUDGET_TOLERANCE = 0.01
"""Relative deviation from a budget in samples that is accepted."""


class PartRunner:
    """Runs the entries of a part; the problem is made once, and only if something has to be run."""

    def __init__(self, part: Part, folder: Path):
        self.part, self.folder = part, folder

    @cached_property
    def problem(self) -> tuple[Problem, PyTree[Any]]:
        """Problem and x0."""
        assert self.part.make is not None
        problem, x0, *_ = self.part.make()
        return problem, x0

    def run_entry(self, entry: Entry) -> tuple[pd.DataFrame, dict[str, Any]]:
        """The tidy frame of an entry and a description of its runs: read from their files, or made and saved."""
        table = self.folder / f"{slug(self.part.name)}.{slug(entry.label)}.parquet"
        about, mark = table.with_suffix(".json"), fingerprint(self.part, entry)
        if about.exists() and table.exists():
            known = json.loads(about.read_text(encoding="utf-8"))
            if known["fingerprint"] == mark:
                return pd.read_parquet(table), known
        about.unlink(missing_ok=True)
        began = time.perf_counter()
        frame, found = self._measure(entry) if self.part.measure is not None else self._tune_and_run(entry)
        frame.insert(0, "entry", entry.label)
        found |= {"note": entry.note, "seconds": round(time.perf_counter() - began, 2), "fingerprint": mark}
        text = as_json(found)
        save(table, lambda path: frame.to_parquet(path, index=False))
        save(about, lambda path: path.write_text(text, encoding="utf-8"))
        return frame, json.loads(text)

    def _measure(self, entry: Entry) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Choose a setting by the part's scores, if it has any, and measure it; or measure all settings."""
        part, grid = self.part, entry.grid
        scores = part.scores(entry) if part.scores is not None and len(grid) > 1 else []
        if scores:
            best = min(range(len(grid)), key=lambda i: scores[i])
            entry = replace(entry, grid=(grid[best],))
        assert part.measure is not None
        frame = part.measure(entry)
        steps, samples = (int(max(frame[column])) for column in ("step", "samples"))
        tuning = [
            {"settings": repr(method), "score": score, "status": "budget", "steps": steps, "samples": samples}
            for method, score in zip(grid if scores else (), scores, strict=True)
        ]
        return frame, {"tuning": tuning, "chosen": one_line(entry.grid[0]), "steps": steps}

    def _tune_and_run(self, entry: Entry) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Choose a setting on the tuning seed, with the budget of the final runs; then make the final runs."""
        part, best, tuning = self.part, 0, []
        steps = [part.steps or PILOT_STEPS] * len(entry.grid)
        if len(entry.grid) > 1:
            found, steps = self._runs_within_budget(entry.grid, [TUNING_SEED], steps, part.metrics())
            scores = [score_of(part, run) for (run,) in found]
            best = min(range(len(scores)), key=lambda i: scores[i])
            tuning = [
                {
                    "settings": repr(method),
                    "score": score,
                    "status": run.status,
                    "steps": run.steps,
                    "samples": run.samples,
                }
                for method, score, (run,) in zip(entry.grid, scores, found, strict=True)
            ]
        metrics = {**part.metrics(), **part.final_metrics()}
        (runs,), (count,) = self._runs_within_budget([entry.grid[best]], range(part.seeds), [steps[best]], metrics)
        frame = pd.concat([_tidy_history(run) for run in runs], ignore_index=True)
        return frame, {
            "tuning": tuning,
            "chosen": one_line(entry.grid[best]),
            "settings": runs[0].settings,
            "steps": count,
            "samples": [run.samples for run in runs],
            "statuses": dict(Counter(run.status for run in runs)),
        }

    def _runs_within_budget(
        self, methods: Sequence[Method], seeds: Sequence[int], steps: list[int], metrics: Metrics
    ) -> tuple[list[list[Result]], list[int]]:
        """The runs of each method and its number of steps, adjusted and run again until the budget in samples is met."""
        budget, found = self.part.samples, []
        for _ in range(MAX_ROUNDS):
            found = self._runs(methods, seeds, steps, metrics)
            if budget is None:
                break
            if any(run.samples == 0 for runs in found for run in runs):
                raise ValueError(
                    f"Part {self.part.name!r}: the budget is in samples, and the problem draws none; use steps"
                )
            adjusted = [steps_for(budget, count, runs) for count, runs in zip(steps, found, strict=True)]
            if adjusted == steps:
                break
            steps = adjusted
        return found, steps

    def _runs(
        self, methods: Sequence[Method], seeds: Sequence[int], steps: list[int], metrics: Metrics
    ) -> list[list[Result]]:
        """The runs of each method, one per seed; methods with equally many steps share sweeps."""
        lanes = self.part.lanes or sys.maxsize
        found: list[list[Result]] = [[] for _ in methods]
        for count in dict.fromkeys(steps):
            record = Record(-(-count // self.part.records), metrics)
            for group in _batched([i for i in range(len(methods)) if steps[i] == count], lanes):
                for some in _batched(seeds, lanes):
                    runs = self._sweep([methods[i] for i in group], some, count, record)
                    for lane, run in enumerate(runs):
                        found[group[lane // len(some)]].append(run)
                        if run.status == "interrupted":
                            raise KeyboardInterrupt
        return found

    def _sweep(self, methods: list[Method], seeds: list[int], steps: int, record: Record) -> list[Result]:
        """One sweep, or a single run if the part has one lane."""
        problem, x0 = self.problem
        if self.part.lanes == 1:
            return [solve(problem, x0, methods[0], steps=steps, seed=seeds[0], record=record, progress=False)]
        return sweep(problem, x0, methods, steps=steps, seeds=seeds, record=record).results


def as_json(value: Any) -> str:
    """Readable JSON; numbers that are not finite become strings, since JSON has none.

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


def save(target: Path, write: Callable[[Path], Any]) -> None:
    """Write to a temporary name, then rename, so that the file is either complete or missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Path(folder, "a.txt"), lambda path: path.write_text("done"))
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    part = target.with_name(target.name + ".part")
    write(part)
    os.replace(part, target)


def score_of(part: Part, run: Result) -> tuple[float, ...]:
    """The part's score of a run; infinite if the run diverged or the score is nan."""
    score = part.score(run.history.to_pandas())
    numbers = score if isinstance(score, tuple) else (score,)
    return (math.inf,) if run.status == "diverged" or any(math.isnan(n) for n in numbers) else numbers


def steps_for(budget: int, count: int, runs: Sequence[Result]) -> int:
    """The number of steps that draw this many samples, by runs of `count` steps; `count` itself if they nearly do.

    A run that diverged draws no more samples and does not tell. Its number of steps is kept; after the first, short runs it is
    the budget, one sample a step, which the next runs correct if they do not diverge.
    """
    if any(run.status == "diverged" for run in runs):
        return budget if count == PILOT_STEPS else count
    drawn = float(np.mean([run.samples for run in runs]))
    return count if abs(drawn - budget) <= BUDGET_TOLERANCE * budget else max(1, int(count * budget / drawn))


def one_line(method: Method) -> str:
    """The method with its settings in one line.

    Example:
        >>> import tightrope as tr
        >>> one_line(tr.methods.SwitchingSubgradient(step_size=0.1))
        'SwitchingSubgradient(step_size=0.1)'
    """
    return re.sub(r"(?<=\() | (?=\))", "", " ".join(repr(method).split()))


def _tidy_history(run: Result) -> pd.DataFrame:
    frame = run.history.to_pandas()
    frame.insert(0, "seed", run.seed)
    return frame.assign(status=run.status)


def _batched(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    yield from (list(items[i : i + size]) for i in range(0, len(items), size))
