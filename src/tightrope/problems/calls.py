"""Which functions of the user's a trace calls, and on what batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax


class Call(NamedTuple):
    """A call of a function of the user's.

    Attributes:
        function: the name of the function.
        examples: the number of examples in its batch; None if it has none.
        batch: the shapes and dtypes of the batch.
        keyed: whether it got a random key.
    """

    function: str
    examples: int | None
    batch: str
    keyed: bool


class Calls:
    """The calls of a trace.

    Attributes:
        found: the calls, each of them once.
        unknown: whether a function was called that has no name.
    """

    def __init__(self, names: Mapping[int, str]):
        self._names, self.unknown = names, False
        self.found: set[Call] = set()

    def add(self, fn: Callable[..., Any], examples: int | None, batch: tuple[Any, ...], keyed: bool) -> None:
        """Note a call."""
        if id(fn) in self._names:
            self.found.add(Call(self._names[id(fn)], examples, shapes_of(batch), keyed))
        else:
            self.unknown = True


_traces = threading.local()


@contextmanager
def recorded(names: Mapping[int, str]) -> Iterator[Calls]:
    """Record the calls of the functions with these ids; those of others are unknown."""
    before, calls = getattr(_traces, "calls", None), Calls(names)
    _traces.calls = calls
    try:
        yield calls
    finally:
        _traces.calls = before


def note_call(fn: Callable[..., Any], batch: tuple[Any, ...], keyed: bool) -> None:
    """Note that a function of the parameters and a batch is called, if calls are recorded."""
    calls = getattr(_traces, "calls", None)
    if calls is not None:
        calls.add(fn, jax.tree.leaves(batch)[0].shape[0] if batch else None, batch, keyed)


def note_draw(fn: Callable[..., Any], examples: int) -> None:
    """Note that a function is called for this many examples, if calls are recorded."""
    calls = getattr(_traces, "calls", None)
    if calls is not None:
        calls.add(fn, examples, (), keyed=True)


def shapes_of(batch: Any) -> str:
    """The shapes and dtypes of a pytree."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{leaf.shape}", batch))
