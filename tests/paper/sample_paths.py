"""The library's methods driven step by step, with the sample path they saw, for tests against transcriptions.

Nothing here knows an algorithm: it only calls `init` and `step` as the loop does, and hands back NumPy arrays.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from tightrope.loop import draw_of
from tightrope.methods.base import Draw, Method, as_arrays
from tightrope.oracle import Oracle
from tightrope.parameters import Parameters
from tightrope.problem import Problem
from tightrope.reformulate import oracle_for


class Path(NamedTuple):
    """A run: `x[k]` is the iterate after k steps, `samples[role][k]` and `uniforms[k]` the draw of step k (0: init)."""

    x: np.ndarray
    samples: dict[str, list[tuple[np.ndarray, ...]]]
    uniforms: np.ndarray
    states: list[Any]
    infos: list[Any]
    method: Method
    oracle: Oracle


@functools.cache
def _program(problem: Problem, dtype: Any, size: int, sizes: tuple[int, ...], form: str, steps: int) -> Any:
    """Oracle, and compiled: (method, start, seed, horizon) ↦ states and infos of all steps, and their draws."""
    oracle = oracle_for(problem, Parameters(jnp.zeros(size, dtype)), list(sizes), form=form)

    @jax.jit
    def run(method: Method, start: Any, seed: Any, horizon: Any) -> Any:
        key, roles = jax.random.key(seed), method.roles()

        def draw(k: Any) -> Any:
            return draw_of(oracle, roles, key, k)

        def as_draw(drawn: Any, k: Any) -> Draw:
            return Draw(*drawn, jax.random.fold_in(key, k), k, horizon)

        def one(state: Any, k: Any) -> Any:
            drawn = draw(k)
            state, info = method.step(oracle, state, as_draw(drawn, k))
            return state, (state, info, drawn)

        drawn = draw(jnp.int32(0))
        first = method.init(oracle, start, as_draw(drawn, jnp.int32(0)), horizon)
        last, (states, infos, draws) = jax.lax.scan(one, first, jnp.arange(1, steps + 1, dtype=jnp.int32))
        join = lambda head, tail: jnp.concatenate([head[None], tail])
        return jax.tree.map(join, first, states), infos, jax.tree.map(join, drawn, draws), method.output(last)

    return oracle, run


def drive(
    problem: Problem,
    x0: np.ndarray,
    method: Method,
    *,
    sizes: list[int],
    steps: int,
    seed: int = 0,
    start: np.ndarray | None = None,
) -> Path:
    """All iterates of a method from `start` (default x0; with slacks [x0, s]) and the draws that they came from."""
    start = jnp.asarray(x0 if start is None else start)
    oracle, run = _program(problem, start.dtype, len(x0), tuple(sizes), method.accepts.form, steps)
    method = as_arrays(method, start.dtype)
    out = run(method, start, np.uint32(seed), np.int32(steps))
    states, infos, (samples, uniforms), _ = jax.tree.map(np.asarray, out)
    at = lambda tree, k: jax.tree.map(lambda a: a[k], tree)
    return Path(
        x=states.x,
        samples={role: [at(entries, k) for k in range(steps + 1)] for role, entries in samples.items()},
        uniforms=uniforms,
        states=[at(states, k) for k in range(steps + 1)],
        infos=[jax.tree.map(int, at(infos, k)) for k in range(steps)],
        method=method,
        oracle=oracle,
    )


def outputs(
    problem: Problem, x0: np.ndarray, method: Method, *, sizes: list[int], steps: int, seeds: int
) -> np.ndarray:
    """`method.output` after `steps` steps, for the seeds 0, 1, …: one row a seed."""
    start = jnp.asarray(x0)
    _, run = _program(problem, start.dtype, len(x0), tuple(sizes), method.accepts.form, steps)
    method = as_arrays(method, start.dtype)
    many = jax.jit(jax.vmap(lambda seed: run(method, start, seed, jnp.int32(steps))[3]))
    return np.asarray(many(np.arange(seeds, dtype=np.uint32)))


def visited(problem: Problem, x0: np.ndarray, method: Method, *, steps: int, seed: int = 0) -> np.ndarray:
    """The iterates that `solve` reports when it records every step."""
    seen: list[np.ndarray] = []
    tr.solve(
        problem, jnp.asarray(x0), method, steps=steps, seed=seed, record=1,
        callback=lambda row: seen.append(np.asarray(row["x"])),
    )  # fmt: skip
    return np.stack(seen)


def which(points: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """For each point the number of the candidate that it is; the candidates are told apart, and nothing else occurs."""
    gaps = np.linalg.norm(candidates[:, None] - candidates[None], axis=-1) + np.eye(len(candidates))
    assert gaps.min() > 1e-6, "the candidates cannot be told apart"
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
