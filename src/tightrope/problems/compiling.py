"""Compiled programs, shared by all problems that compute the same.

A `Program` traces its function for the shapes of its arguments, and looks the trace up in one bounded cache. The key says what
the trace computes (see `canonical`), and nothing of who asked for it. So a problem with other data, bounds or seeds, or one
that was defined anew, compiles nothing; and the cache keeps executables, never a function or the data of the user. A program
with a `Definition` that is known is not even traced (see `known_programs`).

Tracing needs Python's lock, compiling does not. `begin` returns as soon as a program is traced and lowered; its compilation
goes on in a thread, and the next program is traced meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
from jax.errors import JaxRuntimeError
from jax.sharding import NamedSharding, PartitionSpec

from . import program_folder
from .calls import Call, recorded
from .canonical import digest, primitives
from .definition import Definition
from .known_programs import KnownPrograms, known_as
from .partition import is_split, shardings
from .structure import shape_of

logger = logging.getLogger("tightrope")

Effort = Literal["little", "full", "fused"]
"""How much the compiler optimizes a program: little for one that runs a few times on little data, fused for steps that are over
in microseconds."""

MAX_EXECUTABLES = 128
"""Executables in the cache; a run needs about six."""
THREADS = 2
"""Programs compiled at the same time: each of them uses several cores for parts of its compilation."""
CPU_OPTIONS: dict[Effort, dict[str, Any]] = {
    "little": {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0},
    "full": {"xla_cpu_use_fusion_emitters": False},
    "fused": {},
}
"""Options of XLA on CPUs. Fusion emitters double the time that it takes to compile a step. They save about 2 µs of a step, half
of it for a simple method in few dimensions; in a thousand dimensions such a step takes a fifth more."""
MAX_FUSED_LINES = 2000
"""A program with more lines is not fused: the step of AdaptivePenalty has 5,000, and is no faster for it."""


class _Cache:
    """The executables used last, by what they compute."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def find(self, key: Hashable) -> Future[Any] | None:
        """The executable with this key; None if there is none."""
        with self._lock:
            if key not in self._found:
                return None
            self._found.move_to_end(key)
            return self._found[key]

    def get(self, key: Hashable, compile: Callable[[], Callable[[], Any]]) -> Future[Any]:
        """The executable with this key; if there is none, `compile()` prepares one, and what it returns runs in a thread."""
        found = self.find(key)
        if found is not None:
            return found
        finish = compile()
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(THREADS, thread_name_prefix="tightrope-compile")
            future = self._found[key] = self._pool.submit(finish)
            while len(self._found) > MAX_EXECUTABLES:
                self._found.popitem(last=False)
        future.add_done_callback(partial(self._forget_failed, key))
        return future

    def _forget_failed(self, key: Hashable, future: Future[Any]) -> None:
        if future.exception() is not None:
            with self._lock:
                self._found.pop(key, None)


_cache, _known = _Cache(), KnownPrograms()
_clock = threading.local()


def compile_seconds() -> float:
    """The seconds that this thread has spent on tracing, and on waiting for the compiler, since it began."""
    return getattr(_clock, "seconds", 0.0)


@contextmanager
def _timed() -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        _clock.seconds = compile_seconds() + time.perf_counter() - began


class _Ready(NamedTuple):
    """A program for arguments of one structure: the executable, and the structure and shapes of what it returns."""

    executable: Future[Any]
    structure: Any
    shapes: list[Any]


class _Traced(NamedTuple):
    """A trace.

    Attributes:
        jitted: what was traced, as a function of a list of arrays.
        stages: the trace.
        computes: the digest of what it computes; None: it is like no other.
        places: the devices of its arguments.
        structure: the structure of what it returns.
        shapes: the arrays of what it returns.
    """

    jitted: Any
    stages: Any
    computes: str | None
    places: list[Any]
    structure: Any
    shapes: list[Any]

    def compiled(self, lower: Callable[[], Any], effort: Effort) -> _Ready:
        """Have it compiled, if nothing in the cache computes the same."""
        key = _executable_key(self.computes, self.places, effort)
        return _Ready(_cache.get(key, partial(_begin, lower, effort)), self.structure, self.shapes)


