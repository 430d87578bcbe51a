"""The oracle: values and derivatives of a problem's functions at a flat vector, on a sample.

A *sample* here is a tuple with one entry per data source (see `problems.data`). Values and derivatives take the sample as an
argument, so that two points can share it. The whole data is a sample too. Samples of more than `PIECE` examples are evaluated
piece by piece, so memory does not grow with the sample.

The rows `c(x)` that a method works with are `sign · (h(x)[index] − bound)`, in the form that the method takes (see `rows`):
each lies between `rows.low` and `rows.high` at a feasible point. With slacks the vector is `[x, s]`, and `s` takes the place of
the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..domains import Domain, Reals
from ..problems.data import Dataset, Given, Source, Span, examples_in, key_of, part_of
from ..problems.model_state import call
from ..problems.parameters import Parameters
from ..problems.partition import Partition
from ..problems.sharing import share_subexpressions
from ..problems.splitting import SplitDataset, parts_of
from .rows import Rows

PIECE = 2048
"""The number of examples evaluated at once: few enough for a core's cache. Larger samples are summed over pieces."""

MAX_JACOBIAN_ROWS, MAX_JACOBIAN_ENTRIES = 500, 2**30
"""The largest Jacobian that is formed; methods only take products with a larger one."""

Sample = tuple[PyTree[Array], ...]


class Term(eqx.Module):
    """A user's function.

    Attributes:
        name: its name.
        fn: the function.
        source: the index of its data source; None: deterministic.
        shape: the shape that it returns, () or (k,).
        takes_key: whether it takes a random key.
        gives_state: whether its value comes with the model state that it returns, as a flat vector.
    """

    name: str = eqx.field(static=True)
    fn: Callable[..., Any] = eqx.field(static=True)
    source: int | None = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    takes_key: bool = eqx.field(static=True, default=False)
    gives_state: bool = eqx.field(static=True, default=False)

    @property
    def size(self) -> int:
        """The number of values it returns."""
        return math.prod(self.shape)


class Prox(eqx.Module):
    """The terms that `shifted` adds: ½ objective · ‖x − center‖² to the objective, ½ rows · ‖x − center‖² to every row."""

    center: Float[Array, " n"]
    objective: Float[Array, ""]
    rows: Float[Array, ""]


class HeldState(eqx.Module):
    """The model state that `hold_state` took out of x, and the structure of x with it."""

    state: Float[Array, " state"]
    whole: Parameters = eqx.field(static=True)


class FirstOrder(NamedTuple):
    """Value, gradient, rows and Jacobian at a point, or sums and means of them."""

    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    rows: Float[Array, " rows"]
    jacobian: Float[Array, "rows n"]


