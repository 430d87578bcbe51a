"""Residuals along many runs at once: squared and averaged over all steps so far, without storing an iterate."""

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
from ...runs.loop import draw_of, start
from ..base import Entry
from .config import EVERY, HORIZONS
from .problems import Case

Multipliers = Callable[[Any, Any, Array, Array], Array]
"""(method, state after step k, k, exact c there) ↦ the multipliers that the theorem speaks of."""


class Curves(NamedTuple):
    """At each recorded k and for each seed: running means of squared residuals and of rows drawn, ‖c‖² at x_{k+1} itself."""

    seconds: float
    k: np.ndarray
    stationarity: Float[np.ndarray, "seeds records"]
    violation: Float[np.ndarray, "seeds records"]
    rows: Float[np.ndarray, "seeds records"]
    last_violation: Float[np.ndarray, "seeds records"]


def records(steps: int, count: int = 41) -> np.ndarray:
    """Steps, evenly spaced in their logarithm, from a thousandth of the way to the end."""
    return np.unique(np.geomspace(max(10, steps // 1000), steps, count).astype(int))


def curves(case: Case, method: Method, multipliers: Multipliers, steps: int, seeds: int) -> Curves:
    """Run `seeds` runs of the method side by side."""
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
        draw = Draw(*draw_of(oracle, roles, key, k), jax.random.fold_in(key, k), k, horizon)
        state, info = method.step(oracle, state, draw)
        return state, total + jnp.append(residuals(method, state, k), info.samples)

    def run(key: Array, asked: Method) -> Float[Array, "records 4"]:
        filled, carry = start(oracle, asked, parameters.start, key, horizon)

        def stretch(carried: tuple[Any, Array, Array], end: Array) -> Any:
            state, total, first = carried
            state, total = jax.lax.fori_loop(
                first, end + 1, lambda k, carried: step(filled, key, k, carried), (state, total)
            )
            now = residuals(filled, state, end)[1:]
            return (state, total, end + 1), jnp.concatenate([total / end, now])

        begin = carry.state, jnp.zeros(3, parameters.dtype), jnp.int32(1)
        return jax.lax.scan(stretch, begin, jnp.asarray(at, jnp.int32))[1]

    keys = jax.vmap(jax.random.key)(np.arange(seeds, dtype=np.uint32))
    given = keys, as_arrays(method, parameters.dtype)
    program = jax.jit(jax.vmap(run, in_axes=(0, None))).lower(*given).compile()
    began = time.perf_counter()
    found = np.asarray(program(*given))
    return Curves(time.perf_counter() - began, at, *np.moveaxis(found, -1, 0))


def averages(steps: int, seeds: int, entry: Entry) -> pd.DataFrame:
    """The curves of a method of papers 1 and 2 as a tidy frame."""
    case, method, multipliers, _, _ = EVERY[entry.label]
    assert multipliers is not None
    found = curves(case(), method, multipliers, steps, seeds)
    one = [np.tile(column, seeds) for column in (found.k, found.seconds * found.k / steps)]
    return pd.DataFrame(
        {
            "seed": np.repeat(np.arange(seeds), len(found.k)),
            "step": one[0],
            "samples": np.rint(one[0] * np.ravel(found.rows)).astype(int),
            "seconds": one[1],
            "mean_stationarity": np.ravel(found.stationarity),
            "mean_violation": np.ravel(found.violation),
            "last_violation": np.ravel(found.last_violation),
        }
    )


def outputs(steps: int, seeds: int, entry: Entry) -> pd.DataFrame:
    """What `at_horizons` finds for a method of paper 5."""
    rate = EVERY[entry.label]
    return at_horizons(rate.case(), rate.method, [int(t) for t in np.geomspace(steps / 10, steps, HORIZONS)], seeds)


def at_horizons(case: Case, method: Method, horizons: list[int], seeds: int) -> pd.DataFrame:
    """For each horizon T and seed the gap F(x̄) − F* of the method's output and its largest H(x̄)."""
    parameters = Parameters(case.start)
    oracle = oracle_for(case.problem, parameters, method.accepts.form)
    roles = method.roles(oracle)
    assert case.optimum is not None
    optimum = case.optimum

    def run(key: Array, horizon: Array, asked: Method) -> Float[Array, " 3"]:
        filled, carry = start(oracle, asked, parameters.start, key, horizon)

        def step(k: Array, carried: tuple[Any, Array]) -> tuple[Any, Array]:
            state, rows = carried
            draw = Draw(*draw_of(oracle, roles, key, k), jax.random.fold_in(key, k), k, horizon)
            state, info = filled.step(oracle, state, draw)
            return state, rows + info.samples

        state, rows = jax.lax.fori_loop(1, horizon + 1, step, (carry.state, jnp.int32(0)))
        x = filled.output(state)
        return jnp.stack([rows, case.objective(x) - optimum, jnp.max(case.constraint(x))])

    keys = jax.vmap(jax.random.key)(np.arange(seeds, dtype=np.uint32))
    given = as_arrays(method, parameters.dtype)
    program = jax.jit(jax.vmap(run, in_axes=(0, None, None))).lower(keys, np.int32(0), given).compile()
    frames = []
    for horizon in horizons:
        began = time.perf_counter()
        rows, gaps, violations = np.asarray(program(keys, np.int32(horizon), given)).T
        took = time.perf_counter() - began
        about = {"seed": np.arange(seeds), "step": horizon, "samples": rows.astype(int), "seconds": took}
        frames.append(pd.DataFrame(about | {"gap": gaps, "output_violation": violations}))
    return pd.concat(frames, ignore_index=True)


def slope(k: np.ndarray, values: np.ndarray) -> float:
    """The least-squares slope of log values against log k over the last decade of k."""
    late = k >= k[-1] / 10
    return float(np.polyfit(np.log(k[late]), np.log(values[late]), 1)[0])
