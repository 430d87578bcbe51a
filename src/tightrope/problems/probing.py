"""Values and gradients of the user's functions at a point, on a few examples, before a run relies on them.

A function with data must be a mean over the examples of its batch. Its value on m examples must then be the mean of its values
on their m/2 pairs, up to rounding. A ratio of sums, a sum, a quantile or a normalization over the batch is not: pairs show it
best, because the bias of a ratio falls with the number of examples. What rounding can do is measured, not assumed: x and the
examples are changed by two units in their last place, and the pairs' values change by `noise`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..domains import Domain
from .canonical import describe
from .checks import Function
from .compiling import Program
from .data import Dataset, Source
from .definition import Definition
from .model_state import call as call_at
from .parameters import Parameters
from .problem import Problem, cached_on_problem

EXAMPLES = 64
"""The number of examples of a probe; smaller data is used whole."""
SHIFT = 0.1
"""The size of the shift to the second probe, relative to x0: at x0 = 0 all scores are equal, and a ratio looks like a mean."""
RELATIVE_GAP, ROUNDING = 1e-4, 30.0
"""A gap between whole and pairs counts above this part of the pairs' spread and this multiple of what rounding does."""


class Values(NamedTuple):
    """A function at a point.

    Attributes:
        whole: its values on all examples.
        pairs: the mean of its values on pairs of examples.
        gap: the difference of the two that is neither rounding nor small; 0 if there is none.
        finite_gradient: whether the gradient of the sum of its values is finite.
    """

    whole: Float[Array, " k"]
    pairs: Float[Array, " k"]
    gap: Float[Array, " k"]
    finite_gradient: Bool[Array, ""]


class Probe(NamedTuple):
    """All functions at a point.

    Attributes:
        values: of each function, the objective first.
        start: x if it is in the domain, else its projection.
        inside: whether x is in the domain.
    """

    values: tuple[Values, ...]
    start: Float[Array, " n"]
    inside: Bool[Array, ""]


Data = tuple[PyTree[Array], ...]
"""The arrays of every source."""


def probe(problem: Problem, parameters: Parameters, data: Data, x: Float[Array, " n"], shift: float = 0.0) -> Probe:
    """All functions at x, projected into the domain, or at a point of the domain that lies `shift` away from there."""
    return jax.device_get(_program(problem, parameters)(*_arguments(problem, data, x, shift)))


def begin_probe(problem: Problem, parameters: Parameters, data: Data) -> None:
    """Trace the program of `probe`; it is compiled in a thread."""
    _program(problem, parameters).begin(*_arguments(problem, data, parameters.start, 0.0))


def _program(problem: Problem, parameters: Parameters) -> Program:
    def make() -> Program:
        terms = [(fn, source) for _, fn, source in _functions(problem)]
        places = [None if source is None else problem.sources.index(source) for _, source in terms]
        called = tuple(zip((fn for fn, _ in terms), places, strict=True))
        digests = cached_on_problem(problem, ("digests", parameters.key), dict)
        definition = Definition(terms, problem.sources, parameters, digests)
        return Program(partial(_probe, called, problem.sources, parameters), "little", definition)

    return cached_on_problem(problem, ("probe", parameters.key), make)


def _arguments(problem: Problem, data: Data, x: Float[Array, " n"], shift: float) -> tuple[Any, ...]:
    numbers = jax.tree.map(jnp.asarray, (problem.domain, list(data)))
    return *numbers, x, np.asarray(shift, x.dtype)


