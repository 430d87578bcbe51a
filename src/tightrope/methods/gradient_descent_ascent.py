r"""Gradient descent-ascent on the Lagrangian, with any Optax directions: the everyday baseline.

    x_{k+1} = P_X(x_k − η_k p),  p = primal direction of ∇f(x_k, ξ) + J(x_k, ζ)ᵀλ_k
    λ_{k+1} = [λ_k + σ_k q]₊,    q = dual direction of c(x_k, ζ);  equalities are not cut at 0
    η_k = step_size / k^decay,   σ_k = dual_step_size / k^decay

Simultaneous: both use x_k and λ_k. The Lagrangian's gradient is linear in J and in c, so one sample serves both.
No guarantee of the last iterate in general; for convex problems the average converges like K^{-1/2}.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from ..estimators import scales
from ..oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, hyper

ADAM, PLAIN = optax.scale_by_adam(), optax.identity()


class State(NamedTuple):
    """What the next step needs."""

    x: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    primal: Any
    dual: Any


class GradientDescentAscent(Method):
    """Descend in x and ascend in the multipliers along Optax directions.

    Args:
        step_size: scale of the primal steps; None: estimated at the start, as is `dual_step_size`.
        dual_step_size: scale of the dual steps.
        decay: exponent with which both shrink; 0 keeps them constant.
        primal: an Optax direction such as `optax.scale_by_adam()` (not `optax.adam(…)`, which has a step size of its own).
            Each new one compiles again: keep it in a variable where you try many step sizes.
        dual: the same for the multipliers.

    Example:
        >>> import jax.numpy as jnp, optax, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> method = tr.methods.GradientDescentAscent(primal=optax.identity(), step_size=0.2, dual_step_size=0.2)
        >>> result = tr.solve(problem, jnp.zeros(2), method, steps=2000)
        >>> round(float(result.multipliers["budget"]), 1)
        1.0
    """

    step_size: Hyper = hyper(None)
    dual_step_size: Hyper = hyper(None)
    decay: Hyper = hyper(0.5, strict=False)
    primal: optax.GradientTransformation = eqx.field(default=ADAM, static=True)
    dual: optax.GradientTransformation = eqx.field(default=PLAIN, static=True)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="native", needs="projection")
    reference: ClassVar[str] = "Arrow, Hurwicz, Uzawa 1958; the baseline of deep learning with constraints"
    guarantee: ClassVar[str] = "convex: the average at K^(-1/2); none otherwise"
    cost: ClassVar[str] = "1 ∇f, 1 c, 1 Jᵀy"

    def __check_init__(self) -> None:
        for name in ("primal", "dual"):
            if not isinstance(getattr(self, name), optax.GradientTransformation):
                raise TypeError(
                    f"GradientDescentAscent: {name} must be an Optax direction such as optax.scale_by_adam(), "
                    f"got {type(getattr(self, name)).__name__}"
                )

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"joint": None}

    def fill(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        if all(value is not None for value in (self.step_size, self.dual_step_size)):
            return self
        s = scales(oracle, x, draw.samples["joint"], draw.key)
        rows = jnp.where(s.constraint_gradient > 0, s.constraint_gradient, 1.0)
        dual = s.gradient / (rows**2 * s.length)
        return replace(
            self,
            step_size=0.1 * s.length / jnp.sqrt(x.size) if self.step_size is None else self.step_size,
            dual_step_size=dual if self.dual_step_size is None else self.dual_step_size,
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        params = oracle.parameters.unravel_arrays(x)
        return State(x, oracle.multipliers, self.primal.init(params), self.dual.init(oracle.multipliers))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, multipliers, sample = state.x, state.multipliers, draw.samples["joint"]
        shrink = draw.k.astype(x.dtype) ** -self.decay
        c, pullback = oracle.vjp(x, sample)
        gradient = oracle.grad(x, sample) + pullback(multipliers)
        unravel, ravel = oracle.parameters.unravel_arrays, oracle.parameters.ravel
        direction, primal = self.primal.update(unravel(gradient), state.primal, unravel(x))
        new = oracle.project(x - self.step_size * shrink * ravel(direction))
        ascent, dual = self.dual.update(c, state.dual, multipliers)
        multipliers = multipliers + self.dual_step_size * shrink * ascent
        multipliers = jnp.where(oracle.equality, multipliers, jnp.maximum(multipliers, 0.0))
        rows = oracle.count(sample, objective=True, constraints=True)
        return State(new, multipliers, primal, dual), Info(1, 1, 1, rows)

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.multipliers
