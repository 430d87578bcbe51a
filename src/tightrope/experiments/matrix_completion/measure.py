"""The curves of many runs at once, measured on the whole matrix at every step, so that averages over a run are exact.

The general runner would evaluate stationarity at every record, which takes hundreds of singular value decompositions here and
is not needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from ...methods.base import Draw, as_arrays
from ...oracles.build import oracle_for
from ...problems.parameters import Parameters
from ...runs.stepper import draw_samples, start
from ..base import Entry
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


def curves(shape: tuple[int, ...], batch: int, steps: int, seeds: int, entry: Entry) -> pd.DataFrame:
    """The tidy frame of an entry.

    The average violation is the mean of the violation over all iterates so far; it is negative where the constraint holds. The
    output is the method's answer: the average of the iterates for FW-CSOA, the last iterate for SCGD.
    """
    (problem, x0), (method,) = make(batch, *shape), entry.grid
    error, violation = error_and_violation(instance(*shape))
    parameters = Parameters(x0)
    oracle = oracle_for(problem, parameters, method.accepts.form)
    roles, horizon = method.roles(oracle), jnp.int32(steps)
    at = np.unique(np.linspace(1, steps, config.RECORDS).astype(np.int32))

    def run(key: Array) -> Float[Array, "records numbers"]:
        begun = start(oracle, as_arrays(method, parameters.dtype), parameters.start, key, horizon)

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

    keys = jax.vmap(jax.random.key)(np.arange(seeds, dtype=np.uint32))
    program = jax.jit(jax.vmap(run)).lower(keys).compile()
    began = time.perf_counter()
    found = np.asarray(program(keys)).reshape(-1, len(MEASURED))
    steps_done = np.tile(at, seeds)
    columns = {
        "seed": np.repeat(np.arange(seeds), len(at)),
        "step": steps_done,
        "samples": 2 * batch * steps_done,
        "seconds": (time.perf_counter() - began) * steps_done / steps,
    }
    return pd.DataFrame(columns | dict(zip(MEASURED, found.T, strict=True)))
