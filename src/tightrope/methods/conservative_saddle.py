r"""Conservative saddle point: constraints tightened so that none is violated on average (Akhtar, Bedi, Rajawat 2021).

min F(x), H_i(x) = E h_i(x, θ) ≤ 0, x in X, all convex. Algorithm 1, on the tightened rows h + v:

    x_{t+1} = P_X(x_t − η_t (∇f(x_t, θ_t) + Σ_i λ_{i,t} ∇h_i(x_t, θ_t)))                        (6)
    λ_{t+1} = [(1 − η_t² δ) λ_t + η_t (h(x_t, θ_t) + v_t)]₊                                     (7)

Both use x_t, λ_t and one sample θ_t. Horizons:

    fixed (Theorem 1):   η_t = step_size/√T,   v_t = tightening/√T     output: the mean of x_1 … x_T
    any (ours):          η_t = step_size/√t,   v_t = tightening/√t     output: the mean of x_t with weights η_t

| symbol | name | symbol | name |
|---|---|---|---|
| η | `step_size` | v | `tightening` |
| λ | `multipliers` | δ | `regularization` |

Theorem 1, with δ = 4B², B = max(σ_f, σ_h √N), η < 1/(4B) and v ≤ σ/2, σ the Slater margin: E F(x̄) − F* ~ T^{-1/2} and no
violation on average. Its constants (49) are too pessimistic to use. (7) alone already gives a bound; summing it up,

    mean of h(x_t, θ_t)  ≤  λ_{T+1}/(ηT) + ηδ · mean of λ_t − v,

which holds for every run. So `tightening` = Λ (1/step_size + step_size δ) is enough if Λ bounds the multipliers. For 'any'
and the mean with weights η_t, the left side is at most Λ (1 + δ η_0² l)/(2η_0 √T) − v_0 l/(2√T) with l = Σ 1/t, so
Λ (1/(l step_size) + step_size δ) is enough from the step with this l on. It costs a factor log T in the objective.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import local_constants, slater_margin


class State(NamedTuple):
    """Iterate, multipliers, and the averages so far with their total weight."""

    x: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    average: Float[Array, " n"]
    average_multipliers: Float[Array, " rows"]
    weight: Float[Array, ""]


class ConservativeSaddle(Method):
    """Descend in x and ascend in the multipliers of slightly tightened constraints; the more steps, the less tightening.

    Hyperparameters that are None are estimated at the start. With G the norm of ∇f, J that of the Jacobian and D the length
    to go, multipliers are expected up to Λ = G√N/J, or up to Slater's bound GD/σ if that is smaller. The margin σ is how far
    below zero the largest row gets in a few subgradient steps on one large sample.

    Args:
        step_size: η_0; None: √((D² + Λ²)/(second moments of both gradients)), which balances the two sides of the theorem's
            bound, kept below 1/(2√δ) and the inverse smoothness.
        tightening: v_0; None: twice the value that is enough (with l = 5 for 'any', about 100 steps), but at most half of σ
            at the horizon, or after 400 steps for 'any'.
        regularization: δ; None: J²/10. The theorem's 4B² bounds λ for any samples, but costs ηδλ of tightening; far less
            is enough in practice.
        horizon: 'fixed' or 'any'.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(
        ...     lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0), domain=tr.domains.Box(-2.0, 2.0)
        ... )
        >>> result = tr.solve(problem, jnp.zeros(2), tr.methods.ConservativeSaddle(), steps=5000)
        >>> result.violation
        0.0
    """

    step_size: Hyper = hyper(None)
    tightening: Hyper = hyper(None, closed="[")
    regularization: Hyper = hyper(None, closed="[")
    horizon: str = choice("fixed", "fixed", "any")

    accepts: ClassVar[Accepts] = Accepts("none", inequalities=True, stochastic=True, form="native", needs="projection")
    reference: ClassVar[str] = "Akhtar, Bedi, Rajawat 2021, Algorithm 1"
    guarantee: ClassVar[str] = "convex: no violation on average, objective at K^(-1/2) (log K more without a horizon)"
    cost: ClassVar[str] = "1 ∇f, 1 c, 1 Jᵀy"

    @property
    def uses_horizon(self) -> bool:
        return self.horizon == "fixed"

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"joint": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        fixed = self.horizon == "fixed"
        root = jnp.sqrt(draw.steps.astype(x.dtype)) if fixed else jnp.ones((), x.dtype)

        def descend(y: Array, direction: Array, k: Array) -> Array:
            """A step within X and within the length scale around x."""
            norm = jnp.linalg.norm(direction)
            step = oracle.nearby(y - s.length / jnp.sqrt(k) * direction / positive_or_one(norm)) - x
            return x + step * jnp.minimum(1.0, s.length / jnp.maximum(jnp.linalg.norm(step), s.length))

        margin = slater_margin(oracle, x, jax.random.fold_in(draw.key, 1), descend)
        margin = jnp.where(margin > 0, margin, 1e-3 * s.constraint_norm)
        jacobian = jnp.maximum(s.jacobian_norm, 0.1 * s.length * s.jacobian_smoothness)
        jacobian = positive_or_one(jacobian)
        largest = s.gradient_norm * jnp.sqrt(max(oracle.multipliers.size, 1)) / jacobian
        by_slater = s.gradient_norm * s.length / positive_or_one(margin)
        multiplier = jnp.where(margin > 0, jnp.minimum(largest, by_slater), largest)

        method = self.with_defaults(regularization=0.1 * jacobian**2)
        moments = (s.gradient_norm + s.gradient_noise + multiplier * jacobian) ** 2 + (
            s.constraint_norm + s.constraint_noise
        ) ** 2
        curvature = s.step_smoothness + multiplier * s.jacobian_smoothness
        balanced = jnp.sqrt((s.length**2 + multiplier**2) / moments)
        stable = root / jnp.maximum(2.0 * jnp.sqrt(method.regularization), curvature)
        method = method.with_defaults(step_size=jnp.minimum(balanced, stable))
        kept = 1.0 / (method.step_size * (1.0 if fixed else 5.0)) + method.step_size * method.regularization
        enough = 2.0 * multiplier * kept
        room = 0.5 * margin * (root if fixed else 20.0)
        return method.with_defaults(tightening=jnp.where(margin > 0, jnp.minimum(enough, room), enough))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        multipliers = oracle.multipliers
        return State(x, multipliers, x, multipliers, jnp.zeros((), x.dtype))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, multipliers, sample = state.x, state.multipliers, draw.samples["joint"]
        shrink = (draw.steps if self.horizon == "fixed" else draw.k).astype(x.dtype) ** -0.5
        step_size, tightening = self.step_size * shrink, self.tightening * shrink
        h, pullback = oracle.lagrangian_vjp(x, sample)
        new = oracle.project(x - step_size * pullback(multipliers))
        kept = (1.0 - step_size**2 * self.regularization) * multipliers
        new_multipliers = jnp.maximum(kept + step_size * (h + tightening), 0.0)
        share = jnp.ones((), x.dtype) if self.horizon == "fixed" else shrink
        weight = state.weight + share
        state = State(
            new,
            new_multipliers,
            state.average + share / weight * (x - state.average),
            state.average_multipliers + share / weight * (multipliers - state.average_multipliers),
            weight,
        )
        return state, Info(1, 1, 1, oracle.count_examples("both", sample))

    def output(self, state: State) -> Float[Array, " n"]:
        return state.average

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.average_multipliers
