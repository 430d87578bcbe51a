"""`tightrope demo`."""

from __future__ import annotations

import importlib.util
import sys
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from . import demo_figure, demo_page, demo_problem
from .options import Seed, Steps
from .terminal import fail, show, table


def run_demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure; created if missing.")] = Path("tightrope-demo"),
    steps: Steps = demo_problem.STEPS,
    seed: Seed = 0,
    open_page: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page in a browser; default: at a terminal.")
    ] = None,
) -> None:
    """Train a fair classifier on biased decisions (generated data).

    Solves the problem without and with a bound on the covariance of group
    and score, and for a range of bounds. Prints how both classifiers do on
    held-out people, draws them, and writes a page with a slider over the
    bound. Takes about half a minute.

    \b
    Examples:
      tightrope demo
      tightrope demo --seed 3 --out /tmp/demo
    """
    if importlib.util.find_spec("matplotlib") is None:
        fail("demo plots with Matplotlib: pip install 'tightrope[all]'")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"--out must be a folder that can be written to, got {str(out)!r}: {error.strerror}")
    began = time.perf_counter()
    demo = demo_problem.run(steps, seed)
    picture, page = out / "demo.png", out / "demo.html"
    demo_figure.draw(demo).savefig(picture)
    page.write_text(demo_page.page(demo), encoding="utf-8")
    show(_table_of(demo))
    show(_summary_of(demo))
    typer.echo(f"\nThe constrained run, on the training half:\n{demo.results['constrained']}")
    took = time.perf_counter() - began
    loops = sum(result.seconds for result in (*demo.results.values(), *demo.curve.results))
    runs = len(demo.results) + len(demo.curve.results)
    typer.echo(
        f"\nThe figure is {picture}, and the page with the slider is {page}.\n"
        f"Total time {took:.0f} s for {runs} runs, of which {loops:.1f} s for their steps; most of the rest is compilation."
    )
    if open_page or (open_page is None and sys.stdout.isatty()):
        webbrowser.open(page.resolve().as_uri())


def _table_of(demo: demo_problem.Demo) -> Table:
    found = table("on the held-out half", *demo.test)
    for column in found.columns[1:]:
        column.justify = "right"
    test, train, runs = demo.test.values(), demo.train.values(), demo.results.values()
    found.add_row("accuracy", *(f"{outcome.accuracy:.1%}" for outcome in test))
    for group in ("A", "B"):
        found.add_row(f"acceptance rate of group {group}", *(f"{outcome.selected[group]:.1%}" for outcome in test))
    found.add_row("p%-rule (100 % is parity)", *(f"{outcome.p_rule:.1f} %" for outcome in test))
    found.add_row("covariance of group and score", *(f"{o.covariance:.3f} ± {2 * o.error:.3f}" for o in test))
    found.add_row("violation of its bound", *(f"{outcome.violation:.2g}" for outcome in test), end_section=True)
    found.add_row("violation on the training half", *(f"{outcome.violation:.2g}" for outcome in train))
    found.add_row("steps per second", *(f"{run.steps / run.seconds:,.0f}" for run in runs))
    return found


def _summary_of(demo: demo_problem.Demo) -> str:
    without, within = demo.test.values()
    cost = 100 * (within.accuracy - without.accuracy)
    verdict, bound = demo.results["constrained"].certificate.verdict, demo_problem.BOUND
    return (
        "Both classifiers are trained on decisions that were biased against group B. The constrained one must keep the "
        f"covariance of group and score within ±{bound:g} on the training half; its certificate says: {verdict}. On held-out "
        f"people the p%-rule goes from {without.p_rule:.0f} % to {within.p_rule:.0f} %, and accuracy changes by {cost:+.1f} "
        "points. There the bound holds only up to sampling error, the ± in the table (two standard errors)."
    )
