"""`solve`: one run, from its arguments to its Result."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from jax.sharding import Mesh, PartitionSpec
from jaxtyping import PyTree

from ..arguments import check_callable, check_type, seed_number
from ..methods.base import Method
from ..problems.compiling import compile_seconds
from ..problems.lifting import vector_of
from ..problems.partition import partition_over
from ..problems.probing import begin_probe, check_answer
from ..problems.problem import Problem
from ..problems.splitting import on_mesh
from .checkpoint import Checkpoint, CheckpointStore
from .fingerprint import fingerprint
from .fitting import Fitted, check_can_draw, check_problem, fit
from .holdout import check_holdout, solve_with_promise
from .options import Record, Stop, as_record, check_stop
from .processes import writes
from .progress import progress_bar
from .recording import Recorder
from .result import Result
from .run import begin_run, begin_start, first_point, start_run
from .running import Finish, Observer, resume, run_to_end
from .streamed import evaluated_beside_streams, feeding

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
    callback: Callable[[dict[str, Any]], Any] | None = None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    warm_start: Result | None = None,
    holdout: float | None = None,
    confidence: float = 0.95,
    mesh: Mesh | None = None,
    spec: PartitionSpec | None = None,
) -> Result:
    """Minimize the problem's objective under its constraints, from samples.

    Args:
        problem: what is solved.
        x0: the start, a pytree of float arrays or an Equinox model; projected if it lies outside the domain.
        method: a method of `tightrope.methods` (an instance, a class or a name); None: chosen by the problem's structure,
            and `message` says why.
        steps: how many steps to take.
        seed: the random seed; the same seed gives the same run, whatever is recorded.
        record: how often to record, in steps; None: 20 to 100 times, fewer if a record costs more than the steps
            between two of them; or a `Record`, for metrics of your own.
        stop: when to stop before `steps`; also the tolerances of `success`.
        progress: show a progress bar; None: if stderr is a terminal.
        callback: called after each record with a dict: the record's columns and `x`. It stops the run if it returns True
            or raises StopIteration.
        checkpoint: a folder (or a `Checkpoint`) to save the run in; resumed if it holds one.
        warm_start: a Result to start from: its x in place of x0, its multipliers for the dual variables.
        holdout: the share of the examples of every `Dataset` to keep aside, 0.3 for example. The answer is then found on the
            others, by two runs of `steps` steps, the second with tightened constraints, and tested once on those kept aside:
            `Result.holdout` says what its true violation is at most. If not, None.
        confidence: the probability with which that holds.
        mesh: a mesh of devices, of one host or of many, whose first axis splits data and batches; the result is the same up
            to rounding (see the page on scaling).
        spec: the axis of the mesh, `PartitionSpec("model")`, or the axes, `PartitionSpec(("data", "model"))`, over which the
            flat vector of parameters is split between evaluations, and the state of the method with it. If None, every
            device has all of them.

    Returns:
        A `Result`. Running out of steps, diverging and being interrupted (Ctrl-C) are statuses, not exceptions.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.array([1.0, 0.0]), steps=5000)
        >>> result.certificate.verdict
        'feasible'
    """
    check_problem("solve", problem)
    check_can_draw("solve", problem)
    seed, compiled = seed_number("solve", "seed", seed), compile_seconds()
    check_stop("solve", stop)
    partition = partition_over("solve", mesh, spec)
    check_type("solve", "progress", progress, (bool, type(None)), "True, False or None")
    if callback is not None:
        check_callable("solve", "callback", callback, "a function of a record", arguments=1)
    if holdout is not None:
        numbers = check_holdout(problem, holdout, confidence)
        fitted = fit("solve", problem, x0, method, steps, warm_start)
        same = {"seed": seed, "record": record, "stop": stop, "progress": progress, "mesh": mesh, "spec": spec}
        options = {"warm_start": warm_start}, {"callback": callback, "checkpoint": checkpoint}
        run = partial(solve, x0=x0, method=method, steps=steps, **same)
        result = solve_with_promise(run, fitted, numbers, seed, options)
        return replace(result, compile_seconds=compile_seconds() - compiled)
    if mesh is not None:
        problem = on_mesh("solve", problem, mesh)
    fitted = fit("solve", problem, x0, method, steps, warm_start)
    fitted = replace(fitted, oracle=replace(fitted.oracle, partition=partition))
    record = as_record("solve", record, fitted.steps, problem.sources, fitted.original.rows.raw_size)
    notes = [fitted.reason] if fitted.reason else []
    with (
        _store(checkpoint, fitted, record, seed) as store,
        feeding(fitted, record) as feed,
        progress_bar(progress if writes(mesh) else False, fitted.steps, fitted.name) as show,
    ):
        if feed is not None:
            fitted, evaluated_on = evaluated_beside_streams(fitted, record, feed)
            notes.append(evaluated_on)
        show(0, "compiling")
        recorder = Recorder(fitted, record, stop or Stop(), [seed])
        begin_probe(fitted.problem, fitted.parameters, fitted.original.data)
        begin_start(fitted, [seed], feed=feed)
        x, projected = first_point(fitted)
        begin_run(fitted, [seed], feed=feed)
        recorder.begin()
        run = start_run(fitted, x, [seed], record.every, feed=feed)
        resumed = [] if store is None else resume(store, run, recorder)
        for said in resumed:
            logger.info("%s", said)
        notes[:0] = resumed
        if warm_start is None and projected:
            notes.append("x0 was outside the domain and was projected")
        finish = Finish(run, recorder, stop, notes)
        show(run.step, "; ".join(resumed))
        observer = Observer(show, callback)
        status = run_to_end(finish, observer, store)
    if observer.stopped:
        notes.append("the callback stopped the run")
    if feed is not None:
        notes += feed.remarks(run.seconds)
    result = finish.answers(status)[0]
    check_answer(fitted.problem, fitted.parameters, fitted.original.data, vector_of(fitted.parameters, result.x))
    cause = None if feed is None else feed.failure
    message = "; ".join([result.message.removesuffix("."), *([] if store is None else store.remarks())]) + "."
    return replace(result, message=message, cause=cause, compile_seconds=compile_seconds() - compiled)


def _store(
    checkpoint: Any, fitted: Fitted, record: Record, seed: int
) -> AbstractContextManager[CheckpointStore | None]:
    """The folder of checkpoints of this run; None if it is not to be saved."""
    if checkpoint is None:
        return nullcontext()
    split = fitted.oracle.partition is not None
    checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    return closing(CheckpointStore(checkpoint, fingerprint(fitted, record, seed), fitted.mesh, split))
