"""`tightrope compare`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments import did_you_mean
from ..methods import Method
from ..methods.selection import check_accepts
from ..problems.checks import check_functions
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from .options import Start, Target, case_maker, method_named
from .reproduce import check_installed, run_or_exit
from .terminal import fail, one_line_errors, show, table

if TYPE_CHECKING:
    from ..experiments.base import Entry, Experiment, Part
    from ..experiments.outcome import Outcome

STEPS = 10_000
COLUMNS = ("objective", "violation", "stationarity", "samples", "seconds")


def compare_methods(
    target: Target,
    methods: Annotated[str, typer.Option(metavar="A,B,…", help="Names from `tightrope methods`.")],
    x0: Start = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of runs of each method.")] = 16,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Steps per run.", show_default=str(STEPS))
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples drawn per run, instead of --steps.")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="[METHOD.]NAME=V1,V2,…", help="Values to try; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Results go to a subfolder of it.")] = Path("tightrope-comparison"),
) -> None:
    """Compare methods on a problem of your own.

    TARGET is as in [bold]tightrope solve[/bold]. Every run has the same budget. With
    --grid, each combination of the values gets one run on a separate seed
    with that budget, and each method's best combination is used for the
    final runs: the one with the least final objective among those whose final
    violation is at most 0.001 · max(1, violation at the start). Writes the
    same files as [bold]tightrope reproduce[/bold].

    \b
    Examples:
      tightrope compare lens --methods SwitchingSubgradient,AdaptivePenalty
      tightrope compare my_file.py:problem --methods TwoPhaseMomentum,ExactPenalty \\
          --samples 20000 --seeds 5 --grid TwoPhaseMomentum.step_size=0.01,0.1
    """
    check_installed()
    if steps is not None and samples is not None:
        fail("--steps and --samples both set the budget; give one of them")
    classes = dict.fromkeys(method_named(name.strip(), "--methods") for name in methods.split(","))
    entries = tuple(_entries(list(classes), grid or []))
    make = case_maker(target, x0)
    _check_methods(*make()[:2], entries)
    budget = {"samples": samples} if samples else {"steps": steps or STEPS}
    part = _part(target, make, entries, seeds, budget)
    _show(run_or_exit(_experiment(part), out, quick=False), part)


def _part(target: str, make: Any, entries: tuple[Entry, ...], seeds: int, budget: dict[str, Any]) -> Part:
    from ..experiments.base import Part, feasible_objective

    return Part(
        target,
        make,
        entries,
        seeds=seeds,
        score=feasible_objective,
        score_text="the least final objective among settings whose final violation is at most 0.001 · max(1, violation at the "
        "start), or the least final violation if there are none; shown as (excess violation, objective)",
        **budget,
    )


def _experiment(part: Part) -> Experiment:
    from ..experiments.base import Experiment

    return Experiment(
        name=Path(part.name).name.replace(".py:", "-"),
        title=f"{part.name}: {', '.join(entry.label for entry in part.entries)}",
        paper="",
        about="Methods compared by `tightrope compare`. Hyperparameters that are not tuned are each method's own estimates.",
        parts=lambda quick: [part],
        claims=lambda runs: [],
    )


def _show(outcome: Outcome, part: Part) -> None:
    from ..experiments.formatting import with_deviation
    from ..experiments.report import finals

    ends = finals(outcome.frames[part.name], COLUMNS)
    rows = table("", *ends)
    for column in COLUMNS:
        rows.add_row(column, *(with_deviation(*end[column]) for end in ends.values()))
    show(rows)
    if part.seeds > 1:
        typer.echo(f"  Means and standard deviations of {part.seeds} runs.\n")
    typer.echo(f"The report is {outcome.folder / 'report.html'}")


def _entries(classes: list[type[Method]], grid: list[str]) -> Iterator[Entry]:
    """Each method with all combinations of the values given for it."""
    from ..experiments.base import Entry

    given = [_grid_values(text, classes) for text in grid]
    for cls in classes:
        own = {name: values for owner, name, values in given if owner in ("", cls.__name__) and name in _numbers(cls)}
        settings = [dict(zip(own, values, strict=True)) for values in itertools.product(*own.values())]
        with one_line_errors(f"--grid for {cls.__name__}"):
            methods = tuple(cls(**values) for values in settings)
        note = f"--grid of {', '.join(own)}" if own else "not in --grid" if grid else "its own estimates"
        yield Entry(cls.__name__, methods, note)


def _grid_values(text: str, classes: list[type[Method]]) -> tuple[str, str, list[float]]:
    """The method ('' for every method that has it), the hyperparameter and the values of a --grid."""
    name, equals, listed = text.partition("=")
    owner, _, name = name.strip().rpartition(".")
    try:
        values = [float(value) for value in listed.split(",")]
    except ValueError:
        values = []
    if not equals or not values:
        fail(f"--grid must be [METHOD.]NAME=V1,V2,… with numbers, got {text!r}")
    owner = method_named(owner, "--grid").__name__ if owner else ""
    owners = [cls for cls in classes if owner in ("", cls.__name__)]
    if not owners:
        fail(f"--grid {text}: {owner} is not among --methods")
    known = {each: None for cls in owners for each in _numbers(cls)}
    if name not in known:
        expected = f"a hyperparameter of {', '.join(cls.__name__ for cls in owners)} (one of {', '.join(known)})"
        fail(f"--grid must name {expected}, got {name!r}{did_you_mean(name, known)}")
    return owner, name, values


def _numbers(cls: type[Method]) -> list[str]:
    """The names of a method's numeric hyperparameters."""
    return [spec.name for spec in fields(cls) if "low" in spec.metadata]  # pyright: ignore[reportArgumentType]


def _check_methods(problem: Problem, x0: Any, entries: Iterable[Entry]) -> None:
    """Exit before anything runs if a method does not accept the problem."""
    try:
        check_functions(problem, Parameters(x0))
        for entry in entries:
            check_accepts(problem, entry.grid[0])
    except (TypeError, ValueError) as error:
        fail(str(error))
