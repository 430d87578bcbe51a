r"""Exact penalty with steering, on prox-linear steps (Cui, Shi, Wang, Xiao 2025).

min f(x), c(x) = 0, x in X, through Φ_ρ(x) = f(x) + ρ‖c(x)‖, which for ρ large enough has the same solutions. Two loops in one:

Inner loop (Algorithm 3.1), i = 0, 1, … from x^0 = x_k, with estimates v̂, ĉ, Ĵ of ∇f, c and the Jacobian at x^i:

    x^{i+1} = x^i + argmin over d of v̂ᵀd + ρ‖ĉ + Ĵd‖ + ‖d‖²/(2γ), x^i + d in X                      (3.1)
    γ = min{1/α, 1/(8(ρ L_J + L_f))}, or constant

Estimates by setting, made anew where i mod τ = 0 and, P_r projecting on a ball of radius r (G for v̂, M for ĉ, L_c for Ĵ):

    stochastic (3.2), (3.3):  v̂^i = P_r(mean over a large sample), then P_r(v̂^{i−1} + ∇f(x^i, ξ) − ∇f(x^{i−1}, ξ)),
                              one sample at both points; ĉ and Ĵ likewise, on samples of their own
    semi (5.1):               v̂ as above; ĉ and Ĵ exact
    finite_sum (5.2), (5.3):  all data at the anchor x̃ = x^{⌊i/τ⌋τ}, then, δ = x^i − x̃,
                              v̂ = P_r(∇f(x̃) + ∇f(x^i, ξ) − ∇f(x̃, ξ)), Ĵ likewise,
                              ĉ = P_r(c(x̃) + J(x̃)δ + c(x^i, ζ) − c(x̃, ζ) − J(x̃, ζ)δ)
    deterministic (5.3):      exact

Outer loop (Algorithm 2.1): x_{k+1} is an x^i with i uniform over the inner loop (deterministic: the one with the least
‖x^{i+1} − x^i‖/γ), with its estimates. With w = −Ĵ⁺ĉ, u = (I − Ĵ⁺Ĵ)v̂ and the trial step s = γ(αw − u),

    θ = ‖ĉ‖ − ‖ĉ + Ĵs‖,    φ = ρθ − v̂ᵀs − ‖s‖²/(2γ)                                               (2.4)
    where φ ≥ ρζθ the test is met (2.5), else ρ ← max{βρ, (v̂ᵀs + ‖s‖²/(2γ)) / ((1 − ζ)θ)}             (2.6)

in the form that needs no full rank, and up to rounding. The first test never counts as met. Where a later one is met ρ
stays and the inner loop goes on from x_{k+1}: the paper stops there. With a set X or slacks (the paper has none) s is the
minimizer of v̂ᵀs + ‖s‖²/(2γ) among the s with x + s in X that minimize ‖γαĉ + Ĵs‖, which without X is γ(αw − u); it is
found as a prox-linear step with a penalty far above ρ.

| symbol | name | symbol | name |
|---|---|---|---|
| ρ, β | `penalty`, `growth` | G, M, L_c | `gradient_radius`, `value_radius`, `jacobian_radius` |
| α, ζ | `steering`, `decrease` | T τ, τ (the paper's) | `inner_steps`, `period` |
| γ | `step_size` | L_f, L_J | `smoothness`, `jacobian_smoothness` |

Theory asks for T = τ ~ √(ρ/γ)/ε, samples of ~ ε^{-2} rows at restarts (ε^{-4} for ĉ) and of ~ ε^{-1} (ε^{-3}) between
them. The defaults scale that down: 100 inner steps, a restart every 20 of them on 20 times the batch, for ĉ on 20² times
(what ĉ is wrong by, x is wrong by over the least singular value of J, whatever the step), the problem's own batch between;
finite_sum: τ = ⌊N^{1/5}/2 − 1⌋ and ⌈2N^{2/5}⌉, ⌈4N^{4/5}⌉, ⌈2N^{2/5}⌉ rows, as in
Proposition 5.1 (whose printed ceiling for τ breaks its proof). Nothing there depends on the horizon.

Infeasible: at a test, x_k is taken for a stationary point of the violation where a step of length R = max{1, ‖x‖} (at most
the set's diameter) down its gradient, projected on X, lowers ‖ĉ‖ to first order by less than a hundredth of itself
(θ = 0 is the limit of that, but θ/‖ĉ‖ stays the same however near to singular Ĵ is), and ‖ĉ‖ is above three
standard deviations of a restart's ĉ at x0. It is what the run is reported to have come to, and no reason to stop: ρ is
raised as ever where θ > 0, and may yet lead away.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..arguments import positive_int
from ..numerics.prox_linear import prox_linear, prox_linear_on_set
from ..numerics.scaling import positive_or_one, truncate
from ..oracles.oracle import Oracle, Sample
from ..problems.data import Dataset
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import row_noise, scales
from .shared.momentum import first_order_svrg, spider
from .shared.schedules import reservoir_replaces

INNER_STEPS, PERIOD = 100, 20
"""Steps of an inner loop and between restarts; a restart's samples are PERIOD batches, PERIOD² for the rows."""
FAR_ABOVE = 1e3
"""How far the penalty of the trial step on a set is above what its multipliers should be."""
STATIONARY = 1e-2
"""The share of the violation below which a decrease counts as none."""
NOISE = 3.0
"""Standard deviations of ĉ that noise may explain."""


