r"""Gradient descent-ascent on the Lagrangian along any Optax directions: the standard baseline.

With p(x, λ; ζ) the primal direction of ∇f(x, ζ) + J(x, ζ)ᵀλ, q(x; ζ) the dual direction of c(x, ζ), [·]₊ the cut at 0 of the
inequalities' multipliers alone, η_k = step_size / k^decay and σ_k = dual_step_size / k^decay:

    simultaneous:   x_{k+1} = P_X(x_k − η_k p(x_k, λ_k; ζ)),   λ_{k+1} = [λ_k + σ_k q(x_k; ζ)]₊
    alternating:    x_{k+1} as before,                         λ_{k+1} = [λ_k + σ_k q(x_{k+1}; ζ')]₊
    extragradient:  x_½, λ_½ as x_{k+1}, λ_{k+1} of 'simultaneous', then from the old point with the gradients of the new one
                    x_{k+1} = P_X(x_k − η_k p(x_½, λ_½; ζ')),  λ_{k+1} = [λ_k + σ_k q(x_½; ζ')]₊

ζ and ζ' (roles 'joint' and 'second') are independent. One sample serves both gradients at one point, because the
Lagrangian's gradient is linear in J and in c; a point that depends on ζ needs the second sample ζ'. In an extragradient step
both directions start from the Optax states of the previous step, and only the second one updates them.

Adam divides each coordinate by a scale of its own. Then P_X(x − η p) = x has the right solution only if X is a product of
intervals: on a simplex, for example, the gradient at the solution has equal entries on the support, but Adam's direction does
not. On any other set the default direction is therefore `ONE_SCALE`, Adam with one scale for all coordinates.

There is no guarantee for the last iterate in general; for convex problems the average converges like K^{-1/2}. If the
objective has too little curvature (a linear one), the simultaneous rule with constant steps spirals away from the solution
and the alternating rule circles around it; extragradient iterates converge if steps are short and nothing is noisy.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int
from optax.tree_utils import tree_bias_correction

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle, Sample
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import local_constants

ADAM, PLAIN = optax.scale_by_adam(), optax.identity()
RATES = 0.9, 0.999
"""Adam's decay rates of the first and second moments."""
CALLS = {"simultaneous": (1, 1, 1), "alternating": (1, 2, 1), "extragradient": (2, 2, 2)}
"""Objective gradients, constraint values and Jacobian products per step."""


