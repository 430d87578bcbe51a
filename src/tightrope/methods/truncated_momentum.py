r"""Truncated momentum with an exact quadratic penalty: feasible with certainty (Lu, Mei, Xiao 2024).

Deterministic constraints c(x) = 0, x in X; stochastic objective. Algorithms 1 and 2 of the paper:

    x_{k+1} = P_X(x_k − η_k (v_k + ρ_k J(x_k)ᵀ c(x_k)))
    recursive (8):  v_{k+1} = P_R(∇f(x_{k+1}, ξ) + (1 − α_k)(v_k − ∇f(x_k, ξ)))      the same ξ at both points
    Polyak:         v_{k+1} = P_R((1 − α_k) v_k + α_k ∇f(x_{k+1}, ξ))

with P_R the projection onto the ball of radius R, and v_1 = P_R(∇f(x_1, ξ_1)). Momentum is on the objective alone and the
penalty's gradient is exact; the truncation bounds the effect of noise on feasibility in every run, not only on average.

Schedules, with the paper's unit constants replaced by `momentum`, `penalty`, `step_size`:

    α_k = momentum · k^{-1/2}, at most 1
    θ in [1, 2) known (11), (18):  ρ_k = penalty · k^{θ/4},  η_k = step_size · k^{-1/2}, for Polyak divided by log(k+2)
    θ unknown (14), (21):          ρ_k = penalty · k^{1/2},  η_k = step_size · k^{-1/2} / log(k+2)

R must bound ‖∇F‖ (Assumption 1(ii)); the paper takes it as known. Where it is estimated, it is raised while truncation goes on:
with t_k = 1 if v_{k+1} was truncated, else 0, and a_1 = 0,

    a_{k+1} = (1 − 1/16) a_k + t_k/16;  where a_{k+1} > 1/2:  R ← radius_growth · R,  a_{k+1} = 0

so eleven truncated steps in a row raise it, and single large samples do not. R stays below radius_growth · sup ‖∇F‖ and changes
finitely often, so the guarantee holds from the last change on.

| symbol | name | symbol | name |
|---|---|---|---|
| x, v | `x`, `gradient` | R (the paper's L_f, a bound on ‖∇F‖) | `gradient_radius`, `radius` |
| t, a | `truncated`, `truncation_rate` | | |
| η, ρ, α | `step_size`, `penalty`, `weight` | θ, the error bound's exponent (5) | `error_bound_exponent` |

Lemma 1 asks for ρ_k η_k L ≤ (√5 − 1)/2, from some k on, with L the smoothness of ½‖c‖². The default penalty starts at twice
that bound, where steps are still stable, with L estimated at x0 and on the way to c = 0. So it holds from step 7 on, with θ = 1
and recursive momentum from step 16 on.
Multiplier at x_k: ρ_{k−1} c(x_k). Output: x_k with k uniform on {⌈K/2⌉ + 1, …, K}, by reservoir sampling.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one, truncate
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import local_constants
from .shared.momentum import polyak_momentum, recursive_momentum
from .shared.schedules import log_power, power, reservoir_replaces

PENALTY_STEP = (math.sqrt(5) - 1) / 2
"""Upper bound on ρ η L (Lemma 1)."""


WORTH_A_NOTE = 0.01
"""The fraction of truncated steps above which a result says so."""
TRUNCATION_WEIGHT, TRUNCATION_LIMIT = 1 / 16, 1 / 2
"""The weight of a step in the rate of truncated steps, and the rate above which the radius is raised."""


class State(NamedTuple):
    """Iterate, momentum, the sampled output with its multipliers, the radius, and how often it truncates.

    `truncation_rate` is the recent one, since the last raise; `truncated` is the fraction of all steps.
    """

    x: Float[Array, " n"]
    gradient: Float[Array, " n"]
    picked: Float[Array, " n"]
    picked_multipliers: Float[Array, " rows"]
    radius: Float[Array, ""]
    first_radius: Float[Array, ""]
    truncation_rate: Float[Array, ""]
    truncated: Float[Array, ""]


class TruncatedMomentum(Method):
    """Truncated momentum on the objective, with an exact quadratic penalty on deterministic constraints.

    Args:
        step_size: scale of η_k; None: 1/(2 L), with L the measured curvature of the objective, or ‖∇f‖/D if that is larger,
            D how far x may have to move.
        penalty: scale of ρ_k; None: twice the largest that Lemma 1 allows at the first step with this step size.
        gradient_radius: R, the bound on the norm of the momentum, which may be inf; None: 2 (‖∇f‖ + L D) plus the norm of
            the noise.
        radius_growth: the factor by which R grows while it truncates, at least 1; None: 2 if R is estimated, 1 if it is given.
        momentum: scale of α_k.
        error_bound_exponent: θ in [1, 2), the exponent of the constraints' error bound if it is known (1 if the Jacobian
            has full rank near the feasible set); None: unknown, any θ ≥ 1.
        estimator: 'recursive' (two gradients per step on one sample) or 'polyak' (one).

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> method = tr.methods.TruncatedMomentum(step_size=0.1, penalty=1.0, gradient_radius=10.0)
        >>> result = tr.solve(problem, jnp.ones(2), method, steps=5000)
        >>> bool(abs(result.x @ result.x - 1.0) < 0.05)
        True
    """

    step_size: Hyper = hyper(None)
    penalty: Hyper = hyper(None)
    gradient_radius: Hyper = hyper(None, closed="]")
    radius_growth: Hyper = hyper(None, low=1.0, closed="[")
    momentum: Hyper = hyper(1.0)
    error_bound_exponent: Hyper = hyper(None, low=1.0, high=2.0, closed="[")
    estimator: str = choice("recursive", "recursive", "polyak")

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=False, form="slacks", needs="projection")
    reference: ClassVar[str] = "Lu, Mei, Xiao 2024, Algorithms 1 and 2"
    guarantee: ClassVar[str] = "‖c‖² ~ k^(-min(1/2, 1/θ)) surely; E stationarity² at the same rate"
    cost: ClassVar[str] = "2 ∇f (1 polyak), 1 c, 1 Jᵀy"

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"objective": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        radius = positive_or_one(2.0 * (s.gradient_norm + s.smoothness * s.travel) + s.gradient_noise)
        method = self.with_defaults(step_size=0.5 / s.step_smoothness, gradient_radius=radius)
        first = jnp.ones((), x.dtype)
        unit, _, _ = replace(method, step_size=first, penalty=first).schedule(first)  # η_1 per unit of `step_size`
        curvature = positive_or_one(s.path_penalty_smoothness)
        return method.with_defaults(
            penalty=2.0 * PENALTY_STEP / (curvature * method.step_size * unit),
            radius_growth=first * (2.0 if self.gradient_radius is None else 1.0),
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        gradient = truncate(oracle.grad(x, draw.samples["objective"]), self.gradient_radius)
        radius, none = jnp.asarray(self.gradient_radius, x.dtype), jnp.zeros((), x.dtype)
        return State(x, gradient, x, jnp.zeros_like(oracle.multipliers), radius, radius, none, none)

    def schedule(self, k: Float[Array, ""]) -> tuple[Array, Array, Array]:
        """Step size η_k, penalty ρ_k and momentum weight α_k."""
        known = self.error_bound_exponent is not None
        growth = self.error_bound_exponent / 4.0 if known else 0.5
        without_log = known and self.estimator == "recursive"
        step_size = power(self.step_size, k, -0.5) if without_log else log_power(self.step_size, k, -0.5, k + 2.0)
        return step_size, power(self.penalty, k, growth), jnp.minimum(1.0, power(self.momentum, k, -0.5))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, sample = state.x, draw.samples["objective"]
        k = draw.k.astype(x.dtype)
        step_size, penalty, weight = self.schedule(k)
        c, pullback = oracle.vjp(x, sample)
        new = oracle.project(x - step_size * (state.gradient + pullback(penalty * c)))
        gradient = oracle.grad(new, sample)
        if self.estimator == "recursive":
            gradient = recursive_momentum(state.gradient, gradient, oracle.grad(x, sample), weight)
        else:
            gradient = polyak_momentum(state.gradient, gradient, weight)
        position = draw.k - (draw.steps + 1) // 2
        take = (position >= 1) & reservoir_replaces(draw.uniform, 1.0, position)
        _, previous_penalty, _ = self.schedule(jnp.maximum(k - 1.0, 1.0))
        state = self._truncate(state, gradient, k)._replace(
            x=new,
            picked=jnp.where(take, x, state.picked),
            picked_multipliers=jnp.where(take, previous_penalty * c, state.picked_multipliers),
        )
        gradients = 2 if self.estimator == "recursive" else 1
        return state, Info(gradients, 1, 1, oracle.count_examples("objective", sample))

    def _truncate(self, state: State, gradient: Float[Array, " n"], k: Float[Array, ""]) -> State:
        """The new momentum, truncated, and the radius and the rates after that."""
        acted = (jnp.linalg.norm(gradient) > state.radius).astype(gradient.dtype)
        rate = state.truncation_rate + TRUNCATION_WEIGHT * (acted - state.truncation_rate)
        raised = (rate > TRUNCATION_LIMIT) & (self.radius_growth > 1.0)
        return state._replace(
            gradient=truncate(gradient, state.radius),
            radius=jnp.where(raised, self.radius_growth * state.radius, state.radius),
            truncation_rate=jnp.where(raised, 0.0, rate),
            truncated=state.truncated + (acted - state.truncated) / k,
        )

    def output(self, state: State) -> Float[Array, " n"]:
        return state.picked

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.picked_multipliers

    def note(self, state: State) -> str | None:
        share, radius, first = float(state.truncated), float(state.radius), float(state.first_radius)
        if radius > first:
            return (
                f"the gradient was truncated in {share:.1%} of the steps, so gradient_radius was raised from {first:.3g} to "
                f"{radius:.3g}"
            )
        if share < WORTH_A_NOTE:
            return None
        return (
            f"the gradient was truncated in {share:.1%} of the steps: gradient_radius = {radius:.3g} is below its norm; give a "
            "larger one"
        )
