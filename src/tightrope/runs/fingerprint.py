"""The fingerprint of a run: a hash of each part that a checkpoint must have in common with the run that resumes it."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..problems.canonical import digest
from ..problems.data import Batches, Dataset, Source, batch_shape
from ..problems.model_state import call
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from ..problems.tracing import takes_key, trace, unjitted
from .fitting import Fitted
from .options import Record

VERSION = "the version of JAX"
"""The one part that may differ: it explains why others do."""
EVERY = "the number of steps between records"
"""Kept as a number, so that an error can name the one that was saved: by default it follows from the number of steps."""
HASHED_BYTES, HASHED_EXAMPLES = 2**28, 2**16
"""Larger data is hashed at this many examples, spread over it."""


def fingerprint(fitted: Fitted, record: Record, seed: int) -> dict[str, str]:
    """A hash of each part of a run, by its name."""
    problem, parameters = fitted.problem, fitted.parameters
    parts = {
        "the method": digest(fitted.method),
        "the structure of x0": digest(str(parameters.key[0]), parameters.key[1]),
        "x0": digest(parameters.start),
        "the seed": digest(seed),
        EVERY: str(record.every),
        "the metrics": digest(sorted(record.metrics)),
        "the domain": digest(problem.domain),
        "smooth": digest(problem.smooth),
        VERSION: jax.__version__,
    }
    if fitted.oracle.partition is not None:
        parts["whether parameters are split (spec)"] = "split"
    if np.any(fitted.oracle.multipliers):
        parts["the multipliers of the warm start"] = digest(fitted.oracle.multipliers)
    if record.data is not None and problem.needs_batches:
        parts["the data of records"] = _examples(record.data)
    if fitted.method.uses_horizon:
        parts["the number of steps"] = digest(fitted.steps)
    return parts | _functions(problem, parameters) | _data(problem)


def changes(now: dict[str, str], saved: dict[str, str]) -> str:
    """The names of the parts that differ, for an error message; empty if none does."""
    names = [name for name in {**now, **saved} if now.get(name) != saved.get(name)]
    hints = {
        EVERY: f" (it was saved with record={saved.get(EVERY)})",
        VERSION: f" (it was saved with JAX {saved.get(VERSION)}, which may explain it)",
    }
    changed = ", ".join(name for name in names if name != VERSION)
    return changed and changed + "".join(hint for name, hint in hints.items() if name in names)


def _functions(problem: Problem, parameters: Parameters) -> dict[str, str]:
    parts = {"the objective": _computes(problem.objective, parameters, problem.data)}
    for c in problem.constraints:
        parts[f"the constraint {c.name!r}"] = digest(c.kind, _computes(c.fn, parameters, c.data))
        parts[f"the bounds of the constraint {c.name!r}"] = digest(c.low, c.high)
        if c.surrogate is not None:
            parts[f"the surrogate of the constraint {c.name!r}"] = _computes(c.surrogate, parameters, c.data)
    return parts


def _computes(fn: Any, parameters: Parameters, source: Source | None) -> str:
    """A hash of the jaxpr of a function and its derivative, for which the rules of custom derivatives are traced too."""

    def both(vector: Any, *batch: Any, **random: Any) -> Any:
        def at(v: Any) -> Any:
            value, state = call(unjitted(fn), parameters.unravel(v), *batch, **random)
            return jnp.asarray(value), eqx.filter(state, eqx.is_inexact_array)

        value, pull, state = jax.vjp(at, vector, has_aux=True)
        return value, pull(jnp.ones_like(value)), state

    batch = () if source is None else (_two_examples(batch_shape(source)),)
    modes = [both, partial(both, key=jax.random.key(0))] if batch and takes_key(fn) else [both]
    return digest(*(trace(mode, parameters.start, *batch)[0] for mode in modes))


def _two_examples(shapes: PyTree[Any]) -> PyTree[jax.ShapeDtypeStruct]:
    """The shapes of a batch of two, so that another batch size changes the data and not the functions."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape[1:]), leaf.dtype), shapes)


def _data(problem: Problem) -> dict[str, str]:
    """A hash of each source, by the first function that uses it."""
    users = {"the objective": problem.data}
    users |= {f"the constraint {c.name!r}": c.data for c in problem.constraints}
    parts, first = {}, {}
    for user, source in users.items():
        if source is not None:
            shared = first.setdefault(id(source), user)
            parts[f"the data of {user}"] = digest(shared) if shared != user else _examples(source)
    return parts


def _examples(source: Source) -> str:
    if isinstance(source, Dataset):
        return digest(source.size, source.batch_size, str(jax.tree.structure(source.whole)), _some(source))
    if isinstance(source, Batches):
        return digest(str(source.shapes))
    draw = trace(lambda key: source.draw(key, 2), jax.random.key(0))[0]
    # A callback may not be a function of its key; then its examples say nothing.
    drawn = [digest(source.draw(jax.random.key(0), 2)) for _ in range(2)]
    return digest(draw, source.batch_size, drawn[0] if drawn[0] == drawn[1] else "")


def _some(source: Dataset) -> PyTree[Any]:
    """The examples to hash: all of them, or some of large data."""
    if sum(leaf.nbytes for leaf in jax.tree.leaves(source.whole)) <= HASHED_BYTES:
        return source.whole
    places = np.linspace(0, source.size - 1, min(source.size, HASHED_EXAMPLES)).astype(int)
    return jax.tree.map(lambda array: array[places], source.whole)
