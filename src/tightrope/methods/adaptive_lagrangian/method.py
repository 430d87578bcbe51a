r"""AdaptiveLagrangian: Adam on the Lagrangian, multipliers by a self-tuned proportional-integral rule, and a restoration.

For networks: a step is one forward and one backward pass on one batch and, every eighth step, a few more products, whatever
the number of constraints, and nothing has to be tuned. With rows low ≤ h(x) ≤ high, a sample ξ, the horizon T, and s
the root mean square of each leaf of x0:

    g = ∇f(x, ξ) + J(x, ξ)ᵀ y                                  one product with Jᵀ
    v, ν ← Adam's running means of g and g²
    x⁺ = P_X(x − α_k P v),   P = diag(s/(√ν + ε))             Adam, with steps relative to the size of each leaf
    y⁺ from h(x, ξ), P and v by the rule in `multipliers`
    k = T:  x is moved to where the rows of all data are within their ranges, and once downhill, as `restoration` says

    α_k = α min{k/(0.02 T), 1, 1.25 (1 − (k − 1)/T)},   α = min{0.1, 7/√T}, less if the objective is steep or saturates

The rule takes G_i = J_i P J_iᵀ, the response of row i to its multiplier. It is measured for all rows by one product: for
random signs z, (J_i √P z)² has the mean G_i. On a batch this would be too large by the noise of J_i, so J_i √P z on one half of
the batch times that on the other is averaged instead, which is unbiased. G is at least 5% of the biased mean, of the row itself
or, in units of their variances, of all sampled rows on average. C, U and W are measured by products J(P Jᵀw) with w_i =
sign(y_i)/√G_i, J(P Jᵀy) and J(P(∇f + Jᵀy)), gradients on one half and J on the other. G and these are measured in turn, in each
of the steps 2 to 64 and every eighth step from then on, with v and P of the step before; so are S = ⟨v, Pv⟩ and ε, which is
1e-6 times the root mean square of √ν. They are 0 until then. In these measurements √(ν + (0.01 ν̄)²), ν̄
the root mean square of √ν over the leaf, is in place of √ν: where all gradients so far were 0, as at a rectified unit that few
examples activate, P is without bound, and the first gradient there would make G a thousand times too large.

α is halved, at most six times, until two things hold along −s sign(∇f), the direction of a first step. One step leaves at least
a quarter of the slope: else α is too long for the curvature. As many steps as multipliers take to settle, the least τ of
`multipliers`, leave at least a tenth of the gradient, in the norm Σ s|∇f|: else the objective alone drives a network into
saturation, where gradients of objective and rows vanish, before any multiplier can hold it back.

| symbol | name | symbol | name |
|---|---|---|---|
| g, v, ν | `gradient`, `first`, `second` | P | `metric` |
| α, α_k | `step_size`, `rate` | s | `scale` |
| G; C, U, W | `response`, `coupling` | y | `controller.multipliers` |
| S | `gradient_sq` | ε | `epsilon` |

On a set that does not bound each coordinate separately, P is a multiple of the identity (see GradientDescentAscent).

What is proved: nothing for the iteration, as for Adam itself; the linear model in `multipliers` ignores curvature, momentum and
noise. The restoration is Newton's method on the rows, with steps that never make the largest violation larger; the descent
after it never raises the objective on all data.
benchmarks/networks.py marks the networks that constants were chosen on, and has others. A run that ends before its last step
(interrupted, or stopped by a tolerance) is not restored.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from ...numerics.random_signs import random_signs
from ...numerics.scaling import positive_or_one, reciprocal_or_zero
from ...oracles.oracle import Oracle, Sample
from ...problems.data import Batches
from ..base import Accepts, Draw, Hyper, Info, Method, hyper
from ..shared.halves import even_batch_size, on_halves, parts_of, variance_from_halves
from .multipliers import Controller, Response, least_settling_time
from .restoration import can_restore, finish

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-6
"""Adam's decay rates, and ε in units of the root mean square of √ν."""
MAX_STEP, STEP_OVER_ROOT, WARM_UP, DECAY = 0.1, 7.0, 0.02, 1.25
"""α = min{0.1, 7/√T}; the share of the steps that warm up, and how fast α_k falls afterwards."""
PROBE_PERIOD, FIRST_PROBES, PROBE_WEIGHT = 16, 64, 0.1
"""G and C, U, W are measured in turn in steps 2 to 64, then each every 16th; the least weight of a measurement."""
LEAST_ROOT = 0.01
"""A lower limit of √ν where responses are measured, as a share of its root mean square over the leaf; added in squares."""
MIN_RESPONSE = 0.05
"""The least response, as a share of what the batch alone shows."""
NOISE_WEIGHT = 0.02
"""The least weight of a batch in the variance of the rows."""
SLOPE_LEFT, GRADIENT_LEFT, HALVINGS, SLOPE_BATCHES = 0.25, 0.1, 6, 8
"""The share of the slope that a first step must leave, and of the gradient that the steps until multipliers settle must leave;
how often α is halved for them, and the batches that they are measured on."""


