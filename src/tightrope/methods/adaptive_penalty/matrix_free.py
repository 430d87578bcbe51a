r"""The default method for very many constraints: products with the Jacobian in place of the matrix (ours).

`AdaptivePenalty` keeps an estimate Ĵ of the Jacobian, m×n, and solves its subproblem with the m×m matrix ĴM⁻¹Ĵᵀ. Here neither
is formed. The rows are linearized at x on the step's own sample, J = J(x, ζ), and the multipliers come from conjugate
gradients on products J(M⁻¹(Jᵀy)) (see `products`).

The estimate is that of the gradient of the Lagrangian at the last multipliers ȳ, u ≈ ∇F(x) + E[J]ᵀȳ, one vector. In

    v + Jᵀy = u + J(x, ζ)ᵀ(y − ȳ)

the noise of one sample's Jacobian is multiplied only by the change of the multipliers, which tends to zero. The step is that of
`base`, but for

    solve       d = argmin (u − Jᵀȳ)ᵀd + ½ dᵀMd + Σ ρ_i dist(ĥ_i + J_i d, [low_i, high_i]), nearly          multipliers y
    carry over  u ← u + Jᵀ(y − ȳ) + ∇f(x⁺, ξ) − ∇f(x, ξ) + (J(x⁺, ζ) − J(x, ζ))ᵀy,   ĥ ← ĥ + h(x⁺, ζ) − h(x, ζ),   ȳ ← y
    correct     u ← u + a (∇f(x, ξ) + J(x, ζ)ᵀȳ − u) at the new x, ĥ likewise

Deterministic rows are known: ĥ = h and J = J(x).

The norms of the rows, by which they are scaled, come from running means of (Jz)² over random signs z, one product per step
(the diagonal estimator of Bekas, Kokiopoulou and Saad, Applied Numerical Mathematics 57, 2007, for JJᵀ).

| symbol | name | symbol | name |
|---|---|---|---|
| u, ĥ | `estimates` | σ | `damping` |
| s, e, q | `noise`: `sample`, `error`, `change` | ρ, ȳ | `penalty`, `multipliers` |

The noise of J(x, ζ)ᵀ(y − ȳ) adds to the error of u, and that of h(x⁺, ζ) − h(x, ζ) to the error of ĥ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...numerics.products import Linear, linearize, range_multipliers_by_products, row_squares
from ...numerics.ranges import RangePenalty
from ...numerics.scaling import positive_or_one
from ...oracles.oracle import Oracle, Sample
from ..base import Draw, Info
from ..shared.halves import halves_of
from .acceptance import End, Outcome, actual_reduction, beyond_noise
from .base import SelfTunedPenalty
from .constants import INITIAL_PENALTY_FACTOR, INITIAL_RIDGE, MIN_SCALED_PENALTY
from .full_pass import full_pass_period, refresh
from .model import Trial
from .noise import Noise, gains, least_weight, noise_after, running_mean
from .products import ProductModel
from .tuning import Tuning, initial_curvature


class LagrangianEstimates(NamedTuple):
    """The gradient u of the Lagrangian at the last multipliers, and the rows."""

    gradient: Float[Array, " n"]
    value: Float[Array, " rows"]


class State(NamedTuple):
    """Everything that the next step needs."""

    x: Float[Array, " n"]
    estimates: LagrangianEstimates
    noise: tuple[Noise, Noise]
    """Of the two estimates."""
    row_sq: Float[Array, " rows"]
    """About the square of each row's gradient."""
    tuning: Tuning


class Linearization(NamedTuple):
    """A sample at a point: means over its two halves, and half their differences, whose squares are variances."""

    gradient: Float[Array, " n"]
    value: Float[Array, " rows"]
    jacobian: Linear
    gradient_difference: Float[Array, " n"]
    value_difference: Float[Array, " rows"]
    pull_difference: Callable[[Float[Array, " rows"]], Float[Array, " n"]]
    """y ↦ half the difference of the halves' Jᵀy."""


