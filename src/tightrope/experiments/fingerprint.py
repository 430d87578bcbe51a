"""A hash of what the runs of an entry depend on, which tells whether saved runs are still valid.

It covers the version of the library, the numbers of the part, the settings of the entry, and code: the part's functions with
their arguments, the entry's methods, the loop that runs them, and every module of the library that these import, without
comments and docstrings. Other methods are left out, and so is the code of experiments that no run imports. So runs are
repeated after a change of their problem, their method or the loop, and kept after a change of a claim, a plot or a
description.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable
from functools import cache, partial
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from .. import __version__
from ..methods import Method
from .base import Entry, Part

LIBRARY, EXPERIMENTS = __name__.split(".")[0], __name__.rpartition(".")[0]
MODULE_OF_AN_EXPERIMENT = re.compile(rf"{re.escape(EXPERIMENTS)}\.\w+\.\w+")
LEFT_OUT = re.compile(rf"{LIBRARY}|{LIBRARY}\.(cli|experiments|methods|figures|shown|tables|runs\.plots)\b.*")
SHARED_BY_METHODS = re.compile(rf"{LIBRARY}\.methods\.(base|shared\b.*)")
LOOP = (f"{LIBRARY}.runs.solving", f"{LIBRARY}.runs.sweeping")


def fingerprint(part: Part, entry: Entry) -> str:
    """The hash of an entry of a part.

    Example:
        >>> import tightrope as tr
        >>> entry = Entry("SSG", (tr.methods.SwitchingSubgradient(),))
        >>> short, long = (Part("lens", tr.zoo.lens, (entry,), steps=steps) for steps in (10, 20))
        >>> fingerprint(short, entry) == fingerprint(long, entry)
        False
    """
    numbers = part.steps, part.samples, part.seeds, part.records, part.lanes, part.score_text
    arguments, origins = [], [*LOOP, *_modules_of_methods(entry.grid)]
    for function in (part.measure, part.make, part.metrics, part.final_metrics, *filter(None, [part.scores])):
        given, origin = _unwrap(function)
        arguments += [repr(given), *(f.read_text(encoding="utf-8") for f in given if _is_file(f))]
        origins.append(origin)
    code = [text for _, text in sorted(modules(*origins).items())]
    text = [__version__, part.name, entry.label, *map(repr, numbers), *map(repr, entry.grid), *arguments, *code]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _unwrap(function: Any) -> tuple[list[Any], str]:
    """The arguments bound to a function, and the module that it comes from."""
    given: list[Any] = []
    while isinstance(function, partial):
        given += [*function.args, *function.keywords.items()]
        function = function.func
    return given, getattr(function, "__module__", "") or ""


def _is_file(argument: Any) -> bool:
    return isinstance(argument, Path) and argument.is_file()


def _modules_of_methods(grid: Iterable[Method]) -> set[str]:
    """The modules of all methods, also of those that are settings of others."""

    def is_inner(node: Any) -> bool:
        return isinstance(node, Method)

    found: set[str] = set()
    for method in grid:
        inner = [getattr(method, name) for name in method.__dataclass_fields__]
        found |= {type(method).__module__, *_modules_of_methods(filter(is_inner, inner))}
    return found


def modules(*names: str) -> dict[str, str]:
    """The code of these modules and of all that they import from the library, by name.

    Example:
        >>> from tightrope.experiments import fair_adult  # modules must be imported
        >>> found = modules("tightrope.experiments.fair_adult.problem")
        >>> sorted(each.rpartition(".")[2] for each in found if "experiments" in each)
        ['config', 'problem']
    """
    own = {name.split(".")[2] for name in names if name.startswith(f"{LIBRARY}.methods.")}
    found: dict[str, str] = {}
    waiting = [name for name in names if name in sys.modules]
    while waiting:
        name = waiting.pop()
        file = getattr(sys.modules.get(name), "__file__", None)
        if name in found or file is None:
            continue
        found[name], imported = _read(name, Path(file))
        waiting += [each for each in imported if _is_followed(each, own)]
    return found


def _is_followed(name: str, methods: set[str]) -> bool:
    """Whether the code of an imported module belongs to a run; `methods` are the folders or files of its own methods."""
    if name.partition(".")[0] != LIBRARY:
        return False
    if MODULE_OF_AN_EXPERIMENT.fullmatch(name) or SHARED_BY_METHODS.fullmatch(name):
        return True
    parts = name.split(".")
    return not LEFT_OUT.fullmatch(name) or (parts[1:2] == ["methods"] and len(parts) > 2 and parts[2] in methods)


def _read(name: str, file: Path) -> tuple[str, list[str]]:
    """The code of a module without comments and docstrings, and the names that it imports."""
    code, froms = _parse(file.read_text(encoding="utf-8"))
    imported = []
    for relative, names in froms:
        origin = resolve_name(relative, sys.modules[name].__package__)
        imported += [origin, *(f"{origin}.{each}" for each in names)]
    return code, imported


@cache
def _parse(text: str) -> tuple[str, list[tuple[str, list[str]]]]:
    """The code without comments and docstrings; and for each `from a import b, c` the names a and [b, c]."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [each for each in body if not _is_text(each)] or [ast.Pass()]
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return ast.unparse(tree), [("." * f.level + (f.module or ""), [each.name for each in f.names]) for f in froms]


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
