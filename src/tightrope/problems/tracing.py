"""Traces of the user's functions: what a function computes, as a jaxpr."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr
from jax.interpreters import partial_eval

from .canonical import alike


def unjitted(fn: Any) -> Callable[..., Any]:
    """The Python function inside a jitted one, which remembers its traces."""
    return fn.__wrapped__ if hasattr(fn, "lower") and hasattr(fn, "__wrapped__") else fn


def takes_key(fn: Callable[..., Any]) -> bool:
    """Whether a function has an argument `key=None`: a random key in the steps of a method, None where it is evaluated."""
    arguments = arguments_of(fn)
    return "key" in arguments and arguments["key"].default is None


def arguments_of(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The arguments of a function by name; none for built-in functions without a signature."""
    try:
        return inspect.signature(unjitted(fn)).parameters
    except ValueError:
        return {}


def with_arguments_of(fn: Callable[..., Any], wrapper: Any) -> Callable[..., Any]:
    """The wrapper with the name and the arguments of a function, which say whether it takes a key or the model state."""
    wrapper.__name__ = getattr(fn, "__name__", wrapper.__name__)
    arguments = arguments_of(fn)
    if arguments:
        wrapper.__signature__ = inspect.Signature(list(arguments.values()))
    return wrapper


def trace(fn: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, Any]:
    """The jaxpr of a function at arguments of these shapes, and the shapes that it returns; fn is called anew each time."""
    return jax.make_jaxpr(lambda *args: fn(*args), return_shape=True)(*args)


def changes(first: ClosedJaxpr, again: Callable[[], ClosedJaxpr]) -> bool:
    """Whether a function computes something else when it is traced again."""
    try:
        second = again()
    except Exception:  # such as StopIteration: the first trace had none
        return True
    return not alike(first, second)


def uses_inputs(jaxpr: ClosedJaxpr) -> list[bool]:
    """Whether any output depends on each input."""
    return partial_eval.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars))[1]
