r"""The default method: an exact penalty with quasi-Newton steps that measures everything it needs (ours).

min F(x), low ≤ h(x) ≤ high, x in X, through F(x) + Σ ρ_i dist(h_i(x), [low_i, high_i]), which for ρ large enough has the
same solutions. One loop, with estimates v, ĥ, Ĵ of ∇F, h and the Jacobian at x:

    correct     v ← v + a (∇f(x, ξ) − v), ĥ and Ĵ likewise          a = e/(e + s): error of the estimate, noise of a sample
    step        d = argmin vᵀd + ½ dᵀMd + Σ ρ_i dist(ĥ_i + Ĵ_i d, [low_i, high_i]) over x + d in X          multipliers y
    steer       ρ_i ← max(ρ_i, 4 min_j ρ_j‖Ĵ_j‖/‖Ĵ_i‖), i and j among the rows with |y_i| = ρ_i, while d takes away less than a
                share of the violation that a step of its length can; not where nothing leads nearer to the constraints
    bend back   x⁺ = x + d − M⁻¹Ĵᵀq, with q such that the rows that d holds at an end of their range stay there; only
                where constraints are deterministic
    judge       r = (decrease seen) / (decrease foreseen), on ξ at both points; x⁺ is refused where r ≤ 0.1
    relax       ρ_i ← 0.8ρ_i after a step in which all rows held, where ρ_i is more than 10 times what the hardest row needs
    learn       σ, larger where r is small and smaller where it is large; M from the change of the Lagrangian's gradient
    carry over  v ← v + ∇f(x⁺, ξ) − ∇f(x, ξ), Ĵ likewise, ĥ ← ĥ + h(x⁺, ζ) − h(x, ζ) + (Ĵ − J(x, ζ))d

M is the limited-memory BFGS matrix of the Lagrangian, damped by σ (see `metric`). Its least damping is κ √(T q/w): with q the
mean square of the noise in changes of the gradient for a step of length one and T the steps that an estimate remembers, the
errors that T steps leave behind are then at most a share w of the square of the gradient that made them. So steps shrink when
noise, and not curvature, limits them. s and q come from the two halves of each sample; κ is 1 unless passes say otherwise.

Finite data of up to MODEST rows are passed over in full every N/4b steps, which sets the errors to zero. κ ← 2κ where the
exact penalty function rose from one pass to the next, by more than rounding; else κ ← max(0.9κ, 1).

On a set X the step is found twice: with (δ + σ)I for M, exactly, by `range_multipliers_on_set`; then with M itself on the
face of X where that one ends, if that stays in X.

| symbol | name | symbol | name |
|---|---|---|---|
| v, ĥ, Ĵ | `estimates` | σ | `damping` |
| s, e, q | `noise`: `sample`, `error`, `change` | ρ, y | `penalty`, `multipliers` |
| share, w | `steering`, `wobble` | T, κ | `memory`, `caution` |

What is proved and what is not: docs/adaptive-penalty.md.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...numerics.prox_linear import ProxLinearModel
from ...numerics.ranges import RangePenalty, range_multipliers, range_multipliers_on_set, solve_active_rows
from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample
from ...problems.data import Dataset
from ..base import Accepts, Draw, Hyper, Info, Method, hyper
from .noise import Noise, smooth, spread
from .quasi_newton import Metric, Pairs, metric, no_pairs, with_pair
from .steering import Pass, Solved, Steering, decrease_rounding, judge, no_pass, outside, relaxed, steer

PAIRS = 10
"""Pairs of the metric."""
MODEST = 2**20
"""Data with at most this many rows are passed over in full."""
FACES = 4
"""Faces of a set on which a quasi-Newton step is tried."""


class Estimates(NamedTuple):
    """Of the objective's gradient, the rows and their Jacobian; or of what belongs to each."""

    gradient: Float[Array, " n"]
    value: Float[Array, " rows"]
    jacobian: Float[Array, "rows n"]