class State(NamedTuple):
    """Iterate, Adam's running means, the controller of the multipliers, and what it is tuned by."""

    x: Float[Array, " n"]
    first: Float[Array, " n"]
    second: Float[Array, " n"]
    controller: Controller
    variance: Float[Array, " rows"]
    """Of the rows on a batch."""
    response: Float[Array, "2 rows"]
    """G from products of halves, and from the batch alone."""
    coupling: Float[Array, "3 rows"]
    """C, U and W."""
    epsilon: Float[Array, ""]
    """ε of the metric."""
    gradient_sq: Float[Array, ""]
    """S = ⟨v, Pv⟩."""
    scale: tuple[Float[Array, ""], ...]
    """The root mean square of each leaf of x0."""
    peak: Float[Array, ""]
    """The largest learning rate so far, of an optimizer of the user's."""
    optimizer: Any


class AdaptiveLagrangian(Method):
    """Adam on the Lagrangian with self-tuned multipliers, for networks; the cost of a step hardly grows with the constraints.

    Args:
        step_size: α, the learning rate relative to the root mean square of each leaf of x0; None: estimated at the start.
        optimizer: an Optax optimizer such as `optax.adamw(1e-3)`, with its own learning rate, schedule, clipping and weight
            decay, in place of Adam and α. It gets the Lagrangian's gradient. Every new object compiles again.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, tightrope as tr
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(2000, 8)).astype("float32"), rng.integers(0, 2, 2000).astype("float32")
        >>> data = tr.Dataset({"x": x, "y": y}, batch_size=32)
        >>> score = lambda p, batch: jnp.tanh(batch["x"] @ p["hidden"]) @ p["output"] + p["shift"]
        >>> loss = lambda p, batch: jnp.mean(jnp.logaddexp(0, score(p, batch)) - batch["y"] * score(p, batch))
        >>> rate = lambda p, batch: jnp.mean(jax.nn.sigmoid(score(p, batch)))
        >>> start = {
        ...     "hidden": jnp.asarray(rng.normal(size=(8, 16)) / 3),
        ...     "output": jnp.asarray(rng.normal(size=16) / 4),
        ...     "shift": jnp.zeros(()),
        ... }
        >>> problem = tr.Problem(loss, tr.at_most(rate, 0.3, data=data), data=data)
        >>> result = tr.solve(problem, start, tr.methods.AdaptiveLagrangian(), steps=500)
        >>> result.certificate.verdict
        'feasible'
    """

    step_size: Hyper = hyper(None)
    optimizer: optax.GradientTransformation | None = eqx.field(default=None, static=True)

    accepts: ClassVar[Accepts] = Accepts(
        "any", inequalities=True, stochastic=True, form="ranges", needs="projection", model_state=True
    )
    reference: ClassVar[str] = "ours, after Kingma, Ba 2015 and Sohrabi et al. 2024 (controllers for multipliers)"
    guarantee: ClassVar[str] = "none for the iteration; rows restored on all data at the end"
    cost: ClassVar[str] = "1 ∇f, 1 h, 1 Jᵀy; every eighth step 1 or 6 more products; passes over all data at the end"

    def __check_init__(self) -> None:
        if self.optimizer is not None and not isinstance(self.optimizer, optax.GradientTransformation):
            raise TypeError(
                "AdaptiveLagrangian: optimizer must be an Optax optimizer such as optax.adamw(1e-3), "
                f"got {type(self.optimizer).__name__}"
            )

    @property
    def uses_horizon(self) -> bool:
        return True

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        """One sample with an even number of examples: its halves show the noise."""
        return {"step": even_batch_size(oracle)}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        oracle, x = oracle.hold_state(x)
        largest = jnp.minimum(MAX_STEP, STEP_OVER_ROOT / jnp.sqrt(draw.steps.astype(x.dtype)))
        return self.with_defaults(step_size=_safe_step_size(oracle, x, draw, largest))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        rows, multipliers = jnp.zeros_like(oracle.rows.low), oracle.multipliers
        held, trained = oracle.hold_state(x)
        params = held.parameters.unravel_arrays(trained)
        return State(
            x,
            first=jnp.zeros_like(trained),
            second=jnp.zeros_like(trained),
            controller=Controller(rows, multipliers, multipliers, rows),
            variance=rows,
            response=jnp.stack([rows, rows]),
            coupling=jnp.stack([rows, rows, rows]),
            epsilon=jnp.zeros((), x.dtype),
            gradient_sq=jnp.zeros((), x.dtype),
            scale=leaf_scales(params),
            peak=jnp.zeros((), x.dtype),
            optimizer=None if self.optimizer is None else self.optimizer.init(params),
        )

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        k, sample, join = draw.k, draw.samples["step"], oracle.parameters.join
        oracle, trained = oracle.hold_state(state.x)
        probe = _probe(oracle, k)
        state = _measure(oracle, state._replace(x=trained), draw, probe)  # first, before the step needs memory
        value, gradient, model_state = _lagrangian(oracle, state.x, state.controller.multipliers, sample)
        adam = Adam.update(state, gradient)
        metric = adam.metric(oracle, state, k)
        step, rate, optimizer = self._descend(oracle, state, gradient, metric, adam.direction(k), draw)
        peak = self.step_size if self.optimizer is None else jnp.maximum(state.peak, rate)

        variance = _mean_after(state.variance, variance_from_halves(value), k, NOISE_WEIGHT)
        variance = jnp.where(_is_sampled(oracle), variance, 0.0)
        coupling, push, progress = state.coupling
        seen = Response(
            variance,
            _least(state.response, variance),
            coupling,
            push,
            progress,
            state.gradient_sq,
            peak,
            rate / positive_or_one(peak),
        )
        controller = state.controller.update(jnp.mean(value, axis=0), oracle.rows, seen, k, draw.steps)

        # a value that is not finite spoils the multipliers for good, so the run ends here
        x = jnp.where(jnp.isfinite(jnp.sum(value)), oracle.project(state.x + step), jnp.nan)
        x, cost = _finish(oracle.with_state(model_state), x, metric, peak, draw)
        state = state._replace(
            x=join(x, model_state),
            first=adam.first,
            second=adam.second,
            controller=controller,
            variance=variance,
            peak=peak,
            optimizer=optimizer,
        )
        return state, Info(
            1 + (probe == 2) + cost.objective_gradients,
            1 + probe + cost.constraint_values,
            1 + probe + cost.constraint_jacobians,
            oracle.count_examples("both", sample) + cost.samples,
        )

    def _descend(
        self,
        oracle: Oracle,
        state: State,
        gradient: Float[Array, " n"],
        metric: Float[Array, " n"],
        direction: Float[Array, " n"],
        draw: Draw,
    ) -> tuple[Float[Array, " n"], Float[Array, ""], Any]:
        """The step, α_k and the state of the optimizer, None for our own.

        α_k of an optimizer of the user's is the length of its step over that of P v, in the metric.
        """
        if self.optimizer is None:
            rate = self.step_size * _schedule(draw, gradient.dtype)
            return -rate * metric * direction, rate, None
        unravel = oracle.parameters.unravel_arrays
        update, optimizer = self.optimizer.update(unravel(gradient), state.optimizer, unravel(oracle.gathered(state.x)))
        step = oracle.gathered(oracle.parameters.ravel(update))
        squares = jnp.sum(step**2 / positive_or_one(metric)), jnp.sum(metric * direction**2)
        return step, jnp.sqrt(squares[0] / positive_or_one(squares[1])), optimizer


