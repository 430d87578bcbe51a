r"""Constraint extrapolation (ConEx): primal-dual steps on extrapolated linear models of g (Boob, Deng, Lan 2022).

min f(x), g(x) ≤ 0, Ax = b, x in X, convex, with the parameters of Huang, Lin 2023, Section 6. For t = 0, 1, …, with
x_{−1} = x_0, ℓ_{−1} = ℓ_0 and θ_t = t/(t+1):

    ℓ_t     = g(x_{t−1}) + g'(x_{t−1})(x_t − x_{t−1})
    s_t     = (1 + θ_t) ℓ_t − θ_t ℓ_{t−1}
    y_{t+1} = [y_t + s_t/τ_t]₊          no cut at 0 for equalities;  1/τ_t = (t + 1) · dual_step_size
    x_{t+1} = P_X(x_t − (f'(x_t) + g'(x_t)ᵀ y_{t+1})/η_t)              η_t = (t + 1) / step_size

f', ℓ_t and g'(x_t) use one independent sample each. ℓ_{t−1} is kept as it was computed, on its own sample.

| symbol | name | symbol | name |
|---|---|---|---|
| x_{t−1}, x_t | `previous`, `x` | y | `multipliers` |
| ℓ_{t−1} | `linear` | s_t | `extrapolated` |
| 1/c1 (η_t = c1 (t+1)) | `step_size` | 1/c2 (τ_t = c2/(t+1)) | `dual_step_size` |

Output: the average of x_{t+1} with weights t + 1; the multipliers are the same average of y. Guaranteed if f + yᵀg is
strongly convex with modulus μ and step_size is of order 1/μ: gap and violation of the average of order 1/K (K^{-1/2} with
sampled constraints). Without strong convexity the steps shrink too fast for a guarantee: use it inside `ProximalPoint`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper
from .shared.constants import local_constants


class State(NamedTuple):
    """Iterates x_t and x_{t−1}, the last linear model, multipliers, and the averages."""

    x: Float[Array, " n"]
    previous: Float[Array, " n"]
    linear: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    average: Float[Array, " n"]
    average_multipliers: Float[Array, " rows"]


class ConstraintExtrapolation(Method):
    """Ascend in the multipliers along an extrapolated linear model of the constraints, then descend in x.

    Args:
        step_size: 1/c1, the first primal step; None: 4/L, with L the Lipschitz constant of the objective's gradient estimated
            at the start, at least its norm over the length D that x may have to move.
        dual_step_size: 1/c2, the first dual step; None: 1/(16 step_size G²), with G the norm of the Jacobian to be expected
            within D: the primal times the dual step has to stay well below 1/G². With sampled constraints it is at most
            B/(σ K^{3/2}), with B = ‖∇f‖/G the size of multipliers and σ = √(σ_g² + D²σ_J²) the noise of the constraints
            within D, from the noise σ_g and σ_J of g and its Jacobian at the start: as in the theory, the noise that y
            accumulates in K steps is then at most B.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> result = tr.solve(problem, jnp.zeros(2), tr.methods.ConstraintExtrapolation(), steps=2000)
        >>> round(float(result.multipliers["budget"]), 1)
        1.0
    """

    step_size: Hyper = hyper(None)
    dual_step_size: Hyper = hyper(None)

    accepts: ClassVar[Accepts] = Accepts(
        "affine", inequalities=True, stochastic=True, form="native", needs="projection"
    )
    reference: ClassVar[str] = "Boob, Deng, Lan 2022, as run in Huang, Lin 2023, Section 6"
    guarantee: ClassVar[str] = "strongly convex: gap and violation of the average at 1/K, sampled constraints K^(-1/2)"
    cost: ClassVar[str] = "1 ∇f, 2 c, 1 Jd, 1 Jᵀy"

    @property
    def uses_horizon(self) -> bool:
        return self.dual_step_size is None

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"objective": None, "value": None, "jacobian": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        jacobian = jnp.maximum(s.jacobian_norm + s.length * s.jacobian_smoothness, jnp.sqrt(s.penalty_smoothness))
        jacobian = positive_or_one(jacobian)  # no constraints: there is no dual step
        sampling = jnp.hypot(s.constraint_noise, s.length * s.jacobian_noise)
        noise = sampling * draw.steps.astype(x.dtype) ** 1.5 * jacobian / s.gradient_norm
        method = self.with_defaults(step_size=4.0 / s.step_smoothness)
        return method.with_defaults(dual_step_size=1.0 / jnp.maximum(16.0 * method.step_size * jacobian**2, noise))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        start = oracle.multipliers
        return State(x, x, jnp.zeros_like(start), start, x, start)  # ℓ_{−1} has weight θ_0 = 0

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, samples = state.x, draw.samples
        k = draw.k.astype(x.dtype)  # k = t + 1
        extrapolation = (k - 1.0) / k
        value, change = oracle.jvp(state.previous, x - state.previous, samples["value"])
        linear = value + change
        extrapolated = (1.0 + extrapolation) * linear - extrapolation * state.linear
        multipliers = state.multipliers + k * self.dual_step_size * extrapolated
        multipliers = jnp.where(oracle.equality, multipliers, jnp.maximum(multipliers, 0.0))
        _, pullback = oracle.vjp(x, samples["jacobian"])
        gradient = oracle.grad(x, samples["objective"]) + pullback(multipliers)
        new = oracle.project(x - self.step_size / k * gradient)
        share = 2.0 / (k + 1.0)  # k over 1 + 2 + … + k
        state = State(
            new,
            x,
            linear,
            multipliers,
            state.average + share * (new - state.average),
            state.average_multipliers + share * (multipliers - state.average_multipliers),
        )
        examples = oracle.count_examples("objective", samples["objective"])
        examples += oracle.count_examples("constraints", samples["value"], samples["jacobian"])
        return state, Info(1, 2, 2, examples)

    def output(self, state: State) -> Float[Array, " n"]:
        return state.average

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.average_multipliers