class Estimates(NamedTuple):
    """Of the objective's gradient, the rows and their Jacobian."""

    gradient: Float[Array, " n"]
    value: Float[Array, " rows"]
    jacobian: Float[Array, "rows n"]


class Pick(NamedTuple):
    """An iterate of the inner loop with the estimates and the subproblem's multipliers there."""

    x: Float[Array, " n"]
    estimates: Estimates
    multipliers: Float[Array, " rows"]


class State(NamedTuple):
    """What the next step needs, the sampled inner iterate and what the last outer test said.

    `anchor` and `estimates` belong together: the previous iterate, for finite sums the last restart. `measure` is the least
    ‖x^{i+1} − x^i‖/γ of this inner loop, `noise` the standard deviation of a restart's ĉ at x0.
    """

    x: Float[Array, " n"]
    anchor: Float[Array, " n"]
    estimates: Estimates
    picked: Pick
    measure: Float[Array, ""]
    penalty: Float[Array, ""]
    noise: Float[Array, ""]
    tests: Int[Array, ""]
    met: Bool[Array, ""]
    infeasible: Bool[Array, ""]


class ExactPenalty(Method):
    """Prox-linear steps on f + ρ‖c‖, with ρ steered by how much violation a step can take away.

    Args:
        penalty: ρ_0, the first penalty.
        growth: β, the least factor by which it is raised.
        steering: α in (0, 1), how much of the linearized violation a trial step takes away in a unit of γ.
        decrease: ζ in (0, 1), the share of that decrease which the penalty function must show.
        step_size: γ, constant; None: min{1/α, 1/(8(ρ L_J + L_f))}, which follows ρ.
        smoothness: L_f; None: estimated at the start, as are all that follow.
        jacobian_smoothness: L_J.
        gradient_radius: bound on the norm of the gradient's estimate.
        value_radius: the same for the constraints.
        jacobian_radius: the same for their Jacobian (Frobenius).
        setting: 'stochastic', 'semi' (deterministic constraints), 'finite_sum' (every source a Dataset), 'deterministic', or
            'auto': the most exact of them that the problem's data allow.
        inner_steps: steps of an inner loop, between two tests of ρ; None: 100.
        period: steps between restarts of the estimates; None: 20, for finite sums ⌊N^{1/5}/2 − 1⌋, at least 1.
        restart_batch: rows of each of a restart's samples; None: 20 of the largest batches, for the constraints' values 400.
            Finite sums pass over all data.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.array([1.0, 0.0]), tr.methods.ExactPenalty(), steps=1000)
        >>> bool(abs(result.x @ result.x - 1.0) < 1e-4), result.status
        (True, 'converged')
    """

    penalty: Hyper = hyper(1.0)
    growth: Hyper = hyper(1.2, low=1.0)
    steering: Hyper = hyper(0.8, high=1.0)
    decrease: Hyper = hyper(0.8, high=1.0)
    step_size: Hyper = hyper(None)
    smoothness: Hyper = hyper(None)
    jacobian_smoothness: Hyper = hyper(None, strict=False)
    gradient_radius: Hyper = hyper(None)
    value_radius: Hyper = hyper(None)
    jacobian_radius: Hyper = hyper(None)
    setting: str = choice("auto", "auto", "stochastic", "semi", "finite_sum", "deterministic")
    inner_steps: int | None = eqx.field(default=None, static=True)
    period: int | None = eqx.field(default=None, static=True)
    restart_batch: int | None = eqx.field(default=None, static=True)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="slacks", needs="projection")
    reference: ClassVar[str] = "Cui, Shi, Wang, Xiao 2025, Algorithms 2.1 and 3.1, Section 5"
    guarantee: ClassVar[str] = (
        "an ε-KKT point from O(ε⁻³) ∇f and J and O(ε⁻⁵) c; semi: O(ε⁻³) ∇f; N rows: O(N + N^(4/5) ε⁻²); exact: O(ε⁻²)"
    )
    cost: ClassVar[str] = "2 ∇f, 4 c, 2 J (semi: 2, 1, 1; finite_sum: 2, 4, 3; deterministic: 1, 1, 1), restarts apart"

    def __check_init__(self) -> None:
        for name in ("inner_steps", "period", "restart_batch"):
            if getattr(self, name) is not None:
                positive_int("ExactPenalty", name, getattr(self, name))

    # ------------------------------------------------------------------ which setting, how many rows and steps

    def _setting(self, oracle: Oracle) -> str:
        """The setting that is meant; a ValueError where the data do not allow the one that was asked for."""
        exact = not oracle.sources
        finite = all(isinstance(source, Dataset) for source in oracle.sources)
        allowed = {
            "deterministic": exact,
            "semi": not oracle.stochastic_constraints,
            "finite_sum": finite,
            "stochastic": True,
        }
        if self.setting == "auto":
            return next(name for name, can in allowed.items() if can)
        if not allowed[self.setting]:
            able = ", ".join(repr(name) for name, can in allowed.items() if can)
            raise ValueError(
                f"ExactPenalty: setting {self.setting!r} does not fit the problem's data; expected one of {able}"
            )
        return self.setting

    def _period(self, oracle: Oracle) -> int:
        if self.period is not None:
            return self.period
        return max(1, math.floor(_rows(oracle) ** 0.2 / 2 - 1)) if self._setting(oracle) == "finite_sum" else PERIOD

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        if self._setting(oracle) != "finite_sum":
            return {"gradient": None, "value": None, "jacobian": None}
        rows = _rows(oracle)
        few, many = min(rows, math.ceil(2 * rows**0.4)), min(rows, math.ceil(4 * rows**0.8))
        return {"gradient": few, "value": many, "jacobian": few}

    def _large_samples(self, oracle: Oracle, key: Array) -> tuple[Sample, Sample, Sample]:
        """Independent samples for a restart's gradient, rows and Jacobian."""
        batch = max((source.batch_size for source in oracle.sources), default=1)
        rows, many = (self.restart_batch or batch * PERIOD**power for power in (1, 2))
        gradient, value, jacobian = jax.random.split(key, 3)
        return oracle.draw(gradient, rows), oracle.draw(value, many), oracle.draw(jacobian, rows)

    # ------------------------------------------------------------------ the start

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = scales(oracle, x, draw.samples["gradient"], draw.key)
        jacobian = s.constraint_gradient + s.length * s.jacobian_smoothness
        return self.with_defaults(
            smoothness=s.smoothness,
            jacobian_smoothness=s.jacobian_smoothness,
            gradient_radius=10.0 * s.gradient,
            value_radius=10.0 * positive_or_one(s.constraint + s.length * jacobian),
            jacobian_radius=10.0 * positive_or_one(jacobian),
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        estimates, _ = self._restart(oracle, x, draw)
        noise = jnp.zeros((), x.dtype)
        if self._setting(oracle) == "stochastic" and oracle.stochastic_constraints:
            batch = oracle.count_examples("constraints", draw.samples["value"])
            large = oracle.count(self._large_samples(oracle, draw.key)[1], objective=False, constraints=True)
            noise = row_noise(oracle, x, draw.key) * math.sqrt(batch / large)
        return State(
            x,
            x,
            estimates,
            Pick(x, estimates, oracle.multipliers),
            measure=jnp.asarray(jnp.inf, x.dtype),
            penalty=jnp.asarray(self.penalty, x.dtype),
            noise=noise,
            tests=jnp.int32(0),
            met=jnp.bool_(False),
            infeasible=jnp.bool_(False),
        )

    # ------------------------------------------------------------------ a step

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        inner, exact = self.inner_steps or INNER_STEPS, self._setting(oracle) == "deterministic"
        i = (draw.k - 1) % inner
        state = jax.lax.cond(i == 0, lambda: self._steer(oracle, state), lambda: state)
        estimates, anchor, anchored, info = self._estimate(oracle, state, draw, i % self._period(oracle) == 0)
        x, step_size = state.x, self._step_size(state.penalty)
        gradient, value, jacobian = estimates
        if oracle.whole_space:
            d, multipliers = prox_linear(gradient, value, jacobian, state.penalty, step_size)
            new = x + d
        else:
            d, multipliers = prox_linear_on_set(gradient, value, jacobian, state.penalty, step_size, x, oracle.project)
            new = oracle.project(x + d)
        measure = jnp.linalg.norm(d) / step_size
        take = measure < state.measure if exact else reservoir_replaces(draw.uniform, 1.0, i + 1)
        picked = jax.tree.map(lambda a, old: jnp.where(take, a, old), Pick(x, estimates, multipliers), state.picked)
        state = state._replace(
            x=new,
            anchor=anchor,
            estimates=anchored,
            picked=picked,
            measure=jnp.minimum(measure, state.measure),
        )
        return state, info

    def _step_size(self, penalty: Float[Array, ""]) -> Float[Array, ""]:
        if self.step_size is not None:
            return self.step_size
        return jnp.minimum(1.0 / self.steering, 1.0 / (8.0 * (penalty * self.jacobian_smoothness + self.smoothness)))

    # ------------------------------------------------------------------ estimates

    def _estimate(
        self, oracle: Oracle, state: State, draw: Draw, restarts: Bool[Array, ""]
    ) -> tuple[Estimates, Float[Array, " n"], Estimates, Info]:
        """The estimates at x; the point and the estimates that the next ones are built on; what they cost."""
        x, finite = state.x, self._setting(oracle) == "finite_sum"
        if self._setting(oracle) == "deterministic":
            estimates, info = self._restart(oracle, x, draw)
            return estimates, x, estimates, info
        infos: dict[str, Info] = {}

        def restart() -> Estimates:
            estimates, infos["restart"] = self._restart(oracle, x, draw)
            return estimates

        def update() -> Estimates:
            estimates, infos["update"] = (self._update_finite if finite else self._update)(oracle, state, draw)
            return estimates

        estimates = jax.lax.cond(restarts, restart, update)
        info = Info(
            *(
                a if a == b else jnp.where(restarts, a, b)
                for a, b in zip(infos["restart"], infos["update"], strict=True)
            )
        )
        if not finite:
            return estimates, x, estimates, info
        kept = jax.tree.map(lambda a, b: jnp.where(restarts, a, b), (x, estimates), (state.anchor, state.estimates))
        return estimates, *kept, info

    def _restart(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> tuple[Estimates, Info]:
        """(3.2): estimates from large samples; from all data for finite sums (5.3)."""
        setting = self._setting(oracle)
        if setting in ("finite_sum", "deterministic"):
            everything = oracle.everything()
            rows = oracle.count_examples("both", everything)
            return Estimates(oracle.grad(x, everything), *_rows_and_jacobian(oracle, x, everything)), Info(
                1, 1, 1, rows
            )
        first, second, third = self._large_samples(oracle, draw.key)
        gradient = truncate(oracle.grad(x, first), self.gradient_radius)
        rows = oracle.count_examples("objective", first)
        if setting == "semi":
            return Estimates(gradient, *_rows_and_jacobian(oracle, x, second)), Info(1, 1, 1, rows)
        value = truncate(oracle.c(x, second), self.value_radius)
        jacobian = truncate(oracle.jac(x, third), self.jacobian_radius)
        rows += sum(oracle.count_examples("constraints", sample) for sample in (second, third))
        return Estimates(gradient, value, jacobian), Info(1, 2, 1, rows)

    def _update(self, oracle: Oracle, state: State, draw: Draw) -> tuple[Estimates, Info]:
        """(3.3): the last estimates and the change since on small samples, each truncated."""
        x, old, last = state.x, state.anchor, state.estimates
        first, second, third = (draw.samples[role] for role in ("gradient", "value", "jacobian"))
        gradient = spider(last.gradient, oracle.grad(x, first), oracle.grad(old, first))
        gradient = truncate(gradient, self.gradient_radius)
        rows = oracle.count_examples("objective", first)
        if self._setting(oracle) == "semi":
            return Estimates(gradient, *_rows_and_jacobian(oracle, x, second)), Info(2, 1, 1, rows)
        value = spider(last.value, oracle.c(x, second), oracle.c(old, second))
        jacobian = spider(last.jacobian, oracle.jac(x, third), oracle.jac(old, third))
        rows += sum(oracle.count_examples("constraints", sample) for sample in (second, third))
        estimates = gradient, truncate(value, self.value_radius), truncate(jacobian, self.jacobian_radius)
        return Estimates(*estimates), Info(2, 4, 2, rows)

    def _update_finite(self, oracle: Oracle, state: State, draw: Draw) -> tuple[Estimates, Info]:
        """(5.2): what all data said at the anchor and the change since on small samples, each truncated."""
        x, anchor, full = state.x, state.anchor, state.estimates
        first, second, third = (draw.samples[role] for role in ("gradient", "value", "jacobian"))
        gradient = spider(full.gradient, oracle.grad(x, first), oracle.grad(anchor, first))
        old, slope = oracle.jvp(anchor, x - anchor, second)
        value = first_order_svrg(full.value, full.jacobian @ (x - anchor), oracle.c(x, second), old, slope)
        jacobian = spider(full.jacobian, oracle.jac(x, third), oracle.jac(anchor, third))
        rows = oracle.count_examples("objective", first)
        rows += sum(oracle.count_examples("constraints", sample) for sample in (second, third))
        estimates = Estimates(
            truncate(gradient, self.gradient_radius),
            truncate(value, self.value_radius),
            truncate(jacobian, self.jacobian_radius),
        )
        return estimates, Info(2, 4, 3, rows)

    # ------------------------------------------------------------------ the outer loop

    def _steer(self, oracle: Oracle, state: State) -> State:
        """The outer test at the inner loop's output, where the next inner loop begins; ρ is raised where it fails."""
        x, estimates, _ = state.picked
        gradient, value, jacobian = estimates
        penalty, step_size, later = state.penalty, self._step_size(state.penalty), state.tests > 0
        s = self._trial(oracle, x, estimates, penalty, step_size)
        change = jacobian @ s
        norms = jnp.linalg.norm(value) + jnp.linalg.norm(value + change)
        less = -(2.0 * value + change) @ change / positive_or_one(norms)  # θ, without the difference of the norms
        cost = gradient @ s + s @ s / (2.0 * step_size)
        rounding = _rounding(oracle, x, estimates, penalty, step_size)
        met = later & (penalty * less - cost >= penalty * self.decrease * less - rounding)
        infeasible = later & self._is_stuck(oracle, x, estimates, state.noise)
        enough = jnp.where(less > 0, cost / ((1.0 - self.decrease) * positive_or_one(less)), 0.0)
        raised = jnp.maximum(self.growth * penalty, enough)
        return state._replace(
            x=x,
            measure=jnp.full_like(state.measure, jnp.inf),
            penalty=jnp.where(met | (later & (less <= 0)), penalty, raised),
            tests=state.tests + 1,
            met=met,
            infeasible=infeasible,
        )

    def _trial(
        self, oracle: Oracle, x: Float[Array, " n"], estimates: Estimates, penalty: Array, step_size: Array
    ) -> Float[Array, " n"]:
        """The step s = γ(αw − u), or what stands for it on a set."""
        gradient, value, jacobian = estimates
        if not value.size:
            return oracle.project(x - step_size * gradient) - x
        if oracle.whole_space:
            left, singular, right = jnp.linalg.svd(jacobian, full_matrices=False)
            rank = singular > jnp.finfo(x.dtype).eps ** 0.5 * singular[0]
            normal = right.T @ jnp.where(rank, left.T @ value / jnp.where(rank, singular, 1.0), 0.0)  # −w
            tangent = gradient - right.T @ jnp.where(rank, right @ gradient, 0.0)
            return -step_size * (tangent + self.steering * normal)
        size = positive_or_one(jnp.linalg.norm(jacobian))
        multipliers = jnp.linalg.norm(gradient) / size + self.steering * jnp.linalg.norm(value) / size**2
        far = FAR_ABOVE * jnp.maximum(penalty, multipliers)
        aim = step_size * self.steering * value
        return prox_linear_on_set(gradient, aim, jacobian, far, step_size, x, oracle.project)[0]

    def _is_stuck(self, oracle: Oracle, x: Float[Array, " n"], estimates: Estimates, noise: Array) -> Bool[Array, ""]:
        """Whether the violation is stationary at x and not zero."""
        violation = jnp.linalg.norm(estimates.value)
        downhill = -estimates.jacobian.T @ estimates.value
        length = jnp.minimum(oracle.diameter(), jnp.maximum(1.0, jnp.linalg.norm(x))).astype(x.dtype)
        step = oracle.project(x + length * downhill / positive_or_one(jnp.linalg.norm(downhill))) - x
        return (downhill @ step <= STATIONARY * violation**2) & (violation > NOISE * noise)

    # ------------------------------------------------------------------ the answer

    def output(self, state: State) -> Float[Array, " n"]:
        return state.picked.x

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.picked.multipliers

    def termination(self, state: State) -> Literal["converged", "infeasible"] | None:
        if state.infeasible:
            return "infeasible"
        return "converged" if state.met else None

    def note(self, state: State) -> str | None:
        said = {
            "infeasible": "x was at a stationary point of the violation, which ρ cannot help",
            "converged": "the termination test was met",
            None: "the termination test was not met, and ρ was raised",
        }[self.termination(state)]
        return f"at the last of {int(state.tests):,} outer iterations {said}; ρ = {float(state.penalty):.4g}"


def _rounding(
    oracle: Oracle, x: Float[Array, " n"], estimates: Estimates, penalty: Array, step_size: Array
) -> Float[Array, ""]:
    """What rounding of the trial step may do to the test: at a solution both sides of it are that small."""
    size = jnp.linalg.norm(estimates.gradient)
    length = step_size * size
    if not oracle.whole_space:  # s is a difference of points there, and the decrease of the rows has its error too
        length, size = length + jnp.linalg.norm(x), size + penalty * jnp.linalg.norm(estimates.jacobian)
    return 10.0 * jnp.finfo(x.dtype).eps * length * size


def _rows(oracle: Oracle) -> int:
    """N: the rows of the largest data set."""
    return max((source.size for source in oracle.sources if isinstance(source, Dataset)), default=1)


def _rows_and_jacobian(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> tuple[Any, Any]:
    """Both from one evaluation."""
    value, pullback = oracle.vjp(x, sample)
    return value, jax.vmap(pullback)(jnp.eye(value.size, dtype=x.dtype))
