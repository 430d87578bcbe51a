"""The public names and their signatures are those of public_api.txt, so that no change goes unseen."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import tightrope as tr
import tightrope.sklearn
import tightrope.testing
import tightrope.torch
from tightrope.cli import app

ACCEPT = "python tests/unit/test_public_api.py > tests/unit/public_api.txt"
FILE = Path(__file__).with_name("public_api.txt")
MODULES = (
    *(tr, tr.datasets, tr.domains, tr.methods, tr.rates, tr.zoo, tr.zoo.hs, tr.zoo.infeasible, tr.zoo.learning),
    *(tr.sklearn, tr.testing, tr.torch),
)


def names_of(module: ModuleType) -> dict[str, Any]:
    """The names of a module's __all__, or those defined in it without an underscore; modules are left out."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    names = getattr(module, "__all__", [name for name in defined if not name.startswith("_")])
    found = {f"{module.__name__}.{name}": getattr(module, name) for name in sorted(names)}
    return {name: value for name, value in found.items() if not inspect.ismodule(value)}


class Written:
    """A default value whose repr is short and the same in every process: ... where the value is not a plain one."""

    def __init__(self, value: Any):
        self.value = str(value) if isinstance(value, Path) else value

    def __repr__(self) -> str:
        parts = self.value if isinstance(self.value, tuple) else (self.value,)
        plain = all(isinstance(part, type(None) | bool | int | float | str) for part in parts)
        return repr(self.value) if plain else "..."


def signature(call: Callable[..., Any], bound: bool = False) -> str:
    """Names, kinds and defaults of the public parameters, without their types, and without self."""
    empty, parameters = inspect.Parameter.empty, []
    for parameter in list(inspect.signature(call).parameters.values())[bound:]:
        default = empty if parameter.default is empty else Written(parameter.default)
        if not parameter.name.startswith("_"):
            parameters.append(parameter.replace(annotation=empty, default=default))
    return str(inspect.Signature(parameters))


def members(cls: type, bases: set[type]) -> Iterator[str]:
    """The public methods and properties of a class, apart from those that one of the bases has."""
    known = {name for base in cls.__mro__[1:] if base in bases for name in dir(base)}
    for name in sorted(set(dir(cls)) - known):
        owner = next((c for c in cls.__mro__ if name in vars(c)), type)
        if name.startswith("_") or not owner.__module__.startswith("tightrope"):
            continue
        member = inspect.getattr_static(cls, name)
        if isinstance(member, staticmethod | classmethod):
            yield f".{name}{signature(getattr(cls, name))}"
        elif inspect.isfunction(member):
            yield f".{name}{signature(member, bound=True)}"
        elif isinstance(member, property | cached_property):
            yield f".{name}"


def commands() -> Iterator[str]:
    """The commands of the command line with their arguments, options and defaults."""
    group = typer.main.get_command(app)
    for name, command in {"": group, **group.commands}.items():
        yield f"$ tightrope {name}".rstrip()
        for parameter in command.params:
            yield f"    {', '.join(parameter.opts + parameter.secondary_opts)} = {Written(parameter.default)}"


def public_api() -> str:
    """One line for each public name with its signature, those of a class's members below it, and the commands."""
    names = {name: value for module in MODULES for name, value in names_of(module).items()}
    classes = {value for value in names.values() if inspect.isclass(value)}
    lines = []
    for name, value in names.items():
        lines.append(name + (signature(value) if callable(value) else ""))
        if inspect.isclass(value):
            lines += [f"    {member}" for member in members(value, classes)]
    return "\n".join([*lines, *commands()]) + "\n"


def test_the_public_names_and_signatures_are_those_of_the_file():
    known = FILE.read_text(encoding="utf-8")
    changes = difflib.unified_diff(
        known.splitlines(), public_api().splitlines(), "public_api.txt", "now", lineterm="", n=0
    )
    told = "\n".join(changes)
    assert not told, f"The public API changed; if this is meant, accept it with `{ACCEPT}`:\n{told}"


if __name__ == "__main__":
    print(public_api(), end="")
