"""Whether saved runs are still those of their entry: a hash of what they depend on, as far as it can be told.

That is the version of the library, the numbers of the part, the settings of the entry, and the part's functions: their
arguments, and the text of their modules and of what these import from the folders of experiments. A changed problem or
configuration is another run; a changed claim, plot or description, which no run imports, is not.
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
IN_A_FOLDER = re.compile(rf"{re.escape(EXPERIMENTS)}\.\w+\.\w+")


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
    code = [text for function in functions for text in _said_by(function)]
    text = [__version__, part.name, entry.label, *map(repr, numbers), *map(repr, entry.grid), *code]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _said_by(function: Any) -> list[str]:
    """The arguments that a function is given, with the files among them, and the text of its modules."""
    given: list[Any] = []
    while isinstance(function, partial):
        given += [*function.args, *function.keywords.items()]
        function = function.func
    files = [file.read_text(encoding="utf-8") for file in given if isinstance(file, Path) and file.is_file()]
    return [repr(given), *files, *sorted(modules(getattr(function, "__module__", "")).values())]


def modules(name: str) -> dict[str, str]:
    """The text of a module and of those in the folders of experiments that it imports, by name; none of the library's own.

    Example:
        >>> from tightrope.experiments import fair_adult
        >>> sorted(each.rpartition(".")[2] for each in modules("tightrope.experiments.fair_adult.problem"))
        ['config', 'problem']
    """
    if name.partition(".")[0] == LIBRARY and not IN_A_FOLDER.fullmatch(name):
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
                waiting += [each for each in imported if IN_A_FOLDER.fullmatch(each)]
    return found
