r"""Exact penalty with prox-linear steps and a steered penalty (Cui, Shi, Wang, Xiao 2025).

min f(x), c(x) = 0, x in X, through Φ_ρ(x) = f(x) + ρ‖c(x)‖, which has the same solutions if ρ is large enough. Two nested
loops run as one:

Inner loop (Algorithm 3.1), i = 0, 1, … from x^0 = x_k, with estimates v̂, ĉ, Ĵ of ∇f, c and the Jacobian at x^i that
`estimates` makes:

    x^{i+1} = x^i + argmin over d of v̂ᵀd + ρ‖ĉ + Ĵd‖ + ‖d‖²/(2γ), x^i + d in X                      (3.1)
    γ = min{1/α, 1/(8(ρ L_J + L_f))}, or constant

Outer loop (Algorithm 2.1): x_{k+1} is an x^i with i uniform over the inner loop (deterministic: the one with the least
‖x^{i+1} − x^i‖/γ), together with its estimates. With the normal step w = −Ĵ⁺ĉ, the projected gradient u = (I − Ĵ⁺Ĵ)v̂ and
the trial step s = γ(αw − u),

    θ = ‖ĉ‖ − ‖ĉ + Ĵs‖,    φ = ρθ − v̂ᵀs − ‖s‖²/(2γ)                                               (2.4)
    if φ ≥ ρζθ the test is met (2.5), else ρ ← max{βρ, (v̂ᵀs + ‖s‖²/(2γ)) / ((1 − ζ)θ)}                (2.6)

This form of the test needs no full rank, and it holds up to rounding. The first test never counts as met. With a set X or
slacks, which the paper does not have, s minimizes v̂ᵀs + ‖s‖²/(2γ) among the s with x + s in X that minimize ‖γαĉ + Ĵs‖.
Without X that is γ(αw − u). It is computed as a prox-linear step with a penalty far above ρ.

The paper stops when a later test is met: with inner loops as long as Theorem 3.1 asks for, ‖𝒢‖ = ‖x^{i+1} − x^i‖/γ is then
small too, and x_{k+1} is an ε-KKT point (Theorem 4.1). Inner loops are shorter here, so the run is 'converged' if the test is
met, √E‖𝒢‖² ≤ ε over the inner loop (deterministic: at x_{k+1}) and ‖ĉ‖ ≤ ε. Without an `accuracy` ε these limits are 1% of
the larger of ‖v̂‖ there and at x0, and 0.1% of R‖Ĵ‖ with R = max{1, ‖x‖}, which ‖ĉ‖ and its standard deviation at x0
together must meet.

A run that goes on after a test that was met starts Algorithm 2.1 anew, from the last iterate and not from x_{k+1}: the
deterministic x_{k+1} may be the first iterate of every inner loop. In the paper ρ never falls, and that is how it bounds the
number of failed tests. A new start is free to choose its ρ: the least value that meets the test at x_{k+1} and is 1/(1 − ζ)
times the multipliers of (3.1) there, but at least β times every ρ that failed a test, which keeps the paper's bound.

| symbol | name | symbol | name |
|---|---|---|---|
| ρ, β | `penalty`, `penalty_growth` | G, M, L_c | `gradient_radius`, `value_radius`, `jacobian_radius` |
| α, ζ | `normal_fraction`, `decrease_fraction` | T τ, τ (the paper's) | `inner_steps`, `restart_period` |
| γ | `step_size` | L_f, L_J | `smoothness`, `jacobian_smoothness` |
| ε | `accuracy` | A, B, S (Lemma 3.4) | `restart_batch_size`; between restarts `batch_size` |

The sizes of samples and loops are derived in `sizes`.

Infeasibility: at an outer test, x_k counts as a stationary point of the violation if a step of length R = max{1, ‖x‖} (at
most the set's diameter) down the violation's gradient, projected onto X, lowers ‖ĉ‖ to first order by less than 1% of
itself, and ‖ĉ‖ exceeds three standard deviations at x0 of a restart's ĉ. The limit of that is θ = 0, but θ/‖ĉ‖ alone stays
the same however close to singular Ĵ is. The run then ends with the status 'infeasible', but it does not stop early: ρ is
raised as usual while θ > 0 and may still lead x away.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...arguments import described, positive_int
from ...numerics.prox_linear import prox_linear, prox_linear_on_set
from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle
from ..base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from ..shared.constants import local_constants, row_noise
from ..shared.schedules import reservoir_replaces
from .estimates import Anchor, Estimates, Estimator
from .sizes import (
    INNER_STEPS,
    Lengths,
    Loop,
    Sizes,
    Three,
    as_three,
    finite_sum_sizes,
    lengths_for,
    resolve_setting,
    restart_sizes,
)
from .steering import is_locally_infeasible, rounding_of_test, travel_length, trial_step

SMALL_MEASURE, SMALL_VIOLATION = 1e-2, 1e-3
"""Limits of ‖𝒢‖ and ‖ĉ‖ at convergence, relative to ‖v̂‖ and to R‖Ĵ‖, if no accuracy is given."""


class InnerOutput(NamedTuple):
    """An iterate of the inner loop, with the estimates and the subproblem's multipliers there."""

    x: Float[Array, " n"]
    estimates: Estimates
    multipliers: Float[Array, " rows"]


