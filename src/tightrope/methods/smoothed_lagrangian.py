r"""Smoothed linearized augmented Lagrangian (SSL-ALM): a single loop around a slowly moving proximal center.

min f(x), c(x) = 0, x in X, all stochastic; inequalities by slacks. Each step uses four independent samples, in this order:

    y⁺ = y + η c(x, ζ⁰),   0 if ‖y⁺‖ ≥ M
    G  = ∇f(x, ξ) + J(x, ζ¹)ᵀ (y⁺ + ρ c(x, ζ²)) + μ(x − z)
    x⁺ = P_X(x − τ G)
    z⁺ = z + β(x − z)                                            the old x

| symbol | name | symbol | name |
|---|---|---|---|
| x, z | `x`, `center` | y | `multipliers` |
| τ, η | `step_size`, `dual_step_size` | ρ, μ | `penalty`, `proximal_weight` |
| β | `smoothing` | M | `multiplier_bound` |

All parameters are constant. Guaranteed for deterministic linear constraints and smooth f: stationarity ε in O(ε⁻⁴) steps (with
step sizes of order ε²). For nonlinear or sampled constraints it is a heuristic, whose resets keep the multipliers bounded.
Without data the constraints' value and Jacobian are exact, and one evaluation serves all three places.
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
    """Iterate, multipliers, and proximal center."""

    x: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    center: Float[Array, " n"]


class SmoothedLagrangian(Method):
    """Linearized augmented Lagrangian steps with a proximal term around a center that follows x.

    Args:
        step_size: τ; None: 1/(2L), with L = L_f + μ + ρ L_c the Lipschitz constant of G at the start, and at most D/(2σ√K),
            with σ the noise of G and D how far x may have to move.
        dual_step_size: η; None: ρ/10, and at most B/(10 σ_c √K), with B = ‖∇f‖/‖J‖ the size of multipliers and σ_c the noise
            of c: the noise that y accumulates in K steps is then at most B/10.
        penalty: ρ; None: 5 L_f/L_c, with the Lipschitz constants L_f of ∇f and L_c of ∇½‖c‖² at the start.
        proximal_weight: μ; None: L_f, which bounds the weak convexity of f.
        smoothing: β, the fraction of the distance to x that the center moves per step; None: ½.
        multiplier_bound: M, the norm at which the multipliers are reset to 0; None: 100 B, and at least twice the norm of
            their initial values.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
        >>> result = tr.solve(problem, jnp.ones(2), tr.methods.SmoothedLagrangian(), steps=5000)
        >>> bool(abs(result.x @ result.x - 1.0) < 0.05)
        True
    """

    step_size: Hyper = hyper(None)
    dual_step_size: Hyper = hyper(None)
    penalty: Hyper = hyper(None)
    proximal_weight: Hyper = hyper(None)
    smoothing: Hyper = hyper(None, high=2.0)
    multiplier_bound: Hyper = hyper(None)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="slacks", needs="projection")
    reference: ClassVar[str] = "SSL-ALM: Zhang, Luo 2022; Huang, Zhang, Alacaoglu 2025"
    guarantee: ClassVar[str] = "linear deterministic constraints: ε-stationary in O(ε⁻⁴) steps; none otherwise"
    cost: ClassVar[str] = "1 ∇f, 3 c (1 if deterministic), 1 Jᵀy"

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"objective": None, "dual": None, "jacobian": None, "value": None}

    @property
    def uses_horizon(self) -> bool:
        return self.step_size is None or self.dual_step_size is None

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s, root = local_constants(oracle, x, draw.key), jnp.sqrt(draw.steps.astype(x.dtype))
        jacobian = jnp.sqrt(positive_or_one(s.penalty_smoothness))  # no constraints: no penalty
        size = s.gradient_norm / jacobian
        method = self.with_defaults(penalty=5.0 * s.step_smoothness / jacobian**2, proximal_weight=s.step_smoothness)
        smoothness = s.step_smoothness + method.proximal_weight + method.penalty * s.penalty_smoothness
        noise = s.gradient_noise + method.penalty * jacobian * s.constraint_noise
        return method.with_defaults(
            step_size=0.5 / jnp.maximum(smoothness, noise * root / s.length),
            dual_step_size=1.0 / jnp.maximum(10.0 / method.penalty, 10.0 * s.constraint_noise * root / size),
            smoothing=jnp.full((), 0.5, x.dtype),
            multiplier_bound=jnp.maximum(100.0 * size, 2.0 * jnp.linalg.norm(oracle.multipliers)),
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        return State(x, oracle.multipliers, x)

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, samples = state.x, draw.samples
        value, pullback = oracle.vjp(x, samples["jacobian"])
        dual_value, values = value, 1
        if oracle.stochastic_constraints:
            dual_value, value, values = oracle.c(x, samples["dual"]), oracle.c(x, samples["value"]), 3
        multipliers = state.multipliers + self.dual_step_size * dual_value
        multipliers = jnp.where(jnp.linalg.norm(multipliers) >= self.multiplier_bound, 0.0, multipliers)
        gradient = oracle.grad(x, samples["objective"]) + pullback(multipliers + self.penalty * value)
        new = oracle.project(x - self.step_size * (gradient + self.proximal_weight * (x - state.center)))
        center = state.center + self.smoothing * (x - state.center)
        examples = oracle.count_examples("objective", samples["objective"])
        examples += oracle.count_examples("constraints", samples["dual"], samples["jacobian"], samples["value"])
        return State(new, multipliers, center), Info(1, values, 1, examples)

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.multipliers
