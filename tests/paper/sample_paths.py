"""Runs of the library's methods step by step, with their samples, for tests against transcriptions.

Nothing here depends on the algorithm: it calls `init` and `step` as the loop does and returns NumPy arrays.
"""

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from tightrope.methods.base import Draw, Method, as_arrays
from tightrope.oracles.build import oracle_for
from tightrope.oracles.oracle import Oracle
from tightrope.problems.parameters import Parameters
from tightrope.problems.problem import Problem
from tightrope.runs.stepper import draw_samples


class Path(NamedTuple):
    """A run: `x[k]` is the iterate after k steps, `samples[role][k]`, `uniforms[k]`, `keys[k]` the draw of step k (0: init)."""

    x: np.ndarray
    samples: dict[str, list[tuple[np.ndarray, ...]]]
    uniforms: np.ndarray
    keys: Any
    states: list[Any]
    infos: list[Any]
    method: Method
    oracle: Oracle


def quick_jit(fn: Any) -> Any:
    """Compiled with little optimization: these programs run once."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def _oracle(problem: Problem, dtype: Any, shape: int | tuple[int, ...], form: str) -> Oracle:
    """For x of one array, or of a tuple of arrays with these sizes."""
    zeros = lambda size: jnp.zeros(size, dtype)
    return oracle_for(problem, Parameters(tuple(map(zeros, shape)) if isinstance(shape, tuple) else zeros(shape)), form)


@functools.cache
def _draws(oracle_of: Any, roles: tuple[tuple[str, int | None], ...], steps: int) -> Any:
    """Compiled: seed ↦ the draws of the steps 0 … `steps`; one program for all methods with these roles."""
    oracle = _oracle(*oracle_of)
    one = lambda key, k: (*draw_samples(oracle, dict(roles), key, k), jax.random.fold_in(key, k))
    numbers = np.arange(steps + 1, dtype=np.int32)
    draws = lambda seed: jax.vmap(one, in_axes=(None, 0))(jax.random.key(seed), numbers)
    return quick_jit(draws), quick_jit(jax.vmap(draws))


@functools.cache
def _run(oracle_of: Any, steps: int) -> Any:
    """Compiled: (method, start, multipliers, draws) ↦ states and infos of all steps, and the method's output."""
    plain = _oracle(*oracle_of)

    def run(method: Method, start: Any, multipliers: Any, draws: Any) -> Any:
        oracle, horizon = replace(plain, multipliers=multipliers), jnp.int32(steps)

        def one(state: Any, at: Any) -> Any:
            k, drawn = at
            state, info = method.step(oracle, state, Draw(*drawn, k, horizon))
            return state, (state, info)

        head, tail = jax.tree.map(lambda a: a[0], draws), jax.tree.map(lambda a: a[1:], draws)
        first = method.init(oracle, start, Draw(*head, jnp.int32(0), horizon), horizon)
        last, (states, infos) = jax.lax.scan(one, first, (jnp.arange(1, steps + 1, dtype=jnp.int32), tail))
        join = lambda head, tail: jnp.concatenate([head[None], tail])
        return jax.tree.map(join, first, states), infos, method.output(last)

    return quick_jit(run), quick_jit(jax.vmap(lambda *arguments: run(*arguments)[2], in_axes=(None, None, None, 0)))


def prepared(
    problem: Problem, x0: np.ndarray, method: Method, steps: int, leaves: tuple[int, ...] | None = None
) -> Any:
    """The oracle, the method with its numbers as arrays, and the programs for draws and runs, not compiled yet."""
    dtype = jnp.asarray(x0).dtype
    oracle_of = (problem, dtype, leaves or len(x0), method.accepts.form)
    method = as_arrays(method, dtype)
    draws = _draws(oracle_of, tuple(method.roles(_oracle(*oracle_of)).items()), steps)
    return _oracle(*oracle_of), method, draws, _run(oracle_of, steps)


def drive(
    problem: Problem,
    x0: np.ndarray,
    method: Method,
    *,
    steps: int,
    seed: int = 0,
    start: np.ndarray | None = None,
    multipliers: np.ndarray | None = None,
    leaves: tuple[int, ...] | None = None,
) -> Path:
    """All iterates of a method from `start` (default x0; with slacks [x0, s]) and the draws that they came from.

    Dual variables start at `multipliers` of the method's rows (default 0). The problem's functions get x as a tuple of arrays
    with the sizes `leaves`, if given.
    """
    oracle, method, (draws, _), (run, _) = prepared(problem, x0, method, steps, leaves)
    drawn = draws(np.uint32(seed))
    first = oracle.multipliers if multipliers is None else jnp.asarray(multipliers)
    out = run(method, jnp.asarray(x0 if start is None else start), first, drawn)
    (states, infos, _), (samples, uniforms) = jax.tree.map(np.asarray, (out, drawn[:2]))
    at = lambda tree, k: jax.tree.map(lambda a: a[k], tree)
    return Path(
        x=states.x,
        samples={role: [at(entries, k) for k in range(steps + 1)] for role, entries in samples.items()},
        uniforms=uniforms,
        keys=drawn[2],
        states=[at(states, k) for k in range(steps + 1)],
        infos=[jax.tree.map(int, at(infos, k)) for k in range(steps)],
        method=method,
        oracle=oracle,
    )


def outputs(problem: Problem, x0: np.ndarray, method: Method, *, steps: int, seeds: int) -> np.ndarray:
    """`method.output` after `steps` steps, for the seeds 0, 1, …: one row per seed."""
    oracle, method, (_, draws), (_, run) = prepared(problem, x0, method, steps)
    return np.asarray(run(method, jnp.asarray(x0), oracle.multipliers, draws(np.arange(seeds, dtype=np.uint32))))


def visited(problem: Problem, x0: np.ndarray, method: Method, *, steps: int, seed: int = 0) -> np.ndarray:
    """The iterates that `solve` reports when it records every step."""
    seen: list[np.ndarray] = []
    tr.solve(
        problem, jnp.asarray(x0), method, steps=steps, seed=seed, record=1,
        callback=lambda row: seen.append(np.asarray(row["x"])),
    )  # fmt: skip
    return np.stack(seen)


def which(points: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The index of the candidate equal to each point; candidates must be distinct, and every point must be one of them."""
    gaps = np.linalg.norm(candidates[:, None] - candidates[None], axis=-1) + np.eye(len(candidates))
    assert gaps.min() > 1e-6, "two candidates are equal"
    distance = np.linalg.norm(points[:, None] - candidates[None], axis=-1)
    assert distance.min(axis=1).max() < 1e-9, "a point is none of the candidates"
    return distance.argmin(axis=1)


def follows(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Whether counts agree with probabilities: none where the probability is 0, chi-square within 1e-4 elsewhere."""
    from scipy.stats import chisquare

    possible = probabilities > 0
    if counts[~possible].any():
        return False
    expected = probabilities[possible] * counts.sum()
    return bool(possible.sum() == 1 or chisquare(counts[possible], expected).pvalue > 1e-4)