class State(NamedTuple):
    """The iterate, the inner loop's output so far, and the result of the last outer test.

    Attributes:
        anchor: where the next estimates start from.
        measure: the mean ‖𝒢‖² of this inner loop so far; deterministic: the least.
        floor: the least penalty that a new start may choose.
        noise: the standard deviation at x0 of ĉ from one draw of a restart.
        gradient_size: ‖v̂‖ at x0.
        lengths: the restarts and loops that the accuracy asks for; None: no accuracy is given.
        tests: how many outer tests there were.
        met: whether the last one was met.
        converged: whether ‖𝒢‖ and ‖ĉ‖ were small there too.
        infeasible: whether the last one found a stationary point of the violation.
    """

    x: Float[Array, " n"]
    anchor: Anchor
    picked: InnerOutput
    measure: Float[Array, ""]
    penalty: Float[Array, ""]
    floor: Float[Array, ""]
    noise: Float[Array, ""]
    gradient_size: Float[Array, ""]
    lengths: Lengths | None
    tests: Int[Array, ""]
    met: Bool[Array, ""]
    converged: Bool[Array, ""]
    infeasible: Bool[Array, ""]


class ExactPenalty(Method):
    """Prox-linear steps on f + ρ‖c‖, with ρ adapted to how much violation a step can remove.

    Args:
        penalty: ρ_0, the first penalty.
        penalty_growth: β, the least factor by which the penalty is raised.
        normal_fraction: α in (0, 1), the weight of the normal step −J⁺c in a trial step of unit γ.
        decrease_fraction: ζ in (0, 1), the fraction of a trial step's decrease in violation that the penalty function
            must attain.
        step_size: γ, constant; None: min{1/α, 1/(8(ρ L_J + L_f))}, which changes with ρ.
        smoothness: L_f, Lipschitz constant of ∇f; None: estimated at the start, like the four after it.
        jacobian_smoothness: L_J, Lipschitz constant of the Jacobian.
        gradient_radius: bound on the norm of the gradient's estimate.
        value_radius: the same for the constraints.
        jacobian_radius: the same for their Jacobian (Frobenius).
        accuracy: ε of the ε-KKT point that is wanted: a violation and a stationarity of at most ε, in their own units. It
            sets the lengths and the samples below as Theorems 3.1 and 4.1 do, with measured constants.
        setting: 'stochastic', 'semi' (deterministic constraints), 'finite_sum' (every source is a Dataset), 'deterministic',
            or 'auto': the one that the problem's data allow and whose steps take the fewest examples.
        inner_steps: steps per inner loop, that is between two tests of ρ; None: 100, growing with the restarts.
        restart_period: steps between restarts of the estimates; None: 20, growing, for finite sums ⌊N^{1/5}/2 − 1⌋, at least 1.
        restart_batch_size: examples of a restart's samples, (A, B, S) for gradient, values and Jacobian, or one number for
            all; None: 20, 400 and 20 times the largest batch size, and four times as many whenever the steps have
            quadrupled since step 2,000. All data, in one pass, if there are no more. Finite sums use all data.
        batch_size: the same for the samples between restarts; None: the problem's own, for finite sums those of Proposition
            5.1.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.array([1.0, 0.0]), tr.methods.ExactPenalty(), steps=1000)
        >>> bool(abs(result.x @ result.x - 1.0) < 1e-4), result.status
        (True, 'converged')
    """

    penalty: Hyper = hyper(1.0)
    penalty_growth: Hyper = hyper(1.2, low=1.0)
    normal_fraction: Hyper = hyper(0.8, high=1.0)
    decrease_fraction: Hyper = hyper(0.8, high=1.0)
    step_size: Hyper = hyper(None)
    smoothness: Hyper = hyper(None)
    jacobian_smoothness: Hyper = hyper(None, closed="[")
    gradient_radius: Hyper = hyper(None)
    value_radius: Hyper = hyper(None)
    jacobian_radius: Hyper = hyper(None)
    accuracy: Hyper = hyper(None)
    setting: str = choice("auto", "auto", "stochastic", "semi", "finite_sum", "deterministic")
    inner_steps: int | None = eqx.field(default=None, static=True)
    restart_period: int | None = eqx.field(default=None, static=True)
    restart_batch_size: int | Three | None = eqx.field(default=None, static=True)
    batch_size: int | Three | None = eqx.field(default=None, static=True)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="slacks", needs="projection")
    reference: ClassVar[str] = "Cui, Shi, Wang, Xiao 2025, Algorithms 2.1 and 3.1, Section 5"
    guarantee: ClassVar[str] = (
        "an ε-KKT point from O(ε⁻³) ∇f and J and O(ε⁻⁵) c; semi: O(ε⁻³) ∇f; N examples: O(N + N^(4/5) ε⁻²); exact: O(ε⁻²)"
    )
    cost: ClassVar[str] = "2 ∇f, 4 c, 2 J (semi: 2, 1, 1; finite_sum: 2, 4, 3; deterministic: 1, 1, 1), restarts apart"

    def __check_init__(self) -> None:
        for name in ("inner_steps", "restart_period"):
            if getattr(self, name) is not None:
                positive_int("ExactPenalty", name, getattr(self, name))
        for name in ("restart_batch_size", "batch_size"):
            size = getattr(self, name)
            if isinstance(size, tuple | list) and len(size) != 3:
                expected = "a positive integer or three of them, for gradient, values and Jacobian"
                raise ValueError(f"ExactPenalty: {name} must be {expected}, got {described(size)}")
            for one in size if isinstance(size, tuple | list) else [] if size is None else [size]:
                positive_int("ExactPenalty", name, one)

    @property
    def uses_horizon(self) -> bool:
        return self.accuracy is not None

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        finite = self.setting_for(oracle) == "finite_sum"
        defaults = finite_sum_sizes(oracle)[0] if finite else (None, None, None)
        chosen = (given or default for given, default in zip(self._sizes(oracle).update, defaults, strict=True))
        return dict(zip(("gradient", "value", "jacobian"), chosen, strict=True))

    def needs_beyond_batches(self, oracle: Oracle) -> str | None:
        return "its estimates are restarted on all data or on large samples" if oracle.sources else None

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        jacobian = s.jacobian_norm + s.length * s.jacobian_smoothness
        return self.with_defaults(
            smoothness=s.step_smoothness,
            jacobian_smoothness=s.jacobian_smoothness,
            gradient_radius=10.0 * s.gradient_norm,
            value_radius=10.0 * positive_or_one(s.constraint_norm + s.length * jacobian),
            jacobian_radius=10.0 * positive_or_one(jacobian),
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        estimator, lengths = self._estimator(oracle), None
        if self.accuracy is not None:
            lengths = self._lengths(oracle, x, draw.key, steps)
        draws = self._loop(oracle, lengths, draw.k).draws
        estimates = estimator.restart(oracle, x, draw.key, draws)
        noise = jnp.zeros((), x.dtype)
        if estimator.setting == "stochastic" and oracle.stochastic_constraints:
            batch = oracle.count_examples("constraints", draw.samples["value"])
            noise = row_noise(oracle, x, draw.key) * math.sqrt(
                batch / estimator.large_samples(oracle, draws).counted[1]
            )
        return State(
            x,
            Anchor(x, estimates),
            InnerOutput(x, estimates, oracle.multipliers),
            measure=jnp.asarray(jnp.inf, x.dtype),
            penalty=jnp.asarray(self.penalty, x.dtype),
            floor=jnp.asarray(self.penalty, x.dtype),
            noise=noise,
            gradient_size=jnp.linalg.norm(estimates.gradient),
            lengths=lengths,
            tests=jnp.int32(0),
            met=jnp.bool_(False),
            converged=jnp.bool_(False),
            infeasible=jnp.bool_(False),
        )

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        estimator, loop = self._estimator(oracle), self._loop(oracle, state.lengths, draw.k)
        before = self._loop(oracle, state.lengths, jnp.maximum(draw.k - 1, 1))  # of the inner loop that has ended
        state = jax.lax.cond(loop.i == 0, lambda: self._outer_test(oracle, state, before), lambda: state)
        estimates, anchor, info = estimator.estimate(oracle, state.x, state.anchor, draw, loop)
        x, step_size = state.x, self._step_size(state.penalty)
        gradient, value, jacobian = estimates
        if oracle.whole_space:
            d, multipliers = prox_linear(gradient, value, jacobian, state.penalty, step_size)
            new = x + d
        else:
            d, multipliers = prox_linear_on_set(gradient, value, jacobian, state.penalty, step_size, x, oracle.project)
            new = oracle.project(x + d)
        square = jnp.sum((d / step_size) ** 2)
        if estimator.setting == "deterministic":
            take = (loop.i == 0) | (square < state.measure)
            measure = jnp.where(take, square, state.measure)
        else:
            take = reservoir_replaces(draw.uniform, 1.0, loop.i + 1)
            measure = jnp.where(loop.i == 0, square, state.measure + (square - state.measure) / (loop.i + 1))
        here = InnerOutput(x, estimates, multipliers)
        picked = jax.tree.map(lambda a, old: jnp.where(take, a, old), here, state.picked)
        return state._replace(x=new, anchor=anchor, picked=picked, measure=measure), info

    def setting_for(self, oracle: Oracle) -> str:
        """The setting that is used: the one asked for, or the one that 'auto' chooses."""
        return resolve_setting(self.setting, oracle, self._sizes(oracle))

    def _sizes(self, oracle: Oracle) -> Sizes:
        """The sizes as given."""
        given, update = as_three(self.restart_batch_size), as_three(self.batch_size)
        has_accuracy = self.accuracy is not None
        restart = restart_sizes(given, oracle, has_accuracy)
        grows = given is None and not has_accuracy
        return Sizes(restart, update or (None, None, None), self.restart_period, self.inner_steps, grows)

    def _loop(self, oracle: Oracle, lengths: Lengths | None, k: Int[Array, ""]) -> Loop:
        """The place of step k in the loops."""
        sizes = self._sizes(oracle)
        if self.setting_for(oracle) in ("finite_sum", "deterministic"):
            period = sizes.period or finite_sum_sizes(oracle)[1]
            sizes = sizes._replace(period=period, inner_steps=sizes.inner_steps or INNER_STEPS, grows=False)
        elif lengths is not None:
            return lengths.at(k)
        return sizes.at(k)

    def _lengths(self, oracle: Oracle, x: Float[Array, " n"], key: Array, steps: Int[Array, ""]) -> Lengths:
        """The restarts and loops that the accuracy asks for, with the penalty as large as the multipliers."""
        local, fractions = local_constants(oracle, x, key), self.normal_fraction * self.decrease_fraction
        penalty = jnp.maximum(self.penalty, local.multiplier_size)
        sizes = self._sizes(oracle)
        lengths = lengths_for(self.accuracy, local, penalty, self._step_size(penalty), fractions, sizes, oracle, steps)
        return lengths if self.restart_batch_size is None else lengths._replace(draws=jnp.ones_like(lengths.draws))

    def _estimator(self, oracle: Oracle) -> Estimator:
        return Estimator(
            self.setting_for(oracle),
            self._sizes(oracle).restart,
            self.gradient_radius,
            self.value_radius,
            self.jacobian_radius,
        )

    def _step_size(self, penalty: Float[Array, ""]) -> Float[Array, ""]:
        if self.step_size is not None:
            return self.step_size
        smoothness = penalty * self.jacobian_smoothness + self.smoothness
        return jnp.minimum(1.0 / self.normal_fraction, 1.0 / (8.0 * smoothness))

    def _outer_test(self, oracle: Oracle, state: State, loop: Loop) -> State:
        """The test (2.5) at the output of the inner loop that has ended: (2.6) raises ρ if it fails, else it may fall."""
        x, estimates, multipliers = state.picked
        gradient, value, jacobian = estimates
        penalty, step_size, later = state.penalty, self._step_size(state.penalty), state.tests > 0
        s = trial_step(oracle, x, estimates, penalty, step_size, self.normal_fraction)
        change = jacobian @ s
        norms = jnp.linalg.norm(value) + jnp.linalg.norm(value + change)
        decrease = -(2.0 * value + change) @ change / positive_or_one(norms)  # θ, without the difference of the norms
        cost = gradient @ s + s @ s / (2.0 * step_size)
        rounding = rounding_of_test(oracle, x, estimates, penalty, step_size)
        met = later & (penalty * decrease - cost >= penalty * self.decrease_fraction * decrease - rounding)
        noise = self._noise(oracle, state, loop)
        room = 1.0 - self.decrease_fraction
        enough = jnp.where(decrease > 0, cost / (room * positive_or_one(decrease)), 0.0)
        raised = jnp.maximum(self.penalty_growth * penalty, enough)
        fallen = jnp.minimum(
            penalty, jnp.maximum(jnp.maximum(state.floor, enough), jnp.linalg.norm(multipliers) / room)
        )
        fails = ~met & ~(later & (decrease <= 0))
        return state._replace(
            x=jnp.where(met, state.x, x),
            penalty=jnp.where(met, fallen, jnp.where(fails, raised, penalty)),
            floor=jnp.where(fails, jnp.maximum(state.floor, self.penalty_growth * penalty), state.floor),
            tests=state.tests + 1,
            met=met,
            converged=met & self._is_small(oracle, state, noise),
            infeasible=later & is_locally_infeasible(oracle, x, estimates, noise),
        )

    def _noise(self, oracle: Oracle, state: State, loop: Loop) -> Float[Array, ""]:
        """The standard deviation at x0 of ĉ after a restart."""
        estimator = self._estimator(oracle)
        if estimator.setting != "stochastic":
            return state.noise
        samples = estimator.large_samples(oracle, loop.draws)
        return jnp.where(samples.takes_all, 0.0, state.noise / jnp.sqrt(loop.draws[1]).astype(state.noise.dtype))

    def _is_small(self, oracle: Oracle, state: State, noise: Array) -> Bool[Array, ""]:
        """Whether ‖𝒢‖ and ‖ĉ‖ at the output of the inner loop that has ended are within the limits of convergence."""
        x, estimates, _ = state.picked
        measure, violation = jnp.sqrt(state.measure), jnp.linalg.norm(estimates.value)
        if self.accuracy is not None:
            return (measure <= self.accuracy) & (violation <= self.accuracy)
        slope = jnp.linalg.norm(estimates.jacobian)
        size = jnp.maximum(state.gradient_size, jnp.linalg.norm(estimates.gradient))
        longest = jnp.linalg.norm(x) / self._step_size(state.penalty) + state.penalty * slope
        rounding = 10.0 * jnp.finfo(x.dtype).eps * longest
        limit = SMALL_VIOLATION * slope * travel_length(oracle, x)
        return (measure <= SMALL_MEASURE * size + rounding) & (violation + noise <= limit)

    def output(self, state: State) -> Float[Array, " n"]:
        return state.picked.x

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.picked.multipliers

    def termination(self, state: State) -> Literal["converged", "infeasible"] | None:
        if state.infeasible:
            return "infeasible"
        return "converged" if state.converged else None

    def note(self, state: State) -> str | None:
        outcome = {
            "infeasible": "x was a stationary point of the violation, which no penalty can help",
            "converged": "the termination test was met",
            None: "ρ was large enough, but the steps were still long or the violation large"
            if state.met
            else "the termination test was not met, and ρ was raised",
        }[self.termination(state)]
        return f"at the last of {int(state.tests):,} outer tests {outcome}; ρ = {float(state.penalty):.4g}"
