"""A hash of what the runs of an entry depend on, which tells whether saved runs are still valid.

It covers the version of the library, the numbers of the part, the settings of the entry, and the part's functions: their
arguments, the source of their modules, and the source of the modules that these import from folders of experiments. So a
changed problem or configuration is run again; a changed claim, plot or description is not, since no run imports it.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from functools import partial
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from .. import __version__
from .base import Entry, Part

LIBRARY, EXPERIMENTS = __name__.split(".")[0], __name__.rpartition(".")[0]
MODULE_OF_AN_EXPERIMENT = re.compile(rf"{re.escape(EXPERIMENTS)}\.\w+\.\w+")


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
    functions = part.measure, part.make, part.metrics, part.final_metrics
    code = [text for function in functions for text in _source_of(function)]
    text = [__version__, part.name, entry.label, *map(repr, numbers), *map(repr, entry.grid), *code]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _source_of(function: Any) -> list[str]:
    """The arguments bound to a function, the contents of files among them, and the source of its modules."""
    given: list[Any] = []
    while isinstance(function, partial):
        given += [*function.args, *function.keywords.items()]
        function = function.func
    files = [file.read_text(encoding="utf-8") for file in given if isinstance(file, Path) and file.is_file()]
    return [repr(given), *files, *sorted(modules(getattr(function, "__module__", "")).values())]


def modules(name: str) -> dict[str, str]:
    """The source of a module and of the modules of experiments that it imports, by name; without the library's own.

    Example:
        >>> from tightrope.experiments import fair_adult  # modules must be imported
        >>> sorted(each.rpartition(".")[2] for each in modules("tightrope.experiments.fair_adult.problem"))
        ['config', 'problem']
    """
    if name.partition(".")[0] == LIBRARY and not MODULE_OF_AN_EXPERIMENT.fullmatch(name):
        return {}
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in found or module is None or getattr(module, "__file__", None) is None:
            continue
        found[name] = Path(str(module.__file__)).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(found[name])):
            if isinstance(node, ast.ImportFrom):
                origin = resolve_name("." * node.level + (node.module or ""), module.__package__)
                imported = [origin, *(f"{origin}.{each.name}" for each in node.names)]
                waiting += [each for each in imported if MODULE_OF_AN_EXPERIMENT.fullmatch(each)]
    return found