class MatrixFreePenalty(SelfTunedPenalty):
    """`AdaptivePenalty` for very many constraint values: products with the Jacobian alone, in memory of n + m numbers.

    Args:
        min_feasibility_share: the least part of the violation that a step must remove, relative to what a step of its
            length can remove. Larger values put feasibility first.
        noise_tolerance: the largest error that noisy changes may leave in the gradient, as a share of its square. Smaller
            values give shorter steps on noisy problems.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> chain = tr.equals(lambda x: x[1:] - 0.5 * x[:-1] ** 2, 0.1, name="chain")
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 0.5) ** 2), chain)
        >>> result = tr.solve(problem, jnp.zeros(300), tr.methods.MatrixFreePenalty(), steps=100)
        >>> bool(result.violation < 1e-5)
        True
    """

    cost: ClassVar[str] = (
        "2 ∇f, 2 linearizations of c and some tens of products; finite data: passes as AdaptivePenalty"
    )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        sample = draw.samples["step"]
        gradient = oracle.grad(x, sample)
        value, jacobian = linearize(lambda y: oracle.c(y, sample), x)
        row_sq = row_squares(jacobian, x, draw.key)
        row_norm = jnp.sqrt(row_sq)
        multipliers = _least_squares_multipliers(gradient, jacobian, row_sq)
        distance = jnp.linalg.norm(oracle.rows.violation(value) / positive_or_one(row_norm))
        least = MIN_SCALED_PENALTY * positive_or_one(jnp.linalg.norm(gradient)) / positive_or_one(row_norm)
        here = _linearization(oracle, x, sample)
        return State(
            x,
            LagrangianEstimates(gradient + jacobian.pull(oracle.multipliers), value),
            noise=tuple(map(Noise.first, _variances(here, oracle.multipliers))),  # pyright: ignore
            row_sq=row_sq,
            tuning=Tuning.first(
                x,
                initial_curvature(oracle, x, sample, gradient, multipliers, distance),
                penalty=jnp.maximum(INITIAL_PENALTY_FACTOR * jnp.abs(multipliers), least),
                multipliers=oracle.multipliers,
            ),
        )

    def _begin(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Linearization, Info]:
        """Return the state, exact where a full pass is due, the sample's linearization at x, and the cost of the step."""
        x, y, sample = state.x, state.tuning.multipliers, draw.samples["step"]
        here = _linearization(oracle, x, sample)
        signs = jax.random.rademacher(draw.key, x.shape, x.dtype)
        state = state._replace(row_sq=running_mean(state.row_sq, here.jacobian.push(signs) ** 2, draw.k))
        values = 2 if oracle.stochastic_constraints or not here.value.size else 3
        if not oracle.sources:
            return state._replace(estimates=_sampled(here, y)), here, Info(2, values, 2)

        def on_all_data(everything: Sample) -> tuple[Array, Array, LagrangianEstimates]:
            (objective, gradient), (value, pull) = oracle.value_and_grad(x, everything), oracle.vjp(x, everything)
            return objective, value, LagrangianEstimates(gradient + pull(y), value)

        state, passes = refresh(oracle, state, on_all_data, draw.k)
        return state, here, passes.cost(oracle, sample, values)

    def _remembered(self, state: State) -> Float[Array, ""]:
        return state.noise[0].remembered

    def _model(self, oracle: Oracle, state: State, here: Linearization, sample: Sample) -> ProductModel:
        """Return the model around x from the estimates and the sample's own Jacobian."""
        tuning, row_norm = state.tuning, jnp.sqrt(state.row_sq)
        gradient = state.estimates.gradient - here.jacobian.pull(tuning.multipliers)
        inverse = tuning.memory.inverse(tuning.damping).apply
        return ProductModel(
            oracle,
            sample,
            state.x,
            gradient,
            state.estimates.value,
            here.jacobian,
            curvature=tuning.memory.curvature + tuning.damping,
            gradient_sq=gradient @ gradient,
            row_norm=row_norm,
            largest_row_norm=row_norm,
            sampled=here.value,
            memory=tuning.memory,
            damping=tuning.damping,
            inverse=inverse,
            objective_change=here.jacobian.push(inverse(gradient)),
        )

    def _compare(self, oracle: Oracle, state: State, trial: Trial, here: Linearization, draw: Draw) -> Outcome:
        """Return the measurements of the trial; `here` is the sample's linearization at x."""
        (u, h), old, y, step = state.estimates, state.tuning.multipliers, trial.multipliers, trial.x - state.x
        there, pull = _linearization(oracle, trial.x, draw.samples["step"]), here.jacobian.pull
        v, change = u - pull(old), there.gradient - here.gradient
        lagrangian_change = change + there.jacobian.pull(y) - pull(y)
        value = h + there.value - here.value if oracle.stochastic_constraints else there.value
        actual = actual_reduction(trial.penalty, h, value, oracle.rows, v @ step, step @ change)
        finite, step_sq = jnp.isfinite(actual + lagrangian_change @ lagrangian_change), step @ step
        difference = _difference(there, y) - _difference(here, y)
        variances = jnp.sum(difference**2), (there.value_difference - here.value_difference) ** 2
        noise = _with_multipliers(state.noise, here, y - old)
        weight = least_weight(draw.k, full_pass_period(oracle) is not None)
        stayed, moved = noise_after(noise, variances, step_sq, finite & (step_sq > 0), weight)
        at_x = LagrangianEstimates(u + pull(y - old), h)
        at_end = LagrangianEstimates(at_x.gradient + lagrangian_change, value)
        start = state._replace(estimates=at_x, noise=stayed)
        end = state._replace(x=trial.x, estimates=at_end, noise=moved)
        return Outcome(
            actual,
            finite,
            step,
            step_sq,
            gradient_sq=v @ v,
            row_norm=jnp.sqrt(state.row_sq),
            lagrangian_change=lagrangian_change,
            violated=beyond_noise(h, oracle.rows, jnp.sum(state.noise[1].error)),
            moved=End(end, gains(noise, step_sq), _sampled(there, y), _variances(there, y)),
            stayed=End(start, gains(noise), _sampled(here, y), _variances(here, y)),
        )