class State(NamedTuple):
    """What the next step needs.

    `row_size` is the largest norm of each row's gradient where x has been, `stuck` the share of late steps from which nothing
    led nearer to the constraints.
    """

    x: Float[Array, " n"]
    estimates: Estimates
    noise: tuple[Noise, Noise, Noise]
    pairs: Pairs
    damping: Float[Array, ""]
    penalty: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    row_size: Float[Array, " rows"]
    stuck: Float[Array, ""]
    refused: Int[Array, ""]
    last_pass: Pass


class Face(NamedTuple):
    """The subproblem on a face of X: the step is `fixed`, which the face dictates, and −M⁻¹ times a sum of `vectors`.

    The vectors are v and the rows of J along the face, `inner` their products in M⁻¹, `plain` those without, `value` the
    rows after `fixed`.
    """

    metric: Metric
    vectors: Float[Array, "1+rows n"]
    seen: Float[Array, "1+rows two_pairs"]
    inner: Float[Array, "1+rows 1+rows"]
    plain: Float[Array, "1+rows 1+rows"]
    fixed: Float[Array, " n"]
    value: Float[Array, " rows"]

    def step(self, weights: Float[Array, " 1+rows"]) -> Float[Array, " n"]:
        """−M⁻¹ times the sum of the vectors with these weights."""
        return -self.metric.times(weights, self.vectors, self.seen)

    def end(self, weights: Float[Array, " 1+rows"]) -> Float[Array, " rows"]:
        """Where the linearized rows end up."""
        return self.value - self.inner[1:] @ weights


class Trial(NamedTuple):
    """Where a step leads, with its penalties and multipliers and the decrease that is foreseen; `looked`: see `Steering`."""

    x: Float[Array, " n"]
    penalty: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    foreseen: Float[Array, ""]
    hopeless: Bool[Array, ""]
    looked: Int[Array, ""]


