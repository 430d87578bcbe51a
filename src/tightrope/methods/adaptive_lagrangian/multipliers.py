r"""The rule for the multipliers: a proportional-integral controller for each row, tuned by what a step can do to the row.

Let the step be x⁺ = x − α P(∇F + Jᵀy) with a diagonal metric P. To first order row i then changes by −α G_i y_i beside what
the objective and the other rows do to it, where G_i = J_i P J_iᵀ. With the error e_i, the signed distance of row i to its
range, and y = λ + K_p e, λ⁺ = λ + K_i e, the error obeys ë + αGK_p ė + αGK_i e = 0, so

    K_p = κ/(τ α G),  K_i = q/(τ² α G)

let it decay and oscillate on the scale of τ steps with a damping ratio of κ/(2√q), whatever the units of the row; the curvature
of the Lagrangian adds damping, Adam's momentum takes some away. Rows without noise have κ = q = 1. Rows with noise have κ = 0.3
and q = 2, because K_p lets noise through (κ = 0.6 was slightly worse on noisy networks). Six things are added:

- Rows that push x the same way move each other. With C_i = s_i Σ_j G_ij s_j/√(G_i G_j), s_j the sign of y_j or 0, row i moves
  C_i times as far as by y_i alone: C_i is 1 for orthogonal rows and m for m equal ones. Gains are divided by max{1, C_i}.

- τ is long enough for the noise. The filtered error has a standard deviation of about σ τ^{-1/2}, σ that of the row on a batch;
  the noise of y then moves x by less than a tenth of the length that the gradient moves it, if
  τ ≥ (8 σ/(α √(G S)))^{2/3}, S = ⟨v, Pv⟩.
- A step of that length changes row i by at most α √(G S). Errors of more than θ τ α √(G S) are cut to that, ē: a row that is
  far from its range (a loss of 2.3 with a bound of 0.06) must not drive its multiplier further than a step can follow.
- While e is cut, the proportional part stands still. The change of e beyond the limit goes into λ instead, times K_p, so that a
  row which approaches its range on its own lowers y (this is called anti-windup). Both errors are cut at the present limit: a
  limit that changes must not move λ.
- K_i is proportional to the learning rate α_k of the step, as the response of the rows is.
- A multiplier holds a row against what moves it out of its range: the objective and other multipliers. All multipliers move
  row i towards its range at the rate U_i = s_i J_i P Jᵀy, and the step does so at W_i = s_i J_i P(∇f + Jᵀy), which is 0 where
  they are in balance. With W_i ≥ |U_i| nothing opposes them: if the row is still outside, training is not done, or the noise
  of the iterates keeps it there. Smaller learning rates remove that; a larger multiplier would only outweigh the objective. So
  where the λ_i of an inequality grows in size, its growth is multiplied by min{1, 2 max{0, 1 − W_i/|U_i|}}. That of an equation
  is corrected from both sides.

The rows are filtered by a running mean with the weight max{5/τ, 1/k}; rows without noise are not. σ² is a running mean with
the weight max{0.02, 1/k}.

Multipliers of inequalities do not change sign in one step, and the error of a row inside its range is the distance to the end
that λ pushes it away from; 0 if λ is 0.

| symbol | name | symbol | name |
|---|---|---|---|
| e, ē | `error`, `limited` | λ, y | `integral`, `multipliers` |
| σ², G, C | `variance`, `response`, `coupling` | τ | `settling_time` |
| U, W | `push`, `progress` | min{1, 2 max{…}} | `growth_allowed` |
| α, α_k/α | `rate`, `rate_share` | S | `gradient_sq` |
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ...numerics.scaling import reciprocal_or_zero
from ...oracles.rows import Rows

PROPORTIONAL, INTEGRAL = 0.3, 2.0
"""κ and q of rows with noise."""
EXACT_PROPORTIONAL, EXACT_INTEGRAL = 1.0, 1.0
"""κ and q of rows without."""
NOISE_FACTOR = 8.0
ERROR_LIMIT = 0.2
"""θ."""
MIN_SETTLING, MIN_SETTLING_ROOT, SETTLING_SHARE = 10.0, 0.4, 0.05
"""τ is at least 10 and 0.4 √T, and at most T/20, for a horizon of T steps."""
FILTER = 5.0
"""The filter of the rows forgets within τ/5 steps."""


class Response(NamedTuple):
    """What the rows do: their noise on a batch, their response to a multiplier, and the length of a step.

    Attributes:
        variance: of a row on a batch; 0 for rows without data.
        response: G.
        coupling: C.
        push: U.
        progress: W.
        gradient_sq: S.
        rate: α, the largest learning rate of the run.
        rate_share: the learning rate of this step over that.
    """

    variance: Float[Array, " rows"]
    response: Float[Array, " rows"]
    coupling: Float[Array, " rows"]
    push: Float[Array, " rows"]
    progress: Float[Array, " rows"]
    gradient_sq: Float[Array, ""]
    rate: Float[Array, ""]
    rate_share: Float[Array, ""]


class Controller(NamedTuple):
    """The state of the rule: the filtered rows, λ, y, and the error."""

    filtered: Float[Array, " rows"]
    integral: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    error: Float[Array, " rows"]

    def update(
        self, value: Float[Array, " rows"], rows: Rows, seen: Response, k: Int[Array, ""], steps: Int[Array, ""]
    ) -> Controller:
        """The controller after the rows took this value on the sample of step k."""
        tau = settling_time(seen, steps)
        weight = jnp.where(seen.variance > 0, jnp.maximum(jnp.minimum(FILTER / tau, 1.0), 1.0 / k), 1.0)
        filtered = self.filtered + weight.astype(value.dtype) * (value - self.filtered)
        error = signed_error(filtered, self.integral, rows)
        limit = ERROR_LIMIT * tau * seen.rate * jnp.sqrt(seen.response * seen.gradient_sq)
        limited = jnp.clip(error, -limit, limit)
        change_of_cut = (error - limited) - (self.error - jnp.clip(self.error, -limit, limit))
        gain = reciprocal_or_zero(tau * seen.rate * seen.response * jnp.maximum(seen.coupling, 1.0))
        proportional = gain * jnp.where(seen.variance > 0, PROPORTIONAL, EXACT_PROPORTIONAL)
        growth = gain / tau * jnp.where(seen.variance > 0, INTEGRAL, EXACT_INTEGRAL) * seen.rate_share * limited
        grows = (growth * self.integral > 0) & (rows.low != rows.high)
        growth *= jnp.where(grows, growth_allowed(seen), 1.0)
        windup = proportional * jnp.where(k > 1, change_of_cut, 0.0)
        side = jnp.where(self.integral != 0, jnp.sign(self.integral), jnp.sign(error))
        integral = _on_side(self.integral + growth + windup, side, rows)
        multipliers = _on_side(integral + proportional * limited, side, rows)
        return Controller(filtered, integral, multipliers, error)


def growth_allowed(seen: Response) -> Float[Array, " rows"]:
    """How much of its growth a multiplier keeps: all if at least half of the push is opposed, nothing if none of it is."""
    unopposed = seen.progress * reciprocal_or_zero(jnp.abs(seen.push))
    return jnp.clip(2.0 * (1.0 - unopposed), 0.0, 1.0)


def settling_time(seen: Response, steps: Int[Array, ""]) -> Float[Array, " rows"]:
    """τ for every row; the longest for a noisy row that a step cannot change."""
    horizon = steps.astype(seen.rate.dtype)
    reach = jnp.maximum(seen.rate * jnp.sqrt(seen.response * seen.gradient_sq), jnp.finfo(horizon.dtype).tiny)
    least = least_settling_time(horizon)
    by_noise = (NOISE_FACTOR * jnp.sqrt(seen.variance) / reach) ** (2.0 / 3.0)
    return jnp.clip(by_noise, least, jnp.maximum(SETTLING_SHARE * horizon, least))


def least_settling_time(horizon: Float[Array, ""]) -> Float[Array, ""]:
    """The least τ in a run of so many steps."""
    return jnp.maximum(MIN_SETTLING, MIN_SETTLING_ROOT * jnp.sqrt(horizon))


def signed_error(value: Float[Array, " rows"], integral: Float[Array, " rows"], rows: Rows) -> Float[Array, " rows"]:
    """The signed distance of each row to its range or, inside it, to the end that its multiplier pushes it away from."""
    above, below = value - rows.high, value - rows.low
    inside = jnp.where(integral > 0, above, jnp.where(integral < 0, below, 0.0))
    return jnp.where(above > 0, above, jnp.where(below < 0, below, inside))


def _on_side(multipliers: Float[Array, " rows"], side: Float[Array, " rows"], rows: Rows) -> Float[Array, " rows"]:
    """Multipliers of inequalities with the sign of `side`, or 0."""
    kept = jnp.where(multipliers * side > 0, multipliers, 0.0)
    return jnp.where(rows.low == rows.high, multipliers, kept)