class Adam(NamedTuple):
    """Adam's running means of the gradient and of its squares."""

    first: Float[Array, " n"]
    second: Float[Array, " n"]

    @classmethod
    def update(cls, state: State, gradient: Float[Array, " n"]) -> Adam:
        """Return the means with one more gradient."""
        return cls(
            FIRST_DECAY * state.first + (1.0 - FIRST_DECAY) * gradient,
            SECOND_DECAY * state.second + (1.0 - SECOND_DECAY) * gradient**2,
        )

    def direction(self, k: Int[Array, ""]) -> Float[Array, " n"]:
        """Return v after step k, the first mean without its bias."""
        return self.first / _weight(FIRST_DECAY, k, self.first.dtype)

    def squares(self, k: Int[Array, ""]) -> Float[Array, " n"]:
        """Return ν after step k, the second mean without its bias."""
        return self.second / _weight(SECOND_DECAY, k, self.second.dtype)

    def metric(self, oracle: Oracle, state: State, k: Int[Array, ""]) -> Float[Array, " n"]:
        """Return P = s/(√ν + ε) after step k, a multiple of the identity on a set that does not bound each coordinate."""
        sizes, squares = spread_over_leaves(oracle, state.scale), self.squares(k)
        if not oracle.domain.is_separable:
            sizes, squares = (jnp.full_like(a, jnp.mean(a)) for a in (sizes**2, squares))
            sizes = jnp.sqrt(sizes)
        return sizes / positive_or_one(jnp.sqrt(squares) + state.epsilon)


