"""Variables that constraints need besides the user's parameters: `lift` adds them to a problem, `unlifted` takes them out.

A constraint on a conditional value at risk has a threshold t that is minimized with x. `lift` makes a problem on the pytree
`Lifted(params, thresholds)`, an ordinary one: methods, records, certificates and checkpoints see one flat vector [x, t], and
know nothing of thresholds. The user's functions are called with `params`, the domain applies to `params`, and what is handed
out goes through `unlifted`.

Thresholds begin at their best value for x0, and `with_best_thresholds` sets those of an answer to their best values. On finite
data these are optimal on all of it. On samples they come from samples of their own: any t gives an upper bound of the
conditional value at risk, so the interval of a certificate, from other samples, holds for it.

A number that is not trained, such as the width of a smoothed indicator, is estimated at x0 and becomes a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..domains import Domain, Product, Reals
from .checks import Function
from .compiling import Program
from .constraints import Auxiliary, Constraint
from .data import Batches, Dataset, Source
from .model_state import WithState, call
from .parameters import Parameters
from .problem import Problem, cached_on_problem, sharing_programs
from .stream import Reader, Stream
from .tracing import with_arguments_of

PIECE, PIECES = 1024, 64
"""Examples evaluated at once, and the number of such pieces that are drawn from data that are not passed over in full."""
MAX_FULL_PASS = 2**20
"""Data of at most this many examples is passed over in full."""


class Lifted(NamedTuple):
    """The user's parameters, and the thresholds of constraints, in the order of these."""

    params: PyTree[Any]
    thresholds: tuple[Any, ...]


def unlifted(x: PyTree[Any]) -> PyTree[Any]:
    """The user's pytree."""
    if isinstance(x, WithState):
        return WithState(unlifted(x.params), x.state)
    return x.params if isinstance(x, Lifted) else x


def lift(problem: Problem, parameters: Parameters, owner: str) -> tuple[Problem, Parameters]:
    """The problem and its parameters with all variables; those of the user if there are no others.

    Thresholds have their best values for the user's parameters.
    """
    waiting = _waiting(problem)
    if not waiting:
        return problem, parameters
    for each in waiting:
        _check_values(parameters, each)
    values = _values_at_start(problem, parameters)
    numbers = [_estimate(owner, each, found) for each, found in zip(waiting, values, strict=True)]
    thresholds = [found for each, found in zip(waiting, numbers, strict=True) if each.auxiliary.trained]
    fixed = {each.name: found for each, found in zip(waiting, numbers, strict=True) if not each.auxiliary.trained}
    key = ("lifted", bool(thresholds), *fixed.items())
    lifted = sharing_programs(problem, _lifted_problem(problem, fixed, bool(thresholds)), key)
    if not thresholds:
        return lifted, parameters
    x0 = _with_thresholds(parameters.unravel(parameters.start), thresholds, parameters.dtype)
    return lifted, Parameters(x0, owner, parameters.argument)


def with_best_thresholds(
    problem: Problem,
    parameters: Parameters,
    data: tuple[PyTree[Array], ...],
    points: Float[np.ndarray, "points n"],
    *seeds: int,
) -> Float[np.ndarray, "points n"]:
    """Points of a lifted problem with their best thresholds, on these data; as they are if the problem has none."""
    waiting = _waiting(problem)
    if not waiting:
        return points

    def best(x: Float[np.ndarray, " n"], key: Array) -> Float[np.ndarray, " n"]:
        values = _values(problem, parameters, data, x, key)
        if not all(np.isfinite(found).all() for found in values):
            return x
        thresholds = [each.auxiliary.estimate(found) for each, found in zip(waiting, values, strict=True)]
        params = unlifted(parameters.unravel(jnp.asarray(x)))
        return np.asarray(parameters.ravel(_with_thresholds(params, thresholds, parameters.dtype)))

    key = jax.random.key(np.random.default_rng((PIECES, *seeds)).integers(2**31))
    return np.stack([best(x, jax.random.fold_in(key, place)) for place, x in enumerate(points)])


def vector_of(parameters: Parameters, x: PyTree[Any]) -> Float[Array, " n"]:
    """The flat vector of the user's pytree, with the thresholds of the start."""
    first = parameters.unravel(parameters.start)
    trained = first.params if isinstance(first, WithState) else first
    if not isinstance(trained, Lifted):
        return parameters.ravel(x)
    return parameters.ravel(_with_thresholds(x, list(trained.thresholds), parameters.dtype))


def _with_thresholds(x: PyTree[Any], thresholds: list[Any], dtype: Any) -> PyTree[Any]:
    if isinstance(x, WithState):
        return WithState(_with_thresholds(x.params, thresholds, dtype), x.state)
    return Lifted(x, tuple(jnp.asarray(value, dtype) for value in thresholds))


# ---------------------------------------------------------------------- the lifted problem


