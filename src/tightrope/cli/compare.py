"""`tightrope compare`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..methods import Method
from ..methods.selection import check_accepts
from ..problems.checks import check_functions
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from .options import Target, by_name, case
from .reproduce import check_installed, run
from .terminal import fail, hint, one_line_errors, show, table

if TYPE_CHECKING:
    from ..experiments.base import Entry


def compare(
    target: Target,
    methods: Annotated[str, typer.Option(metavar="A,B,…", help="Names from `tightrope methods`.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each method.")] = 16,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Steps of every run; 10000 if not said.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows every run draws, in place of steps.")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="[METHOD.]NAME=V1,V2,…", help="Values to try; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Results go to a folder in it.")] = Path("tightrope-comparison"),
) -> None:
    """Compare methods on a problem of your own.

    TARGET is what [bold]tightrope solve[/bold] takes. Every run has the same budget. With
    --grid, all combinations of the values are tried on one more seed with
    that budget, and the best of each method goes on to the final runs: the
    least objective at the end where the violation is within 0.001 · max(1,
    violation at the start). Writes what [bold]tightrope reproduce[/bold] writes.

    \b
    Examples:
      tightrope compare lens --methods SwitchingSubgradient,AdaptivePenalty
      tightrope compare my_problem.py:make --methods TwoPhaseMomentum,ExactPenalty \\
          --samples 20000 --seeds 5 --grid TwoPhaseMomentum.step_size=0.01,0.1
    """
    check_installed()
    from ..experiments import base, report

    if steps is not None and samples is not None:
        fail("--steps and --samples are two ways to say the same; give one of them")
    classes = dict.fromkeys(by_name(name.strip(), "--methods") for name in methods.split(","))
    entries = tuple(_entries(list(classes), grid or []))
    make = case(target)
    _check_methods(*make()[:2], entries)
    part = base.Part(
        target,
        make,
        entries,
        steps=steps or (None if samples else 10_000),
        samples=samples,
        seeds=seeds,
        score=base.feasible_objective,
        score_text="the least objective at the end where the violation is within 0.001 · max(1, violation at the start), "
        "and the least violation where it is so nowhere; shown as (excess of the violation, objective)",
    )
    experiment = base.Experiment(
        name=Path(target).name.replace(".py:", "-"),
        title=f"{target}: {', '.join(entry.label for entry in entries)}",
        paper="",
        about="Methods compared by `tightrope compare`. What is not tuned is what each method estimates for itself.",
        parts=lambda quick: [part],
        claims=lambda runs: [],
    )
    outcome = run(experiment, out, quick=False)
    columns = ["objective", "violation", "stationarity", "samples", "seconds"]
    rows = table(f"mean ± sd of {seeds} runs" if seeds > 1 else "", *columns)
    for label, ends in report.finals(outcome.frames[target], columns).items():
        rows.add_row(label, *(report.number(*ends[column]) for column in columns))
    show(rows)
    typer.echo(f"The report is {outcome.folder / 'report.html'}")


def _entries(classes: list[type[Method]], grid: list[str]) -> Iterator[Entry]:
    """Each method with all combinations of the values that are meant for it."""
    from ..experiments.base import Entry

    asked = [_grid(each, classes) for each in grid]
    for cls in classes:
        named = {name: values for owner, name, values in asked if owner in ("", cls.__name__) and name in _numbers(cls)}
        settings = [dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())]
        with one_line_errors(f"--grid for {cls.__name__}"):
            methods = tuple(cls(**values) for values in settings)
        note = f"--grid of {', '.join(named)}" if named else "nothing of it was in --grid" if grid else "its own"
        yield Entry(cls.__name__, methods, note)


def _grid(text: str, classes: list[type[Method]]) -> tuple[str, str, list[float]]:
    """The method ('': each that has it), the hyper-parameter and the values of a --grid."""
    name, equals, listed = text.partition("=")
    owner, _, name = name.strip().rpartition(".")
    try:
        values = [float(value) for value in listed.split(",")]
    except ValueError:
        values = []
    if not equals or not values:
        fail(f"--grid must be [METHOD.]NAME=V1,V2,… with numbers, got {text!r}")
    owner = by_name(owner, "--grid").__name__ if owner else ""
    meant = [cls for cls in classes if owner in ("", cls.__name__)]
    known = {each: None for cls in meant for each in _numbers(cls)}
    if name not in known:
        of = ", ".join(cls.__name__ for cls in meant) or f"{owner}, which is not among --methods"
        fail(f"--grid must name a number of {of}; got {name!r}, expected one of {', '.join(known)}{hint(name, known)}")
    return owner, name, values


def _numbers(cls: type[Method]) -> list[str]:
    """The names of a method's hyper-parameters that are numbers."""
    return [spec.name for spec in fields(cls) if "low" in spec.metadata]  # pyright: ignore[reportArgumentType]


def _check_methods(problem: Problem, x0: Any, entries: Iterable[Entry]) -> None:
    """Say at once, before anything is run, that a method does not take the problem."""
    try:
        check_functions(problem, Parameters(x0))
        for entry in entries:
            check_accepts(problem, entry.grid[0])
    except (TypeError, ValueError) as error:
        fail(str(error))