def check_start(problem: Problem, parameters: Parameters, data: Data) -> Probe:
    """The probe at x0; an error if a function or its gradient is not finite there, a warning if one is not a mean."""
    found = probe(problem, parameters, data, parameters.start)
    where = parameters.argument + ("" if found.inside else ", projected into the domain")
    for (name, *_), at in zip(_functions(problem), found.values, strict=True):
        if not np.isfinite(at.whole).all():
            raise ValueError(
                f"{name} is {_shown(at.whole)} at {where}; expected finite numbers: start where it is defined"
            )
        if not at.finite_gradient:
            raise ValueError(
                f"the gradient of {name} is not finite at {where}, although its value is: {_shown(at.whole)}. The usual cause "
                "is sqrt, log, a norm or a division at 0, also in the branch of jnp.where that is not taken. Replace "
                "the argument there, jnp.sqrt(jnp.where(s > 0, s, 1.0)), add a small constant, jnp.sqrt(s + 1e-12), or "
                "start elsewhere"
            )
    shifted = probe(problem, parameters, data, parameters.start, SHIFT)
    _warn(_not_means(problem, parameters, found, shifted), stacklevel=5)
    return found


def check_answer(problem: Problem, parameters: Parameters, data: Data, x: Float[Array, " n"]) -> None:
    """Warn of functions that are not means at the answer, unless `check_start` did."""
    found = _not_means(problem, parameters, probe(problem, parameters, data, x))
    if found:
        before = [probe(problem, parameters, data, parameters.start, shift) for shift in (0.0, SHIFT)]
        known = _not_means(problem, parameters, *before)
        _warn({name: at for name, at in found.items() if name not in known}, stacklevel=4)


def _warn(found: dict[str, Values], stacklevel: int) -> None:
    for name, at in found.items():
        warnings.warn(
            f"{name} is not a mean over the examples of its batch: it is {_shown(at.whole)} on a batch, but the mean over "
            f"pairs of its examples is {_shown(at.pairs)}. A sum, a ratio of sums or a quantile of a batch is estimated with "
            "bias; write a mean. For a ratio of means a / b use tightrope.ratio_at_least or ratio_at_most.",
            UserWarning,
            stacklevel=stacklevel,
        )


def _shown(values: Any) -> str:
    """A number, or the first of several."""
    values = np.asarray(values)
    return f"{values.item():.6g}" if values.size == 1 else np.array2string(values, precision=6, threshold=6)


def _not_means(problem: Problem, parameters: Parameters, *probes: Probe) -> dict[str, Values]:
    """The functions that are not means at one of these points, with their values there."""
    found = {}
    for place, (name, fn, source) in enumerate(_functions(problem)):
        values = [at for at in (each.values[place] for each in probes) if np.isfinite(at.whole).all()]
        gaps = [at for at in values if not np.all(at.gap == 0.0)]  # NaN counts: a pair without a value
        if gaps and not _in_half_precision(Function(name, fn, parameters, source)):
            found[name] = gaps[0]
    return found


def _in_half_precision(function: Function) -> bool:
    """Whether the function computes in half precision, where rounding hides the difference."""
    jaxpr, _ = function.traced(*function.batch)
    return any(isinstance(token, str) and "float16" in token for token in describe(jaxpr))


def _functions(problem: Problem) -> list[tuple[str, Callable[..., Any], Source | None]]:
    named = [(f"the constraint {c.name!r}", c.fn, c.data) for c in problem.constraints]
    return [("the objective", problem.objective, problem.data), *named]


# ---------------------------------------------------------------------- the compiled program


Called = tuple[tuple[Callable[..., Any], int | None], ...]
"""The functions, and the place of each one's source."""


def _probe(
    called: Called,
    sources: tuple[Source, ...],
    parameters: Parameters,
    domain: Domain,
    arrays: list[PyTree[Array]],
    x: Array,
    shift: Array,
) -> Probe:
    trained, (x, state) = parameters.trained, parameters.split(x)
    inside = domain.contains(trained.unravel_arrays(x))
    start = jnp.where(inside, x, trained.ravel(domain.project(trained.unravel_arrays(x)))) if domain.can_project else x
    point = jnp.where(shift == 0.0, start, _shifted(domain, trained, start, shift))
    sample = [_few_examples(source, a) for source, a in zip(sources, arrays, strict=True)]
    values = []
    with jax.default_matmul_precision("highest"):  # else products round to ten bits on some accelerators
        for fn, place in called:

            def call(vector: Array, *batch: Any, fn: Callable[..., Any] = fn) -> Array:
                params = parameters.unravel(parameters.join(vector, state))
                return jnp.ravel(jnp.asarray(call_at(fn, params, *batch)[0]))

            values.append(_values(call, point, () if place is None else (sample[place],)))
    return Probe(tuple(values), parameters.join(start, state), inside)


