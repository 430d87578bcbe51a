"""Options that commands share: methods by name, and the problem that TARGET refers to."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from .. import zoo
from ..arguments import did_you_mean
from ..methods import Method, available, by_name
from ..problems.problem import Problem
from .terminal import fail, one_line_errors

Steps = Annotated[int, typer.Option(min=1, metavar="N", help="Number of steps.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="Random seed.")]
Target = Annotated[str, typer.Argument(help="A problem of the zoo, or file.py:object.", show_default=False)]
Start = Annotated[
    str | None,
    typer.Option("--x0", metavar="NAME", help="The start in file.py, if the object is a Problem.", show_default="x0"),
]
Case = tuple[Problem, Any, zoo.Solution | None]
"""A problem, a starting point, and the solution if it is known."""


def method_named(name: str, option: str) -> type[Method]:
    """The method of this name; `option` is the option that the user gave it with."""
    try:
        return by_name(name)
    except ValueError:
        fail(f"{option} must be a name from `tightrope methods`, got {name!r}{did_you_mean(name, available())}")


def case_maker(target: str, x0: str | None = None) -> partial[Case]:
    """A function that returns the problem, the starting point, and the solution if it is known.

    Args:
        target: a name from `tightrope problems`, or file.py:object.
        x0: the name of the start in the file, for an object that is a `Problem`.
    """
    problems = zoo.available()
    if target in problems:
        _refuse_x0(x0, target)
        return partial(problems[target])
    file, colon, name = target.rpartition(":")
    if not colon:
        expected = "TARGET must be a name from `tightrope problems` or file.py:object"
        fail(f"{expected}, got {target!r}{did_you_mean(target, problems)}")
    return partial(case_from_file, Path(file), name, x0)


def case_from_file(file: Path, name: str, x0: str | None) -> Case:
    """The case that an object of a Python file defines: a `Problem`, a tuple, or a function that returns one of them."""
    target, found = f"{file}:{name}", _attribute(file, name)
    if callable(found):
        with one_line_errors(target):
            found = found()
    if isinstance(found, Problem):
        return found, _start_of(file, name, x0 or "x0"), None
    _refuse_x0(x0, target)
    if not (isinstance(found, tuple) and len(found) in (2, 3) and isinstance(found[0], Problem)):
        expected = "a Problem, (problem, x0) or (problem, x0, solution)"
        fail(f"{target} must be {expected}, got {type(found).__name__}")
    problem, start, solution = found if len(found) == 3 else (*found, None)
    if not isinstance(solution, zoo.Solution | None):
        fail(f"{target}: the solution must be a tightrope.zoo.Solution, got {type(solution).__name__}")
    return problem, start, solution


def _start_of(file: Path, name: str, x0: str) -> Any:
    """The start of a `Problem` in a file: the object called `x0` there."""
    if not hasattr(_module(file), x0):
        hint = did_you_mean(x0, vars(_module(file)))
        fail(f"{file}:{name} is a Problem, and {file} has no start {x0!r} for it; name its start with --x0 NAME{hint}")
    return getattr(_module(file), x0)


def _refuse_x0(x0: str | None, target: str) -> None:
    if x0 is not None:
        fail(f"--x0 is for a file.py:object that is a Problem, got {x0!r}; {target} has a start of its own")


def _attribute(file: Path, name: str) -> Any:
    """The object of this name in a Python file."""
    module = _module(file)
    if not hasattr(module, name):
        fail(f"{file} has no object {name!r}{did_you_mean(name, vars(module))}")
    return getattr(module, name)


@cache
def _module(file: Path) -> ModuleType:
    """The module in a Python file, run once; it may import modules from its own folder."""
    if not file.is_file():
        fail(f"TARGET must be file.py:object, and there is no file {str(file)!r}")
    spec = importlib.util.spec_from_file_location("tightrope_target", file)
    if spec is None or spec.loader is None:
        fail(f"TARGET must be file.py:object, and {str(file)!r} is not a Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.absolute().parent))
    with one_line_errors(str(file)):
        spec.loader.exec_module(module)
    return module
