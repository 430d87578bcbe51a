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
from .calls import recorded
from .canonical import digest, primitives
from .definition import Definition
from .known_programs import Known, KnownPrograms
from .structure import shape_of

logger = logging.getLogger("tightrope")

Effort = Literal["little", "full"]
"""How much the compiler optimizes a program: little for one that runs a few times on little data."""

MAX_EXECUTABLES = 128
"""Executables in the cache; a run needs about six."""
THREADS = 2
"""Programs compiled at the same time: each of them uses several cores for parts of its compilation."""
CPU_OPTIONS: dict[Effort, dict[str, Any]] = {
    "little": {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0},
    "full": {"xla_cpu_use_fusion_emitters": False},
}
"""Options of XLA on CPUs. Fusion emitters double the time that it takes to compile a step, and make no step faster."""


SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_disable_jit",
)
"""Settings of JAX that change a trace."""


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
        self._name = getattr(fn, "__name__", None) or getattr(fn, "func", fn).__name__
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
            described = definition.described(self._name, self._effort, _surroundings(), args)
        if definition is None or described is None:
            return self._trace(structure, leaves, places)[0]
        found = self._find(described, definition, structure, leaves, places)
        if found is not None:
            return found
        with recorded(definition.names) as calls:
            ready, key = self._trace(structure, leaves, places)
        known = None if calls.unknown else Known.of(key, ready.structure, ready.shapes, definition)
        if known is not None and isinstance(key, tuple):
            _known.add(described, calls.found, known, definition, ready.executable)
        return ready

    def _find(
        self, described: str, definition: Definition, structure: Any, leaves: list[Any], places: list[Any]
    ) -> _Ready | None:
        """The program, if it is known and there is an executable of it."""
        found = _known.find(described, definition)
        if found is None:
            return None
        known, stored = found
        shapes = known.returned_shapes()

        def load() -> Any:
            try:
                return program_folder.load(stored or b"", len(leaves), len(shapes))
            except Exception as error:  # damaged, or of another machine after all
                logger.debug("%s is compiled again: %s", self._name, error)
                return _compile(self._traced(structure, leaves, places)[0].lower(), self._effort)

        executable = _cache.find(known.key) if stored is None else _cache.get(known.key, lambda: load)
        return None if executable is None else _Ready(executable, known.structure(definition), shapes)

    def _trace(self, structure: Any, leaves: list[Any], places: list[Any]) -> tuple[_Ready, Hashable]:
        """Trace the function; lower it, and have it compiled, if nothing in the cache computes the same."""
        traced, returned = self._traced(structure, leaves, places)
        key = _key(traced.jaxpr, places, self._effort)

        def lower() -> Callable[[], Any]:
            logger.debug("compiling %s", self._name)
            return partial(_compile, traced.lower(), self._effort)

        return _Ready(_cache.get(key, lower), returned, jax.tree.leaves(traced.out_info)), key

    def _traced(self, structure: Any, leaves: list[Any], places: list[Any]) -> tuple[Any, Any]:
        """The trace as a function of the list of leaves, and the structure of what it returns."""
        returned: list[Any] = []

        def flat(leaves: list[Any]) -> list[Any]:
            found, tree = jax.tree.flatten(self.fn(*jax.tree.unflatten(structure, leaves)))
            returned[:] = [tree]
            return found

        flat.__name__ = self._name
        everywhere = _everywhere(places)
        if everywhere is not None:
            leaves = [_placed(leaf, place) for leaf, place in zip(leaves, places, strict=True)]
        return jax.jit(flat, out_shardings=everywhere).trace(leaves), returned[0]


def _compile(lowered: Any, effort: Effort) -> Any:
    if jax.default_backend() != "cpu":
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=CPU_OPTIONS[effort])
    except JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()  # a version of XLA with other options


def _key(jaxpr: Any, places: list[Any], effort: Effort) -> Hashable:
    """What a trace computes, and where; one that calls back into Python is like no other."""
    if any("callback" in name for name in primitives(jaxpr)):
        return object()
    return digest(jaxpr), tuple(places), effort, jax.default_backend(), str(jax.config.values["jax_default_device"])


def _surroundings() -> tuple[str, ...]:
    """The device, and the settings of JAX that change a trace."""
    settings = (str(getattr(jax.config, name, None)) for name in SETTINGS)
    return jax.default_backend(), str(jax.config.values["jax_default_device"]), *settings


def _places(leaves: list[Any]) -> list[Any]:
    """The devices of the arrays that are to stay there; on a mesh, every device has all of the others."""
    places = [_place(leaf) for leaf in leaves]
    everywhere = _everywhere(places)
    return places if everywhere is None else [place or everywhere for place in places]


def _place(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding
    return leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None


def _everywhere(places: list[Any]) -> NamedSharding | None:
    """On all devices of the mesh that some of the arrays lie on; None if there is no mesh."""
    meshes = (place.mesh for place in places if isinstance(place, NamedSharding))
    return next((NamedSharding(mesh, PartitionSpec()) for mesh in meshes), None)


def _placed(leaf: Any, place: Any) -> jax.ShapeDtypeStruct:
    """The shape of an argument, and its place."""
    shape, dtype, weak_type = shape_of(leaf)
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type, sharding=place)
