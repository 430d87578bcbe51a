"""The parts of a sweep: how it is divided, and how a part is run, here or by a worker of an executor."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from ..methods.base import Method
from ..problems.lifting import vector_of
from ..problems.problem import Problem
from .fitting import Fitted, fit
from .options import Record, Stop
from .recording import Recorder
from .result import Result
from .run import begin_run, start_run
from .running import Finish, run_to_end

logger = logging.getLogger("tightrope")

CONFIG = ("enable_x64", "default_matmul_precision", "default_prng_impl")
"""Settings of JAX that change numbers; a worker has those of its caller."""
NAMED_SEEDS = 8
"""The most seeds that an error message lists."""


class Lane(NamedTuple):
    """One run of a sweep: the place of its method in the list of methods, and its seed."""

    place: int
    seed: int


@dataclass(frozen=True, eq=False)
class Shared:
    """What all runs of a sweep have in common; `start` is x0 as a vector, projected into the domain."""

    problem: Problem
    x0: PyTree[Any]
    start: Float[np.ndarray, " n"]
    methods: list[Method]
    steps: int
    record: Record
    stop: Stop | None


def divide(
    methods: list[Method], lanes: Iterable[Lane], size: int | None, executor: Executor | None
) -> list[list[Lane]]:
    """The parts of a sweep. Lanes whose methods differ in numbers alone may share one.

    `size` is the most lanes of a part. If it is None, all that can share a part do; with an executor they are divided evenly
    over its workers, and each is a part of its own if the executor does not say how many it has.
    """
    groups: dict[Any, list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(jax.tree.structure(methods[lane.place]), []).append(lane)
    workers = 1 if executor is None else _workers(executor)
    parts = []
    for group in groups.values():
        count = min(len(group), workers or len(group)) if size is None else -(-len(group) // size)
        ends = [len(group) * number // count for number in range(count + 1)]
        parts += [group[first:last] for first, last in pairwise(ends)]
    return parts


def run_lanes(fitted: Fitted, shared: Shared, lanes: list[Lane]) -> list[Result]:
    """Run a part as lanes of one program; the x of its results are vectors of NumPy.

    Args:
        fitted: the problem and the method of one of the lanes.
        shared: what all lanes have in common.
        lanes: the runs; their methods differ in numbers alone.
    """
    parameters, seeds = fitted.parameters, [lane.seed for lane in lanes]
    methods = [shared.methods[lane.place] for lane in lanes]
    stacked = jax.tree.map(lambda *numbers: jnp.stack([jnp.asarray(n, parameters.dtype) for n in numbers]), *methods)
    fitted = replace(fitted, method=stacked)
    recorder = Recorder(fitted, shared.record, shared.stop or Stop(), seeds)
    begin_run(fitted, seeds, lanes=True)
    recorder.begin()
    run = start_run(fitted, jnp.asarray(shared.start), seeds, shared.record.every, lanes=True)
    finish = Finish(run, recorder, shared.stop, [])
    results = finish.answers(run_to_end(finish))
    return [replace(result, x=np.asarray(vector_of(parameters, result.x))) for result in results]


def name_of(shared: Shared, part: list[Lane]) -> str:
    """A part, as error messages name it."""
    method = type(shared.methods[part[0].place]).__name__
    places = ", ".join(f"methods[{place}]" for place in dict.fromkeys(lane.place for lane in part))
    seeds = list(dict.fromkeys(lane.seed for lane in part))
    listed = ", ".join(map(str, seeds[:NAMED_SEEDS])) + (", …" if len(seeds) > NAMED_SEEDS else "")
    return f"{method} ({places}), seeds {listed}"


# ---------------------------------------------------------------------- executors


def check_executor(executor: Any) -> None:
    """An error unless this is None or an executor that can run parts of a sweep."""
    if executor is None:
        return
    if not isinstance(executor, Executor):
        instead = (
            "; pass the executor of the client: client.get_executor()" if hasattr(executor, "get_executor") else ""
        )
        raise TypeError(
            f"sweep: executor must be a concurrent.futures.Executor, got {type(executor).__name__}{instead}"
        )
    context = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise ValueError(
            "sweep: executor forks this process, and JAX, which has threads, hangs in a forked process; "
            "pass ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn'))"
        )


def spread(
    executor: Executor,
    shared: Shared,
    parts: list[list[Lane]],
    keep: Callable[[list[Lane], list[Result]], None],
    go_on: bool,
) -> None:
    """Run parts on the workers of an executor.

    Args:
        executor: runs `run_part` for each part.
        shared: what all parts have in common.
        parts: the parts.
        keep: called with each part and its results, in the order in which they end.
        go_on: whether the other parts are run to their end if one fails; its error is raised in any case.
    """
    config = tuple((name, getattr(jax.config, f"jax_{name}")) for name in CONFIG)
    pickled = _pickled(shared)
    left: dict[Future[list[Result]], list[Lane]] = {}
    failed: list[BaseException] = []
    try:
        for part in parts:
            left[executor.submit(run_part, config, pickled, part)] = part
        for future in as_completed(list(left)):
            error = future.exception()
            if error is None:
                keep(left[future], future.result())
            elif error not in failed:  # the parts of a broken pool share one
                error.add_note(f"in a part of a sweep: {name_of(shared, left[future])}")
                failed.append(error)
                if not go_on:
                    raise error
                logger.warning("sweep: %s failed: %r; the other parts go on", name_of(shared, left[future]), error)
            del left[future]
    except BaseException:
        for future in left:
            future.cancel()
        for future, part in left.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                keep(part, future.result())
        raise
    finally:
        _opened.cache_clear()  # threads of an executor share it with this one
    if failed:
        failed[0].add_note("the finished runs of the sweep are kept in its checkpoint: the same call goes on from them")
        raise failed[0]


def run_part(config: tuple[tuple[str, Any], ...], pickled: bytes, part: list[Lane]) -> list[Result]:
    """What a worker does: run a part, under the settings of JAX that the caller has."""
    with ExitStack() as settings:
        for name, value in config:
            settings.enter_context(getattr(jax, name)(value))
        shared = _opened(config, pickled)
        method = shared.methods[part[0].place]
        return run_lanes(fit("sweep", shared.problem, shared.x0, method, shared.steps), shared, part)


@lru_cache(maxsize=1)
def _opened(config: tuple[tuple[str, Any], ...], pickled: bytes) -> Shared:
    """Kept for the next part: it has the same problem, whose programs are traced by then."""
    return pickle.loads(pickled)


def _pickled(shared: Shared) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        raise ImportError("sweep: executor= sends functions with cloudpickle: pip install 'tightrope[dask]'") from error
    try:
        return cloudpickle.dumps(shared)
    except Exception as error:
        error.add_note("sweep: with executor=, the problem, x0 and the methods are sent to workers by cloudpickle")
        raise


def _workers(executor: Executor) -> int | None:
    """The number of its workers, if it says so: executors of Python and MPI do, and Dask's through its client."""
    client = getattr(executor, "_client", None)
    threads = getattr(client, "nthreads", dict)()
    return sum(threads.values()) or getattr(executor, "_max_workers", None)
