"""What is asked for: options that commands share, methods by name, and the problem that TARGET stands for."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import zoo
from ..methods import Method, available
from ..methods import by_name as method_by_name
from ..problems.problem import Problem
from .terminal import fail, hint, one_line_errors

Steps = Annotated[int, typer.Option(min=1, metavar="N", help="How many steps a run takes.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="The same seed gives the same run.")]
Target = Annotated[str, typer.Argument(help="A problem of the zoo, or file.py:object.", show_default=False)]
Case = tuple[Problem, Any, zoo.Solution | None]
"""A problem, where to start, and the solution where one is known."""


def by_name(name: str, option: str) -> type[Method]:
    """The method of this name, which came with this option."""
    try:
        return method_by_name(name)
    except ValueError:
        fail(f"{option} must be a name from `tightrope methods`, got {name!r}{hint(name, available())}")


def case(target: str) -> partial[Case]:
    """Gives the problem, where to start, and the solution where one is known."""
    problems = zoo.available()
    if target in problems:
        return partial(problems[target])
    file, colon, name = target.rpartition(":")
    if not colon:
        expected = "TARGET must be a name from `tightrope problems` or file.py:object"
        fail(f"{expected}, got {target!r}{hint(target, problems)}")
    return partial(_own, Path(file), name)


def _own(file: Path, name: str) -> Case:
    """What the object of this name in a Python file gives."""
    target, found = f"{file}:{name}", _object(file, name)
    if not (isinstance(found, tuple) and len(found) in (2, 3) and isinstance(found[0], Problem)):
        fail(f"{target} must be (problem, x0) or (problem, x0, solution), got {type(found).__name__}")
    problem, x0, *rest = found
    solution = rest[0] if rest else None
    if not isinstance(solution, zoo.Solution | None):
        fail(f"{target}: the solution must be a tightrope.zoo.Solution, got {type(solution).__name__}")
    return problem, x0, solution


def _object(file: Path, name: str) -> Any:
    """The object of this name in a Python file, which may import its neighbors; a function is called."""
    if not file.is_file():
        fail(f"TARGET must be file.py:object, and there is no file {str(file)!r}")
    spec = importlib.util.spec_from_file_location("tightrope_target", file)
    if spec is None or spec.loader is None:
        fail(f"TARGET must be file.py:object, and {str(file)!r} is not a Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.absolute().parent))
    with one_line_errors(str(file)):
        spec.loader.exec_module(module)
    if not hasattr(module, name):
        fail(f"{file} has no object {name!r}{hint(name, vars(module))}")
    found = getattr(module, name)
    with one_line_errors(f"{file}:{name}"):
        return found() if callable(found) else found
