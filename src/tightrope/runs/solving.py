"""`solve`: checks its arguments, runs the compiled loop in chunks, records, and judges the answer."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import PyTree

from ..arguments import positive_int, seed_number
from ..methods import Method, by_name
from ..methods.selection import check_accepts, choose
from ..problems.checks import check_functions
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from .checkpoint import Checkpoint, CheckpointStore, fingerprint
from .options import Record, Stop, as_record
from .progress import Interrupts, progress_bar
from .result import Result, Status
from .run import RecordPoint, Run

logger = logging.getLogger("tightrope")


def solve(
    problem: Problem,
    x0: PyTree[Any],
    method: Method | type[Method] | str | None = None,
    *,
    steps: int,
    seed: int = 0,
    record: int | Record | None = None,
    stop: Stop | None = None,
    progress: bool | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    warm_start: Result | None = None,
) -> Result:
    """Minimize the problem's objective under its constraints, from samples.

    Args:
        problem: what is solved.
        x0: where to start, a pytree of float arrays or an Equinox model; projected where it lies outside the domain.
        method: a method of `tightrope.methods` (an instance, a class or a name); None: chosen by the problem's structure, and
            `message` says why.
        steps: how many steps to take.
        seed: of all randomness; the same seed gives the same run, whatever is recorded.
        record: every how many steps to record; None: 20 to 100 times, fewer where a record costs more than the steps
            between two of them; or a `Record`, for metrics of your own.
        stop: when to stop before `steps`; also the tolerances of `success`.
        progress: show a bar; None: where a person watches.
        callback: called after each record with a dict: the record's columns and `x`.
        checkpoint: a folder (or a `Checkpoint`) to save the run in; resumed where it holds one.
        warm_start: a Result to start from: its x in place of x0, its multipliers for the dual variables.

    Returns:
        A `Result`. Running out of steps, diverging and being interrupted (Ctrl-C) are statuses, not exceptions.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.array([1.0, 0.0]), steps=5000)
        >>> result.certificate.verdict
        'feasible'
    """
    steps, seed = positive_int("solve", "steps", steps), seed_number("solve", "seed", seed)
    if not isinstance(problem, Problem):
        raise TypeError(f"solve: problem must be a tightrope.Problem, got {type(problem).__name__}")
    if warm_start is not None and not isinstance(warm_start, Result):
        raise TypeError(f"solve: warm_start must be a Result, got {type(warm_start).__name__}")
    if callback is not None and not callable(callback):
        raise TypeError(f"solve: callback must be a function of a record, got {type(callback).__name__}")
    parameters = Parameters(x0 if warm_start is None else _same_structure(x0, warm_start.x))
    method, reason = resolve(problem, method, parameters)
    check_accepts(problem, method)
    record = as_record(record, steps, problem.sources)
    if stop is not None and not isinstance(stop, Stop):
        raise TypeError(f"solve: stop must be a tightrope.Stop, got {type(stop).__name__}")
    run = Run(
        problem,
        parameters,
        method,
        steps=steps,
        seeds=[seed],
        record=record,
        stop=stop,
        warm=warm_start,
        watched=callback is not None,
    )
    keeper = _keeper(checkpoint, run, problem, parameters, method, seed, steps)
    notes = [reason] if reason else []
    if warm_start is None and run.moved:
        notes.append("x0 was outside the domain and was projected")
    try:
        status = _loop(run, keeper, progress, callback)
    finally:
        if keeper is not None:
            keeper.close()
    return run.finish(status, notes)[0]


def resolve(problem: Problem, method: Any, parameters: Parameters) -> tuple[Method, str | None]:
    """The method instance that was asked for, or the chosen one with the reason."""
    shapes = check_functions(problem, parameters)
    if method is None:
        method, reason = choose(problem, sum(map(math.prod, shapes)), parameters.size)
        logger.info("%s: %s", type(method).__name__, reason)
        return method, f"{type(method).__name__} was chosen: {reason}"
    if isinstance(method, str):
        method = by_name(method)
    if isinstance(method, type) and issubclass(method, Method):
        method = method()
    if not isinstance(method, Method):
        raise TypeError(f"solve: method must be one of tightrope.methods or its name, got {type(method).__name__}")
    return method, None


def _same_structure(x0: PyTree[Any], x: PyTree[Any]) -> PyTree[Any]:
    if Parameters(x0).key != Parameters(x).key:
        raise ValueError("solve: warm_start has parameters of another structure or shape than x0")
    return x


def _keeper(
    checkpoint: Any, run: Run, problem: Problem, parameters: Parameters, method: Method, seed: int, steps: int
) -> CheckpointStore | None:
    """The run's checkpoints, after taking up the newest one."""
    if checkpoint is None:
        return None
    checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    settings = {"method": repr(method), "seed": seed, "start": np.asarray(parameters.start).tobytes().hex()}
    settings |= {"every": run.record.every, "metrics": sorted(run.record.metrics)}
    if method.uses_horizon:
        settings["steps"] = steps
    keeper = CheckpointStore(checkpoint, fingerprint(problem, parameters.key[:2], settings))
    saved = keeper.restore(run.arrays())
    if saved is not None:
        run.restore(*saved)
        logger.info("resumed at step %d from %s", run.k - 1, keeper.folder)
    return keeper


def _loop(
    run: Run, keeper: CheckpointStore | None, progress: bool | None, callback: Callable[..., None] | None
) -> Status:
    """Advance from record to record until a status is reached."""
    status: Status | None = None
    with progress_bar(progress, run.steps, run.name) as show, Interrupts() as interrupts:
        try:
            if not run.recorded:
                _tell(run, [run.now()], callback, show)
            while (status := run.status(interrupts)) is None:
                _tell(run, run.advance(), callback, show)
                if keeper is not None and keeper.due():
                    keeper.save(run.k - 1, run.arrays(), run.notes())
        finally:  # also where the callback or a second Ctrl-C raises: nothing is lost
            if keeper is not None and not run.unfinished:
                keeper.save(run.k - 1, run.arrays(), run.notes())
    return status


def _tell(
    run: Run, moments: list[RecordPoint], callback: Callable[..., None] | None, show: Callable[[int, str], None]
) -> None:
    for moment, (row, *_) in zip(moments, run.make_records(moments), strict=True):
        show(row["step"], f"objective {row['objective']:.4g}  violation {row['violation']:.2g}")
        if callback is not None:
            callback(row | {"x": run.params(moment)})
