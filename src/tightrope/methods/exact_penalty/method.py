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

This form of the test needs no full rank, and it holds up to rounding. The first test never counts as met. When a later one
is met, the paper stops; here ρ stays as it is and the inner loop continues from x_{k+1}. With a set X or slacks, which the
paper does not have, s minimizes v̂ᵀs + ‖s‖²/(2γ) among the s with x + s in X that minimize ‖γαĉ + Ĵs‖. Without X that is
γ(αw − u). It is computed as a prox-linear step with a penalty far above ρ.

| symbol | name | symbol | name |
|---|---|---|---|
| ρ, β | `penalty`, `penalty_growth` | G, M, L_c | `gradient_radius`, `value_radius`, `jacobian_radius` |
| α, ζ | `normal_fraction`, `decrease_fraction` | T τ, τ (the paper's) | `inner_steps`, `restart_period` |
| γ | `step_size` | L_f, L_J | `smoothness`, `jacobian_smoothness` |

Theory asks for T = τ ~ √(ρ/γ)/ε, for ~ ε^{-2} examples per sample at restarts (ε^{-4} for ĉ), and for ~ ε^{-1} (ε^{-3})
between them. The defaults are smaller: 100 inner steps; a restart every 20 steps on 20 batches, and on 20² batches for ĉ,
because an error of ĉ puts x off by that error over the least singular value of J, whatever the step size; and the problem's
own batches in between. For finite_sum the sizes are those of Proposition 5.1. No default depends on the horizon.

Infeasibility: at an outer test, x_k counts as a stationary point of the violation if a step of length R = max{1, ‖x‖} (at
most the set's diameter) down the violation's gradient, projected onto X, lowers ‖ĉ‖ to first order by less than 1% of
itself, and ‖ĉ‖ exceeds three standard deviations of a restart's ĉ at x0. The limit of that is θ = 0, but θ/‖ĉ‖ alone stays
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

from ...arguments import positive_int
from ...numerics.prox_linear import prox_linear, prox_linear_on_set
from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle
from ..base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from ..shared.constants import local_constants, row_noise
from ..shared.schedules import reservoir_replaces
from .estimates import Anchor, Estimates, Estimator, default_period, resolve_setting, sample_roles

INNER_STEPS = 100
"""Default number of steps of an inner loop."""
TRIAL_PENALTY_FACTOR = 1e3
"""Ratio of the trial step's penalty on a set to the expected size of its multipliers."""
STATIONARY_SHARE = 1e-2
"""Share of the violation below which a first-order decrease counts as none."""
NOISE_DEVIATIONS = 3.0
"""Standard deviations of ĉ that noise may explain."""


class InnerOutput(NamedTuple):
    """An iterate of the inner loop, with the estimates and the subproblem's multipliers there."""

    x: Float[Array, " n"]
    estimates: Estimates
    multipliers: Float[Array, " rows"]


class State(NamedTuple):
    """The iterate, the inner loop's output so far, and the result of the last outer test.

    Attributes:
        anchor: where the next estimates start from.
        stationarity: the least ‖x^{i+1} − x^i‖/γ of this inner loop.
        noise: the standard deviation of a restart's ĉ at x0.
        tests: how many outer tests there were.
        met: whether the last one was met.
        infeasible: whether the last one found a stationary point of the violation.
    """

    x: Float[Array, " n"]
    anchor: Anchor
    picked: InnerOutput
    stationarity: Float[Array, ""]
    penalty: Float[Array, ""]
    noise: Float[Array, ""]
    tests: Int[Array, ""]
    met: Bool[Array, ""]
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
        setting: 'stochastic', 'semi' (deterministic constraints), 'finite_sum' (every source is a Dataset), 'deterministic',
            or 'auto': the most exact one that the problem's data allow.
        inner_steps: steps per inner loop, that is between two tests of ρ; None: 100.
        restart_period: steps between restarts of the estimates; None: 20, for finite sums ⌊N^{1/5}/2 − 1⌋, at least 1.
        restart_batch_size: examples in each sample of a restart; None: 20 times the largest batch size, and 400 times for
            the constraints' values. Finite sums use all data.

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
    setting: str = choice("auto", "auto", "stochastic", "semi", "finite_sum", "deterministic")
    inner_steps: int | None = eqx.field(default=None, static=True)
    restart_period: int | None = eqx.field(default=None, static=True)
    restart_batch_size: int | None = eqx.field(default=None, static=True)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="slacks", needs="projection")
    reference: ClassVar[str] = "Cui, Shi, Wang, Xiao 2025, Algorithms 2.1 and 3.1, Section 5"
    guarantee: ClassVar[str] = (
        "an ε-KKT point from O(ε⁻³) ∇f and J and O(ε⁻⁵) c; semi: O(ε⁻³) ∇f; N examples: O(N + N^(4/5) ε⁻²); exact: O(ε⁻²)"
    )
    cost: ClassVar[str] = "2 ∇f, 4 c, 2 J (semi: 2, 1, 1; finite_sum: 2, 4, 3; deterministic: 1, 1, 1), restarts apart"

    def __check_init__(self) -> None:
        for name in ("inner_steps", "restart_period", "restart_batch_size"):
            if getattr(self, name) is not None:
                positive_int("ExactPenalty", name, getattr(self, name))

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return sample_roles(resolve_setting(self.setting, oracle), oracle)

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
        estimator = self._estimator(oracle)
        estimates, _ = estimator.restart(oracle, x, draw.key)
        noise = jnp.zeros((), x.dtype)
        if estimator.setting == "stochastic" and oracle.stochastic_constraints:
            batch = oracle.count_examples("constraints", draw.samples["value"])
            large = oracle.count_examples("constraints", estimator.large_samples(oracle, draw.key)[1])
            noise = row_noise(oracle, x, draw.key) * math.sqrt(batch / large)
        return State(
            x,
            Anchor(x, estimates),
            InnerOutput(x, estimates, oracle.multipliers),
            stationarity=jnp.asarray(jnp.inf, x.dtype),
            penalty=jnp.asarray(self.penalty, x.dtype),
            noise=noise,
            tests=jnp.int32(0),
            met=jnp.bool_(False),
            infeasible=jnp.bool_(False),
        )

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        estimator = self._estimator(oracle)
        i = (draw.k - 1) % (self.inner_steps or INNER_STEPS)
        state = jax.lax.cond(i == 0, lambda: self._outer_test(oracle, state), lambda: state)
        period = self.restart_period or default_period(estimator.setting, oracle)
        estimates, anchor, info = estimator.estimate(oracle, state.x, state.anchor, draw, i % period == 0)
        x, step_size = state.x, self._step_size(state.penalty)
        gradient, value, jacobian = estimates
        if oracle.whole_space:
            d, multipliers = prox_linear(gradient, value, jacobian, state.penalty, step_size)
            new = x + d
        else:
            d, multipliers = prox_linear_on_set(gradient, value, jacobian, state.penalty, step_size, x, oracle.project)
            new = oracle.project(x + d)
        stationarity = jnp.linalg.norm(d) / step_size
        least = stationarity < state.stationarity
        take = least if estimator.setting == "deterministic" else reservoir_replaces(draw.uniform, 1.0, i + 1)
        here = InnerOutput(x, estimates, multipliers)
        state = state._replace(
            x=new,
            anchor=anchor,
            picked=jax.tree.map(lambda a, old: jnp.where(take, a, old), here, state.picked),
            stationarity=jnp.minimum(stationarity, state.stationarity),
        )
        return state, info

    def _estimator(self, oracle: Oracle) -> Estimator:
        return Estimator(
            resolve_setting(self.setting, oracle),
            self.restart_batch_size,
            self.gradient_radius,
            self.value_radius,
            self.jacobian_radius,
        )

    def _step_size(self, penalty: Float[Array, ""]) -> Float[Array, ""]:
        if self.step_size is not None:
            return self.step_size
        smoothness = penalty * self.jacobian_smoothness + self.smoothness
        return jnp.minimum(1.0 / self.normal_fraction, 1.0 / (8.0 * smoothness))

    def _outer_test(self, oracle: Oracle, state: State) -> State:
        """The test (2.5) at the inner loop's output, where the next inner loop starts; (2.6) raises ρ if it fails."""
        x, estimates, _ = state.picked
        gradient, value, jacobian = estimates
        penalty, step_size, later = state.penalty, self._step_size(state.penalty), state.tests > 0
        s = self._trial_step(oracle, x, estimates, penalty, step_size)
        change = jacobian @ s
        norms = jnp.linalg.norm(value) + jnp.linalg.norm(value + change)
        decrease = -(2.0 * value + change) @ change / positive_or_one(norms)  # θ, without the difference of the norms
        cost = gradient @ s + s @ s / (2.0 * step_size)
        rounding = _rounding(oracle, x, estimates, penalty, step_size)
        met = later & (penalty * decrease - cost >= penalty * self.decrease_fraction * decrease - rounding)
        infeasible = later & self._is_locally_infeasible(oracle, x, estimates, state.noise)
        enough = jnp.where(decrease > 0, cost / ((1.0 - self.decrease_fraction) * positive_or_one(decrease)), 0.0)
        raised = jnp.maximum(self.penalty_growth * penalty, enough)
        return state._replace(
            x=x,
            stationarity=jnp.full_like(state.stationarity, jnp.inf),
            penalty=jnp.where(met | (later & (decrease <= 0)), penalty, raised),
            tests=state.tests + 1,
            met=met,
            infeasible=infeasible,
        )

    def _trial_step(
        self, oracle: Oracle, x: Float[Array, " n"], estimates: Estimates, penalty: Array, step_size: Array
    ) -> Float[Array, " n"]:
        """The step s = γ(αw − u), or its counterpart on a set."""
        gradient, value, jacobian = estimates
        if not value.size:
            return oracle.project(x - step_size * gradient) - x
        if oracle.whole_space:
            left, singular, right = jnp.linalg.svd(jacobian, full_matrices=False)
            rank = singular > jnp.finfo(x.dtype).eps ** 0.5 * singular[0]
            normal = right.T @ jnp.where(rank, left.T @ value / jnp.where(rank, singular, 1.0), 0.0)  # −w
            tangent = gradient - right.T @ jnp.where(rank, right @ gradient, 0.0)
            return -step_size * (tangent + self.normal_fraction * normal)
        size = positive_or_one(jnp.linalg.norm(jacobian))
        multipliers = jnp.linalg.norm(gradient) / size + self.normal_fraction * jnp.linalg.norm(value) / size**2
        high = TRIAL_PENALTY_FACTOR * jnp.maximum(penalty, multipliers)
        target = step_size * self.normal_fraction * value
        return prox_linear_on_set(gradient, target, jacobian, high, step_size, x, oracle.project)[0]

    def _is_locally_infeasible(
        self, oracle: Oracle, x: Float[Array, " n"], estimates: Estimates, noise: Array
    ) -> Bool[Array, ""]:
        """Whether x is a stationary point of the violation, and the violation is not zero."""
        violation = jnp.linalg.norm(estimates.value)
        downhill = -estimates.jacobian.T @ estimates.value
        length = jnp.minimum(oracle.diameter(), jnp.maximum(1.0, jnp.linalg.norm(x))).astype(x.dtype)
        step = oracle.project(x + length * downhill / positive_or_one(jnp.linalg.norm(downhill))) - x
        return (downhill @ step <= STATIONARY_SHARE * violation**2) & (violation > NOISE_DEVIATIONS * noise)

    def output(self, state: State) -> Float[Array, " n"]:
        return state.picked.x

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.picked.multipliers

    def termination(self, state: State) -> Literal["converged", "infeasible"] | None:
        if state.infeasible:
            return "infeasible"
        return "converged" if state.met else None

    def note(self, state: State) -> str | None:
        outcome = {
            "infeasible": "x was a stationary point of the violation, which no penalty can help",
            "converged": "the termination test was met",
            None: "the termination test was not met, and ρ was raised",
        }[self.termination(state)]
        return f"at the last of {int(state.tests):,} outer tests {outcome}; ρ = {float(state.penalty):.4g}"


def _rounding(
    oracle: Oracle, x: Float[Array, " n"], estimates: Estimates, penalty: Array, step_size: Array
) -> Float[Array, ""]:
    """The rounding error of the test's two sides: at a solution both sides are that small."""
    size = jnp.linalg.norm(estimates.gradient)
    length = step_size * size
    if not oracle.whole_space:  # s is a difference of points there, and the decrease of the rows has its error too
        length, size = length + jnp.linalg.norm(x), size + penalty * jnp.linalg.norm(estimates.jacobian)
    return 10.0 * jnp.finfo(x.dtype).eps * length * size
