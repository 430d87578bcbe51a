"""`tightrope reproduce`, and the helpers that it shares with `tightrope compare`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..arguments import did_you_mean
from .terminal import fail, one_line_errors, show, table

if TYPE_CHECKING:
    from ..experiments.base import Experiment
    from ..experiments.outcome import Outcome

_FOR_JAX_0_10 = " --xla_cpu_use_fusion_emitters=false" * version("jax").startswith("0.10.")
QUICKLY_COMPILED = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1" + _FOR_JAX_0_10
"""XLA flags that shorten compilation, for short runs. XLA reads them once and aborts on a flag that it does not know.

A program is compiled in one part instead of 32 in parallel, which takes a quarter less time of a busy machine.
"""


def reproduce_experiment(
    name: Annotated[str | None, typer.Argument(help="An experiment, see --list.", show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version, too short to judge the claims.")] = False,
    out: Annotated[Path, typer.Option(help="Results go to a subfolder of it.")] = Path("tightrope-reproduction"),
    listed: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    summary: Annotated[
        Path | None, typer.Option(help="Write the claims of all full runs to this file and exit.")
    ] = None,
) -> None:
    """Run an experiment of the papers and check its claims.

    Writes the runs (Parquet), figures (PNG, SVG), checks.json with every
    claim, and report.html, a single file with all of it. After an
    interruption, the same command resumes. Data sets are downloaded, or read
    from the folder in TIGHTROPE_DATA.

    \b
    Examples:
      tightrope reproduce --list
      tightrope reproduce rates --quick
      tightrope reproduce exact-penalty-bank --out results
    """
    check_installed()
    from ..experiments import base
    from ..experiments.summary import markdown_summary

    experiments = base.available()
    if summary is not None:
        with one_line_errors(f"writing {summary}"):
            summary.write_text(markdown_summary(base.committed()), encoding="utf-8")
        return
    if listed:
        show(_table_of(experiments.values()))
        return
    if name not in experiments:
        hint = did_you_mean(name or "", experiments)
        fail(f"NAME must be an experiment from `tightrope reproduce --list`, got {name!r}{hint}")
    if quick:
        os.environ.setdefault("XLA_FLAGS", QUICKLY_COMPILED)
    _show_claims(run_or_exit(experiments[name], out, quick))


def _show_claims(outcome: Outcome) -> None:
    from ..experiments.formatting import in_words
    from ..experiments.verdicts import tally

    claims = table("claim", "basis", "measured", "holds")
    for check in outcome.checks:
        claims.add_row(check.claim, check.basis, in_words(check.measured), "yes" if check.holds else "no")
    show(claims)
    short = " The quick version is too short to judge them." * outcome.quick
    typer.echo(f"{tally(outcome.checks)}{short}\nThe report is {outcome.folder / 'report.html'}")


def _table_of(experiments: Iterable[Experiment]) -> Table:
    found = table("experiment", "paper", "title")
    found.columns[0].no_wrap = True
    for experiment in experiments:
        found.add_row(experiment.name, experiment.paper, experiment.title)
    return found


def check_installed() -> None:
    """Exit with a message if a package that experiments and reports need is missing."""
    needed = [name for name in ("pandas", "pyarrow", "matplotlib", "plotly") if importlib.util.find_spec(name) is None]
    if needed:
        fail(f"this command needs {', '.join(needed)}: pip install 'tightrope[all]'")


def run_or_exit(experiment: Experiment, out: Path, quick: bool) -> Outcome:
    """Run an experiment; an error or an interruption ends the command with a one-line message."""
    from ..experiments import running

    try:
        return running.run_experiment(experiment, out, quick)
    except (TypeError, ValueError, OSError) as error:
        fail(f"{experiment.name}: {error}")
    except KeyboardInterrupt:
        typer.echo(f"tightrope: interrupted; the same command resumes from {out / experiment.name}", err=True)
        raise typer.Exit(130) from None
