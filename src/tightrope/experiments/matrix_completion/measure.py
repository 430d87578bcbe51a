"""The curves of many runs at once, measured on the whole matrix at every step, so that averages over a run are exact.

The general runner would evaluate stationarity at every record, which takes hundreds of singular value decompositions here and
is not needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from ...methods import Method
from ...methods.base import Draw, as_arrays
from ...oracles.build import oracle_for
from ...problems.parameters import Parameters
from ...runs.stepper import draw_samples, start
from ..base import Entry
from ..entries import TUNING_SEED
from . import config
from .problem import Instance, instance, make

MEASURED = ("normalized error", "violation", "average violation", "output error", "output violation")

Measure = Callable[[Float[Array, " n"]], Float[Array, ""]]


def error_and_violation(case: Instance) -> tuple[Measure, Measure]:
    """Σ (X − M)² / Σ M² over the observed entries, and ½ Σ X² / β − 1 over the unobserved entries, as functions of X."""
    noisy, observed = jnp.asarray(case.noisy, jnp.float32), jnp.asarray(case.observed)

    def error(x: Float[Array, " n"]) -> Float[Array, ""]:
        difference = jnp.where(observed, x.reshape(noisy.shape) - noisy, 0.0)
        return jnp.sum(difference**2) / jnp.sum(jnp.where(observed, noisy, 0.0) ** 2)

    def violation(x: Float[Array, " n"]) -> Float[Array, ""]:
        return 0.5 * jnp.sum(jnp.where(observed, 0.0, x.reshape(noisy.shape)) ** 2) / case.bound - 1.0

    return error, violation


def recorded(shape: tuple[int, ...], batch: int, steps: int, methods: Sequence[Method], seeds: Sequence[int]) -> Any:
    """The records of all methods (with equal static settings) and seeds, their steps, and the wall time of the runs."""
    problem, x0 = make(batch, *shape)
    error, violation = error_and_violation(instance(*shape))
    parameters = Parameters(x0)
    oracle = oracle_for(problem, parameters, methods[0].accepts.form)
    roles, horizon = methods[0].roles(oracle), jnp.int32(steps)
    at = np.unique(np.linspace(1, steps, config.RECORDS).astype(np.int32))

    def run(method: Method, key: Array) -> Float[Array, "records numbers"]:
        begun = start(oracle, method, parameters.start, key, horizon)

        def step(k: Array, carried: tuple[Any, Array]) -> tuple[Any, Array]:
            state, total = carried
            draw = Draw(*draw_samples(oracle, roles, key, k), jax.random.fold_in(key, k), k, horizon)
            return begun.method.step(oracle, state, draw)[0], total + violation(state.x)

        def to_next_record(carried: tuple[Any, Array, Array], end: Array) -> Any:
            state, total, first = carried
            state, total = jax.lax.fori_loop(first, end + 1, step, (state, total))
            output = begun.method.output(state)
            record = jnp.stack([error(state.x), violation(state.x), total / end, error(output), violation(output)])
            return (state, total, end + 1), record

        return jax.lax.scan(to_next_record, (begun.state, jnp.zeros(()), jnp.int32(1)), jnp.asarray(at))[1]

    lanes = [as_arrays(method, parameters.dtype) for method in methods for _ in seeds]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *lanes)
    keys = jax.vmap(jax.random.key)(np.array(list(seeds) * len(methods), dtype=np.uint32))
    program = jax.jit(jax.vmap(run)).lower(stacked, keys).compile()
    began = time.perf_counter()
    found = np.asarray(program(stacked, keys))
    return found, at, time.perf_counter() - began


def curves(shape: tuple[int, ...], batch: int, steps: int, seeds: int, entry: Entry) -> pd.DataFrame:
    """The tidy frame of an entry.

    The average violation is the mean of the violation over all iterates so far; it is negative where the constraint holds. The
    output is the method's answer: the average of the iterates for FW-CSOA, the last iterate for SCGD.
    """
    found, at, seconds = recorded(shape, batch, steps, entry.grid, range(seeds))
    steps_done = np.tile(at, seeds)
    columns = {
        "seed": np.repeat(np.arange(seeds), len(at)),
        "step": steps_done,
        "samples": 2 * batch * steps_done,
        "seconds": seconds * steps_done / steps,
    }
    return pd.DataFrame(columns | dict(zip(MEASURED, found.reshape(-1, len(MEASURED)).T, strict=True)))


def scores(shape: tuple[int, ...], batch: int, steps: int, entry: Entry) -> list[tuple[float, float]]:
    """On the tuning seed, for each setting: the excess of the average violation over `NEAR_ZERO`, then the error at the end."""
    found, _, _ = recorded(shape, batch, steps, entry.grid, [TUNING_SEED])
    ends = pd.DataFrame(found[:, -1], columns=list(MEASURED)).fillna(np.inf)
    return [
        (max(float(average) - config.NEAR_ZERO, 0.0), float(error))
        for error, average in zip(ends["normalized error"], ends["average violation"], strict=True)
    ]