class Program:
    """A function of pytrees of arrays, compiled for each structure and all shapes of its arguments.

    Args:
        fn: the function. It is kept by the program, but not by the cache.
        effort: how much the compiler optimizes it.
        definition: what it is made of; None: it is always traced.

    Attributes:
        fn: the function, not compiled.
    """

    def __init__(self, fn: Callable[..., Any], effort: Effort = "full", definition: Definition | None = None):
        self.fn = fn
        self._effort: Effort = effort
        self._definition = definition
        self._ready: dict[Hashable, _Ready] = {}

    def __call__(self, *args: Any) -> Any:
        """The value of the function."""
        ready, leaves = self._prepared(args)
        if not ready.executable.done():
            self.wait(*args)
        return jax.tree.unflatten(ready.structure, ready.executable.result()(leaves))

    def begin(self, *args: Any) -> Any:
        """Trace the function, and compile it in a thread; arguments may be shapes. Return the shapes of what it returns."""
        ready, _ = self._prepared(args)
        return jax.tree.unflatten(ready.structure, ready.shapes)

    def wait(self, *args: Any) -> None:
        """Return once the function is compiled for such arguments."""
        ready, _ = self._prepared(args)
        with _timed():
            ready.executable.result()

    def _prepared(self, args: tuple[Any, ...]) -> tuple[_Ready, list[Any]]:
        leaves, structure = jax.tree.flatten(args)
        places = _places(leaves)
        key = (structure, *map(shape_of, leaves), *places)
        if key not in self._ready:
            with _timed():
                self._ready[key] = self._prepare(args, structure, leaves, places)
        return self._ready[key], leaves

    def _prepare(self, args: tuple[Any, ...], structure: Any, leaves: list[Any], places: list[Any]) -> _Ready:
        definition, described = self._definition, None
        if definition is not None and all(place is None for place in places):
            described = definition.described(self.fn, args, self._effort, _surroundings())
        if definition is None or described is None:
            traced = self._trace(structure, leaves, places)
            return traced.compiled(traced.stages.lower, self._effort)
        ready = self._find(described, definition, args, leaves)
        return ready or self._learn(described, definition, args, structure, leaves)

    def _find(self, described: str, definition: Definition, args: tuple[Any, ...], leaves: list[Any]) -> _Ready | None:
        """The program, if it is known."""
        found = _known.find(described, definition)
        if found is None:
            return None
        known, exported = found
        key = _executable_key(known.computes, [None] * len(leaves), self._effort)
        executable = _cache.find(key)
        if executable is None and exported is not None:
            lowered = program_folder.lowered(exported, leaves)
            executable = None if lowered is None else _cache.get(key, partial(_begin, lambda: lowered, self._effort))
        if executable is None:
            return None
        return _Ready(executable, known.structure(definition.objects(args)), known.arrays())

    def _learn(
        self, described: str, definition: Definition, args: tuple[Any, ...], structure: Any, leaves: list[Any]
    ) -> _Ready:
        """The program, traced; it is known from then on."""
        calls: set[Call | None] = set()
        with recorded(lambda *call: calls.add(definition.call_of(*call))):
            traced = self._trace(structure, leaves, [None] * len(leaves))
        lower, foreseen = traced.stages.lower, tuple(sorted((call for call in calls if call is not None), key=repr))
        known = known_as(traced.computes, traced.structure, traced.shapes, definition.objects(args))
        if known is not None and None not in calls:
            computed = _known.add(described, foreseen, definition, known)
            exported = None if computed is None else program_folder.exported(traced.jitted, leaves)
            if computed is not None and exported is not None:
                program_folder.write(described, foreseen, computed, known, exported)
                lower = partial(program_folder.lower, exported, leaves)
        return traced.compiled(lower, self._effort)

    def _trace(self, structure: Any, leaves: list[Any], places: list[Any]) -> _Traced:
        """Trace the function, as one of the list of leaves."""
        returned: list[Any] = []

        def flat(leaves: list[Any]) -> list[Any]:
            found, tree = jax.tree.flatten(self.fn(*jax.tree.unflatten(structure, leaves)))
            returned[:] = [tree]
            return found

        flat.__name__ = getattr(self.fn, "__name__", None) or getattr(self.fn, "func", flat).__name__
        placed = [_placed(leaf, place) for leaf, place in zip(leaves, places, strict=True)]
        jitted = jax.jit(flat, out_shardings=_everywhere(places))
        stages = jitted.trace(placed)
        found = jax.tree.unflatten(returned[0], jax.tree.leaves(stages.out_info))
        if any(map(is_split, jax.tree.leaves(found, is_leaf=is_split))):
            jitted = jax.jit(flat, out_shardings=shardings(found, _everywhere(places)))
            stages = jitted.trace(placed)  # JAX keeps the trace
        return _Traced(jitted, stages, _computes(stages.jaxpr), places, returned[0], jax.tree.leaves(stages.out_info))


