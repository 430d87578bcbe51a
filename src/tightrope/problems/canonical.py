"""A canonical description of values and functions, the same in every process: no addresses, no names of variables.

`digest` hashes it, for the fingerprint of a checkpoint; `alike` compares two of them, to find functions that change from
one trace to the next.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

Token = str | np.ndarray | jax.Array
"""A piece of text, or an array that stands for its numbers."""

JAXPRS = (ClosedJaxpr, Jaxpr)
"""One class from JAX 0.11 on."""
PLAIN = (type(None), bool, int, float, str)
"""What nearly all settings of equations are."""

SKIPPED = {"name", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "debug_info", "ctx_mesh"}
"""Parameters of equations that are names or unevaluated rules; a rule shows in the jaxpr of the derivative."""


def digest(*values: Any) -> str:
    """A hash of the values: jaxprs with their constants, arrays, containers, functions, settings."""
    found = hashlib.sha256()
    for token in itertools.chain.from_iterable(map(describe, values)):
        found.update((token.encode() if isinstance(token, str) else np.asarray(token).tobytes()) + b"\x00")
    return found.hexdigest()


def alike(one: Any, other: Any) -> bool:
    """Whether two values have the same description."""

    def same(a: Token | None, b: Token | None) -> bool:
        if isinstance(a, str | None) or isinstance(b, str | None):
            return isinstance(a, str) and isinstance(b, str) and a == b
        return a is b or np.asarray(a).tobytes() == np.asarray(b).tobytes()

    return all(same(a, b) for a, b in itertools.zip_longest(describe(one), describe(other)))


def primitives(jaxpr: Any) -> Iterator[Any]:
    """All primitives of a jaxpr and of those inside it."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation.primitive
        for parameter in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda node: isinstance(node, ClosedJaxpr | Jaxpr)
        ):
            if isinstance(parameter, ClosedJaxpr | Jaxpr):
                yield from primitives(parameter)


def describe(value: Any) -> list[Token]:
    """The description of a value, piece by piece."""
    found: list[Token] = []
    _describe(value, found)
    return found


def _describe(value: Any, found: list[Token]) -> None:
    """Add the description of a value; a list that all parts append to, since a description has up to 100,000 pieces."""
    if type(value) in PLAIN:
        found.append(f"{_type_name(value)} {without_addresses(repr(value))}")
    elif isinstance(value, JAXPRS):
        closed: Any = value
        _each("constants", getattr(closed, "consts", ()), found)
        _jaxpr(getattr(closed, "jaxpr", closed), found)
    elif hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__array__"):
        _array(value, found)
    elif isinstance(value, Mapping):
        _each("dict", sorted(value.items(), key=lambda item: repr(item[0])), found)
    elif isinstance(value, set | frozenset):
        _each("set", sorted(value, key=repr), found)
    elif isinstance(value, list | tuple):
        _each(type(value).__name__, value, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
        _each(_type_name(value), fields, found)
    elif isinstance(value, functools.partial):
        _each("partial", (value.func, value.args, value.keywords), found)
    elif callable(value):
        _function(value, found)
    else:
        found.append(f"{_type_name(value)} {without_addresses(repr(value))}")


def _each(kind: str, values: Any, found: list[Token]) -> None:
    found.append(f"{kind}(")
    for value in values:
        _describe(value, found)
    found.append(")")


def _array(array: Any, found: list[Token]) -> None:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    found.append(f"array {array.shape} {_text(array.dtype)}")
    found.append(array if isinstance(array, jax.Array) else np.asarray(array))


def _jaxpr(jaxpr: Jaxpr, found: list[Token]) -> None:
    """The equations, with variables numbered as they appear."""
    names: dict[Any, str] = {}

    def variable(var: Any) -> None:
        if isinstance(var, Literal):
            found.append(_text(var.aval))
            _array(np.asarray(var.val), found)
            return
        if var not in names:
            names[var] = f"{len(names)}:{_text(var.aval)}"
        found.append(names[var])

    for var in (*jaxpr.constvars, *jaxpr.invars):
        variable(var)
    for equation in jaxpr.eqns:
        found.append(str(equation.primitive))
        for name, parameter in sorted(equation.params.items()):
            if name not in SKIPPED:
                found.append(name)
                _describe(parameter, found)
        for var in (*equation.invars, *equation.outvars):
            variable(var)
    found.append("returns")
    for var in jaxpr.outvars:
        variable(var)


@functools.lru_cache(4096)
def _text(kind: Any) -> str:
    """The text of an abstract value or of a dtype: there are few, and JAX and NumPy take long to write them."""
    return str(kind)


def _function(function: Any, found: list[Token], within: tuple[Any, ...] = ()) -> None:
    """The code of a Python function and the numbers, arrays and functions that it closes over; else its name."""
    if isinstance(function, types.MethodType):
        found.append(f"method of {_type_name(function.__self__)}")
        function = function.__func__
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        found.append(f"function {getattr(function, '__qualname__', None) or without_addresses(repr(function))}")
        return
    found.extend(describe_code(code))
    within = (*within, function)
    for value in (*(function.__defaults__ or ()), *map(_contents, function.__closure__ or ())):
        if isinstance(value, types.FunctionType):
            _function(value, found, within) if value not in within else found.append("recursion")
        elif _is_setting(value):
            _describe(value, found)


def describe_code(code: types.CodeType) -> Iterator[str]:
    """The instructions, names and numbers of a function's code; not its messages and line numbers."""
    yield f"code {code.co_code.hex()} {code.co_names}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from describe_code(constant)
        elif not isinstance(constant, str):  # docstrings and messages
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _is_setting(value: Any) -> bool:
    """Whether a closed-over value is a setting; a list or an object may be state that changes while the function runs."""
    if isinstance(value, tuple):
        return all(map(_is_setting, value))
    return isinstance(value, str | bytes | int | float | complex | np.ndarray | np.generic | jax.Array)


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def without_addresses(text: str) -> str:
    """The text of an object without the addresses and ids in it."""
    if " at 0x" not in text and "id=" not in text:  # nearly always, and much faster
        return text
    return re.sub(r" at 0x[0-9a-fA-F]+|\bid=\d+", "", text)
