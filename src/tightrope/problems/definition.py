"""What a compiled program is made of, said without a trace of the library's own code.

A program is given by the library's code, by what is static about the problem and the method, and by the user's functions. The
first two are described by their names and settings. The last are traced, on batches like those that the program calls them
with, and their gradients with them, because a function may have a derivative of its own. That takes much less time than a trace
of the whole program, which calls them many times, among thousands of operations of the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .calls import Call, shapes_of
from .canonical import digest
from .data import Sampler, Source, batch_shape
from .model_state import call
from .parameters import Parameters
from .structure import UnknownStructure, structure
from .tracing import trace


class Mean:
    """An objective or a constraint, a mean over the batches of its source."""

    def __init__(self, fn: Callable[..., Any], source: Source | None, parameters: Parameters):
        self.fn, self._source, self._parameters = fn, source, parameters

    def digest(self, examples: int | None, batch: str, keyed: bool) -> str | None:
        """What it computes on such batches: its value, its gradient and the next model state; None: it has other batches."""
        given = () if self._source is None else (_resized(batch_shape(self._source), examples),)
        if shapes_of(given) != batch:
            return None
        random = {"key": jax.random.key(0)} if keyed else {}

        def value(vector: Any, batch: tuple[Any, ...], random: dict[str, Any]) -> Any:
            value, state = call(self.fn, self._parameters.unravel(vector), *batch, **random)
            return jnp.asarray(value), eqx.filter(state, eqx.is_array)

        def both(vector: Any, *rest: Any) -> Any:
            value_at, pullback, state = jax.vjp(lambda point: value(point, *rest), vector, has_aux=True)
            return value_at, pullback(jnp.ones_like(value_at)), state

        return digest(trace(both, self._parameters.start, given, random)[0])


class Draw:
    """The function of a `Sampler`."""

    def __init__(self, source: Sampler):
        self.fn = source.fn

    def digest(self, examples: int | None, batch: str, keyed: bool) -> str:
        """What it computes when it draws so many examples."""
        return digest(trace(lambda key: self.fn(key, examples), jax.random.key(0))[0])


def _resized(shapes: Any, examples: int | None) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((examples, *leaf.shape[1:]), leaf.dtype), shapes)


class Definition:
    """What a program is made of.

    Args:
        functions: the user's functions that it may call.
        objects: objects that may be a part of what it returns, by name.
        static: everything else that it depends on, apart from its arguments.

    Attributes:
        names: the names of the user's functions, by their ids.
        objects: the objects, by name.
    """

    def __init__(self, functions: Iterable[Mean | Draw], objects: Mapping[str, Any], static: Any):
        self._functions = {f"function {place}": function for place, function in enumerate(functions)}
        self.names = {id(function.fn): name for name, function in self._functions.items()}
        self.objects, self._static = objects, static
        self._digests: dict[Call, str | None] = {}

    def with_static(self, *more: Any) -> Definition:
        """What a program is made of that depends on more; what functions compute is not worked out again."""
        other = copy(self)
        other._static = self._static, more
        return other

    def described(self, *more: Any) -> str | None:
        """The digest of all but the user's functions, and of `more`; None if something has no description."""
        try:
            return digest(*structure((self._static, more), self.names))
        except UnknownStructure:
            return None

    def computed(self, calls: Iterable[Call]) -> str | None:
        """The digest of what the user's functions compute in these calls; None if they cannot be called so."""
        found = [(*one, self._digest(one)) for one in sorted(calls, key=repr)]
        return None if any(None in one[-1:] for one in found) else digest(found)

    def _digest(self, one: Call) -> str | None:
        if one not in self._digests:
            self._digests[one] = self._functions[one.function].digest(one.examples, one.batch, one.keyed)
        return self._digests[one]
