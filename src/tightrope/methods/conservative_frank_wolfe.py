r"""Conservative Frank-Wolfe: no projection, no violation on average (Akhtar, Bedi, Rajawat 2021).

min F(x), H_i(x) = E h_i(x, θ) ≤ 0, all convex and smooth, over a set X that only has to minimize linear functions.
Algorithm 2, with ∇L̂(x, λ, θ) = ∇f(x, θ) + Σ_i λ_i ∇h_i(x, θ):

    d_t     = ∇L̂(x_t, λ_t, θ_t) + (1 − ρ)(d_{t−1} − ∇L̂(x_{t−1}, λ_{t−1}, θ_t)),   d_1 = ∇L̂(x_1, λ_1, θ_1)      (8)
    s_t     = argmin ⟨d_t, s⟩ over s in X
    x_{t+1} = x_t + η (s_t − x_t)                                                                          (9)
    λ_{t+1} = [(1 − η² δ) λ_t + η (h(x_t, θ_t) + v)]₊                                                      (7)
    η = step_size · T^{-3/4},   ρ = momentum · T^{-1/2},   v = tightening · T^{-1/4} (theory) or T^{-1/2} (their experiment)

The printed d_1 = 0 contradicts the loop, which computes d_1 again; here the recursion starts at t = 2.

| symbol | name | symbol | name |
|---|---|---|---|
| η | `step_size` | v | `tightening` |
| ρ | `momentum` | δ | `regularization` |
| d | `direction` | λ | `multipliers` |

Theorem 2: E F(x̄) − F* ~ T^{-1/4} for the mean x̄ of x_1 … x_T, and no violation on average. No printed δ satisfies the
proof's own condition. (7) alone gives a bound for every run: the mean of h(x_t, θ_t) is at most
λ_{T+1}/(ηT) + ηδ · mean of λ_t − v. With η = step_size · T^{-3/4} and Λ a bound on the multipliers, that is at most
Λ (T^{-1/4}/step_size + step_size δ T^{-3/4}) − v. So `tightening` is enough at that number divided by T^{-1/4} ('theory') or by
T^{-1/2} ('experiment'), whichever v has.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..numerics.scaling import positive_or_one
from ..oracles.oracle import Oracle, Sample
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import slater_margin
from .shared.momentum import recursive_momentum


class State(NamedTuple):
    """Iterate, multipliers and their previous values, tracked gradient, and the averages so far."""

    x: Float[Array, " n"]
    multipliers: Float[Array, " rows"]
    previous: Float[Array, " n"]
    previous_multipliers: Float[Array, " rows"]
    direction: Float[Array, " n"]
    average: Float[Array, " n"]
    average_multipliers: Float[Array, " rows"]


class ConservativeFrankWolfe(Method):
    """Move toward the point of X that is best for the tracked gradient of the Lagrangian of tightened constraints.

    Hyperparameters that are None are estimated at x0 and a tenth of the way to the point of X that is best for ∇f. With G the
    norm of ∇f, J that of the Jacobian, D the width of X along ∇f and h the norm of the rows, at least JD/10, multipliers
    are expected up to Λ = G√N/J, or up to Slater's bound GD/σ if that is smaller. The margin σ is how far below zero the
    largest row gets in a few Frank-Wolfe steps on one large sample.

    Args:
        step_size: η_0; None: Λ/h, with which the multipliers reach Λ, but at least 1, so that the start is forgotten, and at
            most the value that makes η a tenth.
        momentum: ρ_0.
        tightening: v_0; None: the value that makes v at the horizon twice Λ (T^{-1/4}/η_0 + η_0 δ T^{-3/4}), but at most half
            of σ.
        regularization: δ; None: J²/10.
        tightening_rate: 'theory' (T^{-1/4}) or 'experiment' (T^{-1/2}).

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(
        ...     lambda x: jnp.sum((x - jnp.array([0.8, 0.2, 0.0])) ** 2),
        ...     tr.at_most(lambda x: x[0], 0.5, name="first"),
        ...     domain=tr.domains.Simplex(),
        ... )
        >>> result = tr.solve(problem, jnp.ones(3) / 3, tr.methods.ConservativeFrankWolfe(), steps=5000)
        >>> bool(result.violation < 0.01)
        True
    """

    step_size: Hyper = hyper(None)
    momentum: Hyper = hyper(1.0)
    tightening: Hyper = hyper(None, closed="[")
    regularization: Hyper = hyper(None, closed="[")
    tightening_rate: str = choice("theory", "theory", "experiment")

    accepts: ClassVar[Accepts] = Accepts("none", inequalities=True, stochastic=True, form="native", needs="lmo")
    reference: ClassVar[str] = "Akhtar, Bedi, Rajawat 2021, Algorithm 2"
    guarantee: ClassVar[str] = "smooth, convex: no violation on average, objective at K^(-1/4)"
    cost: ClassVar[str] = "2 ∇f, 2 c, 2 Jᵀy, 1 linear minimization"

    @property
    def uses_horizon(self) -> bool:
        return True

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return {"joint": None}

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        sample, steps = draw.samples["joint"], draw.steps.astype(x.dtype)
        gradient = oracle.grad(x, sample)
        best = oracle.lmo(gradient)
        width = jnp.linalg.norm(oracle.lmo(-gradient) - best)
        points = x, x + 0.1 * (best - x)

        def largest_norm(arrays: list[Array]) -> Array:
            """The largest norm of these; 1 if all are zero."""
            size = jnp.max(jnp.stack([jnp.linalg.norm(a) for a in arrays]))
            return positive_or_one(size)

        slope = largest_norm([oracle.grad(y, sample) for y in points])
        jacobian = largest_norm([oracle.jac(y, sample) for y in points])
        height = jnp.maximum(largest_norm([oracle.c(y, sample) for y in points]), 0.1 * jacobian * width)
        margin = slater_margin(
            oracle,
            x,
            jax.random.fold_in(draw.key, 1),
            lambda y, direction, k: y + (oracle.lmo(direction) - y) * 2 / (k + 2),
        )
        margin = jnp.where(margin > 0, margin, 1e-3 * height)
        multiplier = slope * jnp.sqrt(max(oracle.multipliers.size, 1)) / jacobian
        multiplier = jnp.minimum(multiplier, slope * positive_or_one(width) / margin)

        reaching = jnp.minimum(multiplier / height, 0.1 * steps**0.75)
        method = self.with_defaults(regularization=0.1 * jacobian**2, step_size=jnp.maximum(reaching, 1.0))
        step_size, regularization = method.step_size, method.regularization
        enough = 2.0 * multiplier * (steps**-0.25 / step_size + step_size * regularization * steps**-0.75)
        return method.with_defaults(tightening=jnp.minimum(enough, 0.5 * margin) / self._tightening_decay(steps))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        multipliers = oracle.multipliers
        return State(x, multipliers, x, multipliers, jnp.zeros_like(x), x, multipliers)

    def schedule(self, steps: Float[Array, ""]) -> tuple[Array, Array, Array]:
        """Step size η, momentum weight ρ and tightening v for a horizon."""
        step_size, weight = self.step_size * steps**-0.75, jnp.minimum(self.momentum * steps**-0.5, 1.0)
        return step_size, weight, self.tightening * self._tightening_decay(steps)

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        x, multipliers, sample = state.x, state.multipliers, draw.samples["joint"]
        step_size, weight, tightening = self.schedule(draw.steps.astype(x.dtype))
        h, new = _lagrangian(oracle, x, multipliers, sample)
        _, old = _lagrangian(oracle, state.previous, state.previous_multipliers, sample)
        direction = recursive_momentum(state.direction, new, old, jnp.where(draw.k == 1, 1.0, weight))  # d_1 = new
        kept = (1.0 - step_size**2 * self.regularization) * multipliers
        k = draw.k.astype(x.dtype)
        state = State(
            x + step_size * (oracle.lmo(direction) - x),
            jnp.maximum(kept + step_size * (h + tightening), 0.0),
            x,
            multipliers,
            direction,
            state.average + (x - state.average) / k,
            state.average_multipliers + (multipliers - state.average_multipliers) / k,
        )
        return state, Info(2, 2, 2, oracle.count_examples("both", sample))

    def output(self, state: State) -> Float[Array, " n"]:
        return state.average

    def multipliers(self, state: State) -> Float[Array, " rows"]:
        return state.average_multipliers

    def _tightening_decay(self, steps: Float[Array, ""]) -> Float[Array, ""]:
        return steps ** (-0.25 if self.tightening_rate == "theory" else -0.5)


def _lagrangian(
    oracle: Oracle, x: Float[Array, " n"], multipliers: Float[Array, " rows"], sample: Sample
) -> tuple[Float[Array, " rows"], Float[Array, " n"]]:
    """The rows, and the gradient of the Lagrangian in x."""
    rows, pullback = oracle.lagrangian_vjp(x, sample)
    return rows, pullback(multipliers)
