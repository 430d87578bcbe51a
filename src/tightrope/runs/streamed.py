"""A run on streams: what feeds it, and what it is evaluated on."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace

import jax

from ..certificates.evaluation import EVALUATION_EXAMPLES
from ..oracles.build import oracle_for
from ..problems.data import Dataset, Source, batch_shape
from ..problems.problem import on_sources, sharing_programs
from ..problems.stream import Stream
from .batches import streams_of
from .feeding import Feed
from .fitting import Fitted
from .options import Record


def feeding(fitted: Fitted, record: Record) -> AbstractContextManager[Feed | None]:
    """The feed of a run, closed at its end; None if no data are streams."""
    streams = tuple(streams_of(fitted.oracle.sources).values())
    if not streams:
        return nullcontext()
    if record.data is not None:
        _check_like_batches(record.data, streams)
    return closing(Feed(streams, fitted.steps, 0 if record.data is not None else EVALUATION_EXAMPLES))


def evaluated_beside_streams(fitted: Fitted, record: Record, feed: Feed) -> tuple[Fitted, str]:
    """The run with records, answer and certificate on examples that stay, and which these are.

    They are the records' own data, or the first examples of every stream. The steps go on with the streams.
    """
    streams, parameters = streams_of(fitted.problem.sources), fitted.parameters
    if record.data is not None:
        problem = on_sources(fitted.problem, {id(stream): record.data for stream in streams.values()})
        said = f"evaluated on {record.data.size:,} examples, the data of record="
        return replace(fitted, problem=problem, original=oracle_for(problem, parameters)), said
    windows = dict(zip(streams, feed.windows(), strict=True))
    sizes = [window.size for window, _ in windows.values()]
    made = on_sources(fitted.problem, {id(stream): windows[i][0] for i, stream in streams.items()})
    problem = sharing_programs(fitted.problem, made, ("beside streams", *sizes))
    data = tuple(windows[i][1] if i in windows else arrays for i, arrays in enumerate(fitted.original.data))
    original = replace(oracle_for(problem, parameters), data=jax.tree.map(jax.numpy.asarray, data))
    said = f"evaluated as streamed, on the first {' and '.join(f'{size:,}' for size in sizes)} examples"
    return replace(fitted, problem=problem, original=original), said


def _check_like_batches(data: Dataset, streams: tuple[Stream, ...]) -> None:
    """A ValueError unless examples of the data look like those of the streams."""

    def example(source: Source) -> str:
        return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape[1:])}", batch_shape(source)))

    for stream in streams:
        if example(data) != example(stream):
            raise ValueError(
                f"record: data has examples {example(data)}; expected {example(stream)}, like the stream's, because a run on a "
                "stream is evaluated on them"
            )
