"""The default method, with the Jacobian of the constraints as a matrix; `base` has the equations of its step."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...numerics.products import Linear, inner_products
from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample
from ..base import Draw, Info
from ..shared.halves import halves_of, variance_from_halves
from .acceptance import End, Outcome, actual_reduction, beyond_noise
from .base import SelfTunedPenalty
from .constants import INITIAL_PENALTY_FACTOR, INITIAL_RIDGE, MIN_SCALED_PENALTY
from .dense import DenseFace, DenseModel, Estimates
from .full_pass import full_pass_period, refresh
from .model import Trial
from .noise import Noise, gains, least_weight, noise_after
from .tuning import Tuning, initial_curvature


class State(NamedTuple):
    """Everything that the next step needs."""

    x: Float[Array, " n"]
    estimates: Estimates
    noise: tuple[Noise, Noise, Noise]
    """Of the three estimates."""
    largest_row_norm: Float[Array, " rows"]
    """The largest norm of each row's gradient at the iterates so far."""
    last_sample: Sample
    """The sample of the last step; () where constraints are deterministic."""
    tuning: Tuning


class AdaptivePenalty(SelfTunedPenalty):
    """Exact penalty with quasi-Newton steps; penalties, step lengths and averaging follow from measurements.

    Args:
        min_feasibility_share: the least part of the violation that a step must remove, relative to what a step of its
            length can remove. Larger values put feasibility first.
        noise_tolerance: the largest error that noisy changes may leave in the gradient, as a share of its square. Smaller
            values give shorter steps on noisy problems.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.array([1.0, 0.0]), tr.methods.AdaptivePenalty(), steps=100)
        >>> bool(abs(result.x @ result.x - 1.0) < 1e-5), round(result.multipliers["circle"], 3)
        (True, 1.828)
    """

    cost: ClassVar[str] = (
        "2 ∇f, 2 J, 1 Jd, 1 c (deterministic: 1 ∇f, 1 J, 1 c), 4 or 10 c more where a step stalls; "
        "finite data: a full pass every N/4b steps"
    )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        sample = draw.samples["step"]
        v, h, J = estimates = _on_sample(oracle, x, sample)[1]
        row_norm = jnp.linalg.norm(J, axis=1)
        scale = 1.0 / positive_or_one(row_norm)
        unit = J * scale[:, None]
        ridge = INITIAL_RIDGE * jnp.eye(h.size, dtype=x.dtype)
        multipliers = -jnp.linalg.solve(unit @ unit.T + ridge, unit @ v) * scale if h.size else h
        distance = jnp.linalg.norm(oracle.rows.violation(h) * scale)
        least = MIN_SCALED_PENALTY * positive_or_one(jnp.linalg.norm(v)) * scale
        return State(
            x,
            estimates,
            noise=tuple(map(Noise.first, _variances(_halves(oracle, x, sample)))),  # pyright: ignore
            largest_row_norm=row_norm,
            last_sample=oracle.keep(sample) if oracle.stochastic_constraints else (),
            tuning=Tuning.first(
                x,
                initial_curvature(oracle, x, sample, v, multipliers, distance),
                penalty=jnp.maximum(INITIAL_PENALTY_FACTOR * jnp.abs(multipliers), least),
                multipliers=oracle.multipliers,
            ),
        )

    def _begin(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Estimates, Info]:
        """Return the state, exact where a full pass is due, the halves of the sample at x, and the cost of the step."""
        x, sample = state.x, draw.samples["step"]
        if not oracle.sources:
            return state, _twice(state.estimates), Info(1, 2, 1)

        def on_all_data(everything: Sample) -> tuple[Array, Array, Estimates]:
            objective, exact = _on_sample(oracle, x, everything)
            return objective, exact.value, exact

        state, passes = refresh(oracle, state, on_all_data, draw.k)
        cost = passes.cost(oracle, sample, 4 if oracle.stochastic_constraints else 3)
        if oracle.stochastic_constraints:
            cost = cost._replace(constraint_jacobians=cost.constraint_jacobians + 1)
        return state, _halves(oracle, x, sample), cost

    def _remembered(self, state: State) -> Float[Array, ""]:
        gradient, _, jacobian = state.noise
        return jnp.maximum(gradient.remembered, jnp.max(jacobian.remembered, initial=0.0))

    def _model(self, oracle: Oracle, state: State, here: Estimates, sample: Sample) -> DenseModel:
        """Return the model around x from the estimates."""
        (v, h, J), tuning = state.estimates, state.tuning
        inverse = tuning.memory.inverse(tuning.damping)
        whole = DenseFace.of(inverse, jnp.concatenate([v[None], J]), jnp.zeros_like(v), h)
        return DenseModel(
            oracle,
            sample,
            state.x,
            gradient=v,
            value=h,
            jacobian=Linear(lambda d: J @ d, lambda y: y @ J),
            curvature=tuning.memory.curvature + tuning.damping,
            gradient_sq=whole.plain[0, 0],
            row_norm=jnp.sqrt(jnp.diag(whole.plain)[1:]),
            largest_row_norm=state.largest_row_norm,
            estimates=state.estimates,
            here=_mean(here),
            last_sample=state.last_sample,
            memory=tuning.memory,
            damping=tuning.damping,
            whole=whole,
        )

    def _compare(self, oracle: Oracle, state: State, trial: Trial, here: Estimates, draw: Draw) -> Outcome:
        """Return the measurements of the trial; `here` are the halves of the sample at x."""
        (v, h, J), step = state.estimates, trial.x - state.x
        there = _halves(oracle, trial.x, draw.samples["step"])
        changes = jax.tree.map(jnp.subtract, there, here)
        bend = changes.value - here.jacobian @ step
        rows = h + J @ step + _mean(bend) if oracle.stochastic_constraints else _mean(there.value)
        lagrangian = changes.gradient + jnp.einsum("m,hmn->hn", trial.multipliers, changes.jacobian)
        products = _products(v, step, _mean(changes.gradient), lagrangian[0] - lagrangian[1])
        (gradient_sq, slope), (step_sq, curving), change_sq = products[0, :2], products[1, 1:3], products[2, 2]
        passes = full_pass_period(oracle) is not None
        weight, of_bend = least_weight(draw.k, passes), variance_from_halves(bend)
        of_rows = of_bend + state.noise[2].error * step_sq if passes else variance_from_halves(changes.value)
        judged, slopes = rows, jnp.zeros_like(h)
        if oracle.stochastic_constraints and not passes:
            usual = state.noise[1].with_change(of_rows, step_sq, step_sq > 0, weight).change * step_sq
            judged = jnp.where(usual < of_bend, h + _mean(changes.value), rows)
            slopes = jnp.where(usual < of_bend, _slope_errors(state, step, step_sq, changes, usual), 0.0)
        actual = actual_reduction(trial.penalty, h, judged, oracle.rows, slope, curving)
        row_sq = jnp.sum(_mean(there.jacobian) ** 2, axis=1)
        finite = jnp.isfinite(actual + change_sq + jnp.sum(row_sq))
        variances = 0.25 * products[3, 3], of_rows, variance_from_halves(changes.jacobian)
        stayed, moved = noise_after(state.noise, variances, step_sq, finite & (step_sq > 0), weight)
        if oracle.stochastic_constraints:
            secant = J + jnp.where(finite, slopes, 0.0)[:, None] * step
            state = state._replace(
                last_sample=oracle.keep(draw.samples["step"]), estimates=state.estimates._replace(jacobian=secant)
            )
        end = state._replace(
            x=trial.x,
            estimates=_carried_over(oracle, state.estimates, rows, changes, there),
            noise=moved,
            largest_row_norm=jnp.maximum(state.largest_row_norm, jnp.sqrt(row_sq)),
        )
        return Outcome(
            actual,
            finite,
            step,
            step_sq,
            gradient_sq,
            row_norm=jnp.linalg.norm(J, axis=1),
            lagrangian_change=0.5 * (lagrangian[0] + lagrangian[1]),
            violated=beyond_noise(h, oracle.rows, _value_variance(state)),
            moved=End(end, gains(state.noise, step_sq), _mean(there), _variances(there)),
            stayed=End(state._replace(noise=stayed), gains(state.noise), _mean(here), _variances(here)),
        )