def _weight(decay: float, k: Int[Array, ""], dtype: Any) -> Float[Array, ""]:
    """The total weight of k terms in a running mean that began at 0."""
    return 1.0 - jnp.asarray(decay, dtype) ** k


def leaf_scales(params: Any) -> tuple[Float[Array, ""], ...]:
    """The root mean square of each leaf; of all leaves for those that are zero, and 1 if all are."""
    leaves = jax.tree.leaves(params)
    everything = positive_or_one(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves) / sum(leaf.size for leaf in leaves)))
    sizes = [jnp.sqrt(jnp.mean(leaf**2)) for leaf in leaves]
    return tuple(jnp.where(size > 0, size, everything) for size in sizes)


def spread_over_leaves(oracle: Oracle, scale: tuple[Array, ...]) -> Float[Array, " n"]:
    """The flat vector that has each leaf's scale in all its entries."""
    params = oracle.parameters.unravel_arrays(jnp.zeros_like(oracle.parameters.start))
    leaves, structure = jax.tree.flatten(params)
    filled = [jnp.broadcast_to(size, leaf.shape) for size, leaf in zip(scale, leaves, strict=True)]
    return oracle.gathered(oracle.parameters.ravel(jax.tree.unflatten(structure, filled)))


def _lagrangian(
    oracle: Oracle, x: Float[Array, " n"], multipliers: Float[Array, " rows"], sample: Sample
) -> tuple[Float[Array, "2 rows"], Float[Array, " n"], Float[Array, " state"] | None]:
    """The rows on the halves of a sample, ∇f + Jᵀy on all of it, and the mean of the halves' model states."""

    def both(point: Float[Array, " n"]) -> tuple[Float[Array, "2 1+rows"], Float[Array, "2 state"] | None]:
        return on_halves(oracle, lambda part: oracle.value_rows_and_state(point, part), sample)

    values, pullback, states = jax.vjp(both, x, has_aux=True)
    weights = 0.5 * jnp.concatenate([jnp.ones(1, x.dtype), multipliers])
    state = None if states is None else jnp.mean(states, axis=0)
    return values[:, 1:], pullback(jnp.stack([weights, weights]))[0], state


