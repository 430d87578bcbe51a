"""Programs that are known by what they are made of, in this process and, with `cache`, in a folder.

A program is found in two steps, without a trace of the library's code. Its `Definition` less the user's functions says on what
batches such programs call them; there may be several such lists. What the functions compute there then says which program it
is. If either is missing, the program is traced, and its calls are recorded.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import jax

from . import program_folder
from .calls import Call
from .definition import Definition

MAX_PROGRAMS = 1024
"""Programs that are known in this process: about a kilobyte each."""
READABLE = ("tightrope", "jax", "equinox", "optax")
"""Packages whose classes may be a part of what a program returns."""


class Known(NamedTuple):
    """A program that was traced.

    Attributes:
        key: what its trace computes.
        returned: the structure of what it returns, pickled.
        shapes: the shape, dtype and weak type of each array that it returns.
    """

    key: Hashable
    returned: bytes
    shapes: tuple[tuple[tuple[int, ...], str, bool], ...]

    @classmethod
    def of(cls, key: Hashable, structure: Any, shapes: list[Any], definition: Definition) -> Known | None:
        """A program that was just traced; None if what it returns cannot be pickled."""
        file = io.BytesIO()
        try:
            _Pickler(file, definition.objects).dump(jax.tree.unflatten(structure, [0] * len(shapes)))
        except (pickle.PicklingError, AttributeError, TypeError):
            return None
        return cls(key, file.getvalue(), tuple((s.shape, str(s.dtype), s.weak_type) for s in shapes))

    def structure(self, definition: Definition) -> Any:
        """The structure of what it returns, with the objects of this definition."""
        return jax.tree.structure(_Unpickler(io.BytesIO(self.returned), definition.objects).load())

    def returned_shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes of the arrays that it returns."""
        return [jax.ShapeDtypeStruct(shape, _dtype(name), weak_type=weak) for shape, name, weak in self.shapes]


class KnownPrograms:
    """The programs that are known."""

    def __init__(self) -> None:
        self._calls: dict[str, set[tuple[Call, ...]]] = {}
        self._programs: OrderedDict[tuple[str, str], Known] = OrderedDict()

    def find(self, described: str, definition: Definition) -> tuple[Known, bytes | None] | None:
        """The program with this definition, and its executable if it is from the folder; None if it is not known."""
        for calls in self._calls.get(described, ()):
            known = self._programs.get((described, definition.computed(calls) or ""))
            if known is not None:
                return known, None
        for calls in program_folder.calls_of(described):
            found = program_folder.read(described, definition.computed(calls))
            if found is not None:
                known = Known(*found[0])
                self._keep(described, calls, known, definition)
                return known, found[1]
        return None

    def add(self, described: str, calls: Iterable[Call], known: Known, definition: Definition, executable: Any) -> None:
        """Remember a program that was traced; `executable` is the future of what was compiled."""
        ordered = tuple(sorted(calls, key=repr))
        computed = self._keep(described, ordered, known, definition)
        if computed is not None and program_folder.folder() is not None:
            executable.add_done_callback(lambda done: program_folder.write(described, ordered, computed, known, done))

    def _keep(self, described: str, calls: tuple[Call, ...], known: Known, definition: Definition) -> str | None:
        computed = definition.computed(calls)
        if computed is not None:
            self._calls.setdefault(described, set()).add(calls)
            self._programs[described, computed] = known
            while len(self._programs) > MAX_PROGRAMS:
                (oldest, _), _ = self._programs.popitem(last=False)
                self._calls.pop(oldest, None)
        return computed


class _Pickler(pickle.Pickler):
    """Writes the objects of a definition by their names."""

    def __init__(self, file: Any, objects: Mapping[str, Any]):
        super().__init__(file)
        self._names = {id(each): name for name, each in objects.items()}

    def persistent_id(self, obj: Any) -> str | None:
        return self._names.get(id(obj))


class _Unpickler(pickle.Unpickler):
    """Reads only classes of a few packages, and the objects of a definition by their names."""

    def __init__(self, file: Any, objects: Mapping[str, Any]):
        super().__init__(file)
        self._objects = objects

    def persistent_load(self, pid: str) -> Any:
        return self._objects[pid]

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name.partition(".")[0] not in READABLE and module_name != "copyreg":
            raise pickle.UnpicklingError(f"{module_name}.{global_name} is no part of what a program returns")
        return super().find_class(module_name, global_name)


def _dtype(name: str) -> Any:
    return jax.random.key(0).dtype if name.startswith("key<") else name