def _on_one_scale(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    """Adam's first moment over the root of the mean of its second moments."""
    _, state = ADAM.update(updates, state, params)
    first, second = map(tree_bias_correction, (state.mu, state.nu), RATES, (state.count, state.count))
    scale = jnp.sqrt(jnp.mean(ravel_pytree(second)[0])) + 1e-8
    return jax.tree.map(lambda moment: moment / scale, first), state


ONE_SCALE = optax.GradientTransformation(ADAM.init, _on_one_scale)
"""Adam with one scale for all coordinates: a multiple of the averaged gradient."""


class State(NamedTuple):
    """Iterate, multipliers, and the Optax states of the primal and the dual direction."""

    x: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    primal: Any
    dual: Any


class GradientDescentAscent(Method):
    """Descend in x and ascend in the multipliers along Optax directions.

    Args:
        step_size: scale of the primal steps; None: estimated at the start, like `dual_step_size`.
        dual_step_size: scale of the dual steps.
        decay: exponent at which both shrink; 0 keeps them constant.
        primal: an Optax direction such as `optax.scale_by_adam()` (not `optax.adam(…)`, which has a step size of its own).
            Every new object compiles again: keep it in a variable when you try many step sizes. None: Adam if the set
            bounds each coordinate separately, else Adam with one scale for all coordinates.
        dual: an Optax direction for the multipliers.
        update: 'simultaneous'; 'alternating', where the multipliers use the new x; or 'extragradient', where a step uses
            the gradients found after a first, provisional step.

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
    decay: Hyper = hyper(0.5, closed="[")
    primal: optax.GradientTransformation | None = eqx.field(default=None, static=True)
    dual: optax.GradientTransformation = eqx.field(default=PLAIN, static=True)
    update: str = choice("simultaneous", *CALLS)

    accepts: ClassVar[Accepts] = Accepts(
        "any", inequalities=True, stochastic=True, form="native", needs="projection", model_state=True
    )
    reference: ClassVar[str] = "Arrow, Hurwicz, Uzawa 1958; the common baseline of constrained deep learning"
    guarantee: ClassVar[str] = "convex: the average at K^(-1/2); none otherwise"
    cost: ClassVar[str] = "1 ∇f, 1 c (2 alternating), 1 Jᵀy; extragradient: 2 of each"

    def __check_init__(self) -> None:
        for name, direction in (("primal", ADAM if self.primal is None else self.primal), ("dual", self.dual)):
            if not isinstance(direction, optax.GradientTransformation):
                raise TypeError(
                    f"GradientDescentAscent: {name} must be an Optax direction such as optax.scale_by_adam(), "
                    f"got {type(direction).__name__}"
                )

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"joint": None} if self.update == "simultaneous" else {"joint": None, "second": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        oracle, x = oracle.hold_state(x)
        s = local_constants(oracle, x, draw.key)
        jacobian = positive_or_one(s.jacobian_norm)
        return self.with_defaults(
            step_size=0.1 * s.length / jnp.sqrt(x.size), dual_step_size=s.gradient_norm / (jacobian**2 * s.length)
        )

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        held, trained = oracle.hold_state(x)
        params = held.parameters.unravel_arrays(trained)
        return State(x, oracle.multipliers, self._primal(oracle).init(params), self.dual.init(oracle.multipliers))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        multipliers, sample, join = state.multipliers, draw.samples["joint"], oracle.parameters.join
        oracle, x = oracle.hold_state(state.x)
        state = state._replace(x=x)
        second = draw.samples.get("second", sample)
        shrink = draw.k.astype(x.dtype) ** -self.decay
        examples = oracle.count_examples("both", sample)
        gradient, c, model_state = _lagrangian_gradients(oracle, x, multipliers, sample)
        new, primal = self._descend(oracle, state, x, gradient, shrink)
        if self.update == "alternating":
            c = oracle.c(new, second)
            examples += oracle.count_examples("constraints", second)
        climbed, dual = self._ascend(oracle, state, multipliers, c, shrink)
        if self.update == "extragradient":
            gradient, c, _ = _lagrangian_gradients(oracle, new, climbed, second)
            examples += oracle.count_examples("both", second)
            new, primal = self._descend(oracle, state, new, gradient, shrink)
            climbed, dual = self._ascend(oracle, state, climbed, c, shrink)
        return State(join(new, model_state), climbed, primal, dual), Info(*CALLS[self.update], examples)

    def _primal(self, oracle: Oracle) -> optax.GradientTransformation:
        """The primal direction for this set."""
        if self.primal is not None:
            return self.primal
        return ADAM if oracle.domain.is_separable else ONE_SCALE

    def _descend(
        self, oracle: Oracle, state: State, at: Float[Array, " n"], gradient: Float[Array, " n"], shrink: Array
    ) -> tuple[Float[Array, " n"], Any]:
        """A primal step from the state's x along the gradient at the point `at`, and the new Optax state."""
        unravel, ravel = oracle.parameters.unravel_arrays, oracle.parameters.ravel
        gradients, params = unravel(gradient), unravel(oracle.gathered(at))
        direction, primal = self._primal(oracle).update(gradients, state.primal, params)
        return oracle.project(state.x - self.step_size * shrink * oracle.gathered(ravel(direction))), primal

    def _ascend(
        self, oracle: Oracle, state: State, at: Float[Array, " rows"], c: Float[Array, " rows"], shrink: Array
    ) -> tuple[Float[Array, " rows"], Any]:
        """A dual step from the state's multipliers along the rows, with `at` the multipliers there, and the new Optax state."""
        ascent, dual = self.dual.update(c, state.dual, at)
        climbed = state.multipliers + self.dual_step_size * shrink * ascent
        return jnp.where(oracle.equality, climbed, jnp.maximum(climbed, 0.0)), dual

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.multipliers


def _lagrangian_gradients(
    oracle: Oracle, x: Float[Array, " n"], multipliers: Float[Array, " rows"], sample: Sample
) -> tuple[Float[Array, " n"], Float[Array, " rows"], Any]:
    """The gradients of the Lagrangian in x and in the multipliers, and the model state that the objective returns."""
    rows, pullback, model_state = oracle.lagrangian_vjp_and_state(x, sample)
    return pullback(multipliers), rows, model_state