def _probe(oracle: Oracle, k: Int[Array, ""]) -> Int[Array, ""]:
    """What is measured in step k: nothing (0), G (1) or C, U, W (2); nothing in the first, before which there is no metric."""
    early = 1 + k % 2
    late = (k % PROBE_PERIOD == 0) + 2 * (k % PROBE_PERIOD == PROBE_PERIOD // 2)
    return jnp.where(k > FIRST_PROBES, late, jnp.where(k > 1, early, 0))


def _measure(oracle: Oracle, state: State, draw: Draw, probe: Int[Array, ""]) -> State:
    """The state after the measurement of this step, with what Adam's means were before the step.

    The whole state goes through the branches behind a barrier: otherwise the compiler copies the vectors that they read.
    """

    def nothing(state: State) -> State:
        return jax.lax.optimization_barrier(state)

    def response(state: State) -> State:
        state, metric = _measure_metric(oracle, state, draw.k - 1)
        return nothing(state._replace(response=_measure_response(oracle, state, metric, draw)))

    def coupling(state: State) -> State:
        state, metric = _measure_metric(oracle, state, draw.k - 1)
        return nothing(state._replace(coupling=_measure_coupling(oracle, state, metric, draw)))

    return jax.lax.switch(probe, [nothing, response, coupling], state)


def _measure_metric(oracle: Oracle, state: State, k: Int[Array, ""]) -> tuple[State, Float[Array, " n"]]:
    """ε and S after step k, and the metric with a small share of each leaf's mean ν added to ν."""
    adam = Adam(state.first, state.second)
    squares = adam.squares(k)
    state = state._replace(epsilon=EPSILON * jnp.sqrt(jnp.mean(squares)))
    typical = spread_over_leaves(oracle, leaf_scales(oracle.parameters.unravel_arrays(jnp.sqrt(squares))))
    adam = adam._replace(second=adam.second + _weight(SECOND_DECAY, k, typical.dtype) * (LEAST_ROOT * typical) ** 2)
    metric = adam.metric(oracle, state, k)
    return state._replace(gradient_sq=jnp.sum(metric * adam.direction(k) ** 2)), metric


def _measure_response(oracle: Oracle, state: State, metric: Float[Array, " n"], draw: Draw) -> Float[Array, "2 rows"]:
    """G after one more measurement."""
    direction = jnp.sqrt(metric) * random_signs(draw.key, metric.size, metric.dtype)
    change = on_halves(oracle, lambda part: oracle.jvp(state.x, direction, part)[1], draw.samples["step"])
    measured = jnp.stack([change[0] * change[1], jnp.mean(change**2, axis=0)])
    return _mean_after(state.response, measured, _count_probes(draw.k), PROBE_WEIGHT)


def _measure_coupling(oracle: Oracle, state: State, metric: Float[Array, " n"], draw: Draw) -> Float[Array, "3 rows"]:
    """C, U and W after one more measurement."""
    first, second = parts_of(oracle, draw.samples["step"])
    multipliers, size = state.controller.multipliers, jnp.sqrt(positive_or_one(_least(state.response, state.variance)))
    sign, without, once = jnp.sign(multipliers), jnp.zeros(1, size.dtype), jnp.ones(1, size.dtype)
    weights = [(without, sign / size), (without, multipliers), (once, multipliers)]
    _, pullback = jax.vjp(lambda point: oracle.value_and_rows(point, first), state.x)
    (gradients,) = jax.vmap(pullback)(jnp.stack([jnp.concatenate(pair) for pair in weights]))
    coupled, push, progress = sign * jax.vmap(lambda way: oracle.jvp(state.x, way, second)[1])(metric * gradients)
    alone = jnp.ones_like(size)
    measured = jnp.stack([coupled / size if size.size > 1 else alone, push, progress])
    return _mean_after(state.coupling, measured, _count_probes(draw.k), PROBE_WEIGHT)


def _least(response: Float[Array, "2 rows"], variance: Float[Array, " rows"]) -> Float[Array, " rows"]:
    """G from products of halves; at least a share of what the batch alone shows of this row, and of others of its variance.

    A group with few examples is missing in many batches, and its first measurements can be far too small.
    """
    unbiased, alone = response
    sampled = jnp.maximum(jnp.count_nonzero(variance), 1)
    typical = variance * jnp.sum(alone * reciprocal_or_zero(variance)) / sampled
    return jnp.maximum(unbiased, MIN_RESPONSE * jnp.maximum(alone, typical))


def _count_probes(k: Int[Array, ""]) -> Int[Array, ""]:
    """The number of measurements of one kind up to step k, in which it is measured."""
    return jnp.where(k > FIRST_PROBES, FIRST_PROBES // 2 + (k - FIRST_PROBES) // PROBE_PERIOD, k // 2)


def _mean_after(
    mean: Float[Array, "*shape"], new: Float[Array, "*shape"], count: Int[Array, ""], least: float
) -> Float[Array, "*shape"]:
    """The mean of `count` terms, the last of which is `new`; later, a running mean in which a term has the weight `least`."""
    return mean + jnp.maximum(1.0 / count, least).astype(mean.dtype) * (new - mean)


def _is_sampled(oracle: Oracle) -> Bool[Array, " rows"]:
    """Whether each row has data."""
    terms = oracle.constraints
    return jnp.asarray(np.repeat([term.source is not None for term in terms], [term.size for term in terms]), bool)


def _schedule(draw: Draw, dtype: Any) -> Float[Array, ""]:
    """α_k/α: warm-up, and a linear decay to the end."""
    k, steps = draw.k.astype(dtype), draw.steps.astype(dtype)
    return jnp.minimum(jnp.minimum(k / (WARM_UP * steps), 1.0), DECAY * (1.0 - (k - 1.0) / steps))


def _safe_step_size(oracle: Oracle, x: Float[Array, " n"], draw: Draw, largest: Float[Array, ""]) -> Float[Array, ""]:
    """α: halved until a first step leaves a quarter of the slope, and τ of them a tenth of the gradient, on another sample."""
    scale = spread_over_leaves(oracle, leaf_scales(oracle.parameters.unravel_arrays(x)))
    first, second = _two_samples(oracle, draw)
    direction = -scale * jnp.sign(oracle.grad(x, first))

    def slope_and_size(distance: Float[Array, ""]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        gradient = oracle.grad(x + distance * direction, second)
        return jnp.vdot(gradient, direction), jnp.vdot(jnp.abs(gradient), scale)

    rates = (largest * 0.5 ** np.arange(HALVINGS + 1)).astype(x.dtype)
    settled = least_settling_time(draw.steps.astype(x.dtype)) * rates
    slopes, sizes = jax.lax.map(slope_and_size, jnp.concatenate([jnp.zeros(1, x.dtype), rates, settled]))
    steady = slopes[1 : rates.size + 1] <= SLOPE_LEFT * slopes[0]
    saturated = sizes[rates.size + 1 :] < GRADIENT_LEFT * sizes[0]
    enough = steady & ~saturated
    return jnp.where(jnp.any(enough), rates[jnp.argmax(enough)], rates[-1])


def _two_samples(oracle: Oracle, draw: Draw) -> tuple[Sample, Sample]:
    """Two independent samples of several batches; the halves of one if the user passes the batches."""
    if any(isinstance(source, Batches) for source in oracle.sources):
        return parts_of(oracle, draw.samples["step"])
    examples = SLOPE_BATCHES * max((source.batch_size for source in oracle.sources), default=1)
    first, second = (oracle.draw(key, examples) for key in jax.random.split(draw.key))
    return first, second


def _finish(
    oracle: Oracle, x: Float[Array, " n"], metric: Float[Array, " n"], rate: Float[Array, ""], draw: Draw
) -> tuple[Float[Array, " n"], Info]:
    """x, restored and moved downhill if this is the last step, and what that cost."""
    if not can_restore(oracle):
        return x, Info()

    def last() -> tuple[Float[Array, " n"], Info]:
        new, cost = finish(oracle, x, metric, rate, draw.key)
        return new, Info(*map(jnp.int32, cost))

    return jax.lax.cond(draw.k == draw.steps, last, lambda: (x, Info(*[jnp.int32(0)] * len(Info()))))
