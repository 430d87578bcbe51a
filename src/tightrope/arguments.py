"""Checks of arguments, shared by every entry point.

An error names the owner (the class or function that was called), the argument, what came and what was expected. Everything
here is plain Python: it runs before anything is compiled.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def described(value: Any) -> str:
    """A value and its type, as error messages show them."""
    return f"{value!r} ({type(value).__name__})"


def check_type(owner: str, argument: str, value: Any, types: type | tuple[type, ...], expected: str) -> None:
    """A TypeError unless the value has one of these types; `expected` says in words what is."""
    if not isinstance(value, types):
        raise TypeError(f"{owner}: {argument} must be {expected}, got {type(value).__name__}")


def check_callable(owner: str, argument: str, value: Any, expected: str, arguments: int | None = None) -> None:
    """A TypeError unless the value can be called, with this number of arguments if it is known; `expected` says how."""
    if not callable(value):
        raise TypeError(f"{owner}: {argument} must be {expected}, got {type(value).__name__}")
    if arguments is None:
        return
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # a built-in function without a signature
        return
    try:
        signature.bind(*range(arguments))
    except TypeError as error:
        name = getattr(value, "__name__", type(value).__name__)
        raise TypeError(f"{owner}: {argument} must be {expected}, got {name}{signature}") from error


def leaves_of(owner: str, argument: str, value: Any) -> list[Any]:
    """The leaves of a pytree, or an error: the keys of its dictionaries must be sortable."""
    try:
        return jax.tree.leaves(value)
    except ValueError as error:
        raise ValueError(
            f"{owner}: {argument} must be a pytree whose dictionaries have keys of one type, got {value!r}"
        ) from error


def positive_int(owner: str, argument: str, value: Any) -> int:
    """`value` as a positive int, or an error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{owner}: {argument} must be a positive integer, got {described(value)}")
    if value <= 0:
        raise ValueError(f"{owner}: {argument} must be a positive integer, got {value}")
    return int(value)


MAX_STEPS = 2**31 - 1
"""Steps are counted in 32 bits."""


def step_count(owner: str, argument: str, value: Any) -> int:
    """`value` as a positive number of steps, or an error."""
    count = positive_int(owner, argument, value)
    if count > MAX_STEPS:
        raise ValueError(f"{owner}: {argument} must be at most 2**31 - 1, got {count}")
    return count


def seed_number(owner: str, argument: str, value: Any) -> int:
    """`value` as an int that fits a JAX key, or an error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{owner}: {argument} must be an integer, got {described(value)}")
    if not 0 <= value < 2**32:
        raise ValueError(f"{owner}: {argument} must be between 0 and 2**32 - 1, got {value}")
    return int(value)


def number(
    owner: str, argument: str, value: Any, *, low: float = -math.inf, high: float = math.inf, closed: str = ""
) -> float:
    """`value` as a float between `low` and `high`; `closed` has '[' where `low` itself is allowed, ']' where `high` is."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{owner}: {argument} must be a number, got {described(value)}")
    check_range(owner, argument, value, low=low, high=high, closed=closed)
    return float(value)


def numbers(
    owner: str, argument: str, value: Any, *, low: float = -math.inf, high: float = math.inf, closed: str = ""
) -> None:
    """An error unless the value is a number in this range, or an array of them (to vmap over); traced ones pass."""
    array_like = isinstance(value, int | float | np.generic | np.ndarray | jax.Array) and not isinstance(value, bool)
    dtype = getattr(value, "dtype", np.dtype(type(value))) if array_like else np.dtype(bool)
    if not (jax.numpy.issubdtype(dtype, np.floating) or jax.numpy.issubdtype(dtype, np.integer)):
        raise TypeError(f"{owner}: {argument} must be a number, got {described(value)}")
    if not isinstance(value, Tracer):
        check_range(owner, argument, value, low=low, high=high, closed=closed)


def check_range(owner: str, argument: str, value: Any, *, low: float, high: float, closed: str) -> None:
    """A ValueError unless every number of `value` lies between `low` and `high`."""
    try:
        found = np.asarray(value, float)
    except OverflowError:
        raise ValueError(f"{owner}: {argument} must be a number that a float can hold, got a larger integer") from None
    above = found >= low if "[" in closed else found > low
    below = found <= high if "]" in closed else found < high
    if not (above & below).all():
        limits = [f"{'≥' if '[' in closed else '>'} {low:g}"] if low > -math.inf else []
        limits += [f"{'≤' if ']' in closed else '<'} {high:g}"] if high < math.inf else ["finite"]
        raise ValueError(f"{owner}: {argument} must be {' and '.join(limits)}, got {value}")


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """`; did you mean 'X'?` for the option that is most like the name, else nothing."""
    plain = {option.replace("-", "").replace("_", "").lower(): option for option in options}
    close = difflib.get_close_matches(name.replace("-", "").replace("_", "").lower(), plain, n=1)
    return f"; did you mean {plain[close[0]]!r}?" if close else ""
