"""The one compiled loop: draws for a block of steps at a time, steps, the running average, and the divergence check.

The first and the last step are arguments, so the length of a chunk neither recompiles nor changes a bit. Blocks of draws
are aligned: a chunk that begins within a block draws that same block again, so the rows a step sees never depend on where
a chunk began.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..methods.base import Draw, Info, Method
from ..oracles.oracle import Oracle

BLOCK = 128
"""Steps whose draws are made at once; fewer where they would not fit in BLOCK_BYTES. No result depends on either."""
BLOCK_BYTES = 16 * 2**20
AVERAGE_POWER = 3
"""The running average weighs iterate k like k³: about as much noise as averaging the last half, with no horizon."""


class Carry(NamedTuple):
    """What goes from step to step: the method's state and what the loop keeps beside it."""

    state: Any
    average: Float[Array, " n"]
    ok: Bool[Array, ""]
    counts: dict[str, Int[Array, ""]]


class Snapshots(NamedTuple):
    """The iterate, the average and the counts at each record of a chunk; the last row takes what is no record."""

    x: Float[Array, "records n"]
    average: Float[Array, "records n"]
    counts: dict[str, Int[Array, " records"]]


def _room(carry: Carry, records: int) -> Snapshots:
    """Room for this many records."""
    kept = Snapshots(carry.state.x, carry.average, carry.counts)
    return jax.tree.map(lambda a: jnp.zeros((records + 1, *a.shape), a.dtype), kept)


def _snap(snapshots: Snapshots, carry: Carry, place: Array) -> Snapshots:
    kept = Snapshots(carry.state.x, carry.average, carry.counts)
    return jax.tree.map(lambda room, a: jax.lax.dynamic_update_index_in_dim(room, a, place, 0), snapshots, kept)


def draw_of(oracle: Oracle, roles: dict[str, int | None], key: Array, k: Int[Array, ""]) -> tuple[Any, Array]:
    """The samples of every role and the uniform number of step k, from fold_in(seed, k) alone."""
    keys = jax.random.split(jax.random.fold_in(key, k), len(roles) + 1)
    samples = {name: oracle.draw(keys[i], rows) for i, (name, rows) in enumerate(sorted(roles.items()))}
    return samples, jax.random.uniform(keys[-1], dtype=jnp.float32)  # the same number in every precision


