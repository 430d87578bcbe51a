"""How a trace calls the functions of the user's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Call(NamedTuple):
    """How functions of the user's are called.

    Attributes:
        examples: the number of examples of their batches; None for functions without a batch.
        keyed: whether they get random keys.
        sampler: which sampler is called; None: the objective and the constraints.
    """

    examples: int | None
    keyed: bool = False
    sampler: int | None = None


Recorder = Callable[..., None]
"""Told of each call: the function, its batch, and whether it is keyed; or a sampler's function, and the number of examples."""

_traces = threading.local()


@contextmanager
def recorded(note: Recorder) -> Iterator[None]:
    """Tell `note` of all calls."""
    before = getattr(_traces, "note", None)
    _traces.note = note
    try:
        yield
    finally:
        _traces.note = before


def note_call(fn: Callable[..., Any], *how: Any) -> None:
    """Note that a function is called, if calls are recorded."""
    note = getattr(_traces, "note", None)
    if note is not None:
        note(fn, *how)