def _begin(lower: Callable[[], Any], effort: Effort) -> Callable[[], Any]:
    """Lower a program, and return what compiles it."""
    lowered = lower()
    logger.debug("compiling %s", lowered)
    return partial(_compile, lowered, effort)


def _compile(lowered: Any, effort: Effort) -> Any:
    if jax.default_backend() != "cpu":
        return lowered.compile()
    if effort == "fused" and lowered.as_text().count("\n") > MAX_FUSED_LINES:
        effort = "full"
    try:
        return lowered.compile(compiler_options=CPU_OPTIONS[effort])
    except JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()  # a version of XLA with other options


def _computes(jaxpr: Any) -> str | None:
    """What a trace computes; None for one that calls back into Python, which is like no other."""
    return None if any("callback" in primitive.name for primitive in primitives(jaxpr)) else digest(jaxpr)


def _executable_key(computes: str | None, places: list[Any], effort: Effort) -> Hashable:
    """What an executable computes, and where."""
    device = str(jax.config.values["jax_default_device"])
    return computes or object(), tuple(places), effort, jax.default_backend(), device


def _surroundings() -> list[str]:
    """The device, and all settings of JAX: a trace may depend on any of them."""
    settings = [f"{name} {getattr(jax.config, name, None)}" for name in sorted(jax.config.values) if _matters(name)]
    return [jax.default_backend(), str(jax.sharding.get_abstract_mesh()), *settings]


def _matters(setting: str) -> bool:
    return not any(word in setting for word in ("cache", "log", "traceback", "dump"))


def _places(leaves: list[Any]) -> list[Any]:
    """The devices of the arrays that are to stay there; on a mesh, every device has all of the others."""
    default = _default_device()
    places = [_place(leaf, default) for leaf in leaves]
    everywhere = _everywhere(places)
    return places if everywhere is None else [place or everywhere for place in places]


def _place(leaf: Any, default: Any) -> Any:
    """The devices that an array is to stay on; None for the one where it would be anyway."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding
    kept = isinstance(leaf, jax.Array) and leaf.committed and leaf.devices() != {default}
    return leaf.sharding if kept else None


def _default_device() -> Any:
    chosen = jax.config.values["jax_default_device"]
    return chosen if isinstance(chosen, jax.Device) else jax.local_devices(backend=chosen)[0]


def _everywhere(places: list[Any]) -> NamedSharding | None:
    """On all devices of the mesh that some of the arrays lie on; None if there is no mesh."""
    meshes = (place.mesh for place in places if isinstance(place, NamedSharding))
    return next((NamedSharding(mesh, PartitionSpec()) for mesh in meshes), None)


def _placed(leaf: Any, place: Any) -> jax.ShapeDtypeStruct:
    """The shape of an argument, and its place."""
    shape, dtype, weak_type = shape_of(leaf)
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type, sharding=place)
