"""The exact penalty Σ ρ_i dist(h_i, [low_i, high_i]) on ranges: how penalties are raised, and how a step on it is judged.

Steering: with the step that only restores feasibility (no objective, penalties far too large) as the measure of what is
possible, a penalty is raised where its row gives way, |y_i| = ρ_i, and the step takes away less than a share of the violation
that a step of its length could. Of the rows that give way the cheapest are raised, to a common height: so rows that cannot all
hold end up with equal penalties, at the least sum of violations; raised each from its own height they would take turns for
ever. Penalties are compared, and violations added up, in units of the rows' gradients, not in those of the penalties: else it
would count as progress to move violation to where it is cheap.

Where nothing leads nearer to the constraints nothing is raised: where the linearized violation cannot be made smaller, or where
the step takes away next to nothing of it and, looked up, no part of the restoring step makes the violation itself smaller.
Penalties that turn out to be far too large fall again, slowly.

Judgment: the decrease that is seen, over the decrease that was foreseen. Below REFUSED a step is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...numerics.scaling import positive_or_one
from ...oracles.rows import Rows

RAISE, RAISES = 4.0, 6
"""The factor by which the lowest penalty is raised, and the most subproblems that a step solves to steer."""
RELAX, AMPLE = 0.8, 10.0
"""The factor by which a penalty falls, and how many times the largest multiplier none falls below."""
REFUSED, POOR, GOOD = 0.1, 0.4, 0.75
"""Ratios of decrease below which a step is refused, below which the damping σ grows and above which it falls."""
LITTLE, PARTS = 0.01, (1.0, 0.25, 0.06, 0.02)
"""The share of the violation that is next to nothing, and the parts of a restoring step after which the rows are looked up:
where the violation falls in proportion to the step, smaller ones do less than that."""


def outside(value: Float[Array, " rows"], rows: Rows) -> Float[Array, " rows"]:
    """How far each row is outside its range."""
    return jnp.maximum(value - rows.high, 0.0) + jnp.maximum(rows.low - value, 0.0)


class Pass(NamedTuple):
    """What the last full pass over the data said, and how careful the passes have made the method: 1 or more."""

    objective: Float[Array, ""]
    value: Float[Array, " rows"]
    caution: Float[Array, ""]

    def then(
        self, objective: Float[Array, ""], value: Float[Array, " rows"], penalty: Float[Array, " rows"], rows: Rows
    ) -> Pass:
        """The next pass: twice as careful where the exact penalty function rose since this one, else a tenth less."""
        before, now = (f + penalty @ outside(h, rows) for f, h in ((self.objective, self.value), (objective, value)))
        rounding = 10 * jnp.finfo(value.dtype).eps * (jnp.abs(objective) + penalty @ jnp.abs(value))
        caution = jnp.where(now > before + rounding, 2.0 * self.caution, jnp.maximum(0.9 * self.caution, 1.0))
        return Pass(objective, value, caution)


def no_pass(value: Float[Array, " rows"]) -> Pass:
    """Before the first pass: whatever that says is a fall."""
    return Pass(jnp.asarray(jnp.inf, value.dtype), jnp.zeros_like(value), jnp.ones((), value.dtype))


# ---- steering ----------------------------------------------------------------------------------------------------------


class Solved(NamedTuple):
    """A subproblem's multipliers, where its step takes the linearized rows, and the step's square in the metric.

    `near`: whether they are nearly its solution; if not, nothing is hopeless and nothing is raised.
    """

    multipliers: Float[Array, " rows"]
    end: Float[Array, " rows"]
    square: Float[Array, ""]
    near: Bool[Array, ""] | bool = True


Subproblem = Callable[[Float[Array, ""], Float[Array, " rows"], Float[Array, " rows"]], Solved]
"""The subproblem with a weight for the objective's gradient, penalties, and multipliers to start from."""

Truth = Callable[[Float[Array, " rows"], Float[Array, ""]], Float[Array, " rows"]]
"""Where a part of the restoring step with these multipliers takes the rows themselves."""


class Steering(NamedTuple):
    """The penalties on the way: first a step that only restores feasibility, then steps with ever larger penalties.

    Of the restoring step: its multipliers, what it does to the linearized rows, its square in the metric, and whether it is
    nearly solved for. `hopeless`: nothing leads nearer to the constraints; `looked`: so many parts of it were looked up.
    """

    penalty: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    restoring: Float[Array, " rows"]
    change: Float[Array, " rows"]
    square: Float[Array, ""]
    known: Bool[Array, ""]
    hopeless: Bool[Array, ""]
    looked: Int[Array, ""]
    restored: Bool[Array, ""]
    going: Bool[Array, ""]
    rounds: Int[Array, ""]


