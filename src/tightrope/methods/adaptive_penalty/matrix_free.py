r"""The default method for very many constraints: `AdaptivePenalty` with products in place of a Jacobian (ours).

`AdaptivePenalty` keeps an estimate Ĵ of the Jacobian, m×n, and solves its subproblem with the m×m matrix ĴM⁻¹Ĵᵀ. Here neither
is formed. The rows are linearized at x on the step's own sample, J = J(x, ζ), and the subproblem's multipliers come from
conjugate gradients on products J(M⁻¹(Jᵀy)), from the last ones on, only as far as a step needs.

What is averaged is the gradient of the Lagrangian at the last multipliers ȳ, u ≈ ∇F(x) + E[J]ᵀȳ, one vector: in

    v + Jᵀy = u + J(x, ζ)ᵀ(y − ȳ)

the noise of one sample's Jacobian meets only the change of the multipliers, which tends to zero. One loop:

    correct     u ← u + a (∇f(x, ξ) + J(x, ζ)ᵀȳ − u), ĥ likewise        a = e/(e + s): error of the estimate, noise of a sample
    step        d = argmin (u − Jᵀȳ)ᵀd + ½ dᵀMd + Σ ρ_i dist(ĥ_i + J_i d, [low_i, high_i]), nearly          multipliers y
    steer, bend back, judge and learn as in `AdaptivePenalty`
    carry over  u ← u + Jᵀ(y − ȳ) + ∇f(x⁺, ξ) − ∇f(x, ξ) + (J(x⁺, ζ) − J(x, ζ))ᵀy,   ĥ ← ĥ + h(x⁺, ζ) − h(x, ζ),   ȳ ← y

where deterministic rows are known: ĥ = h and J = J(x). A step that is not the subproblem's own solution is a step all the same:
what it is foreseen to gain is computed for it, and it is judged by that.

The lengths of the rows, by which they are scaled, are running means of (Jz)² over random signs z, a product a step.

| symbol | name | symbol | name |
|---|---|---|---|
| u, ĥ | `gradient`, `value` | σ | `damping` |
| s, e, q | `noise`: `sample`, `error`, `change` | ρ, y | `penalty`, `multipliers` |

Halves of a sample are kept as their mean and half their difference, `odd`, whose square is the sample's noise. The noise of
J(x, ζ)ᵀ(y − ȳ) adds to the error of u, that of h(x⁺, ζ) − h(x, ζ) to the error of ĥ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...numerics.products import (
    Linear,
    linearize,
    range_multipliers_by_products,
    range_multipliers_on_set_by_products,
    row_squares,
)
from ...numerics.prox_linear import ProxLinearModel
from ...numerics.ranges import RangePenalty
from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample
from ..base import Draw, Info
from .method import FACES, PAIRS, SelfTunedPenalty, Trial, full_pass_period, halves_of
from .noise import Noise, smooth
from .quasi_newton import Pairs, metric, no_pairs, with_pair
from .steering import Pass, Solved, Steering, decrease_rounding, judge, no_pass, outside, relaxed, steer


class State(NamedTuple):
    """What the next step needs.

    `row_square` is about the square of each row's gradient, `stuck` the share of late steps from which nothing led nearer to
    the constraints.
    """

    x: Float[Array, " n"]
    gradient: Float[Array, " n"]
    value: Float[Array, " rows"]
    noise: tuple[Noise, Noise]
    pairs: Pairs
    damping: Float[Array, ""]
    penalty: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    row_square: Float[Array, " rows"]
    stuck: Float[Array, ""]
    refused: Int[Array, ""]
    last_pass: Pass


class Look(NamedTuple):
    """What a sample says at a point: means over its halves, and half their differences."""

    gradient: Float[Array, " n"]
    odd_gradient: Float[Array, " n"]
    value: Float[Array, " rows"]
    odd_value: Float[Array, " rows"]
    jacobian: Linear
    odd_pull: Callable[[Float[Array, " rows"]], Float[Array, " n"]]
    """y ↦ half the difference of the halves' Jᵀy."""


