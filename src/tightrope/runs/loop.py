"""The compiled loop over the stepper: draws for a block of steps at a time, steps, snapshots, and the divergence check.

The first and the last step are arguments, so the length of a chunk neither recompiles nor changes a bit. Blocks of draws
are aligned: a chunk that begins within a block draws that same block again, so the samples of a step never depend on where
a chunk began.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..methods.base import Method
from ..oracles.oracle import Oracle
from ..problems.partition import keep_split, pad_split, unpadded
from .batches import Roles
from .stepper import AXES, StepperState, draw_samples, take_step

BLOCK = 128
"""Steps whose draws are made at once; fewer if they would not fit in BLOCK_BYTES. No result depends on either."""
BLOCK_BYTES = 16 * 2**20


class Counts(eqx.Module):
    """The calls of the steps of a chunk: sums of the counts that vary, and of each step those that never do."""

    varying: dict[str, Int[Array, ""]]
    each_step: tuple[tuple[str, int], ...] = eqx.field(static=True)


class Carry(NamedTuple):
    """What the loop carries from step to step: the stepper's state, whether it is finite, and the counts."""

    run: StepperState
    finite: Bool[Array, ""]
    counts: Counts


class Snapshots(NamedTuple):
    """The iterate, the average and the counts at each record of a chunk; the last entry is a place for what is not kept."""

    x: Float[Array, "records n"]
    average: Float[Array, "records n"]
    counts: Counts


class LoopShape(NamedTuple):
    """What is static about a compiled loop: the structure of the oracle, lanes or one run, and room for records."""

    oracle: Any
    lanes: bool
    records: int


class Fed(NamedTuple):
    """The batches of a stretch of steps, from every stream; nothing if there is none.

    Attributes:
        first: the number of the first of these steps.
        batches: for every stream its batches, along a new first axis.
    """

    first: Int[Array, ""] | int = 0
    batches: tuple[PyTree[Array], ...] = ()

    def at(self, k: Int[Array, ""]) -> tuple[PyTree[Array], ...]:
        """The batch of every stream for step k."""
        return jax.tree.map(lambda a: a[k - self.first], self.batches)


NO_STREAMS = Fed()


