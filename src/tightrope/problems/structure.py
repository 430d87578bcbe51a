"""A description of what is static about a value: all but the numbers of its arrays.

Two values with one description are the same to a trace of the library's own code, as long as they call the same functions of
the user's. Whatever is not known to be so has no description. `canonical` describes values whole, with their numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from .canonical import Token, describe, describe_code

TRUSTED = ("tightrope", "jax", "jaxlib", "equinox", "optax", "numpy", "builtins")
"""Packages whose classes and functions are described by their names: a version has them once."""

LEAF = object()
"""Stands for an array of a pytree."""

PLAIN = (str, bytes, bool, int, float, complex, type(None), type(Ellipsis))


class UnknownStructure(Exception):
    """Raised where a value has no description: code of the user's, or an object of an unknown kind."""


def shape_of(leaf: Any) -> tuple[Any, Any, Any]:
    """The shape, dtype and weak type of an array, or of a number or a shape in its place."""
    aval: Any = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else getattr(leaf, "aval", None) or jax.typeof(leaf)
    return aval.shape, aval.dtype, aval.weak_type


Shape = tuple[tuple[int, ...], str, bool]
"""The shape, dtype and weak type of an array, in plain numbers and text."""


def shapes_of(tree: Any) -> tuple[Shape, ...]:
    """The shapes of the arrays of a pytree."""
    found = map(shape_of, jax.tree.leaves(tree))
    return tuple((tuple(shape), str(dtype), weak_type) for shape, dtype, weak_type in found)


def arrays_of(shapes: Iterable[Shape]) -> list[jax.ShapeDtypeStruct]:
    """Arrays of these shapes; a random key is of the kind that JAX makes by default."""
    key = jax.eval_shape(lambda: jax.random.key(0)).dtype
    return [
        jax.ShapeDtypeStruct(shape, key if name == str(key) else name, weak_type=weak_type)
        for shape, name, weak_type in shapes
    ]


def structure(value: Any, named: Mapping[int, int], static: bool = True) -> Iterator[Token]:
    """The description, piece by piece.

    Args:
        value: the value.
        named: numbers of functions of the user's, by their ids; such a function is described by its number.
        static: whether the numbers of arrays belong to the description, as they do for all but arguments of a program.
    """
    if id(value) in named:
        yield f"function {named[id(value)]}"
    elif value is LEAF:
        yield "leaf"
    elif isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        yield f"array {shape_of(value)}"
        if static:
            yield from describe(value)
    elif type(value) in PLAIN:
        is_leaf = not static and isinstance(value, bool | int | float | complex)
        yield f"{type(value).__name__} {'' if is_leaf else repr(value)}"
    elif isinstance(value, type):
        yield name_of(value)
    elif isinstance(value, np.dtype):
        yield f"dtype {value}"
    elif isinstance(value, jax.tree_util.PyTreeDef):
        yield from structure(jax.tree.unflatten(value, [LEAF] * value.num_leaves), named)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, named)
    elif type(value) is functools.partial:
        yield from _each("partial", (value.func, value.args, value.keywords), named, static=True)
    elif type(value) in (dict, types.MappingProxyType):
        yield from _each("keys", value.keys(), named, static=True)
        yield from _each("values", value.values(), named, static)
    elif type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(type(value), "_fields")):
        yield from _each(name_of(type(value)), value, named, static)
    elif dataclasses.is_dataclass(value):
        yield from _dataclass(value, named, static)
    elif (parts := getattr(value, "_static_parts", None)) is not None:
        yield from _each(name_of(type(value)), parts(), named, static=True)
    else:
        raise UnknownStructure(type(value).__name__)


def name_of(value: Any) -> str:
    """The name of a class of a trusted package."""
    if value.__module__.partition(".")[0] not in TRUSTED:
        raise UnknownStructure(f"{value.__module__}.{value.__qualname__}")
    return f"{value.__module__}:{value.__qualname__}"


def _each(kind: str, values: Any, named: Mapping[int, int], static: bool) -> Iterator[Token]:
    yield f"{kind}("
    for value in values:
        yield from structure(value, named, static)
    yield ")"


def _dataclass(value: Any, named: Mapping[int, int], static: bool) -> Iterator[Token]:
    """Every field; in an Equinox module those that are not marked as static may be arrays."""
    fields, module = dataclasses.fields(value), isinstance(value, eqx.Module)
    if set(getattr(value, "__dict__", ())) - {field.name for field in fields}:
        raise UnknownStructure(f"{type(value).__name__} has more than its fields")
    yield f"{name_of(type(value))}("
    for field in fields:
        yield field.name
        yield from structure(
            getattr(value, field.name), named, static or not module or bool(field.metadata.get("static"))
        )
    yield ")"


def _function(function: types.FunctionType, named: Mapping[int, int]) -> Iterator[Token]:
    """The code of a trusted package's function, and what it closes over."""
    module = function.__globals__.get("__name__", "")  # `functools.wraps` changes `__module__`
    if module.partition(".")[0] not in TRUSTED:
        raise UnknownStructure(f"{module}.{function.__qualname__}")
    code = function.__code__
    texts = [constant for constant in code.co_consts if isinstance(constant, str)]
    yield f"{module}:{function.__qualname__} {code.co_firstlineno} {texts}"
    yield from describe_code(code)
    defaults = function.__defaults__ or (), function.__kwdefaults__ or {}
    try:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # not set yet
        raise UnknownStructure(f"{module}.{function.__qualname__}") from None
    yield from _each("closure", (*defaults, *cells), named, static=True)