def block_length(oracle: Oracle, roles: dict[str, int | None], lanes: int) -> int:
    """How many steps' draws are made at once."""
    one = jax.eval_shape(lambda key: draw_of(oracle, roles, key, jnp.int32(0)), jax.random.key(0))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    return max(1, min(BLOCK, BLOCK_BYTES // (size * lanes)))


def start(
    oracle: Oracle, method: Method, x: Float[Array, " n"], key: Array, steps: Int[Array, ""]
) -> tuple[Method, Carry]:
    """The method with its constants estimated, and the carry before step 1."""
    samples, uniform = draw_of(oracle, method.roles(oracle), key, jnp.int32(0))
    draw = Draw(samples, uniform, jax.random.fold_in(key, 0), jnp.int32(0), steps)
    x = oracle.with_slacks(x, next(iter(samples.values())))
    if any(leaf is None for leaf in jax.tree.leaves(method, is_leaf=lambda leaf: leaf is None)):
        method = method.estimate_constants(oracle, x, draw)
    state = method.init(oracle, x, draw, steps)
    counts = {name: jnp.int32(0) for name in varying_counts(oracle, method, state, draw)}
    return method, Carry(state, x, jnp.bool_(True), counts)


def info_shape(oracle: Oracle, method: Method, state: Any, draw: Draw) -> Info:
    """The Info of a step: Python ints where a count never varies, shapes where it does."""
    return eqx.filter_eval_shape(lambda: method.step(oracle, state, draw)[1])


def varying_counts(oracle: Oracle, method: Method, state: Any, draw: Draw) -> list[str]:
    """The counts of Info that differ from step to step."""
    info = info_shape(oracle, method, state, draw)
    return [name for name, count in info._asdict().items() if not isinstance(count, int)]


def advance(
    oracle: Oracle,
    method: Method,
    carry: Carry,
    key: Array,
    first: Int[Array, ""],
    last: Int[Array, ""],
    steps: Int[Array, ""],
    every: Int[Array, ""],
    *,
    lanes: bool,
    records: int,
) -> tuple[Carry, Snapshots, Int[Array, ""]]:
    """Steps first … last − 1, or up to the first whose iterate is not finite; the next step's number comes last.

    Where the number of steps taken is a multiple of `every` a snapshot is kept; there may be `records` of them. With
    `lanes`, method, carry and key have a leading axis, one entry a run: a run that diverges keeps its last finite state
    while the others go on.
    """
    roles = method.roles(oracle)
    take_step = partial(_step, oracle, steps)
    draws = partial(_draw_block, oracle, roles)
    length = block_length(oracle, roles, key.size)
    if lanes:
        take_step = jax.vmap(_keep_finite(take_step), in_axes=(0, 0, 0, 0, None))
        draws = jax.vmap(draws, in_axes=(0, None, None), out_axes=1)

    def going(carry: Carry, k: Array, end: Array) -> Array:
        return (k < end) & (jnp.any(carry.ok) if lanes else carry.ok)

    def block(carried: tuple[Carry, Snapshots, Array]) -> tuple[Carry, Snapshots, Array]:
        """Steps up to the end of a block of draws."""
        begin = carried[2] // length * length
        drawn, stop = draws(key, begin, length), jnp.minimum(last, begin + length)

        def one(carried: tuple[Carry, Array]) -> tuple[Carry, Array]:
            carry, k = carried
            row = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, k - begin, keepdims=False), drawn)
            carry = take_step(method, carry, key, row, k)
            return carry, k + 1 if lanes else k + carry.ok

        def stretch(carried: tuple[Carry, Snapshots, Array]) -> tuple[Carry, Snapshots, Array]:
            """Steps up to the next record."""
            carry, snapshots, k = carried
            end = jnp.minimum(stop, ((k - 1) // every + 1) * every + 1)
            carry, k = jax.lax.while_loop(lambda carried: going(*carried, end), one, (carry, k))
            number = (k - 1) // every - (first - 1) // every - 1
            place = jnp.where(((k - 1) % every == 0) & (number >= 0), number, records)
            return carry, _snap(snapshots, carry, place), k

        return jax.lax.while_loop(lambda carried: going(carried[0], carried[2], stop), stretch, carried)

    return jax.lax.while_loop(
        lambda carried: going(carried[0], carried[2], last), block, (carry, _room(carry, records), first)
    )


def _draw_block(oracle: Oracle, roles: dict[str, int | None], key: Array, begin: Array, length: int) -> Any:
    return jax.vmap(lambda k: draw_of(oracle, roles, key, k))(begin + jnp.arange(length))


def _step(oracle: Oracle, steps: Array, method: Method, carry: Carry, key: Array, row: Any, k: Array) -> Carry:
    samples, uniform = row
    draw = Draw(samples, uniform, jax.random.fold_in(key, k), k, steps)
    state, info = method.step(oracle, carry.state, draw)
    weight = (AVERAGE_POWER + 1.0) / (k + AVERAGE_POWER)
    average = carry.average + weight.astype(state.x.dtype) * (state.x - carry.average)
    counts = {name: count + getattr(info, name) for name, count in carry.counts.items()}
    return Carry(state, average, jnp.isfinite(jnp.sum(state.x)), counts)


def _keep_finite(step: Callable[..., Carry]) -> Callable[..., Carry]:
    """The step, refused where it is not finite: the carry stays as it was, marked."""

    def guarded(method: Method, carry: Carry, key: Array, row: Any, k: Array) -> Carry:
        new = step(method, carry, key, row, k)
        ok = carry.ok & new.ok
        return jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, carry)._replace(ok=ok)

    return guarded