class Face(NamedTuple):
    """A face of X: the part of a step that it dictates, and M⁻¹ along it."""

    inverse: Callable[[Float[Array, " n"]], Float[Array, " n"]]
    fixed: Float[Array, " n"]


class MatrixFreePenalty(SelfTunedPenalty):
    """`AdaptivePenalty` for very many constraint values: products with the Jacobian alone, in memory of n + m numbers.

    Args:
        steering: the share of the violation a step could take away that it must take away.
        wobble: how large errors left behind by noisy changes may be, as a share of the gradient's square.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> chain = tr.equals(lambda x: x[1:] - 0.5 * x[:-1] ** 2, 0.1, name="chain")
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 0.5) ** 2), chain)
        >>> result = tr.solve(problem, jnp.zeros(300), tr.methods.MatrixFreePenalty(), steps=100)
        >>> bool(result.violation < 1e-6)
        True
    """

    cost: ClassVar[str] = (
        "2 ∇f, 2 linearizations of c and some tens of products; finite data: passes as AdaptivePenalty"
    )

    # ------------------------------------------------------------------ the start

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        sample = draw.samples["step"]
        gradient = oracle.grad(x, sample)
        value, jacobian = linearize(lambda y: oracle.c(y, sample), x)
        square = row_squares(jacobian, x, draw.key)
        size, speed, free = jnp.sqrt(square), jnp.linalg.norm(gradient), jnp.full_like(value, jnp.inf)

        def damped_gram(y: Array) -> Array:
            return jacobian.push(jacobian.pull(y)) + 1e-3 * square * y

        zero = jnp.zeros_like(value)
        ranges = RangePenalty(zero, zero, free)
        guess, _ = range_multipliers_by_products(damped_gram, -jacobian.push(gradient), ranges, zero, size)

        def slope(y: Float[Array, " n"]) -> Float[Array, ""]:
            """Of the Lagrangian along the gradient."""
            return gradient @ (oracle.grad(y, sample) + oracle.vjp(y, sample)[1](guess))

        bend = jnp.linalg.norm(jax.grad(slope)(x)) / positive_or_one(speed)
        restore = jnp.linalg.norm(outside(value, oracle.rows) / positive_or_one(size))
        length = jnp.where(restore > 0, restore, jnp.maximum(1.0, jnp.linalg.norm(x)))
        curvature = jnp.where((bend > 0) & jnp.isfinite(bend), bend, positive_or_one(speed / length))
        look = _look(oracle, x, sample)
        odd = look.odd_gradient + look.odd_pull(oracle.multipliers)
        return State(
            x,
            gradient + jacobian.pull(oracle.multipliers),
            value,
            noise=tuple(  # pyright: ignore
                Noise(jnp.sum(a**2), jnp.sum(a**2), jnp.zeros((), x.dtype)) for a in (odd, look.odd_value)
            ),
            pairs=no_pairs(PAIRS, x, curvature),
            damping=curvature,
            penalty=jnp.maximum(2.0 * jnp.abs(guess), 0.1 * positive_or_one(speed) / positive_or_one(size)),
            multipliers=oracle.multipliers,
            row_square=square,
            stuck=jnp.zeros((), x.dtype),
            refused=jnp.int32(0),
            last_pass=no_pass(value),
        )

    # ------------------------------------------------------------------ a step

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        sample = draw.samples["step"]
        here = _look(oracle, state.x, sample)
        state, info = _correct(oracle, state, here, draw)
        state = state._replace(damping=jnp.maximum(state.damping, self.least_damping(oracle, state)))
        trial = self._trial(oracle, state, here, sample)
        state = _taken(oracle, state, trial, here, _look(oracle, trial.x, sample), draw.k)
        return state, info._replace(constraint_values=info.constraint_values + trial.looked)

    def _trial(self, oracle: Oracle, state: State, here: Look, sample: Sample) -> Trial:
        """Where the subproblem's step leads, bent back."""
        x, h, (push, pull) = state.x, state.value, here.jacobian
        curvature = state.pairs.curvature + state.damping
        v = state.gradient - pull(state.multipliers)
        steering = self._steer(oracle, state, here, v, sample)
        penalty, y = steering.penalty, steering.multipliers
        if oracle.whole_space:
            face = Face(metric(state.pairs, state.damping).apply, jnp.zeros_like(x))
        else:
            face, y = _face(oracle, state, here, v, steering)
        force = v + pull(y)
        step = -face.inverse(force)
        square, d = -step @ force, face.fixed + step
        foreseen = penalty @ (outside(h, oracle.rows) - outside(h + push(d), oracle.rows)) - v @ d
        foreseen = foreseen - 0.5 * (square + curvature * face.fixed @ face.fixed)
        new = x + d
        if h.size and not oracle.stochastic_constraints:
            new = new + _bend_back(oracle, state, here, face, oracle.c(new, sample), penalty, y, square)
        new = new if oracle.whole_space else oracle.project(new)
        return Trial(new, penalty, y, foreseen, steering.hopeless, steering.looked)

    def _steer(self, oracle: Oracle, state: State, here: Look, v: Float[Array, " n"], sample: Sample) -> Steering:
        """The penalties, raised where they hold a step back; what the sample says of a longer step as in `_taken`."""
        x, h, rows, (push, pull) = state.x, state.value, oracle.rows, here.jacobian
        inverse, curvature = metric(state.pairs, state.damping).apply, state.pairs.curvature + state.damping
        size, drop = jnp.sqrt(state.row_square), push(inverse(v))

        def solve(weight: Array, penalty: Array, y: Array) -> Solved:
            ranges = RangePenalty(rows.low, rows.high, penalty)
            if oracle.whole_space:
                y, near = range_multipliers_by_products(
                    lambda y: push(inverse(pull(y))), h - weight * drop, ranges, y, size
                )
                force = weight * v + pull(y)
                d = -inverse(force)
                return Solved(y, h + push(d), -d @ force, near)
            model = ProxLinearModel(weight * v, h, here.jacobian, 1.0 / curvature, x, oracle.project)
            y, near = range_multipliers_on_set_by_products(model, ranges, y, size)
            d = oracle.project(x - (weight * v + pull(y)) / curvature) - x
            return Solved(y, h + push(d), curvature * d @ d, near)

        def truth(y: Array, part: Array) -> Array:
            way = -inverse(pull(y)) if oracle.whole_space else oracle.project(x - pull(y) / curvature) - x
            found = oracle.c(x + part * way, sample)
            return h + found - here.value if oracle.stochastic_constraints else found

        return steer(
            solve,
            truth,
            rows,
            h,
            state.penalty,
            state.multipliers,
            share=self.steering,
            speed=v @ v,
            curvature=curvature,
            size=size,
            largest_size=size,
        )


