"""How an experiment is run: tune on one seed, run the final seeds together, save each curve, judge the claims, report.

An experiment has parts, one problem each; a part has entries, one curve each. Every entry of a part has the same budget, in
steps or in rows drawn. The runs of an entry are a file of their own, written when they are done, so that a run that was stopped
goes on with the entries that are missing; a file whose entry has other numbers by now is made again.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import os
import pkgutil
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
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from .. import __version__
from ..methods import Method
from ..problem import Problem
from ..progress import progress_bar
from ..record import Record
from ..result import Result
from ..solve import solve
from ..sweep import sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TUNING_SEED = 1_000_003
"""The seed on which settings are chosen; final runs have seeds 0, 1, …"""
PILOT, ROUNDS, OFF = 100, 4, 0.01
"""Steps of the first run that counts rows, how many such runs at most, and by how much the rows drawn may differ."""

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
        make: gives problem and x0 (None: with `measure`); called only when something has to be run. Runs are made again when
            the file that it is written in changes.
        entries: the curves.
        steps: the budget of a run, tuning runs included; or
        samples: the same as rows drawn: the steps follow from what runs are seen to draw.
        seeds: final runs of an entry.
        records: about how many along a run.
        metrics: gives columns of your own, as `tightrope.Record` takes them.
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
    score: Callable[[pd.DataFrame], Score] = final_objective
    score_text: str = "the smallest objective at the end"
    lanes: int | None = None
    measure: Callable[[Entry], pd.DataFrame] | None = None

    def __post_init__(self) -> None:
        if self.make is None and self.measure is None:
            raise ValueError(f"Part {self.name!r}: give make or measure, got neither")
        if (self.steps is None) == (self.samples is None):
            raise ValueError(f"Part {self.name!r}: give steps or samples, got {self.steps} and {self.samples}")
        names = [_slug(entry.label) for entry in self.entries]
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
    """What is drawn: a column of the tidy frame, its label with unit, and whether its axis is logarithmic.

    Example:
        >>> Column("violation", "largest violation", log=True).name
        'violation'
    """

    name: str
    label: str
    log: bool = False


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


def every() -> dict[str, Experiment]:
    """All experiments, by name: every folder beside this file that has one.

    Example:
        >>> every()["rates"].paper
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
    files = {name: (experiment, folder_of(name) / "checks.json") for name, experiment in every().items()}
    return {
        name: (experiment, json.loads(file.read_text(encoding="utf-8")))
        for name, (experiment, file) in files.items()
        if file.exists()
    }


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
    from .. import plots, report

    experiment, folder = outcome.experiment, outcome.folder
    draw = partial(plots.curves, outcome.frames, experiment.columns, log_samples=experiment.log_samples)
    figures = {"figure": draw("samples"), "figure-time": draw("seconds")}
    extra = dict(experiment.figures(outcome.frames)) if experiment.figures else {}
    for name, figure in (figures | extra).items():
        for ending in ("png", "svg"):
            figure.savefig(folder / f"{_slug(name)}.{ending}")
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
        table = self.folder / f"{_slug(self.part.name)}.{_slug(entry.label)}.parquet"
        about, mark = table.with_suffix(".json"), _fingerprint(self.part, entry)
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
            found, steps = self._equal(entry.grid, [TUNING_SEED], steps)
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
        (runs,), (count,) = self._equal([entry.grid[best]], range(part.seeds), [steps[best]])
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
        self, methods: Sequence[Method], seeds: Sequence[int], steps: list[int]
    ) -> tuple[list[list[Result]], list[int]]:
        """The runs of each method and its steps; run again with more or fewer where they drew other than the part's rows."""
        wanted, found = self.part.samples, []
        for _ in range(ROUNDS):
            found = self._runs(methods, seeds, steps)
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

    def _runs(self, methods: Sequence[Method], seeds: Sequence[int], steps: list[int]) -> list[list[Result]]:
        """The runs of each method, one a seed, side by side where they take as many steps."""
        (problem, x0), lanes, metrics = self.problem, self.part.lanes or sys.maxsize, self.part.metrics()
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


def _fingerprint(part: Part, entry: Entry) -> str:
    """Of everything that the runs of an entry depend on, as far as it can be told."""
    numbers = part.steps, part.samples, part.seeds, part.records, part.lanes, part.score_text
    code = map(_source, (part.measure, part.make, part.metrics))
    text = [__version__, part.name, entry.label, *map(repr, numbers), *map(repr, entry.grid), *code]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _source(function: Any) -> str:
    """The file that a function is written in, with the arguments that it is given, and files among these."""
    given: list[Any] = []
    while isinstance(function, partial):
        given += [*function.args, *function.keywords.items()]
        function = function.func
    try:
        files = [inspect.getfile(inspect.unwrap(function))]
    except TypeError:  # built in, or none
        files = []
    files += [file for file in given if isinstance(file, Path)]
    texts = (Path(file).read_text(encoding="utf-8") for file in files if Path(file).is_file())
    return "\n".join([repr(given), *texts])


def _save(target: Path, write: Callable[[Path], Any]) -> None:
    """Write under another name, then rename: the file is there whole or not at all."""
    part = target.with_name(target.name + ".part")
    write(part)
    os.replace(part, target)


def _slug(text: str) -> str:
    """The text as part of a file's name."""
    return re.sub(r"[^\w=.-]+", "-", text).strip("-.").replace(".", "_")


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
