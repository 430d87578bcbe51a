"""Residuals along many runs at once: squared and averaged over all steps so far, without storing iterates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from ...methods.base import Draw, Method, as_arrays
from ...oracles.build import oracle_for
from ...problems.parameters import Parameters
from ...runs.stepper import draw_samples, start
from ..base import Entry
from .config import HORIZONS, RATES
from .problems import Case

Multipliers = Callable[[Any, Any, Array, Array], Array]
"""(method, state after step k, k, exact c at that state) ↦ the multipliers in the theorem."""


class Curves(NamedTuple):
    """For each seed and recorded k: running means of squared residuals and of samples drawn, and ‖c‖² at x_{k+1}."""

    seconds: float
    k: np.ndarray
    stationarity: Float[np.ndarray, "seeds records"]
    violation: Float[np.ndarray, "seeds records"]
    samples: Float[np.ndarray, "seeds records"]
    last_violation: Float[np.ndarray, "seeds records"]


def records(steps: int, count: int = 41) -> np.ndarray:
    """Logarithmically spaced steps, from a thousandth of the run to its end."""
    return np.unique(np.geomspace(max(10, steps // 1000), steps, count).astype(int))


def curves(case: Case, method: Method, multipliers: Multipliers, steps: int, seeds: int) -> Curves:
    """Run the method for all seeds at once."""
    parameters = Parameters(case.start)
    oracle = oracle_for(case.problem, parameters, method.accepts.form)
    roles, horizon, at = method.roles(oracle), jnp.int32(steps), records(steps)
    domain, n = case.problem.domain, parameters.size

    def residuals(method: Method, state: Any, k: Array) -> Float[Array, " 2"]:
        x = state.x[:n]
        c, pullback = jax.vjp(case.constraint, x)
        slope = jax.grad(case.objective)(x) + pullback(multipliers(method, state, k, c))[0]
        return jnp.stack([domain.normal_cone_distance(x, slope) ** 2, jnp.sum(c**2)])

    def step(method: Method, key: Array, k: Array, carried: tuple[Any, Array]) -> tuple[Any, Array]:
        state, total = carried
        draw = Draw(*draw_samples(oracle, roles, key, k), jax.random.fold_in(key, k), k, horizon)
        state, info = method.step(oracle, state, draw)
        return state, total + jnp.append(residuals(method, state, k), info.samples)

    def run(key: Array, given: Method) -> Float[Array, "records 4"]:
        begun = start(oracle, given, parameters.start, key, horizon)

        def to_next_record(carried: tuple[Any, Array, Array], end: Array) -> Any:
            state, total, first = carried
            state, total = jax.lax.fori_loop(
                first, end + 1, lambda k, carried: step(begun.method, key, k, carried), (state, total)
            )
            now = residuals(begun.method, state, end)[1:]
            return (state, total, end + 1), jnp.concatenate([total / end, now])

        begin = begun.state, jnp.zeros(3, parameters.dtype), jnp.int32(1)
        return jax.lax.scan(to_next_record, begin, jnp.asarray(at, jnp.int32))[1]

    keys = jax.vmap(jax.random.key)(np.arange(seeds, dtype=np.uint32))
    given = keys, as_arrays(method, parameters.dtype)
    program = jax.jit(jax.vmap(run, in_axes=(0, None))).lower(*given).compile()
    began = time.perf_counter()
    found = np.asarray(program(*given))
    return Curves(time.perf_counter() - began, at, *np.moveaxis(found, -1, 0))


def averages(steps: int, seeds: int, entry: Entry) -> pd.DataFrame:
    """The tidy frame of a method of paper 1 or 2."""
    case, method, multipliers, _, _ = RATES[entry.label]
    assert multipliers is not None
    found = curves(case(), method, multipliers, steps, seeds)
    one = [np.tile(column, seeds) for column in (found.k, found.seconds * found.k / steps)]
    return pd.DataFrame(
        {
            "seed": np.repeat(np.arange(seeds), len(found.k)),
            "step": one[0],
            "samples": np.rint(one[0] * np.ravel(found.samples)).astype(int),
            "seconds": one[1],
            "mean_stationarity": np.ravel(found.stationarity),
            "mean_violation": np.ravel(found.violation),
            "last_violation": np.ravel(found.last_violation),
        }
    )


def outputs(steps: int, seeds: int, entry: Entry) -> pd.DataFrame:
    """The tidy frame of a method of paper 5."""
    rate = RATES[entry.label]
    return at_horizons(rate.case(), rate.method, [int(t) for t in np.geomspace(steps / 10, steps, HORIZONS)], seeds)


def at_horizons(case: Case, method: Method, horizons: list[int], seeds: int) -> pd.DataFrame:
    """The gap F(x̄) − F* of the method's output and its largest H(x̄), for each horizon T and seed."""
    parameters = Parameters(case.start)
    oracle = oracle_for(case.problem, parameters, method.accepts.form)
    roles = method.roles(oracle)
    assert case.optimum is not None
    optimum = case.optimum

    def run(key: Array, horizon: Array, given: Method) -> Float[Array, " 3"]:
        begun = start(oracle, given, parameters.start, key, horizon)

        def step(k: Array, carried: tuple[Any, Array]) -> tuple[Any, Array]:
            state, samples = carried
            draw = Draw(*draw_samples(oracle, roles, key, k), jax.random.fold_in(key, k), k, horizon)
            state, info = begun.method.step(oracle, state, draw)
            return state, samples + info.samples

        state, samples = jax.lax.fori_loop(1, horizon + 1, step, (begun.state, jnp.int32(0)))
        x = begun.method.output(state)
        return jnp.stack([samples, case.objective(x) - optimum, jnp.max(case.constraint(x))])

    keys = jax.vmap(jax.random.key)(np.arange(seeds, dtype=np.uint32))
    given = as_arrays(method, parameters.dtype)
    program = jax.jit(jax.vmap(run, in_axes=(0, None, None))).lower(keys, np.int32(0), given).compile()
    frames = []
    for horizon in horizons:
        began = time.perf_counter()
        samples, gaps, violations = np.asarray(program(keys, np.int32(horizon), given)).T
        took = time.perf_counter() - began
        about = {"seed": np.arange(seeds), "step": horizon, "samples": samples.astype(int), "seconds": took}
        frames.append(pd.DataFrame(about | {"gap": gaps, "output_violation": violations}))
    return pd.concat(frames, ignore_index=True)


def slope(k: np.ndarray, values: np.ndarray) -> float:
    """The least-squares slope of log values against log k over the last decade of k."""
    late = k >= k[-1] / 10
    return float(np.polyfit(np.log(k[late]), np.log(values[late]), 1)[0])
