"""Compiled programs in the folder of `cache`: what they are made of, and their executables.

A file of the folder has its versions in its name, by a digest: those of the packages, of the library's code, of the processor and
of JAX's settings. Files that cannot be read count as missing. Like JAX's own cache the folder holds machine code: read
it only from where you would run a program.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import platform
import zlib
from concurrent.futures import Future
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import serialize_executable

from .calls import Call
from .canonical import digest

logger = logging.getLogger("tightrope")

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy")


def folder() -> Path | None:
    """The folder of compiled programs for CPUs; None if there is none. Those of other devices are in JAX's cache alone."""
    name = jax.config.values["jax_compilation_cache_dir"]
    return Path(name) if name and "://" not in name and jax.default_backend() == "cpu" else None


def calls_of(described: str) -> list[tuple[Call, ...]]:
    """The lists of calls of the programs in the folder that have this definition."""
    where = folder()
    if where is None:
        return []
    try:
        lists = json.loads((where / f"{_name(described)}.json").read_text())
        return [tuple(Call(*one) for one in calls) for calls in lists]
    except (OSError, ValueError, TypeError):
        return []


def read(described: str, computed: str | None) -> tuple[tuple[Any, ...], bytes] | None:
    """What is known of a program in the folder, and its executable; None if it is not there."""
    where = folder()
    if where is None or computed is None:
        return None
    try:
        with open(where / _file(described, computed), "rb") as file:
            known, executable = _Plain(file).load()
        return known, executable
    except (OSError, EOFError, ValueError, TypeError, pickle.UnpicklingError):
        return None


def write(described: str, calls: tuple[Call, ...], computed: str, known: Any, compiled: Future[Any]) -> None:
    """Put a program into the folder, once it is compiled."""
    where = folder()
    if where is None or compiled.exception() is not None:
        return
    try:
        executable = zlib.compress(serialize_executable.serialize(compiled.result())[0], level=1)
        _replace(where / _file(described, computed), pickle.dumps((tuple(known), executable)))
        lists = {*calls_of(described), calls}
        _replace(where / f"{_name(described)}.json", json.dumps(sorted(lists, key=repr)).encode())
    except Exception as error:  # a full disk, a program that cannot be written: it is compiled again next time
        logger.debug("a program was not kept: %s", error)


def load(executable: bytes, arguments: int, results: int) -> Any:
    """The executable of a program that takes one list of arrays and returns one."""
    _load_lapack()
    takes, returns = jax.tree.structure((([0] * arguments,), {})), jax.tree.structure([0] * results)
    return serialize_executable.deserialize_and_load(zlib.decompress(executable), takes, returns)


@cache
def _load_lapack() -> None:
    """Have JAX load LAPACK, which it does when it lowers an operation that needs it; executables crash without it."""
    jax.jit(jnp.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), jnp.float32))


def _replace(path: Path, content: bytes) -> None:
    """Write a file at once: another process sees the old one or the new one."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)


class _Plain(pickle.Unpickler):
    """Reads numbers, text, bytes and tuples."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not plain data")


def _name(described: str) -> str:
    return f"tightrope-{digest(described, _versions())[:40]}"


def _file(described: str, computed: str) -> str:
    return f"{_name(described)}-{computed[:40]}.program"


@cache
def _versions() -> str:
    """The versions of everything that programs depend on."""
    device = jax.devices()[0]
    library = sorted(Path(__file__).parents[1].rglob("*.py"))
    return digest(
        [version(name) for name in PACKAGES],
        [path.read_text() for path in library],
        [platform.machine(), _processor(), device.device_kind, device.client.platform_version, jax.device_count()],
        os.environ.get("XLA_FLAGS", ""),
    )


def _processor() -> str:
    """What the processor can do, where the system says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
