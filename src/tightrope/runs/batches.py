"""Batches that come from the user, for a `Stepper` or as a `Stream`: how they are split over the samples of a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from ..methods.base import Method
from ..oracles.oracle import Oracle, Sample
from ..problems.data import Batches, Dataset, Given, Source, examples_in
from ..problems.problem import Problem
from ..problems.stream import Stream

Roles = dict[str, int | None]


class FirstBatch:
    """The user's first batch as a small data set: constants are estimated on examples drawn from it with replacement."""

    mesh = None

    def __init__(self, examples: int, batch_size: int):
        self.size, self.batch_size, self.arrays = examples, batch_size, ()

    def draw(self, key: Array, examples: int) -> Int[Array, " examples"]:
        """Independent indices."""
        return jax.random.randint(key, (examples,), 0, self.size)

    def batch(self, arrays: PyTree[Array], sample: PyTree[Array]) -> PyTree[Array]:
        """The examples of a sample."""
        return sample.examples if isinstance(sample, Given) else jax.tree.map(lambda a: a[sample], arrays)


class BatchPlan:
    """How a batch of every source is split over the samples of a method.

    Attributes:
        names: a name for every source: 'objective', or the first constraint that uses it.
        sizes: for every source the number of examples of each sample, by the sample's name.
    """

    def __init__(self, problem: Problem, oracle: Oracle, method: Method):
        terms = [("objective", problem.data), *((c.name, c.data) for c in problem.constraints)]
        self.names = tuple(next(name for name, data in terms if data is source) for source in problem.sources)
        self.sizes = [sample_sizes(source, method.roles(oracle)) for source in oracle.sources]
        self._sources, self._roles = oracle.sources, sorted(method.roles(oracle))

    @property
    def batch_sizes(self) -> list[int]:
        """The number of examples that a step takes from every source."""
        return [sum(sizes.values()) for sizes in self.sizes]

    def samples(self, batch: PyTree[Any]) -> dict[str, Sample]:
        """A batch split over the method's samples, in the order of their names."""
        given = tuple(isinstance(source, Dataset) for source in self._sources)
        return self._split(self._by_source(batch, "Stepper.step"), given)

    def first(self, oracle: Oracle, batch: PyTree[Any]) -> tuple[Oracle, dict[str, Sample]]:
        """The first batch, split, and the oracle that draws from it if there is no other data."""
        batches = self._by_source(batch, "Stepper.init")
        samples = self._split(batches, tuple(isinstance(source, Dataset) for source in self._sources))
        own = {i: one for i, one in enumerate(batches) if isinstance(self._sources[i], Batches)}
        return on_first_batches(oracle, own, samples)

    def _split(self, batches: list[PyTree[Array]], given: tuple[bool, ...]) -> dict[str, Sample]:
        parts = [dict(_parts(one, sizes)) for one, sizes in zip(batches, self.sizes, strict=True)]
        return {
            role: tuple(Given(part[role]) if wrap else part[role] for part, wrap in zip(parts, given, strict=True))
            for role in self._roles
        }

    def _by_source(self, batch: PyTree[Any], owner: str) -> list[PyTree[Array]]:
        """The batch of every source, if its number of examples is right."""
        batches = [batch] if len(self.names) == 1 else self._of_dict(batch, owner)
        for name, one, sizes in zip(self.names, batches, self.sizes, strict=True):
            found, expected = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(one)}, sum(sizes.values())
            if found != {(expected,)}:
                shares = " + ".join(f"{size} for {role}" for role, size in sizes.items())
                raise ValueError(
                    f"{owner}: batch must have {expected} examples for {name!r} ({shares}), "
                    f"got arrays that start with {sorted(found)}"
                )
        return [jax.tree.map(jnp.asarray, one) for one in batches]

    def _of_dict(self, batch: Any, owner: str) -> list[PyTree[Any]]:
        if not self.names:
            raise ValueError(
                f"{owner}: batch must be None, because the problem has no data; got {type(batch).__name__}"
            )
        if not isinstance(batch, Mapping) or set(batch) != set(self.names):
            got = ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"{owner}: batch must be a dict with a batch for each of {', '.join(self.names)}, got {got}"
            )
        return [batch[name] for name in self.names]


def on_first_batches(
    oracle: Oracle, batches: Mapping[int, PyTree[Array]], samples: Mapping[str, Sample]
) -> tuple[Oracle, dict[str, Sample]]:
    """The oracle that draws from these first batches, by the index of their source, and its samples."""
    sources, data = list[Any](oracle.sources), list(oracle.data)
    for i, batch in batches.items():
        largest = max(examples_in(sample[i]) for sample in samples.values())
        sources[i], data[i] = FirstBatch(examples_in(batch), largest), batch
    given = {
        role: tuple(Given(entry) if i in batches else entry for i, entry in enumerate(sample))
        for role, sample in samples.items()
    }
    return replace(oracle, sources=tuple(sources), data=tuple(data)), given


def streams_of(sources: tuple[Source, ...]) -> dict[int, Stream]:
    """The streams among the sources, by their index."""
    return {i: source for i, source in enumerate(sources) if isinstance(source, Stream)}


def streamed_parts(
    sources: tuple[Source, ...], roles: Roles, batches: tuple[PyTree[Array], ...]
) -> dict[str, dict[int, PyTree[Array]]]:
    """For every role its part of a batch of each stream, by the index of the source."""
    parts: dict[str, dict[int, PyTree[Array]]] = {role: {} for role in roles}
    for (i, stream), batch in zip(streams_of(sources).items(), batches, strict=bool(batches)):
        for role, part in _parts(batch, sample_sizes(stream, roles)):
            parts[role][i] = part
    return parts


def check_shares(owner: str, oracle: Oracle, method: Method) -> None:
    """A ValueError if a batch that comes from the user cannot be shared out over the method's samples."""
    roles = method.roles(oracle)
    fixed, free = _fixed_and_free(roles)
    for source in oracle.sources:
        left = source.batch_size - fixed
        if isinstance(source, Batches) and (left % free or left < free if free else left):
            plus = f"{fixed} examples plus " if fixed else ""
            expected = f"{plus}a multiple of {free} examples" if free else f"{fixed} examples"
            raise ValueError(
                f"{owner}: a step of {type(method).__name__} splits its batch over {len(roles)} samples "
                f"({', '.join(sorted(roles))}) and needs {expected}; {type(source).__name__} has {source.batch_size}"
            )


def sample_sizes(source: Source, roles: Roles) -> dict[str, int]:
    """The number of examples of each sample of a step; batches that come from the user are shared out evenly."""
    each = source.batch_size
    if isinstance(source, Batches):
        fixed, free = _fixed_and_free(roles)
        each = (source.batch_size - fixed) // max(free, 1)
    return {role: size or each for role, size in sorted(roles.items())}


def _fixed_and_free(roles: Roles) -> tuple[int, int]:
    """The number of examples in samples of a given size, and the number of the other samples."""
    return sum(size for size in roles.values() if size is not None), sum(size is None for size in roles.values())


def _parts(batch: PyTree[Array], sizes: dict[str, int]) -> Iterator[tuple[str, PyTree[Array]]]:
    first = 0
    for role, size in sizes.items():
        yield role, jax.tree.map(lambda a, first=first, size=size: a[first : first + size], batch)
        first += size
