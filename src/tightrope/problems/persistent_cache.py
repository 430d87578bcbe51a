"""The persistent cache of compiled programs, in a folder of the user's choice."""

from __future__ import annotations

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache
from jaxlib import utils  # pyright: ignore[reportAttributeAccessIssue]

from ..arguments import check_type
from . import program_folder

FATAL = 3
"""The level of XLA's messages that are still shown."""


def cache(folder: str | os.PathLike[str]) -> None:
    """Keep compiled programs in a folder, so that later processes need not trace and compile them again.

    Call it before the first program is compiled. The folder becomes that of JAX's persistent compilation cache, for all
    programs of the process, however small, and has traces of Tightrope's programs beside it. A program is found again by
    what your functions compute, the settings, shapes and versions, and the kind of device. What is damaged or from
    elsewhere is traced and compiled again. XLA's messages are turned off, except for fatal ones: on CPUs it calls every
    program that it loads an error (jax issue 38445).

    The folder holds machine code, as JAX's cache does: use one that only you, and those whose programs you would run, can
    write to. Arrays that your functions close over are a part of programs, data in a `Dataset` are not. Beyond a gigabyte,
    a call of `cache` removes the programs that were used longest ago. The folder may be deleted at any time.

    The command line keeps its programs in `~/.cache/tightrope/programs` (below `XDG_CACHE_HOME`, if that is set). The
    environment variable `TIGHTROPE_CACHE` names another folder, or none if it is empty.

    Args:
        folder: the folder; it is made if it does not exist.

    Example:
        >>> import tempfile, tightrope as tr
        >>> tr.cache(tempfile.mkdtemp())
    """
    check_type("cache", "folder", folder, (str, os.PathLike), "the name of a folder")
    path = Path(folder).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError(f"cache: folder must be a folder, got the file {path}")
    path.mkdir(parents=True, exist_ok=True)
    program_folder.prune(path)
    program_folder.choose(path)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()
    utils.absl_set_min_log_level(FATAL)


def use_default_cache() -> None:
    """Keep the programs of the command line, unless `TIGHTROPE_CACHE` is empty or JAX has a cache already."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("TIGHTROPE_CACHE", f"{base}/tightrope/programs")
    if folder and not jax.config.values["jax_compilation_cache_dir"]:
        cache(folder)
