"""`tightrope reproduce`, and what it shares with `tightrope compare`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .terminal import fail, hint, one_line_errors, show, table

if TYPE_CHECKING:
    from ..experiments.base import Experiment
    from ..experiments.running import Outcome

_ALSO = " --xla_cpu_use_fusion_emitters=false" * version("jax").startswith("0.10.")
QUICKLY_COMPILED = "--xla_backend_optimization_level=0" + _ALSO
"""Flags for programs that run for a moment, read when XLA starts; it ends the process where it does not know one."""


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, see --list.", show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version, too short to judge the claims by.")] = False,
    out: Annotated[Path, typer.Option(help="Results go to a folder in it.")] = Path("tightrope-reproduction"),
    listed: Annotated[bool, typer.Option("--list", help="List the experiments and leave.")] = False,
    summary: Annotated[Path | None, typer.Option(help="Write the claims of all full runs here and leave.")] = None,
) -> None:
    """Run an experiment of the papers and check their claims.

    Writes the runs (Parquet), figures (PNG, SVG), checks.json with every
    claim, and report.html, which has all of it in one file. A run that was
    stopped goes on where it stopped when it is asked for again. Data sets are
    downloaded, or read from the folder in TIGHTROPE_DATA.

    \b
    Examples:
      tightrope reproduce --list
      tightrope reproduce rates --quick
      tightrope reproduce exact-penalty-bank --out results
    """
    check_installed()
    from ..experiments import base, report

    experiments = base.available()
    if summary is not None:
        with one_line_errors(f"writing {summary}"):
            summary.write_text(report.summary(base.committed()), encoding="utf-8")
        return
    if listed:
        show(_list(experiments.values()))
        return
    if name not in experiments:
        fail(
            f"NAME must be an experiment from `tightrope reproduce --list`, got {name!r}{hint(name or '', experiments)}"
        )
    if quick:
        os.environ.setdefault("XLA_FLAGS", QUICKLY_COMPILED)
    outcome = run(experiments[name], out, quick)
    claims = table("claim", "measured", "holds")
    for check in outcome.checks:
        claims.add_row(check.claim, report.in_words(check.measured), "yes" if check.holds else "no")
    show(claims)
    held = sum(check.holds for check in outcome.checks)
    short = " The quick version is too short to judge them by." * quick
    typer.echo(f"{held} of {len(outcome.checks)} claims hold.{short}\nThe report is {outcome.folder / 'report.html'}")


def _list(experiments: Iterable[Experiment]) -> Table:
    found = table("experiment", "paper", "what it shows")
    found.columns[0].no_wrap = True
    for experiment in experiments:
        found.add_row(experiment.name, experiment.paper, experiment.title)
    return found


def check_installed() -> None:
    """Say what is missing of what experiments and reports need and the library itself does not."""
    needed = [name for name in ("pandas", "pyarrow", "matplotlib", "plotly") if importlib.util.find_spec(name) is None]
    if needed:
        fail(f"this command needs {', '.join(needed)}: pip install 'tightrope[all]'")


def run(experiment: Experiment, out: Path, quick: bool) -> Outcome:
    """Run an experiment; what goes wrong is told in a line."""
    from ..experiments.running import run_experiment

    try:
        return run_experiment(experiment, out, quick)
    except (TypeError, ValueError, OSError) as error:
        fail(f"{experiment.name}: {error}")
    except KeyboardInterrupt:
        typer.echo(f"tightrope: stopped; the same command goes on from what is in {out / experiment.name}", err=True)
        raise typer.Exit(130) from None