def _slope_errors(
    state: State, step: Float[Array, " n"], step_sq: Float[Array, ""], changes: Estimates, usual: Float[Array, " rows"]
) -> Float[Array, " rows"]:
    """Return the rows of g (h(x⁺, ζ) − h(x, ζ) − ½(J(x⁺, ζ) − J(x, ζ))d − Ĵd)/‖d‖², which times dᵀ corrects Ĵ along d.

    The gain g is that of a Kalman filter: the error of Ĵd has the variance e‖d‖²/n, and the values have the `usual` one.
    """
    unknown, (_, jump, turn) = state.noise[2].error * step_sq / step.size, _mean(changes)
    gain = unknown / positive_or_one(unknown + usual)
    return gain * (jump - (state.estimates.jacobian + 0.5 * turn) @ step) / positive_or_one(step_sq)


def _carried_over(
    oracle: Oracle, estimates: Estimates, rows: Float[Array, " rows"], changes: Estimates, there: Estimates
) -> Estimates:
    """Return the estimates at the end of a step: changed as the sample changes, or exact where nothing is sampled.

    Between full passes, which make Ĵ exact, ĥ changes as Ĵ and the bend of the sample's rows say; without them as the sample
    alone says, because the errors of Ĵ would add up: the same errors choose the steps.
    """
    (v, h, J), (change, jump, turn) = estimates, _mean(changes)
    if not oracle.stochastic_constraints:
        return Estimates(v + change, rows, _mean(there.jacobian))
    return Estimates(v + change, h + jump if full_pass_period(oracle) is None else rows, J + turn)