def _sampled(at: Linearization, multipliers: Float[Array, " rows"]) -> LagrangianEstimates:
    """Return the gradient of the Lagrangian and the rows on a sample alone."""
    return LagrangianEstimates(at.gradient + at.jacobian.pull(multipliers), at.value)


def _difference(at: Linearization, multipliers: Float[Array, " rows"]) -> Float[Array, " n"]:
    """Return half the difference of the halves' gradients of the Lagrangian."""
    return at.gradient_difference + at.pull_difference(multipliers)


def _with_multipliers(
    noise: tuple[Noise, Noise], here: Linearization, change: Float[Array, " rows"]
) -> tuple[Noise, Noise]:
    """Return the noise once u is that of other multipliers, through one sample's Jacobian."""
    gradient, value = noise
    return gradient._replace(error=gradient.error + jnp.sum(here.pull_difference(change) ** 2)), value


def _variances(at: Linearization, multipliers: Float[Array, " rows"]) -> tuple[Float[Array, ""], Float[Array, " rows"]]:
    """Return the variances of the gradient of the Lagrangian and of the rows on a sample."""
    return jnp.sum(_difference(at, multipliers) ** 2), at.value_difference**2


def _least_squares_multipliers(
    gradient: Float[Array, " n"], jacobian: Linear, row_sq: Float[Array, " rows"]
) -> Float[Array, " rows"]:
    """Return multipliers that nearly minimize the gradient of the Lagrangian, with a small ridge."""
    zero = jnp.zeros_like(row_sq)
    ranges = RangePenalty(zero, zero, jnp.full_like(row_sq, jnp.inf))

    def damped_gram(y: Array) -> Array:
        return jacobian.push(jacobian.pull(y)) + INITIAL_RIDGE * row_sq * y

    target = -jacobian.push(gradient)
    return range_multipliers_by_products(damped_gram, target, ranges, zero, jnp.sqrt(row_sq))[0]


def _linearization(oracle: Oracle, x: Float[Array, " n"], sample: Sample) -> Linearization:
    """Return the linearization at x on a sample."""
    halves, zero = halves_of(oracle, sample), jnp.zeros_like(x)
    if oracle.sources:
        first, second = jax.vmap(lambda half: oracle.grad(x, half))(halves)
        gradient, gradient_difference = 0.5 * (first + second), 0.5 * (first - second)
    else:
        gradient, gradient_difference = oracle.grad(x, sample), zero
    if not oracle.stochastic_constraints:
        value, jacobian = linearize(lambda y: oracle.c(y, sample), x)
        return Linearization(gradient, value, jacobian, gradient_difference, jnp.zeros_like(value), lambda y: zero)
    values, both = linearize(lambda y: jax.vmap(lambda half: oracle.c(y, half))(halves), x)
    return Linearization(
        gradient,
        0.5 * (values[0] + values[1]),
        Linear(lambda d: jnp.mean(both.push(d), axis=0), lambda y: both.pull(0.5 * jnp.stack([y, y]))),
        gradient_difference,
        0.5 * (values[0] - values[1]),
        pull_difference=lambda y: both.pull(0.5 * jnp.stack([y, -y])),
    )
