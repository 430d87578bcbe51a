"""Traces of programs in the folder of `cache`.

A trace is kept in the format of `jax.export`, beside the executables in JAX's own cache, where JAX finds the executable of a
trace. Names of files hold a digest of all versions: those of the packages, of the library's code and of the device. What cannot
be read or written counts as missing.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import sys
import threading
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from .calls import Call
from .canonical import digest
from .structure import Shape, arrays_of, shapes_of

logger = logging.getLogger("tightrope")

PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy")
MAX_TRACE_BYTES = 2**24
"""A larger trace is not kept: it has data that a function closes over."""
MAX_FOLDER_BYTES = 2**30
"""`prune` leaves no more than this."""

_chosen: list[Path] = []


def choose(folder: Path) -> None:
    """Keep traces in this folder, as long as it is the one of JAX's cache."""
    _chosen[:] = [folder]


def _folder() -> Path | None:
    current = jax.config.values["jax_compilation_cache_dir"]
    return _chosen[0] if _chosen and current == str(_chosen[0]) else None


def prune(folder: Path) -> None:
    """Remove the programs that were used longest ago, until the folder is small enough."""
    try:
        found = [(path, path.stat()) for path in folder.iterdir() if path.name.endswith(("-cache", "-calls", "-trace"))]
        size = sum(stat.st_size for _, stat in found)
        for path, stat in sorted(found, key=lambda pair: max(pair[1].st_atime, pair[1].st_mtime)):
            if size <= MAX_FOLDER_BYTES:
                return
            path.unlink(missing_ok=True)
            size -= stat.st_size
    except OSError as error:  # another process removes files too, or the folder is read-only
        logger.debug("the folder of programs was not pruned: %s", error)


def exported(jitted: Any, leaves: list[Any]) -> export.Exported | None:
    """A function of a list of arrays in a form that can be kept; None if there is no folder or no such form."""
    if _folder() is None:
        return None
    try:
        found = export.export(jitted)(arrays_of(shapes_of(leaves)))
    except Exception as error:  # it calls code outside of JAX
        logger.debug("a program cannot be kept: %s", error)
        return None
    return None if any(aval.weak_type for aval in found.out_avals) else found


def lower(trace: export.Exported, leaves: list[Any]) -> Any:
    """Lower a trace for arguments like these, wherever they lie."""
    return jax.jit(trace.call).lower(arrays_of(shapes_of(leaves)))


def lowered(trace: export.Exported, leaves: list[Any]) -> Any:
    """Lower a trace that was read; None if it is not for these arguments after all."""
    try:
        return lower(trace, leaves)
    except Exception as error:
        logger.debug("a program is traced again: %s", error)
        return None


def write(
    described: str, calls: tuple[Call, ...], computed: str, known: tuple[str, str, Any], trace: export.Exported
) -> None:
    """Keep a trace."""
    where = _folder()
    if where is None:
        return
    try:
        content = trace.serialize()
        if len(content) <= MAX_TRACE_BYTES:
            file = io.BytesIO()
            header = np.frombuffer(json.dumps(known).encode(), np.uint8)
            np.savez_compressed(file, header=header, trace=np.frombuffer(content, np.uint8))
            _replace(where / _name(described, computed), file.getvalue())
            _replace(where / _name(described), json.dumps(calls).encode())
    except Exception as error:  # a full disk, a read-only folder: it is traced again next time
        logger.debug("a program was not kept: %s", error)


def read_calls(described: str) -> tuple[Call, ...] | None:
    """The calls of the programs that have this definition; None if there are none."""
    where = _folder()
    if where is None:
        return None
    try:
        found = json.loads((where / _name(described)).read_text())
        return tuple(Call(*one) for one in found)
    except (OSError, ValueError, TypeError) as error:
        logger.debug("no program is known: %s", error)
        return None


def read(described: str, computed: str) -> tuple[tuple[str, str, tuple[Shape, ...]], export.Exported] | None:
    """What is known of a program, and its trace; None if it is not there."""
    where = _folder()
    if where is None:
        return None
    try:
        with np.load(where / _name(described, computed), allow_pickle=False) as file:
            key, returned, shapes = json.loads(bytes(file["header"]))
            return (str(key), str(returned), _shapes(shapes)), export.deserialize(bytearray(file["trace"]))
    except FileNotFoundError:
        return None
    except Exception as error:  # damaged, in one of many ways
        logger.debug("a program is traced again: %s", error)
        return None


def _shapes(found: Any) -> tuple[Shape, ...]:
    return tuple((tuple(map(int, shape)), str(dtype), bool(weak_type)) for shape, dtype, weak_type in found)


def _replace(path: Path, content: bytes) -> None:
    """Write a file at once: another process sees the old one or the new one."""
    new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    new.write_bytes(content)
    new.replace(path)


def _name(described: str, computed: str | None = None) -> str:
    name = f"tightrope-{digest(described, _versions())[:40]}"
    return f"{name}-calls" if computed is None else f"{name}-{computed[:40]}-trace"


@cache
def _versions() -> str:
    """The versions of everything that traces depend on."""
    library = sorted(Path(__file__).parents[1].rglob("*.py"))
    packages = [version(name) for name in PACKAGES]
    code = hashlib.sha256(b"".join(path.read_bytes() for path in library)).hexdigest()
    device = jax.devices()[0]
    return digest(sys.version, packages, code, device.platform, device.device_kind, len(jax.devices()))