class SelfTunedPenalty(Method):
    """What `AdaptivePenalty` and `MatrixFreePenalty` share: hyper-parameters, what they take, and what their states mean."""

    steering: Hyper = hyper(0.3, high=1.0)
    wobble: Hyper = hyper(0.25)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="ranges", needs="projection")
    reference: ClassVar[str] = "ours, after Cui et al. 2025 and Lu et al. 2024"
    guarantee: ClassVar[str] = (
        "descent on the exact penalty function where nothing is noisy; see docs/adaptive-penalty.md"
    )

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        """One sample, of an even number of rows: its halves show the noise."""
        sizes = [source.batch_size for source in oracle.sources]
        return {"step": None if all(size % 2 == 0 for size in sizes) else (max(sizes) + 1) // 2 * 2}

    def least_damping(self, oracle: Oracle, state: Any) -> Float[Array, ""]:
        """κ √(T q/w), T the steps until a full pass or until an estimate has forgotten a sample."""
        gradient = state.noise[0]
        memory = full_pass_period(oracle) or (gradient.error + gradient.sample) / positive_or_one(gradient.error)
        return state.last_pass.caution * jnp.sqrt(memory * gradient.change / self.wobble)

    def multipliers(self, state: Any) -> Float[Array, " rows"]:
        return state.multipliers

    def termination(self, state: Any) -> Literal["converged", "infeasible"] | None:
        return "infeasible" if state.stuck > 0.5 else None

    def note(self, state: Any) -> str | None:
        return f"{int(state.refused):,} steps were refused" if state.refused else None


class AdaptivePenalty(SelfTunedPenalty):
    """Exact penalty, quasi-Newton, nothing to tune: penalties, step lengths and averaging follow from what is measured.

    Args:
        steering: the share of the violation a step could take away that it must take away.
        wobble: how large errors left behind by noisy changes may be, as a share of the gradient's square.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.array([1.0, 0.0]), tr.methods.AdaptivePenalty(), steps=100)
        >>> bool(abs(result.x @ result.x - 1.0) < 1e-5), round(result.multipliers["circle"], 3)
        (True, 1.828)
    """

    cost: ClassVar[str] = (
        "2 ∇f, 2 J (deterministic: 1 each), 1 c, 4 more where a step hardly helps; finite data: a full pass every N/4b steps"
    )

    # ------------------------------------------------------------------ the start

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        sample = draw.samples["step"]
        v, h, J = estimates = _at(oracle, x, sample)
        size = jnp.linalg.norm(J, axis=1)
        scale = 1.0 / positive_or_one(size)
        unit = J * scale[:, None]
        ridge = 1e-3 * jnp.eye(h.size, dtype=x.dtype)
        multipliers = -jnp.linalg.solve(unit @ unit.T + ridge, unit @ v) * scale if h.size else h
        speed = jnp.linalg.norm(v)

        def slope(y: Float[Array, " n"]) -> Float[Array, ""]:
            """Of the Lagrangian along v."""
            return v @ (oracle.grad(y, sample) + oracle.vjp(y, sample)[1](multipliers))

        bend = jnp.linalg.norm(jax.grad(slope)(x)) / positive_or_one(speed)
        restore = jnp.linalg.norm(outside(h, oracle.rows) * scale)
        length = jnp.where(restore > 0, restore, jnp.maximum(1.0, jnp.linalg.norm(x)))
        curvature = jnp.where((bend > 0) & jnp.isfinite(bend), bend, positive_or_one(speed / length))
        noise = _spreads(_halves(oracle, x, sample))
        return State(
            x,
            estimates,
            noise=tuple(Noise(spread, spread, jnp.zeros((), x.dtype)) for spread in noise),  # pyright: ignore
            pairs=no_pairs(PAIRS, x, curvature),
            damping=curvature,
            penalty=jnp.maximum(2.0 * jnp.abs(multipliers), 0.1 * positive_or_one(speed) * scale),
            multipliers=oracle.multipliers,
            row_size=size,
            stuck=jnp.zeros((), x.dtype),
            refused=jnp.int32(0),
            last_pass=no_pass(h),
        )

    # ------------------------------------------------------------------ a step

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        state, here, info = _correct(oracle, state, draw)
        state = state._replace(damping=jnp.maximum(state.damping, self.least_damping(oracle, state)))
        trial = self._trial(oracle, state, here, draw.samples["step"])
        state = _taken(oracle, state, trial, here, _halves(oracle, trial.x, draw.samples["step"]), draw.k)
        return state, info._replace(constraint_values=info.constraint_values + trial.looked)

    def _trial(self, oracle: Oracle, state: State, here: Estimates, sample: Sample) -> Trial:
        """Where the subproblem's step leads, bent back."""
        v, h, _ = state.estimates
        face, steering = self._subproblem(oracle, state, here, sample)
        penalty, y = steering.penalty, steering.multipliers
        weights = _weights(y)
        square = weights @ face.inner @ weights
        new = state.x + face.fixed + face.step(weights)
        foreseen = penalty @ (outside(h, oracle.rows) - outside(face.end(weights), oracle.rows))
        foreseen = foreseen + face.inner[0] @ weights - v @ face.fixed
        foreseen = foreseen - 0.5 * (square + (state.pairs.curvature + state.damping) * face.fixed @ face.fixed)
        if h.size and not oracle.stochastic_constraints:
            new = new + _bend_back(oracle, face, oracle.c(new, sample), penalty, y, square)
        new = new if oracle.whole_space else oracle.project(new)
        return Trial(new, penalty, y, foreseen, steering.hopeless, steering.looked)

    # ------------------------------------------------------------------ the subproblem

    def _subproblem(self, oracle: Oracle, state: State, here: Estimates, sample: Sample) -> tuple[Face, Steering]:
        """The face of X that the step ends in, and its penalties and multipliers."""
        v, h, J = state.estimates
        whole = _face(state.pairs, state.damping, jnp.concatenate([v[None], J]), jnp.zeros_like(v), h)
        steering = self._steer(oracle, state, whole, here, sample)
        return (whole, steering) if oracle.whole_space else _on_set(oracle, state, steering)

    def _steer(self, oracle: Oracle, state: State, whole: Face, here: Estimates, sample: Sample) -> Steering:
        """The penalties, raised where they hold a step back; what the sample says of a longer step as in `_taken`."""
        (v, h, J), x, curvature = state.estimates, state.x, state.pairs.curvature + state.damping
        low, high = oracle.rows.low, oracle.rows.high

        def solve(weight: Array, penalty: Array, y: Array) -> Solved:
            ranges = RangePenalty(low, high, penalty)
            if oracle.whole_space:
                reach = h - weight * whole.inner[1:, 0]
                y = range_multipliers(whole.inner[1:, 1:], reach, ranges, y)
                weights = _weights(y, weight)
                return Solved(y, whole.end(weights), weights @ whole.inner @ weights)
            model = ProxLinearModel(weight * v, h, J, 1.0 / curvature, x, oracle.project)
            y = range_multipliers_on_set(model, ranges, y)
            d = oracle.project(x - (weight * v + y @ J) / curvature) - x
            return Solved(y, h + J @ d, curvature * d @ d)

        def truth(y: Array, part: Array) -> Array:
            way = whole.step(_weights(y, 0.0)) if oracle.whole_space else oracle.project(x - y @ J / curvature) - x
            d = part * way
            found = oracle.c(x + d, sample)
            if not oracle.stochastic_constraints:
                return found
            _, old_h, old_J = _mean(here)
            return h + (J - old_J) @ d + found - old_h

        return steer(
            solve,
            truth,
            oracle.rows,
            h,
            state.penalty,
            state.multipliers,
            share=self.steering,
            speed=whole.plain[0, 0],
            curvature=curvature,
            size=jnp.sqrt(jnp.diag(whole.plain)[1:]),
            largest_size=state.row_size,
        )


# ---------------------------------------------------------------------- samples and their noise


def _look(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> tuple[Float[Array, ""], Estimates]:
    """The objective on a sample, and what else that says at x."""
    objective, *first_order = oracle.first_order(x, sample)
    return objective, Estimates(*first_order)


def _at(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Estimates:
    """What a sample says at x."""
    return _look(oracle, x, sample)[1]


def _halves(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Estimates:
    """What the two halves of a sample say at x, stacked."""
    if not oracle.sources:
        return jax.tree.map(lambda a: jnp.stack([a, a]), _at(oracle, x, sample))
    return jax.vmap(lambda half: _at(oracle, x, half))(halves_of(sample))


def halves_of(sample: Sample) -> Sample:
    """The two halves of a sample, stacked."""
    return jax.tree.map(lambda a: a.reshape(2, a.shape[0] // 2, *a.shape[1:]), sample)


def _mean(halves: Estimates) -> Estimates:
    return jax.tree.map(lambda a: 0.5 * (a[0] + a[1]), halves)


def _spreads(halves: Estimates) -> Estimates:
    """Those of gradient, rows and Jacobian."""
    vectors = jnp.concatenate([halves.gradient[:, None], halves.jacobian], axis=1)
    squares = 0.25 * jnp.sum((vectors[0] - vectors[1]) ** 2, axis=1)
    return Estimates(squares[0], spread(halves.value), jnp.sum(squares[1:]))


def full_pass_period(oracle: Oracle) -> int | None:
    """Steps between full passes; None where there is data that cannot, or should not, be passed over in full.

    They compute half as many gradients as the pass, two for each row they draw.
    """
    if not oracle.sources or not all(isinstance(s, Dataset) and s.size <= MODEST for s in oracle.sources):
        return None
    return max(-(-s.size // (4 * s.batch_size)) for s in oracle.sources if isinstance(s, Dataset))


def _correct(oracle: Oracle, state: State, draw: Draw) -> tuple[State, Estimates, Info]:
    """The state with its estimates corrected by the step's sample, what the sample's halves say at x, and the cost."""
    x, sample, estimates, noise, last = state.x, draw.samples["step"], state.estimates, state.noise, state.last_pass
    if not oracle.sources:
        return state, jax.tree.map(lambda a: jnp.stack([a, a]), estimates), Info(1, 2, 1)
    halves = _halves(oracle, x, sample)
    rows, passes, period = oracle.count_examples("both", sample), 0, full_pass_period(oracle)
    if period:
        everything = oracle.everything()
        due = (draw.k - 1) % period == 0

        def full() -> tuple[Estimates, Pass]:
            objective, exact = _look(oracle, x, everything)
            return exact, last.then(objective, exact.value, state.penalty, oracle.rows)

        estimates, last = jax.lax.cond(due, full, lambda: (estimates, last))
        noise = tuple(n._replace(error=jnp.where(due, 0.0, n.error)) for n in noise)
        passes = due.astype(jnp.int32)
        rows += passes * oracle.count_examples("both", everything)
    gains, noise = zip(*(n.with_sample(a, draw.k) for n, a in zip(noise, _spreads(halves), strict=True)), strict=True)
    estimates = [old + a * (new - old) for old, a, new in zip(estimates, gains, _mean(halves), strict=True)]
    state = state._replace(estimates=Estimates(*estimates), noise=noise, last_pass=last)
    values = 2 if oracle.stochastic_constraints else 3
    return state, halves, Info(2 + passes, values + passes, 2 + passes, rows)


# ---------------------------------------------------------------------- parts of the subproblem


def _face(
    pairs: Pairs, damping: Array, vectors: Float[Array, "1+rows n"], fixed: Float[Array, " n"], value: Array
) -> Face:
    m = metric(pairs, damping)
    plain = vectors @ vectors.T
    inner, seen = m.inner(vectors, plain)
    return Face(m, vectors, seen, inner, plain, fixed, value)


def _on_set(oracle: Oracle, state: State, steering: Steering) -> tuple[Face, Steering]:
    """The face where the plain step ends, with the metric, if its step stays in X; else without."""
    (v, h, J), x, pairs = state.estimates, state.x, state.pairs
    vectors = jnp.concatenate([v[None], J])
    plain = x - (v + steering.multipliers @ J) / (pairs.curvature + state.damping)

    def face_at(q: Array, bent: Array) -> tuple[Face, Array]:
        """The face of X nearest to q, with the metric where `bent`, and the normal that leads from it to q."""
        p, tangent = jax.linearize(oracle.project, q)
        along = jax.vmap(tangent)
        fixed = p - x - tangent(p - x)
        flat = pairs.of(jnp.where(bent, jax.vmap(along)(pairs.rows), 0.0))
        return _face(flat, state.damping, along(vectors), fixed, h + J @ fixed), q - p

    def again(carry: tuple[Array, Array, Face, Array, Array]) -> tuple[Array, Array, Face, Array, Array]:
        q, y, _, _, count = carry
        bent = count < FACES
        face, normal = face_at(q, bent)
        gram, reach = face.inner[1:, 1:], face.value - face.inner[1:, 0]
        if h.size:
            y = range_multipliers(gram, reach, RangePenalty(oracle.rows.low, oracle.rows.high, steering.penalty), y)
        y = jnp.where(bent, y, steering.multipliers)
        goal = x + face.fixed + face.step(_weights(y))
        off = jnp.linalg.norm(oracle.project(goal) - goal) > 1e-6 * jnp.linalg.norm(goal - x)
        return jnp.where(count + 1 < FACES, goal + normal, plain), y, face, off & bent, count + 1

    shape = jax.eval_shape(lambda: face_at(plain, jnp.bool_(True))[0])
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shape)
    start = (plain, steering.multipliers, nothing, jnp.bool_(True), jnp.int32(0))
    _, y, face, _, _ = jax.lax.while_loop(lambda c: c[3], again, start)
    return face, steering._replace(multipliers=y)


def _bend_back(
    oracle: Oracle, face: Face, reached: Array, penalty: Array, y: Array, square: Array
) -> Float[Array, " n"]:
    """The step that takes back the rows which the step was to hold at an end of their range; none where it is long."""
    held = (y != 0) & (jnp.abs(y) < penalty)
    miss = jnp.where(held, reached - jnp.where(y > 0, oracle.rows.high, oracle.rows.low), 0.0)
    gram = face.inner[1:, 1:]
    q = solve_active_rows(gram, jnp.where(jnp.isfinite(miss), miss, 0.0), held)
    return face.step(_weights(jnp.where(q @ gram @ q <= 0.25 * square, q, 0.0), jnp.zeros((), q.dtype)))


# ---------------------------------------------------------------------- the judgment


def _taken(oracle: Oracle, state: State, trial: Trial, here: Estimates, there: Estimates, k: Int[Array, ""]) -> State:
    """The state after the trial, taken or refused, from what the halves of a sample say at x and at the trial point."""
    x, (v, h, J), exact = state.x, state.estimates, not oracle.stochastic_constraints
    move, changes = trial.x - x, jax.tree.map(jnp.subtract, there, here)
    (_, old_h, old_J), (_, new_h, new_J), (change, _, turn) = (_mean(a) for a in (here, there, changes))
    J_there = new_J if exact else J + turn
    h_there = new_h if exact else h + (J - old_J) @ move + new_h - old_h
    bent = changes.gradient + jnp.einsum("m,hmn->hn", trial.multipliers, changes.jacobian)
    products = _products(v, move, change, bent[0] - bent[1])
    speed, square, bend_noise = products[0, 0], products[1, 1], 0.25 * products[3, 3]
    seen = trial.penalty @ (outside(h, oracle.rows) - outside(h_there, oracle.rows)) - products[0, 1]
    seen = seen - jnp.maximum(0.5 * products[1, 2], 0.0)
    row_square = jnp.sum(new_J**2, axis=1)
    finite = jnp.isfinite(seen + products[2, 2] + jnp.sum(row_square))
    size = jnp.linalg.norm(J, axis=1)
    rounding = decrease_rounding(x, h, size, trial.penalty, speed, square)
    accept, damping = judge(seen, trial.foreseen, rounding, square, state.damping, state.pairs.curvature, finite)
    pairs = with_pair(state.pairs, move, 0.5 * (bent[0] + bent[1]), accept & ~trial.hopeless)
    x, estimates = jax.tree.map(
        lambda a, b: jnp.where(accept, a, b),
        (trial.x, Estimates(v + change, h_there, J_there)),
        (x, state.estimates),
    )
    known, walked = finite & (square > 0), jnp.where(accept, square, 0.0)
    gradient, value, jacobian = state.noise
    row_size = jnp.maximum(state.row_size, jnp.sqrt(row_square))
    hidden = value.error + jacobian.error * jnp.sum(state.x**2)  # over a distance of ‖x‖, by errors of Ĵ
    beyond_noise = jnp.sum(outside(h, oracle.rows) ** 2) > 9.0 * hidden
    return State(
        x,
        estimates,
        noise=(
            gradient.with_step(bend_noise, square, walked, known, k),
            value._replace(error=value.error + jacobian.error * walked),
            jacobian.with_step(spread(changes.jacobian), square, walked, known, k),
        ),
        pairs=pairs,
        damping=jnp.maximum(damping, 1e-6 * pairs.curvature),
        penalty=jnp.where(accept, relaxed(trial.penalty, trial.multipliers, size, speed), trial.penalty),
        multipliers=trial.multipliers,
        row_size=jnp.where(accept, row_size, state.row_size),
        stuck=smooth(state.stuck, (trial.hopeless & beyond_noise).astype(x.dtype), k),
        refused=state.refused + ~accept,
        last_pass=state.last_pass,
    )


def _products(*vectors: Float[Array, " n"]) -> Float[Array, "k k"]:
    """All inner products, in one go."""
    stacked = jnp.stack(vectors)
    return stacked @ stacked.T


def _weights(y: Float[Array, " rows"], first: Array | float = 1.0) -> Float[Array, " 1+rows"]:
    """The weight of the gradient, then those of the rows."""
    return jnp.concatenate([jnp.asarray(first, y.dtype)[None], y])
