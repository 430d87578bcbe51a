"""`tightrope solve`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from rich.table import Table

from ..runs.processes import writes
from ..runs.result import Result
from ..runs.solving import solve
from ..zoo import Solution
from .options import Seed, Start, Steps, Target, case_maker, method_named
from .terminal import fail, one_line_errors, show, table


def solve_target(
    target: Target,
    method: Annotated[
        str | None, typer.Option(help="A name from `tightrope methods`.", show_default="chosen by the problem")
    ] = None,
    x0: Start = None,
    steps: Steps = 10_000,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Save the result here (.npz); read it with tightrope.load.")] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Save the run in this folder as it goes; the same command goes on from there.")
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Split data and batches over all devices of a Slurm or Open MPI job.")
    ] = False,
) -> None:
    """Solve a problem and print the result.

    TARGET is a name from [bold]tightrope problems[/bold], or file.py:object, where
    the object is a Problem (its start is x0 in the same file, see --x0),
    or (problem, x0), or (problem, x0, solution) with a
    tightrope.zoo.Solution, or a function that returns one of these.

    \b
    Examples:
      tightrope solve linear_on_circle
      tightrope solve lens --method SwitchingSubgradient --steps 50000
      tightrope solve my_file.py:problem --x0 w0 --out result.npz
      srun tightrope solve my_file.py:problem --distributed --checkpoint run
    """
    if out is not None and not out.absolute().parent.is_dir():
        fail(f"--out must be a file in a folder that exists, got {str(out)!r}")
    mesh = _mesh_of_job() if distributed else None
    problem, start, solution = case_maker(target, x0)()
    chosen = None if method is None else method_named(method, "--method")
    try:
        result = solve(problem, start, chosen, steps=steps, seed=seed, checkpoint=checkpoint, mesh=mesh)
    except (TypeError, ValueError) as error:
        fail(str(error))
    if not writes(mesh):
        return
    typer.echo(result)
    if out is not None:
        with one_line_errors(f"saving to {out}"):
            result.save(out)
        typer.echo(f"  saved; read it with tightrope.load({str(out)!r})")
    if solution is not None:
        with one_line_errors("comparing with the solution"):
            show(compare_with(result, solution))


def _mesh_of_job() -> Mesh:
    """All devices of the job that this process is a part of, in one axis."""
    with one_line_errors("--distributed: JAX cannot join the processes of a Slurm or Open MPI job"):
        jax.distributed.initialize()
    return jax.make_mesh((jax.device_count(),), ("data",))


def compare_with(result: Result, solution: Solution) -> Table:
    """A table of the result next to the known solution."""
    found = table("", "found", "known", "difference")
    if not solution.feasible:
        _add_row(found, "violation (no point is feasible)", result.violation, solution.violation)
        return found
    if not math.isnan(solution.objective):
        _add_row(found, "objective", result.objective, solution.objective)
    for name, known in (solution.multipliers or {}).items():
        for i, pair in enumerate(zip(np.ravel(result.multipliers[name]), np.ravel(known), strict=True)):
            _add_row(found, f"multiplier of {name}" + (f"[{i}]" if np.size(known) > 1 else ""), *pair)
    if solution.x is not None:
        distance = np.linalg.norm(ravel_pytree(result.x)[0] - ravel_pytree(solution.x)[0])
        found.add_row("x" if solution.unique else "x (there are other solutions)", "", "", f"{distance:.2e} away")
    return found


def _add_row(rows: Table, label: str, found: float, known: float) -> None:
    rows.add_row(label, f"{found:.6g}", f"{known:.6g}", f"{found - known:+.2e}" if math.isfinite(known) else "")