def _look(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Look:
    """What a sample says at x."""
    halves = halves_of(sample)
    if oracle.sources:
        first, second = jax.vmap(lambda half: oracle.grad(x, half))(halves)
        gradient, odd_gradient = 0.5 * (first + second), 0.5 * (first - second)
    else:
        gradient, odd_gradient = oracle.grad(x, sample), jnp.zeros_like(x)
    if not oracle.stochastic_constraints:
        value, jacobian = linearize(lambda y: oracle.c(y, sample), x)
        return Look(
            gradient, odd_gradient, value, jnp.zeros_like(value), jacobian, odd_pull=lambda y: jnp.zeros_like(x)
        )
    both, whole = linearize(lambda y: jax.vmap(lambda half: oracle.c(y, half))(halves), x)
    return Look(
        gradient,
        odd_gradient,
        0.5 * (both[0] + both[1]),
        0.5 * (both[0] - both[1]),
        Linear(lambda d: jnp.mean(whole.push(d), axis=0), lambda y: whole.pull(0.5 * jnp.stack([y, y]))),
        odd_pull=lambda y: whole.pull(0.5 * jnp.stack([y, -y])),
    )


def _correct(oracle: Oracle, state: State, here: Look, draw: Draw) -> tuple[State, Info]:
    """The state with its estimates corrected by what the step's sample says at x, and the step's cost."""
    x, y = state.x, state.multipliers
    gradient = here.gradient + here.jacobian.pull(y)
    values = 2 if oracle.stochastic_constraints or not state.value.size else 3
    signs = jax.random.rademacher(draw.key, x.shape, x.dtype)
    state = state._replace(row_square=smooth(state.row_square, here.jacobian.push(signs) ** 2, draw.k))
    if not oracle.sources:
        return state._replace(gradient=gradient, value=here.value), Info(2, values, 2)
    estimates, noise = (state.gradient, state.value), state.noise
    rows = oracle.count_examples("both", draw.samples["step"])
    passes, period, last = 0, full_pass_period(oracle), state.last_pass
    if period:
        everything = oracle.everything()

        due = (draw.k - 1) % period == 0

        def full() -> tuple[tuple[Array, Array], Pass]:
            (objective, gradient), (value, pull) = oracle.value_and_grad(x, everything), oracle.vjp(x, everything)
            return (gradient + pull(y), value), last.then(objective, value, state.penalty, oracle.rows)

        estimates, last = jax.lax.cond(due, full, lambda: (estimates, last))
        noise = tuple(n._replace(error=jnp.where(due, 0.0, n.error)) for n in noise)
        passes = due.astype(jnp.int32)
        rows += passes * oracle.count_examples("both", everything)
    odd = here.odd_gradient + here.odd_pull(y)
    gain, of_gradient = noise[0].with_sample(jnp.sum(odd**2), draw.k)
    share, of_value = noise[1].with_sample(jnp.sum(here.odd_value**2), draw.k)
    state = state._replace(
        gradient=estimates[0] + gain * (gradient - estimates[0]),
        value=estimates[1] + share * (here.value - estimates[1]),
        noise=(of_gradient, of_value),
        last_pass=last,
    )
    return state, Info(2 + passes, values + passes, 2 + passes, rows)


def _face(
    oracle: Oracle, state: State, here: Look, v: Float[Array, " n"], steering: Steering
) -> tuple[Face, Float[Array, " rows"]]:
    """The face of X where the plain step ends, with the metric on it if its step stays in X, and the multipliers there.

    As in `AdaptivePenalty`: a few faces are tried; if no step stays in X, the plain step is all `fixed`.
    """
    x, h, pairs, (push, pull) = state.x, state.value, state.pairs, here.jacobian
    size, ranges = jnp.sqrt(state.row_square), RangePenalty(oracle.rows.low, oracle.rows.high, steering.penalty)
    plain = x - (v + pull(steering.multipliers)) / (pairs.curvature + state.damping)

    def face_at(q: Array, bent: Array) -> tuple[Face, Array]:
        """The face nearest to q, and the normal that leads from it to q; no face but its point where not `bent`."""
        p, tangent = jax.linearize(oracle.project, q)
        flat = metric(pairs.of(jax.vmap(jax.vmap(tangent))(pairs.rows)), state.damping)
        fixed = p - x - tangent(p - x)
        return Face(lambda w: jnp.where(bent, flat.apply(tangent(w)), 0.0), jnp.where(bent, fixed, p - x)), q - p

    def again(c: tuple[Array, ...]) -> tuple[Array, ...]:
        q, _, _, y, _, count = c
        face, normal = face_at(q, jnp.bool_(True))
        reach = h + push(face.fixed) - push(face.inverse(v))
        y, _ = range_multipliers_by_products(lambda y: push(face.inverse(pull(y))), reach, ranges, y, size)
        d = face.fixed - face.inverse(v + pull(y))
        off = jnp.linalg.norm(oracle.project(x + d) - x - d) > 1e-6 * jnp.linalg.norm(d)
        return x + d + normal, q, ~off, y, off, count + 1

    start = (plain, plain, jnp.bool_(False), steering.multipliers, jnp.bool_(True), jnp.int32(0))
    _, q, stays, y, *_ = jax.lax.while_loop(lambda c: c[4] & (c[5] < FACES), again, start)
    return face_at(jnp.where(stays, q, plain), stays)[0], jnp.where(stays, y, steering.multipliers)


def _bend_back(
    oracle: Oracle, state: State, here: Look, face: Face, reached: Array, penalty: Array, y: Array, square: Array
) -> Float[Array, " n"]:
    """The step that takes back the rows which the step was to hold at an end of their range; none where it is long."""
    push, pull = here.jacobian
    held = (y != 0) & (jnp.abs(y) < penalty)
    miss = jnp.where(held, reached - jnp.where(y > 0, oracle.rows.high, oracle.rows.low), 0.0)
    miss, zero = jnp.where(jnp.isfinite(miss), miss, 0.0), jnp.zeros_like(y)
    ranges = RangePenalty(zero, zero, jnp.where(held, jnp.inf, 0.0))
    q, _ = range_multipliers_by_products(
        lambda q: push(face.inverse(pull(q))), miss, ranges, zero, jnp.sqrt(state.row_square), products=50
    )
    force = pull(q)
    back = -face.inverse(force)
    return jnp.where(-back @ force <= 0.25 * square, back, 0.0)


def _taken(oracle: Oracle, state: State, trial: Trial, here: Look, there: Look, k: Int[Array, ""]) -> State:
    """The state after the trial, taken or refused, from what a sample says at x and at the trial point."""
    x, y, exact = state.x, trial.multipliers, not oracle.stochastic_constraints
    move, change = trial.x - x, there.gradient - here.gradient
    bend = change + there.jacobian.pull(y) - here.jacobian.pull(y)
    odd = there.odd_gradient - here.odd_gradient + there.odd_pull(y) - here.odd_pull(y)
    v = state.gradient - here.jacobian.pull(state.multipliers)
    stays = state.gradient + here.jacobian.pull(y - state.multipliers)
    wander = jnp.sum(here.odd_pull(y - state.multipliers) ** 2)
    value = there.value if exact else state.value + there.value - here.value
    square, speed = move @ move, v @ v
    seen = trial.penalty @ (outside(state.value, oracle.rows) - outside(value, oracle.rows)) - v @ move
    seen = seen - jnp.maximum(0.5 * move @ change, 0.0)
    finite = jnp.isfinite(seen + bend @ bend)
    size = jnp.sqrt(state.row_square)
    rounding = decrease_rounding(x, state.value, size, trial.penalty, speed, square)
    accept, damping = judge(seen, trial.foreseen, rounding, square, state.damping, state.pairs.curvature, finite)
    pairs = with_pair(state.pairs, move, bend, accept & ~trial.hopeless)
    known, walked = finite & (square > 0), jnp.where(accept, square, 0.0)
    of_gradient, of_value = state.noise
    beyond_noise = jnp.sum(outside(state.value, oracle.rows) ** 2) > 9.0 * of_value.error
    shift = jnp.where(accept, jnp.sum((there.odd_value - here.odd_value) ** 2), 0.0)
    of_gradient = of_gradient.with_step(jnp.sum(odd**2), square, walked, known, k)
    return State(
        jnp.where(accept, trial.x, x),
        jnp.where(accept, stays + bend, stays),
        jnp.where(accept, value, state.value),
        noise=(
            of_gradient._replace(error=of_gradient.error + wander),
            of_value._replace(error=of_value.error + shift),
        ),
        pairs=pairs,
        damping=jnp.maximum(damping, 1e-6 * pairs.curvature),
        penalty=jnp.where(accept, relaxed(trial.penalty, y, size, speed), trial.penalty),
        multipliers=y,
        row_square=state.row_square,
        stuck=smooth(state.stuck, (trial.hopeless & beyond_noise).astype(x.dtype), k),
        refused=state.refused + ~accept,
        last_pass=state.last_pass,
    )
