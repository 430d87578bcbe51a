r"""Stochastic sequential quadratic programming with an adaptive merit parameter (Berahas, Curtis, Robinson, Zhou 2021).

Deterministic equalities c(x) = 0, x free; stochastic objective. Algorithm 3.1 of the paper with H = I; v = ∇f(x_k, ξ):

    [I Jᵀ; J 0] [d; y] = −[v; c],  that is  JJᵀ y = c − J v,  d = −(v + Jᵀy)
    q = vᵀd + ‖d‖²,                τ_trial = (1 − σ)‖c‖₁ / q, ∞ if q ≤ 0
    Δ = ‖c‖₁ − τ(vᵀd + ½‖d‖²),     ξ_trial = Δ / (τ‖d‖²)
    τ stays if τ ≤ τ_trial, else (1 − ε)τ_trial;  ξ, after τ, by the same rule with ξ_trial
    α̂ = βΔ / ((τL + Γ)‖d‖²),  α̃ = α̂ − 4‖c‖₁ / ((τL + Γ)‖d‖²),  both clipped to [l, l + θβ²] with l = βξτ / (τL + Γ)
    x_{k+1} = x_k + αd,  α = α̂ if α̂ < 1, α̃ if α̃ > 1, else 1

Δ is the predicted decrease of the merit function τf + ‖c‖₁. By the linear system, q = yᵀc and vᵀd = q − ‖d‖². Computed in this
form, τ_trial ≥ (1 − σ)/‖y‖_∞ and Δ ≥ ½τ‖d‖² + σ‖c‖₁ hold despite rounding, also if c is nearly zero; otherwise a single
step at a feasible point could end the run by setting τ to zero.

The analysis asks for l ≤ 1: otherwise a step longer than 1 can be forced where c is large, and c grows with every step. Since τ
and ξ only decrease, L + Γ/τ ≥ βξ at the start is enough. Estimates of L and Γ are raised to satisfy it; given values are used
as they are.

The paper asks for a Jacobian of full row rank. Here y is the least-squares solution of minimum norm, so that dependent rows do
no harm; if c is outside the range of J, d leads to the points where the linearized rows are least violated.

| symbol | name | symbol | name |
|---|---|---|---|
| L, Γ | `smoothness`, `jacobian_smoothness` | σ, ε | `decrease_fraction`, `shrink` |
| τ, ξ | `merit_parameter`, `ratio_parameter` | y, d | `multipliers`, `direction` |
| β, θ | `damping`, `step_size_span` | Δ | `reduction` |

β is constant. Guaranteed then, as long as τ stays away from zero: the mean over the steps of E‖∇F + Jᵀy‖² + E‖c‖₁ falls to
a level proportional to β and to the noise. Multipliers: the y of the last step. Output: the last iterate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper
from .shared.constants import local_constants


class State(NamedTuple):
    """Iterate, merit parameter τ, ratio parameter ξ, and the multipliers of the last step."""

    x: Float[Array, " n"]
    merit: Float[Array, ""]
    ratio: Float[Array, ""]
    multipliers: Float[Array, " rows"]


class StochasticSQP(Method):
    """Newton steps toward the constraints, gradient steps along them, and a step size from the merit function.

    Args:
        smoothness: L, Lipschitz constant of the objective's gradient; None: estimated at the start.
        jacobian_smoothness: Γ, the sum of the Lipschitz constants of the rows' gradients; None: estimated at the start.
        merit_parameter: initial value of τ, the weight of the objective in the merit function; it only decreases.
        ratio_parameter: initial value of ξ, a lower bound on Δ/(τ‖d‖²); it only decreases.
        damping: β, a factor of all steps, at most 1; a smaller one leaves less noise in the end.
        decrease_fraction: σ, the fraction of ‖c‖₁ that the model must predict a step to remove.
        shrink: ε, the relative distance below its trial value to which τ or ξ is lowered.
        step_size_span: θ; a step size lies at most θβ² above its lower bound.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.ones(2), tr.methods.StochasticSQP(), steps=200)
        >>> bool(abs(result.x @ result.x - 1.0) < 1e-4)
        True
    """

    smoothness: Hyper = hyper(None)
    jacobian_smoothness: Hyper = hyper(None, closed="[")
    merit_parameter: Hyper = hyper(1.0)
    ratio_parameter: Hyper = hyper(1.0)
    damping: Hyper = hyper(1.0, high=1.0, closed="]")
    decrease_fraction: Hyper = hyper(0.5, high=1.0)
    shrink: Hyper = hyper(1e-6, high=1.0)
    step_size_span: Hyper = hyper(10.0, closed="[")

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=False, stochastic=False, form="native", needs="everywhere")
    reference: ClassVar[str] = "Berahas, Curtis, Robinson, Zhou 2021, Algorithm 3.1"
    guarantee: ClassVar[str] = "mean of E‖∇F + Jᵀy‖² + E‖c‖ falls to a level ~ β, as long as τ stays away from 0"
    cost: ClassVar[str] = "1 ∇f, 1 c, 1 J"

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"objective": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        rows = jnp.asarray(oracle.multipliers.size, x.dtype)
        method = self.with_defaults(smoothness=s.step_smoothness)
        bound = jnp.maximum(jnp.sqrt(rows) * s.jacobian_smoothness, jnp.finfo(x.dtype).eps * method.smoothness)
        method = method.with_defaults(jacobian_smoothness=bound)
        low = method.smoothness + method.jacobian_smoothness / self.merit_parameter
        missing = jnp.maximum(self.damping * self.ratio_parameter - low, 0.0)
        if self.smoothness is None:
            return replace(method, smoothness=method.smoothness + missing)
        if self.jacobian_smoothness is None:
            return replace(method, jacobian_smoothness=method.jacobian_smoothness + self.merit_parameter * missing)
        return method

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        return State(x, self.merit_parameter, self.ratio_parameter, oracle.multipliers)

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, sample = state.x, draw.samples["objective"]
        gradient = oracle.grad(x, sample)
        c, jacobian = oracle.rows_and_jacobian(x, sample)
        multipliers, direction = newton_step(gradient, c, jacobian)
        violation, square, q = jnp.sum(jnp.abs(c)), direction @ direction, multipliers @ c
        divisor = positive_or_one(square)  # d = 0: x stays for any step size
        merit = self._lowered(state.merit, (1.0 - self.decrease_fraction) * violation, q)
        reduction = merit * (0.5 * square - q) + violation
        ratio = self._lowered(state.ratio, reduction, merit * square)
        step_size = self.step_size(merit, ratio, reduction / divisor, violation / divisor)
        info = Info(1, 1, 1, oracle.count_examples("objective", sample))
        return State(x + step_size * direction, merit, ratio, multipliers), info

    def _lowered(self, value: Array, numerator: Array, denominator: Array) -> Float[Array, ""]:
        """`value`, or slightly less than numerator/denominator (∞ if denominator ≤ 0) if that is smaller."""
        trial = jnp.where(denominator > 0, numerator / positive_or_one(denominator), jnp.inf)
        return jnp.where(value <= trial, value, (1.0 - self.shrink) * trial)

    def step_size(self, merit: Array, ratio: Array, reduction: Array, violation: Array) -> Float[Array, ""]:
        """The step size α, from the reduction Δ and the violation ‖c‖₁, both divided by ‖d‖²."""
        curvature = merit * self.smoothness + self.jacobian_smoothness
        low = self.damping * ratio * merit / curvature
        high = low + self.step_size_span * self.damping**2
        long = jnp.clip(self.damping * reduction / curvature, low, high)
        short = jnp.clip((self.damping * reduction - 4.0 * violation) / curvature, low, high)
        return jnp.where(long < 1.0, long, jnp.maximum(short, 1.0))

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.multipliers


def newton_step(
    gradient: Float[Array, " n"], c: Float[Array, " m"], jacobian: Float[Array, "m n"]
) -> tuple[Float[Array, " m"], Float[Array, " n"]]:
    """The minimum-norm least-squares solution y of JJᵀy = c − J·gradient, and d = −(gradient + Jᵀy)."""
    cutoff = max(jacobian.shape) * jnp.finfo(c.dtype).eps
    # Precision "highest": by default some accelerators round float32 products to ten bits.
    gram = jnp.matmul(jacobian, jacobian.T, precision="highest")
    inverse = jnp.linalg.pinv(gram, rtol=cutoff, hermitian=True)
    right = c - jnp.matmul(jacobian, gradient, precision="highest")
    multipliers = jnp.matmul(inverse, right, precision="highest")
    return multipliers, -(gradient + jnp.matmul(multipliers, jacobian, precision="highest"))
