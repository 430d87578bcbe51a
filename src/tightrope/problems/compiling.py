"""Compiled programs, shared by all problems that compute the same.

A `Program` traces its function for the shapes of its arguments, and looks the trace up in one bounded cache. The key says what
the trace computes (see `canonical`), and nothing of who asked for it. So a problem with other data, bounds or seeds, or one
that was defined anew, compiles nothing; and the cache keeps executables, never a function or the data of the user.

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

from .canonical import digest, primitives

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


class _Cache:
    """The executables used last, by what they compute."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def get(self, key: Hashable, compile: Callable[[], Callable[[], Any]]) -> Future[Any]:
        """The executable with this key; if there is none, `compile()` prepares one, and what it returns runs in a thread."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
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


_cache = _Cache()
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

    Attributes:
        fn: the function, not compiled.
    """

    def __init__(self, fn: Callable[..., Any], effort: Effort = "full"):
        self.fn = fn
        self._effort: Effort = effort
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
        key = (structure, *map(_shape, leaves), *places)
        if key not in self._ready:
            with _timed():
                self._ready[key] = self._prepare(structure, leaves, places)
        return self._ready[key], leaves

    def _prepare(self, structure: Any, leaves: list[Any], places: list[Any]) -> _Ready:
        """Trace the function; lower it, and have it compiled, if nothing in the cache computes the same."""
        returned: list[Any] = []

        def flat(leaves: list[Any]) -> list[Any]:
            found, tree = jax.tree.flatten(self.fn(*jax.tree.unflatten(structure, leaves)))
            returned[:] = [tree]
            return found

        flat.__name__ = getattr(self.fn, "__name__", None) or getattr(self.fn, "func", flat).__name__
        everywhere = _everywhere(places)
        if everywhere is not None:
            leaves = [_placed(leaf, place) for leaf, place in zip(leaves, places, strict=True)]
        traced = jax.jit(flat, out_shardings=everywhere).trace(leaves)
        device = jax.config.values["jax_default_device"]
        key = (_key(traced.jaxpr), tuple(places), self._effort, jax.default_backend(), str(device))

        def lower() -> Callable[[], Any]:
            logger.debug("compiling %s", flat.__name__)
            return partial(_compile, traced.lower(), self._effort)

        return _Ready(_cache.get(key, lower), returned[0], jax.tree.leaves(traced.out_info))


def _compile(lowered: Any, effort: Effort) -> Any:
    if jax.default_backend() != "cpu":
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=CPU_OPTIONS[effort])
    except JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return lowered.compile()  # a version of XLA with other options


def _key(jaxpr: Any) -> Hashable:
    """What a trace computes; one that calls back into Python is like no other."""
    if any("callback" in name for name in primitives(jaxpr)):
        return object()
    return digest(jaxpr)


def _shape(leaf: Any) -> tuple[Any, Any, Any]:
    aval: Any = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return aval.shape, aval.dtype, aval.weak_type


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
    shape, dtype, weak_type = _shape(leaf)
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak_type, sharding=place)
