"""What a compiled program is made of, said without a trace of the library's own code.

A program is given by the library's code, by what is static about the problem and the method, and by the user's functions. The
first two are described by their names and settings (see `structure`). The last are traced, on batches like those that the
program calls them with: their values, and their derivatives, because a function may have a rule of its own for these. That
takes much less time than a trace of the whole program, which calls them many times, among thousands of operations of the
library's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import primitives as known_primitives

from .calls import Call
from .canonical import digest, primitives
from .data import Sampler, Source, batch_shape
from .model_state import call
from .parameters import Parameters
from .returned import functions_in
from .sharing import evaluate_once
from .structure import UnknownStructure, shapes_of, structure
from .tracing import takes_key, trace

logger = logging.getLogger("tightrope")

PRECISION = "jax_default_matmul_precision"
"""A setting that the probe changes for functions that leave it open; where it is set, nothing is known of a program."""

Term = tuple[Callable[..., Any], Source | None]
"""An objective or a constraint, and the source of its batches."""


def _may_differ(primitive: Any) -> bool:
    """Whether an operation may do something else the next time: it is not JAX's own, or it calls code outside of JAX."""
    outside = any(word in primitive.name for word in ("callback", "ffi_call", "custom_vmap"))
    return outside or primitive not in _known_primitives()


@cache
def _known_primitives() -> frozenset[Any]:
    """JAX's own operations: those that it lists, and the one that takes a vector apart."""
    split = primitives(jax.make_jaxpr(lambda vector: jax.lax.split(vector, (1, 1)))(jnp.zeros(2)))
    return frozenset([*(each for each in vars(known_primitives).values() if hasattr(each, "bind")), *split])


class Definition:
    """What a program is made of, besides the library's code.

    Args:
        terms: the functions of the parameters that it may call.
        sources: the sources that it may draw from.
        parameters: the structure of x.
        digests: what the functions compute in some calls, for all definitions of one problem and structure of x.
    """

    def __init__(
        self, terms: Sequence[Term], sources: Sequence[Source], parameters: Parameters, digests: dict[Any, Any]
    ):
        self._terms, self._parameters, self._digests = terms, parameters, digests
        self._samplers = [source for source in sources if isinstance(source, Sampler)]
        functions = [*(fn for fn, _ in terms), *(sampler.fn for sampler in self._samplers)]
        self._places = {id(fn): place for place, fn in enumerate(functions)}

    def described(self, fn: Callable[..., Any], args: tuple[Any, ...], *settings: Any) -> str | None:
        """The digest of all but the user's functions; None if something has no description."""
        if getattr(jax.config, PRECISION) is not None:
            return None
        try:
            return digest(*structure((fn, settings), self._places), *structure(args, self._places, static=False))
        except (UnknownStructure, RecursionError) as error:
            logger.debug("a program has no definition: %s", error)
            return None

    def objects(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """The static objects that may be a part of what it returns for these arguments, by name."""
        functions = {f"function {number}": fn for number, fn in enumerate(functions_in(args))}
        return {"parameters": self._parameters, "trained": self._parameters.trained, **functions}

    def call_of(self, fn: Callable[..., Any], given: Any, keyed: bool = False) -> Call | None:
        """How a function is called with this batch or, a sampler's, for so many examples; None if that is not foreseen."""
        place = self._places.get(id(fn))
        if place is None:
            return None
        if place >= len(self._terms):
            return Call(given, sampler=place - len(self._terms))
        examples = jax.tree.leaves(given)[0].shape[0] if given else None
        return Call(examples, keyed) if shapes_of(given) == shapes_of(self._batch(place, examples)) else None

    def computed(self, calls: Sequence[Call]) -> str | None:
        """The digest of what the user's functions compute when they are called so; None if that cannot be said."""
        found = [self._digest(one) for one in calls]
        return None if None in found else digest(list(calls), found)

    def _digest(self, one: Call) -> str | None:
        functions = [fn for fn, _ in self._terms] if one.sampler is None else [self._samplers[one.sampler].fn]
        key = one.examples, one.keyed, *map(id, functions)
        if key not in self._digests:
            try:
                traces = self._traces(one) if one.sampler is None else self._draws(functions[0], one.examples)
                unknown = any(_may_differ(primitive) for each in traces for primitive in primitives(each))
            except Exception as error:  # a function that does not take such a batch
                logger.debug("no digest of the user's functions: %s", error)
                traces, unknown = [], True
            self._digests[key] = None if unknown else digest(traces), functions  # kept, so that the ids stay theirs
        return self._digests[key][0]

    def _traces(self, one: Call) -> list[Any]:
        """The traces of all terms, and of their derivatives after equal parts are merged, as oracles do."""
        places = [place for place, (_, source) in enumerate(self._terms) if (source is None) == (one.examples is None)]
        batches = [self._batch(place, one.examples) for place in places if self._first_of_source(place) == place]
        batch_of = {place: number for number, place in enumerate(p for p in places if self._first_of_source(p) == p)}
        given = self._parameters.start, batches, jax.eval_shape(lambda: jax.random.key(0))

        def values(vector: Any, batches: list[Any], key: Any) -> Any:
            found = []
            for place in places:
                fn, batch = self._terms[place][0], batches[batch_of[self._first_of_source(place)]]
                random = {"key": key} if one.keyed and takes_key(fn) else {}
                value, state = call(fn, self._parameters.unravel(vector), *batch, **random)
                found += [jnp.asarray(value), *jax.tree.leaves(eqx.filter(state, eqx.is_inexact_array))]
            return found

        traced, shapes = trace(values, *given)

        def derivatives(cotangents: Any, vector: Any, *rest: Any) -> Any:
            found, pull = jax.vjp(lambda point: evaluate_once(traced, jax.tree.leaves((point, *rest))), vector)
            return found, pull(cotangents)

        return [traced, trace(derivatives, shapes, *given)[0]]

    def _draws(self, fn: Callable[..., Any], examples: int | None) -> list[Any]:
        return [trace(lambda key: fn(key, examples), jax.eval_shape(lambda: jax.random.key(0)))[0]]

    def _first_of_source(self, place: int) -> int:
        """The first term with the same source."""
        return next(p for p, (_, source) in enumerate(self._terms) if source is self._terms[place][1])

    def _batch(self, place: int, examples: int | None) -> tuple[Any, ...]:
        """The batch of a term, with this many examples."""

        def resized(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((examples, *leaf.shape[1:]), leaf.dtype)

        return jax.tree.map(resized, self._batches[place])

    @cached_property
    def _batches(self) -> list[tuple[Any, ...]]:
        return [() if source is None else (batch_shape(source),) for _, source in self._terms]
