"""`tightrope solve`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jax.flatten_util import ravel_pytree
from rich.table import Table

from ..runs.result import Result
from ..runs.solving import solve as solve_problem
from ..zoo import Solution
from .options import Seed, Steps, Target, by_name, case
from .terminal import fail, one_line_errors, show, table


def solve(
    target: Target,
    method: Annotated[str | None, typer.Option(help="A name from `tightrope methods`; otherwise chosen.")] = None,
    steps: Steps = 10_000,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Save the result here (.npz); read it with tightrope.load.")] = None,
) -> None:
    """Solve a problem and print the result.

    TARGET is a name from [bold]tightrope problems[/bold], or file.py:object, where
    the object is (problem, x0), or (problem, x0, solution) with a
    tightrope.zoo.Solution, or a function that returns one of these.

    \b
    Examples:
      tightrope solve linear_on_circle
      tightrope solve lens --method SwitchingSubgradient --steps 50000
      tightrope solve my_problem.py:make --out result.npz
    """
    if out is not None and not out.absolute().parent.is_dir():
        fail(f"--out must lie in a folder that exists, got {str(out)!r}")
    problem, x0, solution = case(target)()
    chosen = None if method is None else by_name(method, "--method")
    try:
        result = solve_problem(problem, x0, chosen, steps=steps, seed=seed)
    except (TypeError, ValueError) as error:
        fail(str(error))
    typer.echo(result)
    if out is not None:
        with one_line_errors(f"saving to {out}"):
            result.save(out)
        typer.echo(f"  saved: read it with tightrope.load({str(out)!r})")
    if solution is not None:
        with one_line_errors("comparing with the solution"):
            show(against(result, solution))


def against(result: Result, solution: Solution) -> Table:
    """The result beside what is known."""
    found = table("", "found", "known", "difference")
    if not solution.feasible:
        _compare(found, "violation (no point is feasible)", result.violation, solution.violation)
        return found
    if not math.isnan(solution.objective):
        _compare(found, "objective", result.objective, solution.objective)
    for name, known in (solution.multipliers or {}).items():
        for i, pair in enumerate(zip(np.ravel(result.multipliers[name]), np.ravel(known), strict=True)):
            _compare(found, f"multiplier of {name}" + (f"[{i}]" if np.size(known) > 1 else ""), *pair)
    if solution.x is not None:
        distance = np.linalg.norm(ravel_pytree(result.x)[0] - ravel_pytree(solution.x)[0])
        found.add_row("x" if solution.unique else "x (there are other solutions)", "", "", f"{distance:.2e} away")
    return found


def _compare(rows: Table, label: str, found: float, known: float) -> None:
    rows.add_row(label, f"{found:.6g}", f"{known:.6g}", f"{found - known:+.2e}" if math.isfinite(known) else "")
