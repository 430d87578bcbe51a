"""The structure of what a program returns, as plain lists and text: read back, it is made of another problem's objects."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import jax

from .structure import LEAF, TRUSTED, UnknownStructure, name_of

JSON = (str, bool, int, float, type(None))
"""What JSON writes and reads back as it was."""


def written(structure: Any, objects: Mapping[str, Any]) -> str | None:
    """The text of a structure; None if it has none.

    Args:
        structure: the structure.
        objects: static objects that may be a part of it; the text has their names.
    """
    names = {id(each): name for name, each in objects.items()}
    try:
        text = json.dumps(_written(jax.tree.unflatten(structure, [LEAF] * structure.num_leaves), names))
        return text if read(text, objects) == structure else None
    except (UnknownStructure, TypeError, ValueError, AttributeError):
        return None


def functions_in(value: Any) -> Iterator[Callable[..., Any]]:
    """The functions in containers and settings, such as an optimizer's, in the order in which `structure` describes them."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from functions_in(each)
    elif type(value) is dict:
        yield from functions_in([*value.values()])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from functions_in([getattr(value, field.name) for field in dataclasses.fields(value)])


def read(text: str, objects: Mapping[str, Any]) -> Any:
    """The structure of a text, with these objects."""
    return jax.tree.structure(_read(json.loads(text), objects))


def _written(value: Any, names: Mapping[int, str]) -> list[Any]:
    if value is LEAF:
        return ["leaf"]
    if id(value) in names:
        return ["object", names[id(value)]]
    if type(value) in JSON:
        return ["plain", value]
    if type(value) in (tuple, list):
        return [type(value).__name__, [_written(each, names) for each in value]]
    if type(value) is dict:
        return ["dict", [[_written(each, names) for each in item] for item in value.items()]]
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        return ["tuple of", name_of(type(value)), [_written(each, names) for each in value]]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _written(getattr(value, field.name), names) for field in dataclasses.fields(value)}
        return ["object of", name_of(type(value)), fields]
    raise UnknownStructure(type(value).__name__)


def _read(written: list[Any], objects: Mapping[str, Any]) -> Any:
    kind, *rest = written
    if kind == "leaf":
        return LEAF
    if kind == "object":
        return objects[rest[0]]
    if kind == "plain":
        return rest[0]
    if kind in ("tuple", "list"):
        return {"tuple": tuple, "list": list}[kind](_read(each, objects) for each in rest[0])
    if kind == "dict":
        return {_read(key, objects): _read(value, objects) for key, value in rest[0]}
    cls = _class(rest[0])
    if kind == "tuple of":
        return cls(*(_read(each, objects) for each in rest[1]))
    value = object.__new__(cls)
    for name, each in rest[1].items():
        object.__setattr__(value, name, _read(each, objects))
    return value


def _class(name: str) -> type:
    """The class of this name; an error unless it is a dataclass or a named tuple of a package that is known to be harmless."""
    module, _, path = name.partition(":")
    if module.partition(".")[0] not in TRUSTED or module == "builtins":
        raise UnknownStructure(name)
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or not (dataclasses.is_dataclass(found) or hasattr(found, "_fields")):
        raise UnknownStructure(name)
    return found
