"""Programs that are known by what they are made of, in this process and in the folder of `cache`.

A program is found in two steps, without a trace of the library's code. Its `Definition` less the user's functions says on what
batches such a program calls them. What the functions compute there then says which program it is. If either is missing, the
program is traced, and its calls are recorded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from . import program_folder
from .calls import Call
from .definition import Definition
from .returned import read, written
from .structure import Shape, arrays_of, shapes_of

MAX_PROGRAMS = 1024
"""Programs that are known in this process: a few kilobytes each."""


class Known(NamedTuple):
    """A program that was traced.

    Attributes:
        computes: the digest of what its trace computes.
        returned: the structure of what it returns (see `returned`).
        shapes: the arrays that it returns.
    """

    computes: str
    returned: str
    shapes: tuple[Shape, ...]

    def structure(self, objects: Mapping[str, Any]) -> Any:
        """The structure of what it returns, with these objects."""
        return read(self.returned, objects)

    def arrays(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes of the arrays that it returns."""
        return arrays_of(self.shapes)


def known_as(computes: str | None, structure: Any, arrays: Any, objects: Mapping[str, Any]) -> Known | None:
    """A program that was traced; None if it is like no other, or if what it returns cannot be written."""
    text = None if computes is None else written(structure, objects)
    return None if computes is None or text is None else Known(computes, text, shapes_of(arrays))


class KnownPrograms:
    """The programs that are known."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Call, ...]] = {}
        self._programs: OrderedDict[tuple[str, str], Known] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, described: str, definition: Definition) -> tuple[Known, Any] | None:
        """The program with this definition, and its trace if it is from the folder; None if it is not known."""
        if described in self._calls:
            known = self._programs.get((described, definition.computed(self._calls[described]) or ""))
            if known is not None:
                return known, None
        calls = program_folder.read_calls(described)
        computed = None if calls is None else definition.computed(calls)
        found = None if computed is None else program_folder.read(described, computed)
        if calls is None or computed is None or found is None:
            return None
        known, exported = Known(*found[0]), found[1]
        self._keep(described, calls, computed, known)
        return known, exported

    def add(self, described: str, calls: tuple[Call, ...], definition: Definition, known: Known) -> str | None:
        """Remember a program that was traced; the digest of what the user's functions compute, None if that cannot be said."""
        computed = definition.computed(calls)
        if computed is not None:
            self._keep(described, calls, computed, known)
        return computed

    def _keep(self, described: str, calls: tuple[Call, ...], computed: str, known: Known) -> None:
        with self._lock:
            self._calls[described] = calls
            self._programs[described, computed] = known
            while len(self._programs) > MAX_PROGRAMS:
                (oldest, _), _ = self._programs.popitem(last=False)
                self._calls.pop(oldest, None)