def steer(
    solve: Subproblem,
    truth: Truth,
    rows: Rows,
    value: Float[Array, " rows"],
    penalty: Float[Array, " rows"],
    multipliers: Float[Array, " rows"],
    *,
    share: Float[Array, ""],
    speed: Float[Array, ""],
    curvature: Float[Array, ""],
    size: Float[Array, " rows"],
    largest_size: Float[Array, " rows"],
) -> Steering:
    """The penalties, the lowest of them raised while they hold a step back from the violation that it could take away.

    `speed` is the square of the gradient, `curvature` that of the metric where nothing more is known, `size` the length of
    each row's gradient and `largest_size` the largest one seen.
    """
    before, eps = outside(value, rows), jnp.finfo(value.dtype).eps
    rounding = 100 * eps * jnp.abs(value)
    violated = jnp.any(before > rounding)
    steep = eps**-0.5 * curvature * jnp.max(before / positive_or_one(size), initial=0.0) / positive_or_one(size)
    weights = 1.0 / positive_or_one(largest_size)
    total = weights @ before

    def some_part_helps(restoring: Array) -> Array:
        """Whether a part of the restoring step takes away more than a little of the violation, not linearized."""
        left = jax.lax.map(lambda part: weights @ outside(truth(restoring, part), rows), jnp.array(PARTS, value.dtype))
        return jnp.any(left <= (1.0 - LITTLE) * total)

    def again(c: Steering) -> Steering:
        restoring = ~c.restored
        penalty = jnp.where(restoring, steep, c.penalty)
        y, end, square, near = solve(jnp.where(restoring, 0.0, 1.0).astype(value.dtype), penalty, c.multipliers)
        as_far = jnp.sqrt(jnp.minimum(1.0, jnp.maximum(square, speed / curvature) / positive_or_one(c.square)))
        possible = weights @ (before - outside(value + as_far * c.change, rows))
        gained = weights @ (before - outside(end, rows))
        unsure = violated & (c.rounds == 1) & c.known & ~c.hopeless & (gained < LITTLE * total)
        helps = jax.lax.cond(unsure, lambda: some_part_helps(c.restoring), lambda: jnp.bool_(True))
        no_way = restoring & near & (weights @ outside(end, rows) > (1.0 - LITTLE) * total)
        hopeless = c.hopeless | no_way | ~helps
        short = gained < share * possible - weights @ jnp.where(before > 0, rounding, 0.0)
        full = short & (jnp.abs(y) >= penalty) & (size > 0) & ~restoring & near & ~hopeless
        level = RAISE * jnp.min(jnp.where(full, penalty * size, jnp.inf))
        raises = full & (penalty * size < level)
        return Steering(
            penalty=jnp.where(restoring, c.penalty, jnp.where(raises, level / positive_or_one(size), penalty)),
            multipliers=jnp.where(restoring, multipliers, y),
            restoring=jnp.where(restoring, y, c.restoring),
            change=jnp.where(restoring, jnp.where(near, end - value, 0.0), c.change),
            square=jnp.where(restoring, square, c.square),
            known=jnp.where(restoring, near, c.known),
            hopeless=hopeless,
            looked=c.looked + jnp.where(unsure, len(PARTS), 0),
            restored=jnp.bool_(True),
            going=restoring | jnp.any(raises),
            rounds=c.rounds + 1,
        )

    start = Steering(
        penalty=penalty,
        multipliers=jnp.where(violated, 0.0, multipliers),
        restoring=jnp.zeros_like(value),
        change=jnp.zeros_like(value),
        square=jnp.ones((), value.dtype),
        known=jnp.bool_(False),
        hopeless=jnp.bool_(False),
        looked=jnp.int32(0),
        restored=~violated,
        going=jnp.bool_(True),
        rounds=jnp.int32(0),
    )
    if not value.size:
        return start
    return jax.lax.while_loop(lambda c: c.going & (c.rounds < RAISES), again, start)


def relaxed(
    penalty: Float[Array, " rows"],
    multipliers: Float[Array, " rows"],
    size: Float[Array, " rows"],
    speed: Float[Array, ""],
) -> Float[Array, " rows"]:
    """The penalties after a step that was taken: where all rows held, those far above what held them fall a little.

    A start far away may raise them by orders of magnitude, and with that much weight on curved constraints every step is tiny.
    What counts as needed is the same for all rows, in units of their gradients, and at least a tenth of the objective's.
    """
    held = jnp.all(jnp.abs(multipliers) < penalty)
    force = jnp.maximum(jnp.max(jnp.abs(multipliers) * size, initial=0.0), 0.1 * jnp.sqrt(speed))
    return jnp.where(
        held, jnp.maximum(RELAX * penalty, jnp.minimum(penalty, AMPLE * force / positive_or_one(size))), penalty
    )


# ---- judgment ---------------------------------------------------------------------------------------------------------


class Judgment(NamedTuple):
    """Whether a step is taken, and the damping after it."""

    accept: Bool[Array, ""]
    damping: Float[Array, ""]


def judge(
    seen: Float[Array, ""],
    foreseen: Float[Array, ""],
    rounding: Float[Array, ""],
    square: Float[Array, ""],
    damping: Float[Array, ""],
    curvature: Float[Array, ""],
    finite: Bool[Array, ""],
) -> Judgment:
    """A step of this square, whose decrease was `seen` where `foreseen` was expected, both up to rounding.

    σ falls after a good step and grows after a poor one; a refused step makes it at least what would have foreseen it.
    """
    ratio = jnp.where(finite & (foreseen > -rounding), (seen + rounding) / (foreseen + rounding), -1.0)
    needed = jnp.where(finite, 2.0 * (foreseen - seen) / positive_or_one(square), jnp.inf)
    taken = jnp.where(ratio > GOOD, 0.3 * damping, jnp.where(ratio < POOR, 1.5 * damping, damping))
    refused = jnp.clip(needed, 2.0 * damping, 10.0 * jnp.maximum(damping, curvature))
    accept = ratio > REFUSED
    return Judgment(accept, jnp.where(accept, taken, jnp.minimum(refused, 1e12 * curvature)))


def decrease_rounding(
    x: Float[Array, " n"],
    value: Float[Array, " rows"],
    row_size: Float[Array, " rows"],
    penalty: Float[Array, " rows"],
    speed: Float[Array, ""],
    square: Float[Array, ""],
) -> Float[Array, ""]:
    """What rounding may do to a decrease; with the squares of the gradient and of the step."""
    size = jnp.linalg.norm(x)
    rows = penalty @ (jnp.abs(value) + row_size * size)
    return 10 * jnp.finfo(size.dtype).eps * (jnp.sqrt(speed) * (size + jnp.sqrt(square)) + rows)