def _lifted_problem(problem: Problem, fixed: dict[str, float], lifted: bool) -> Problem:
    trained = [each.name for each in _waiting(problem) if each.auxiliary.trained]

    def lifted_constraint(c: Constraint) -> Constraint:
        fn, surrogate, denominator, auxiliary = c.fn, c.surrogate, c._denominator, c._auxiliary
        if c.name in fixed and surrogate is not None:
            surrogate, auxiliary = _with_constant(surrogate, fixed[c.name]), None
        if lifted:
            fn = _on_params(fn, trained.index(c.name) if c.name in trained else None)
            surrogate = None if surrogate is None else _on_params(surrogate)
            denominator = None if denominator is None else _on_params(denominator)
        return replace(c, fn=fn, surrogate=surrogate, _auxiliary=auxiliary, _denominator=denominator)

    objective = _on_params(problem.objective) if lifted else problem.objective
    domain: Domain = problem.domain
    if lifted and not isinstance(domain, Reals):
        domain = Product(Lifted(domain, Reals()))  # pyright: ignore[reportArgumentType]
    constraints = [lifted_constraint(c) for c in problem.constraints]
    return Problem(objective, constraints, domain=domain, data=problem.data, smooth=problem.smooth)


def _on_params(fn: Callable[..., Any], place: int | None = None) -> Callable[..., Any]:
    """The function of lifted parameters; `place` is that of the threshold that it takes."""

    def on_params(x: Lifted, *batch: Any, **given: Any) -> Any:
        more = {} if place is None else {"auxiliary": x.thresholds[place]}
        return fn(x.params, *batch, **given, **more)

    return with_arguments_of(fn, on_params)


def _with_constant(fn: Callable[..., Any], auxiliary: float) -> Callable[..., Any]:
    def with_constant(params: Any, *batch: Any, **given: Any) -> Any:
        return fn(params, *batch, auxiliary=auxiliary, **given)

    return with_arguments_of(fn, with_constant)


# ---------------------------------------------------------------------- values on single examples


class _Waiting(NamedTuple):
    """The number that a constraint waits for."""

    name: str
    auxiliary: Auxiliary
    source: Source


def _waiting(problem: Problem) -> list[_Waiting]:
    listed = ((c.name, c._auxiliary, c.data) for c in problem.constraints)
    return [_Waiting(name, number, data) for name, number, data in listed if number is not None and data is not None]


def _check_values(parameters: Parameters, waiting: _Waiting) -> None:
    """A ValueError unless the user's function gives one value per example."""
    name = f"the function of the constraint {waiting.name!r}"
    function = Function(name, waiting.auxiliary.values, parameters, waiting.source)
    shape, examples = function.checked_shape(), jax.tree.leaves(function.batch)[0].shape[0]
    if shape != (examples,):
        raise ValueError(
            f"{name} must return one value per example, shape ({examples},) for {examples} examples, got {shape}"
        )


def _estimate(owner: str, waiting: _Waiting, values: Float[np.ndarray, " examples"] | None) -> float:
    if values is None:  # tightrope.Batches: there are no examples yet
        return 0.0 if waiting.auxiliary.trained else waiting.auxiliary.estimate(np.zeros(1))
    if not np.isfinite(values).all():
        raise ValueError(
            f"{owner}: the function of the constraint {waiting.name!r} is not finite for all examples at the start; "
            "expected finite numbers: start where it is defined"
        )
    return waiting.auxiliary.estimate(values)


def _values_at_start(problem: Problem, parameters: Parameters) -> list[Float[np.ndarray, " examples"] | None]:
    """The values of every function at the start; None if there are no examples yet."""
    if problem.needs_batches:
        return [_on_first_batch(parameters, each) for each in _waiting(problem)]
    data = tuple(source.arrays for source in problem.sources)
    return list(_values(problem, parameters, data, parameters.start, jax.random.key(0)))


def _on_first_batch(parameters: Parameters, waiting: _Waiting) -> Float[np.ndarray, " examples"] | None:
    source = waiting.source
    if isinstance(source, Stream):
        batch = jax.tree.map(jnp.asarray, Reader(source).read())
    elif isinstance(source, Batches):
        return None
    else:
        batch = source.batch(source.arrays, source.draw(jax.random.key(0), PIECE))
    return np.asarray(call(waiting.auxiliary.values, parameters.unravel(parameters.start), batch)[0])


def _values(
    problem: Problem, parameters: Parameters, data: tuple[PyTree[Array], ...], x: Any, key: Array
) -> list[Float[np.ndarray, " examples"]]:
    """The values of every function at a point, on all examples of small data, or on some that are drawn."""
    program = cached_on_problem(
        problem, ("values", parameters.key), lambda: Program(partial(_values_program, problem, parameters), "little")
    )
    return [np.asarray(values) for values in jax.device_get(program(jax.tree.map(jnp.asarray, list(data)), x, key))]


def _values_program(
    problem: Problem, parameters: Parameters, data: list[PyTree[Array]], x: Float[Array, " n"], key: Array
) -> list[Float[Array, " examples"]]:
    params = unlifted(parameters.unravel(x))
    arrays = {id(source): each for source, each in zip(problem.sources, data, strict=True)}

    def of(waiting: _Waiting) -> Float[Array, " examples"]:
        source = waiting.source

        def on(sample: PyTree[Array]) -> Float[Array, " piece"]:
            return call(waiting.auxiliary.values, params, source.batch(arrays[id(source)], sample))[0]

        if isinstance(source, Dataset) and source.size <= MAX_FULL_PASS:
            piece = min(PIECE, source.size)
            places = np.arange(-(-source.size // piece) * piece).clip(max=source.size - 1).astype(np.int32)
            return jnp.ravel(jax.lax.map(on, jnp.asarray(places.reshape(-1, piece))))[: source.size]
        return jnp.ravel(jax.lax.map(lambda key: on(source.draw(key, PIECE)), jax.random.split(key, PIECES)))

    return [of(each) for each in _waiting(problem)]
