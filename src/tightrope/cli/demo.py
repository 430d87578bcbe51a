"""`tightrope demo`."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from . import demo_problem as demonstration
from .options import Seed, Steps
from .terminal import fail, show, table


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the picture; made if need be.")] = Path("tightrope-demo"),
    steps: Steps = demonstration.STEPS,
    seed: Seed = 0,
) -> None:
    """Learn a fair classifier from biased decisions, on data made on the spot.

    Solves it without and with a bound on the covariance of group and score,
    prints what both classifiers do to people they have not seen, and draws
    them, in about half a minute.

    \b
    Examples:
      tightrope demo
      tightrope demo --seed 3 --out /tmp/demo
    """
    if importlib.util.find_spec("matplotlib") is None:
        fail("demo draws with Matplotlib: pip install 'tightrope[all]'")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--out must be a folder that can be written to, got {str(out)!r}: {error.strerror}")
    began = time.perf_counter()
    shown = demonstration.run(steps, seed)
    picture = out / "demo.png"
    demonstration.figure(shown).savefig(picture)
    show(_numbers(shown))
    show(_words(shown))
    typer.echo(f"\nThe constrained run, on the half that it learns from:\n{shown.results['constrained']}")
    took, loops = time.perf_counter() - began, sum(result.seconds for result in shown.results.values())
    typer.echo(f"\nThe picture is in {picture}. All took {took:.0f} s with compilation, the steps {loops:.1f} s of it.")


def _numbers(shown: demonstration.Demo) -> Table:
    found = table("on the held-out half", *shown.outcomes)
    for column in found.columns[1:]:
        column.justify = "right"
    outcomes, trained, runs = shown.outcomes.values(), shown.trained.values(), shown.results.values()
    found.add_row("accuracy", *(f"{outcome.accuracy:.1%}" for outcome in outcomes))
    for group in ("A", "B"):
        found.add_row(f"accepted of group {group}", *(f"{outcome.selected[group]:.1%}" for outcome in outcomes))
    found.add_row("p%-rule (100 % is parity)", *(f"{outcome.rule:.1f} %" for outcome in outcomes))
    found.add_row("covariance of group and score", *(f"{o.covariance:.3f} ± {2 * o.error:.3f}" for o in outcomes))
    found.add_row("violation of its bound", *(f"{outcome.violation:.2g}" for outcome in outcomes), end_section=True)
    found.add_row("violation on the learning half", *(f"{outcome.violation:.2g}" for outcome in trained))
    found.add_row("steps per second", *(f"{run.steps / run.seconds:,.0f}" for run in runs))
    return found


def _words(shown: demonstration.Demo) -> str:
    without, within = shown.outcomes.values()
    cost = 100 * (within.accuracy - without.accuracy)
    verdict, bound = shown.results["constrained"].certificate.verdict, demonstration.BOUND
    return (
        "Both classifiers learn from decisions that were biased against group B. The constrained one must keep the covariance "
        f"of group and score within ±{bound:g} on the half that it learns from: {verdict}, says its certificate. On people it "
        f"has not seen, the p%-rule goes from {without.rule:.0f} % to {within.rule:.0f} % and accuracy changes by {cost:+.1f} "
        "points; there the bound can only hold up to chance, which is the ± in the table (two standard errors)."
    )