def _on_sample(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> tuple[Float[Array, ""], Estimates]:
    """Return the objective on a sample, and its gradient, the rows and their Jacobian."""
    objective, *first_order = oracle.first_order(x, sample)
    return objective, Estimates(*first_order)


def _halves(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Estimates:
    """Return gradient, rows and Jacobian on the two halves of a sample, stacked."""
    if not oracle.sources:
        return _twice(_on_sample(oracle, x, sample)[1])
    return jax.vmap(lambda half: _on_sample(oracle, x, half)[1])(halves_of(oracle, sample))


def _twice(estimates: Estimates) -> Estimates:
    return jax.tree.map(lambda a: jnp.stack([a, a]), estimates)


def _mean(halves: Any) -> Any:
    return jax.tree.map(lambda a: 0.5 * (a[0] + a[1]), halves)


def _variances(halves: Estimates) -> Estimates:
    """Return the variances of the sample's gradient, rows and Jacobian."""
    vectors = jnp.concatenate([halves.gradient[:, None], halves.jacobian], axis=1)
    squares = 0.25 * jnp.sum((vectors[0] - vectors[1]) ** 2, axis=1)
    return Estimates(squares[0], variance_from_halves(halves.value), squares[1:])


def _value_variance(state: State) -> Float[Array, ""]:
    """Return the variance of ĥ, with that of Ĵ over a distance of ‖x‖."""
    _, value, jacobian = state.noise
    return jnp.sum(value.error + jacobian.error * jnp.sum(state.x**2))


def _products(*vectors: Float[Array, " n"]) -> Float[Array, "k k"]:
    """Return all inner products of the vectors."""
    stacked = jnp.stack(vectors)
    return inner_products(stacked, stacked)
