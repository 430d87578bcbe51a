"""A description of what is static about a value: all but the numbers of its arrays.

Two values with one description are the same to a trace of the library's own code, as long as they call the same functions of the
user's. `canonical` describes values whole, with their numbers.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .canonical import Token, describe

TRUSTED = ("tightrope", "jax", "jaxlib", "equinox", "optax", "numpy", "builtins")
"""Packages whose classes and functions are described by their names: a version has them once."""

PLAIN = (str, bytes, bool, int, float, complex, type(None), type(Ellipsis))


class UnknownStructure(Exception):
    """Raised where a value has no description: code of the user's, or an object of an unknown kind."""


def shape_of(leaf: Any) -> tuple[Any, Any, Any]:
    """The shape, dtype and weak type of an array, or of a number or a shape in its place."""
    aval: Any = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return aval.shape, aval.dtype, aval.weak_type


def structure(value: Any, named: Mapping[int, str], static: bool = False) -> Iterator[Token]:
    """The description, piece by piece.

    Args:
        value: the value.
        named: names of objects, by their ids; such an object is described by its name.
        static: whether the numbers of arrays belong to the description.
    """
    if id(value) in named:
        yield named[id(value)]
    elif isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        if static:
            yield from describe(value)
        else:
            yield f"array {shape_of(value)}"
    elif isinstance(value, PLAIN):
        yield (
            f"{type(value).__name__} {value!r}"
            if static
            else type(value).__name__
            if _is_number(value)
            else repr(value)
        )
    elif isinstance(value, type):
        yield _name(value)
    elif isinstance(value, np.dtype):
        yield f"dtype {value}"
    elif isinstance(value, Mapping):
        yield from _each("dict", [*value.keys(), *value.values()], named, static)
    elif isinstance(value, set | frozenset):
        yield from _each("set", sorted(value, key=repr), named, static)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, named)
    elif isinstance(value, tuple | list):
        yield from _each(_name(type(value)), value, named, static)
    elif dataclasses.is_dataclass(value):
        yield from _each(_name(type(value)), (), named, static)
        for field in dataclasses.fields(value):
            fixed = static or bool(field.metadata.get("static", not isinstance(value, eqx.Module)))
            yield field.name
            yield from structure(getattr(value, field.name, None), named, fixed)
    elif hasattr(type(value), "static_parts"):
        yield from _each(_name(type(value)), value.static_parts(), named, static)
    else:
        raise UnknownStructure(f"{type(value).__name__}")


def _each(kind: str, values: Any, named: Mapping[int, str], static: bool) -> Iterator[Token]:
    yield f"{kind}("
    for value in values:
        yield from structure(value, named, static)
    yield ")"


def _is_number(value: Any) -> bool:
    """Whether a value is a leaf of a pytree, which a trace takes for an array."""
    return isinstance(value, bool | int | float | complex)


def _function(function: types.FunctionType, named: Mapping[int, str]) -> Iterator[Token]:
    """The name of a library's function, and what it closes over."""
    yield _name(function)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    yield from _each("closure", [*(function.__defaults__ or ()), *cells], named, static=True)


def _name(value: Any) -> str:
    """The name of a class or function of a trusted package."""
    module = value.__module__ or ""
    if module.partition(".")[0] not in TRUSTED:
        raise UnknownStructure(f"{module}.{value.__qualname__}")
    return f"{module}.{value.__qualname__}"