def _few_examples(source: Source, arrays: PyTree[Array]) -> PyTree[Array]:
    """An even number of examples, spread over the data."""
    if not isinstance(source, Dataset):
        return source.draw(jax.random.key(0), EXAMPLES)
    examples = min(EXAMPLES, source.size)
    return source.batch(arrays, np.linspace(0, source.size - 1, max(1, examples // 2 * 2)).astype(int))


def _shifted(domain: Domain, parameters: Parameters, x: Float[Array, " n"], shift: Float[Array, ""]) -> Array:
    """A point of the domain near x."""
    direction, size = (_scrambled(x.size) / 2.0**15 - 1.0).astype(x.dtype), jnp.sqrt(jnp.mean(x**2))
    unravel = parameters.unravel_arrays
    if domain.can_project:
        moved = x + shift * (jnp.abs(x) + jnp.where(size > 0.0, size, 1.0)) * direction
        return parameters.ravel(domain.project(unravel(moved)))
    return x + shift * (parameters.ravel(domain.lmo(unravel(direction))) - x) if domain.can_minimize else x


def _values(call: Callable[..., Array], x: Float[Array, " n"], batch: tuple[PyTree[Array], ...]) -> Values:
    whole, pull = jax.vjp(lambda point: call(point, *batch), x)
    finite = jnp.isfinite(pull(jnp.ones_like(whole))[0]).all()
    examples = len(jax.tree.leaves(batch)[0]) if batch else 1
    if examples < 2:
        return Values(whole, whole, jnp.zeros_like(whole), finite)
    pairs = jax.tree.map(lambda a: a.reshape(examples // 2, 2, *a.shape[1:]), batch)
    both = jax.tree.map(lambda a: jnp.stack([a, _in_the_last_place(a)]), (x, pairs))
    here, near = jax.lax.map(lambda at: jax.lax.map(lambda pair: call(at[0], *pair), at[1]), both)
    mean, noise = jnp.mean(here, axis=0), jnp.where(jnp.isfinite(near), jnp.abs(near - here), jnp.inf)
    rounding = jnp.mean(noise, axis=0) + jnp.finfo(here.dtype).eps * (jnp.abs(whole) + jnp.mean(jnp.abs(here), axis=0))
    gap = jnp.abs(whole - mean)
    small = gap <= RELATIVE_GAP * jnp.std(here, axis=0) + ROUNDING * rounding
    return Values(whole, mean, jnp.where(small, 0.0, gap), finite)


def _in_the_last_place(array: Array) -> Array:
    """The numbers, changed by two units in the last place up or down.

    Whole numbers, which may be labels, stay as long as sums of them are exact.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    eps = jnp.finfo(array.dtype).eps
    sign = (1.0 - 2.0 * (_scrambled(array.size) & 1)).astype(array.dtype).reshape(array.shape)
    exact = (array == jnp.round(array)) & (EXAMPLES * jnp.abs(array) <= 1.0 / eps)
    return jnp.where(exact, array, array * (1.0 + 2.0 * eps * sign))


def _scrambled(size: int) -> Int[Array, " size"]:
    """Whole numbers below 2¹⁶ that look random: faster to compile than jax.random, and never rounded."""
    return (jnp.arange(size, dtype=jnp.uint32) * np.uint32(2654435761) >> 16).astype(jnp.int32)
