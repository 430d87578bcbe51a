"""The model of the exact penalty function around x, as steering, correction and acceptance see it.

    m(d) = vᵀd + ½ dᵀMd + Σ ρ_i dist(h_i + J_i d, [low_i, high_i])

On a set X steering has (δ + σ)I in place of M. Its minimizer, the proximal step, is a projection once the multipliers are
known: d = P_X(x − (v + Jᵀy)/(δ + σ)) − x.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jaxtyping import Array, Bool, Float, Int

from ...numerics.products import Linear
from ...numerics.ranges import RangePenalty
from ...oracles.oracle import Oracle, Sample


class ModelStep(NamedTuple):
    """A minimizer d of the model: its multipliers, h + Jd, and dᵀMd.

    `solved`: whether it is nearly the minimizer. If not, steering draws no conclusion from it.
    """

    multipliers: Float[Array, " rows"]
    rows: Float[Array, " rows"]
    square: Float[Array, ""]
    solved: Bool[Array, ""] | bool = True


class Steering(NamedTuple):
    """The result of steering: penalties, and the multipliers of the model with them."""

    penalty: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    restoration: Float[Array, " rows"]
    """Multipliers of the restoration step, as shares of its penalties."""
    no_feasible_descent: Bool[Array, ""]
    """Whether no step leads nearer to the constraints."""
    extra_evaluations: Int[Array, ""]
    """Evaluations of the rows that it took to find that out."""


class Face(Protocol):
    """The part of X in which a step moves freely: all of it, or the face of X where the step ends."""

    def restore(
        self, miss: Float[Array, " rows"], held: Bool[Array, " rows"]
    ) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """Return the least step d along the face with Jd = −miss in the held rows, in the norm of M; and dᵀMd."""
        ...


class Trial(NamedTuple):
    """A trial point, with the penalties and multipliers of its step, and the reduction that the model predicts.

    `square` is dᵀMd of the part of the step along the face.
    """

    x: Float[Array, " n"]
    penalty: Float[Array, " rows"]
    multipliers: Float[Array, " rows"]
    predicted: Float[Array, ""]
    square: Float[Array, ""]
    face: Face


@dataclass(frozen=True)
class PenaltyModel(ABC):
    """The model around x on a sample; `DenseModel` has the Jacobian, `ProductModel` only products with it."""

    oracle: Oracle
    sample: Sample
    x: Float[Array, " n"]
    gradient: Float[Array, " n"]
    """v."""
    value: Float[Array, " rows"]
    """h."""
    jacobian: Linear
    """d ↦ Jd and y ↦ Jᵀy."""
    curvature: Float[Array, ""]
    """δ + σ."""
    gradient_sq: Float[Array, ""]
    row_norm: Float[Array, " rows"]
    """‖J_i‖."""
    largest_row_norm: Float[Array, " rows"]
    """The largest ‖J_i‖ so far, the unit of violations."""

    @abstractmethod
    def minimize(self, weight: Array, penalty: Float[Array, " rows"], start: Float[Array, " rows"]) -> ModelStep:
        """Return the minimizer with weight · v in place of v, found from these multipliers on."""

    @abstractmethod
    def restoration(self, multipliers: Float[Array, " rows"]) -> Float[Array, " n"]:
        """Return the step that these multipliers make without the objective, v = 0."""

    @abstractmethod
    def rows_after(self, step: Float[Array, " n"]) -> Float[Array, " rows"]:
        """Return the rows themselves, not linearized, after a step; on the sample."""

    @abstractmethod
    def miss(self, x: Float[Array, " n"], ends: Float[Array, " rows"]) -> Float[Array, " rows"]:
        """Return by how much the rows at x, which the step was to bring to these ends of their ranges, are beyond them."""

    @abstractmethod
    def solve(self, steering: Steering) -> Trial:
        """Return the step with M and these penalties; on a set, along the face of X where it ends."""

    def ranges(self, penalty: Float[Array, " rows"]) -> RangePenalty:
        """Return the penalty term with these penalties."""
        return RangePenalty(self.oracle.rows.low, self.oracle.rows.high, penalty)

    def proximal_step(self, weight: Array | float, multipliers: Float[Array, " rows"]) -> Float[Array, " n"]:
        """Return the step in X with weight · v in place of v and (δ + σ)I in place of M."""
        force = weight * self.gradient + self.jacobian.pull(multipliers)
        return self.oracle.project(self.x - force / self.curvature) - self.x