class Oracle(eqx.Module):
    """Values, gradients, constraint rows, Jacobians and projections at a flat point, on a sample.

    Attributes:
        data: the arrays of each source.
        domain: the set X.
        rows: the map from constraint values to the method's rows.
        multipliers: the start of the dual variables: zero, or the multipliers of a warm start.
        objective: the user's objective.
        constraints: the user's constraint functions.
        sources: the distinct sources of samples.
        parameters: the structure of x.
        prox: the terms that `shifted` added.
        training: whether functions that take a random key are given one, except on the whole data.
        held: the model state, if it is not a part of x (see `hold_state`).
        partition: how x is split over devices; None: it is not.
    """

    data: tuple[PyTree[Array], ...]
    domain: Domain
    rows: Rows
    multipliers: Float[Array, " rows"]
    objective: Term
    constraints: tuple[Term, ...]
    sources: tuple[Source, ...] = eqx.field(static=True)
    parameters: Parameters = eqx.field(static=True)
    prox: Prox | None = None
    training: bool = eqx.field(static=True, default=False)
    held: HeldState | None = None
    partition: Partition | None = eqx.field(static=True, default=None)

    # ------------------------------------------------------------------ values and derivatives

    def f(self, x: Float[Array, " n"], sample: Sample) -> Float[Array, ""]:
        """The objective."""
        (value,) = self._means((self.objective,), x, sample)
        return self._shifted_value(value, x)

    def grad(self, x: Float[Array, " n"], sample: Sample) -> Float[Array, " n"]:
        """The objective's gradient."""
        return jax.grad(self.f)(x, sample)

    def value_and_grad(self, x: Float[Array, " n"], sample: Sample) -> tuple[Float[Array, ""], Float[Array, " n"]]:
        """The objective and its gradient."""
        return jax.value_and_grad(self.f)(x, sample)

    def raw(self, x: Float[Array, " n"], sample: Sample) -> Float[Array, " raw"]:
        """The values h of all constraint functions, in the user's order and signs."""
        return _joined(self._means(self.constraints, x, sample), x)

    def c(self, x: Float[Array, " n"], sample: Sample) -> Float[Array, " rows"]:
        """The constraint rows, which must lie between `rows.low` and `rows.high`.

        Equalities are rows `= 0` and inequalities rows `≤ 0`; in the form 'ranges' a row is the raw value, between the user's
        bounds.
        """
        return self._shifted_rows(self.raw(x, sample), x)

    def value_and_rows(self, x: Float[Array, " n"], sample: Sample) -> Float[Array, " 1+rows"]:
        """The objective, then the constraint rows: with one product of the two, the gradient of a Lagrangian."""
        value, *raw = self._means((self.objective, *self.constraints), x, sample)
        return self._value_then_rows(value, raw, x)

    def value_rows_and_state(
        self, x: Float[Array, " n"], sample: Sample
    ) -> tuple[Float[Array, " 1+rows"], Float[Array, " state"] | None]:
        """`value_and_rows`, and the model state that the objective returns; None if none is held."""
        if self.held is None:
            return self.value_and_rows(x, sample), None
        (value, state), *raw = self._means((replace(self.objective, gives_state=True), *self.constraints), x, sample)
        return self._value_then_rows(value, raw, x), state

    def vjp(
        self, x: Float[Array, " n"], sample: Sample
    ) -> tuple[Float[Array, " rows"], Callable[[Float[Array, " rows"]], Float[Array, " n"]]]:
        """The constraint rows and the map `y ↦ Jᵀy`."""
        value, pullback = jax.vjp(lambda point: self.c(point, sample), x)
        return value, lambda y: pullback(y)[0]

    def lagrangian_vjp(
        self, x: Float[Array, " n"], sample: Sample
    ) -> tuple[Float[Array, " rows"], Callable[[Float[Array, " rows"]], Float[Array, " n"]]]:
        """The constraint rows and the map `y ↦ ∇f + Jᵀy`, the gradient of the Lagrangian, with one backward pass."""
        rows, pullback, _ = self.lagrangian_vjp_and_state(x, sample)
        return rows, pullback

    def lagrangian_vjp_and_state(
        self, x: Float[Array, " n"], sample: Sample
    ) -> tuple[Float[Array, " rows"], Callable[[Float[Array, " rows"]], Float[Array, " n"]], Any]:
        """`lagrangian_vjp`, and the model state of `value_rows_and_state`, from the same forward pass."""
        values, pullback, state = jax.vjp(lambda point: self.value_rows_and_state(point, sample), x, has_aux=True)
        return values[1:], lambda y: pullback(jnp.concatenate([jnp.ones(1, x.dtype), y]))[0], state

    def jvp(
        self, x: Float[Array, " n"], direction: Float[Array, " n"], sample: Sample
    ) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
        """The constraint rows and J · direction."""
        return jax.jvp(lambda point: self.c(point, sample), (x,), (direction,))

    def jac(self, x: Float[Array, " n"], sample: Sample) -> Float[Array, "rows n"]:
        """The Jacobian J of the constraint rows."""
        return jax.jacrev(self.c)(x, sample)

    def rows_and_jacobian(
        self, x: Float[Array, " n"], sample: Sample
    ) -> tuple[Float[Array, " rows"], Float[Array, "rows n"]]:
        """The constraint rows and their Jacobian, from one evaluation.

        Functions of different sources have nothing in common, so a row is pulled back only through those of its own source.
        """
        places = self._rows_by_source()
        if len(places) < 2:
            return _value_and_jacobian(lambda y: self.c(y, sample), x)
        parts = [
            _value_and_jacobian(lambda y, source=source: self._rows_of(source, y, sample)[places[source]], x)
            for source in places
        ]
        rows, jacobian = (jnp.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(np.concatenate(list(places.values())))
        return (rows, jacobian) if np.all(np.diff(order) == 1) else (rows[order], jacobian[order])

    def first_order(self, x: Float[Array, " n"], sample: Sample) -> FirstOrder:
        """Objective, gradient, rows and Jacobian, in one pass over the sample."""

        def at(part: Sample) -> FirstOrder:
            rows, jacobian = self.rows_and_jacobian(x, part)
            return FirstOrder(*self.value_and_grad(x, part), rows, jacobian)

        if len({examples_in(entry) for entry in sample}) != 1:
            return at(sample)

        def piece(first: Any, length: int) -> FirstOrder:
            return at(tuple(part_of(entry, first, length) for entry in sample))

        return _mean_by_pieces(piece, examples_in(sample[0]), self.devices)

    def shifted(self, center: Float[Array, " n"], objective: Array, rows: Array) -> Oracle:
        """This oracle with ½ objective · ‖x − center‖² added to the objective and ½ rows · ‖x − center‖² to every row."""
        return replace(self, prox=Prox(center, objective, rows))

    # ------------------------------------------------------------------ model state

    def hold_state(self, x: Any, *others: Any) -> tuple[Any, ...]:
        """This oracle on the trained parameters alone, with the model state of x held, and these parameters of all vectors.

        Steps and certificates use it, so that sets, norms and derivatives have nothing to do with the model state. Without
        model state, the oracle and the vectors are returned as they are.
        """
        whole = self.parameters
        if not whole.has_state:
            return self, x, *others
        trained, state = whole.split(x)
        held = replace(self, parameters=whole.trained, held=HeldState(state, whole))
        return held, trained, *(whole.split(other)[0] for other in others)

    def with_state(self, state: Float[Array, " state"] | None) -> Oracle:
        """This oracle with another state held; the same oracle for None."""
        return self if state is None else eqx.tree_at(lambda oracle: oracle.held.state, self, state)

    # ------------------------------------------------------------------ the set, of a vector without model state

    def project(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """The nearest point of X (and of the slacks' bounds)."""
        if self.partition is not None and self.whole_space:
            return self.partition.constrained(x)  # each device its part
        x, n = self.gathered(x), self.parameters.size
        point = self.gathered(self.parameters.ravel(self.domain.project(self.parameters.unravel_arrays(x[:n]))))
        if not self.rows.slack_rows:
            return point
        return jnp.concatenate([point, jnp.clip(x[n:], self.rows.slack_low, self.rows.slack_high)])

    def gathered(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """The same vector, with all of it on every device if x is split: what is made of leaves, or taken apart into them."""
        return x if self.partition is None else self.partition.gathered(x)

    def nearby(self, x: Float[Array, " n"]) -> Float[Array, " n"]:
        """The projection of x onto X if X has one, else x; only for probing constants."""
        return self.project(x) if self.domain.can_project else x

    def lmo(self, direction: Float[Array, " n"]) -> Float[Array, " n"]:
        """A point s of X that minimizes ⟨direction, s⟩; for forms without slacks."""
        return self.parameters.ravel(self.domain.lmo(self.parameters.unravel_arrays(self.gathered(direction))))

    def with_slacks(self, x: Float[Array, " n"], sample: Sample) -> Float[Array, " n_and_slacks"]:
        """The vector [x, s] with each slack as near to its constraint's value as its bounds allow."""
        rows = self.rows
        if not rows.slack_rows:
            return x
        values = self.raw(x, sample)[np.array(rows.index, int)[np.array(rows.slack_rows)]]
        return jnp.concatenate([x, jnp.clip(values, rows.slack_low, rows.slack_high)])

    def diameter(self) -> Float[Array, ""]:
        """The diameter of X without slacks; ∞ if X is unbounded."""
        return self.domain.diameter(self.parameters.unravel_arrays(jnp.zeros_like(self.parameters.start)))

    def project_normal_cone(self, x: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]:
        """The projection of v onto the normal cone of X at x; for points without slacks."""
        x, v = map(self.parameters.unravel_arrays, map(self.gathered, (x, v)))
        return self.parameters.ravel(self.domain.project_normal_cone(x, v))

    # ------------------------------------------------------------------ samples

    def draw(
        self, key: Array, examples: int | None = None, given: Mapping[int, PyTree[Array]] = MappingProxyType({})
    ) -> Sample:
        """An independent sample of this many examples from every source; None: each source's own batch size.

        `given` are the samples of some sources, by their index; nothing is drawn from these.
        """
        keys = jax.random.split(key, max(len(self.sources), 1))

        def drawn(i: int, source: Source) -> PyTree[Array]:
            sample = source.draw(keys[i], examples or source.batch_size)
            in_one_piece = examples_in(sample) <= PIECE * self.devices
            return source.fetched(self.data[i], sample) if isinstance(source, SplitDataset) and in_one_piece else sample

        return tuple(given[i] if i in given else drawn(i, source) for i, source in enumerate(self.sources))

    def first(self) -> Sample:
        """A first batch from every source, the same for every seed."""
        return tuple(
            jnp.arange(min(s.batch_size, s.size)) if isinstance(s, Dataset) else s.draw(jax.random.key(0), s.batch_size)
            for s in self.sources
        )

    def everything(self) -> Sample:
        """The whole data as a sample; an error unless every source is a `Dataset`."""
        endless = [source for source in self.sources if not isinstance(source, Dataset)]
        if endless:
            raise TypeError(f"{endless[0]} cannot be passed over in full; only a tightrope.Dataset can")
        return tuple(Span(0, source.size) for source in self.sources if isinstance(source, Dataset))

    def keep(self, sample: Sample) -> Sample:
        """A sample to keep for later steps: of one structure, whether it was drawn or given by the user."""

        def kept(source: Source, arrays: PyTree[Array], entry: PyTree[Array]) -> PyTree[Array]:
            if isinstance(source, Dataset):
                return Given(source.batch(arrays, entry))
            return entry.examples if isinstance(entry, Given) else entry

        return tuple(map(kept, self.sources, self.data, sample))

    def count_examples(self, used_by: Literal["objective", "constraints", "both"], *samples: Sample) -> int:
        """The number of examples in these samples that the objective, the constraints, or both use."""
        terms = (self.objective,) * (used_by != "constraints") + self.constraints * (used_by != "objective")
        sources = {term.source for term in terms if term.source is not None}
        return sum(examples_in(sample[source]) for sample in samples for source in sources)

    def slices(self) -> dict[str, slice]:
        """The slice of the raw values that belongs to each constraint."""
        ends = np.cumsum([term.size for term in self.constraints], dtype=int)
        return {t.name: slice(int(end) - t.size, int(end)) for t, end in zip(self.constraints, ends, strict=True)}

    def leaves(self) -> list[Array]:
        """The arrays of this oracle, as arguments of compiled programs; the rest is static."""
        dtype = self.parameters.dtype
        return [a if eqx.is_array(a) else jnp.asarray(np.asarray(a, dtype)) for a in jax.tree.leaves(self)]

    @property
    def devices(self) -> int:
        """The number of devices that samples are split over."""
        return max((parts_of(source.mesh) for source in self.sources), default=1)

    @property
    def stochastic_constraints(self) -> bool:
        """Whether any constraint has data."""
        return any(term.source is not None for term in self.constraints)

    @property
    def whole_space(self) -> bool:
        """Whether the vector is unconstrained: X is the whole space and there are no slacks, which have bounds."""
        return isinstance(self.domain, Reals) and not self.rows.slack_rows

    @property
    def equality(self) -> Bool[np.ndarray, " rows"]:
        """Whether each row is an equality, with `rows.low` = `rows.high`."""
        return np.array(self.rows.is_equality, bool)

    @property
    def large_jacobian(self) -> bool:
        """Whether the constraints' Jacobian is too large to form."""
        return too_large(self.rows.raw_size, self.parameters.trained.size)

    def _value_then_rows(self, value: Float[Array, ""], raw: list[Array], x: Float[Array, " n"]) -> Array:
        return jnp.concatenate([self._shifted_value(value, x)[None], self._shifted_rows(_joined(raw, x), x)])

    def _rows_by_source(self) -> dict[int | None, Int[np.ndarray, " some"]]:
        """The places of the rows of each source, and of the deterministic ones."""
        sources = [term.source for term in self.constraints for _ in range(term.size)]
        found = [sources[i] for i in self.rows.index]
        return {source: np.flatnonzero([other == source for other in found]) for source in dict.fromkeys(found)}

    def _rows_of(self, source: int | None, x: Float[Array, " n"], sample: Sample) -> Float[Array, " rows"]:
        """The rows of the functions of one source; those of others as if their functions were zero."""
        means = iter(self._means(tuple(term for term in self.constraints if term.source == source), x, sample))
        raw = [next(means) if term.source == source else jnp.zeros(term.size, x.dtype) for term in self.constraints]
        return self._shifted_rows(_joined(raw, x), x)

    def _shifted_value(self, value: Float[Array, ""], x: Float[Array, " n"]) -> Float[Array, ""]:
        """The objective, with the term that `shifted` added."""
        return value if self.prox is None else value + 0.5 * self.prox.objective * self._square_distance(x)

    def _shifted_rows(self, raw: Float[Array, " raw"], x: Float[Array, " n"]) -> Float[Array, " rows"]:
        """The rows of the raw values, with the term that `shifted` added."""
        rows = self.rows.of(raw, x[self.parameters.size :])
        return rows if self.prox is None else rows + 0.5 * self.prox.rows * self._square_distance(x)

    def _square_distance(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        assert self.prox is not None
        return jnp.sum((x - self.prox.center) ** 2)

    def _means(self, terms: tuple[Term, ...], x: Float[Array, " n"], sample: Sample) -> list[Any]:
        """The means of these functions over the sample; what several of them compute is computed once.

        Functions with samples of one size are evaluated together, piece by piece. If x is split, it is gathered once.
        """
        x = self.gathered(x)
        sizes = [0 if term.source is None else examples_in(sample[term.source]) for term in terms]

        def of_size(size: int) -> Iterator[Any]:
            group = [term for term, found in zip(terms, sizes, strict=True) if found == size]
            return iter(_mean_by_pieces(partial(self._values, group, x, sample), size, self.devices))

        means = {size: of_size(size) for size in dict.fromkeys(sizes)}
        return [next(means[size]) for size in sizes]

    def _values(self, terms: list[Term], x: Float[Array, " n"], sample: Sample, first: Any, length: int) -> list[Any]:
        """The means of these functions over `length` examples of their samples from position `first` on."""
        values = share_subexpressions(lambda y: [self._value(term, y, sample, first, length) for term in terms])
        return values(x)

    def _value(self, term: Term, x: Float[Array, " n"], sample: Sample, first: Any, length: int) -> Any:
        params, batch, random = self._pytree(x[: self.parameters.size]), (), {}
        if term.source is not None:
            source, arrays = self.sources[term.source], self.data[term.source]
            part = part_of(sample[term.source], first, length)
            random = {"key": key_of(part)} if term.takes_key and self.training and not isinstance(part, Span) else {}
            batch = (source.batch(arrays, part),)
        value, state = call(term.fn, params, *batch, **random)
        value = jnp.asarray(value, x.dtype)
        return (value, self.parameters.ravel(state)) if term.gives_state else value

    def _pytree(self, x: Float[Array, " n"]) -> PyTree[Any]:
        """The user's pytree with the numbers of x, and of the model state that is held."""
        if self.held is None:
            return self.parameters.unravel(x)
        return self.held.whole.unravel(self.held.whole.join(x, self.held.state))


def _value_and_jacobian(fn: Callable[[Array], Array], x: Float[Array, " n"]) -> tuple[Array, Array]:
    """The value and the Jacobian of a vector-valued function."""
    value, pullback = jax.vjp(fn, x)
    return value, jax.vmap(lambda row: pullback(row)[0])(jnp.eye(value.size, dtype=x.dtype))


def _joined(values: list[Array], x: Float[Array, " n"]) -> Float[Array, " raw"]:
    """The values of all functions in one vector."""
    return jnp.concatenate([*map(jnp.ravel, values)]) if values else jnp.zeros(0, x.dtype)


def too_large(rows: int, parameters: int) -> bool:
    """Whether a Jacobian of this shape is too large to form."""
    return rows > MAX_JACOBIAN_ROWS or rows * parameters > MAX_JACOBIAN_ENTRIES


def _mean_by_pieces(fn: Callable[[Any, int], Any], examples: int, devices: int) -> Any:
    """The mean of `fn(first, length)` over the pieces of a sample; under differentiation pieces are recomputed, not stored.

    Each device evaluates `PIECE` examples of a piece. What is left is evaluated in a part that can be split, and the rest.
    """
    if examples <= PIECE:
        return fn(0, examples)
    piece = PIECE * devices
    pieces, left = divmod(examples, piece)
    rest = left % devices

    def add(total: Any, first: Any, length: int) -> Any:
        return jax.tree.map(lambda a, b: a + b * (length / examples), total, fn(first, length))

    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(lambda: fn(0, min(piece, examples))))
    body = jax.checkpoint(lambda total, first: (add(total, first, piece), None))  # pyright: ignore
    total = jax.lax.scan(body, zero, piece * jnp.arange(pieces))[0] if pieces else zero
    for first, length in ((pieces * piece, left - rest), (examples - rest, rest)):
        total = add(total, first, length) if length else total
    return total