def block_length(oracle: Oracle, roles: Roles, lanes: int, fed: Fed = NO_STREAMS) -> int:
    """The number of steps whose draws are made at once."""
    k = jnp.int32(0)
    one = jax.eval_shape(lambda key, fed: draw_samples(oracle, roles, key, k, fed.at(k)), jax.random.key(0), fed)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(one))
    return max(1, min(BLOCK, BLOCK_BYTES // (size * lanes)))


def run_steps(
    shape: LoopShape,
    oracle_leaves: list[Array],
    run: StepperState,
    finite: Bool[Array, ""],
    numbers: Int[Array, " 2"],
    fed: Fed = NO_STREAMS,
) -> tuple[Carry, Snapshots]:
    """Steps up to number `last`, or up to the first whose iterate is not finite; counts begin at zero.

    `numbers` are the last step, and how many steps lie between two records; `fed` has the batches of the steps up to the last
    one. At each record a snapshot is kept; there is room for `shape.records` of them. With lanes, the state has a leading axis
    (but for the step number and the horizon): a run that diverges keeps its last finite state while the others go on.
    """
    oracle = jax.tree.unflatten(shape.oracle, oracle_leaves)
    run, split = unpadded(run), partial(keep_split, oracle.partition)
    last, every = numbers
    first, roles = run.k, run.method.roles(oracle)
    length = block_length(oracle, roles, finite.size, fed)
    step = partial(_counted_step, oracle)

    def draw(key: Array, k: Int[Array, ""]) -> Any:
        return draw_samples(oracle, roles, key, k, fed.at(k))

    if shape.lanes:
        axes = StepperState(**AXES, parameters=run.parameters)  # pyright: ignore[reportArgumentType]
        draw, step = jax.vmap(draw, in_axes=(0, None)), jax.vmap(step, in_axes=(axes, 0, 0), out_axes=(axes, 0))
    step = jax.jit(step)  # traced here, once, and not anew in each of the nested loops
    counts = jax.eval_shape(step, run, *jax.eval_shape(draw, run.key, first))[1]
    carry = Carry(run, finite, jax.tree.map(lambda count: jnp.zeros(count.shape, jnp.int32), counts))

    def block(carried: tuple[Carry, Snapshots]) -> tuple[Carry, Snapshots]:
        """Steps up to the end of a block of draws."""
        run = carried[0].run
        begin = (run.k + 1) // length * length
        drawn, end = jax.vmap(partial(draw, run.key))(begin + jnp.arange(length)), jnp.minimum(last, begin + length - 1)

        def one(carry: Carry) -> Carry:
            place = carry.run.k + 1 - begin
            now = jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, place, keepdims=False), drawn)
            return split(_after(carry, *step(carry.run, *now), lanes=shape.lanes))

        def stretch(carried: tuple[Carry, Snapshots]) -> tuple[Carry, Snapshots]:
            """Steps up to the next record."""
            carry, snapshots = carried
            record = jnp.minimum(end, (carry.run.k // every + 1) * every)
            carry = jax.lax.while_loop(lambda carry: _goes_on(carry, record), one, carry)
            return carry, split(_keep(snapshots, carry, first, every))

        return jax.lax.while_loop(lambda carried: _goes_on(carried[0], end), stretch, carried)

    begin = carry, split(_room(carry, shape.records))
    return pad_split(oracle.partition, jax.lax.while_loop(lambda carried: _goes_on(carried[0], last), block, begin))


def one_method(methods: Method, lane: int) -> Method:
    """The method of one lane."""
    return jax.tree.map(lambda a: a[lane], methods)


def _goes_on(carry: Carry, end: Int[Array, ""]) -> Bool[Array, ""]:
    return (carry.run.k < end) & (jnp.any(carry.finite) if carry.finite.ndim else carry.finite)


def _counted_step(oracle: Oracle, run: StepperState, samples: Any, uniform: Array) -> tuple[StepperState, Counts]:
    run, info = take_step(oracle, run, samples, uniform)
    counts = info._asdict()
    varying = {name: jnp.asarray(count, jnp.int32) for name, count in counts.items() if not isinstance(count, int)}
    return run, Counts(varying, tuple((name, count) for name, count in counts.items() if isinstance(count, int)))


def _after(carry: Carry, run: StepperState, more: Counts, *, lanes: bool) -> Carry:
    """The carry after a step; a lane whose iterate is not finite stays as it was, for good."""
    counts = jax.tree.map(jnp.add, carry.counts, more)
    finite = jnp.isfinite(jnp.sum(run.state.x, axis=-1))
    if not lanes:
        return Carry(run, finite, counts)
    finite = finite & carry.finite

    def kept(new: Array, old: Array) -> Array:
        return jnp.where(finite.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    old = carry.run.state, carry.run.average, carry.counts
    state, average, counts = jax.tree.map(kept, (run.state, run.average, counts), old)
    return Carry(replace(run, state=state, average=average), finite, counts)


def _room(carry: Carry, records: int) -> Snapshots:
    """Room for this many records."""
    kept = Snapshots(carry.run.state.x, carry.run.average, carry.counts)
    return jax.tree.map(lambda a: jnp.zeros((records + 1, *a.shape), a.dtype), kept)


def _keep(snapshots: Snapshots, carry: Carry, first: Int[Array, ""], every: Int[Array, ""]) -> Snapshots:
    """The snapshots with that of the carry, if its step is a record."""
    done, records = carry.run.k, len(snapshots.x) - 1
    number = done // every - first // every - 1
    place = jnp.where((done % every == 0) & (number >= 0), number, records)
    kept = Snapshots(carry.run.state.x, carry.run.average, carry.counts)
    return jax.tree.map(lambda room, a: jax.lax.dynamic_update_index_in_dim(room, a, place, 0), snapshots, kept)
