"""The proven rates of the papers' methods, and what their theorems ask for: for forecasts."""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Float

from ..oracles.oracle import Oracle
from ..problems.data import Dataset
from .base import Method
from .exact_penalty import ExactPenalty
from .exact_penalty.theorem import TheoremConstants, theorem_sizes
from .linearized_alm import LinearizedALM
from .linearized_penalty import LinearizedPenalty
from .shared.constants import local_constants
from .truncated_momentum import TruncatedMomentum


class Rate(NamedTuple):
    """How fast residuals fall: like K^(−exponent) after K steps; a step's samples grow like k^cost_growth."""

    exponent: float
    theorem: str
    cost_growth: float = 0.0


def proven_rate(method: Method, oracle: Oracle) -> Rate | None:
    """The rate of the method's theorem for stationarity and violation; None: it has none in these terms."""
    if isinstance(method, LinearizedALM):
        return Rate(1 / 3, "Alacaoglu and Wright, Corollary B.5")
    if isinstance(method, LinearizedPenalty):
        exact = not oracle.stochastic_constraints and method.schedule != "stochastic"
        where = "Section 4.2" if exact else "Theorem 3.1"
        return Rate(1 / 4 if exact else 1 / 5, f"Alacaoglu and Wright, {where}")
    if isinstance(method, TruncatedMomentum):
        return Rate(1 / 4, "Lu, Mei and Xiao, an error bound of exponent up to 2")
    if isinstance(method, ExactPenalty):
        setting = method.setting_for(oracle)
        grows = setting in ("stochastic", "semi") and method.accuracy is None and method.restart_batch_size is None
        return Rate(1 / 2, "Cui, Shi, Wang and Xiao, Theorem 3.1", 0.5 if grows else 0.0)
    return None


def asked_by_theorem(
    method: Method, oracle: Oracle, x: Float[Array, " n"], key: Array, gap: float, multipliers: float, accuracy: float
) -> dict[str, float]:
    """What the method's theorem asks for from x on, with its own constants, measured there; empty if it gives no numbers.

    `gap` is F(x) − F*, or an estimate of it; `multipliers` is the expected norm of the multipliers.
    """
    if not isinstance(method, ExactPenalty):
        return {}
    measured = eqx.filter_jit(local_constants)(oracle, x, key)
    local = {name: float(value) for name, value in measured._asdict().items()}
    room, growth = 1.0 - float(method.decrease_fraction), float(method.penalty_growth)
    penalty = max(float(method.penalty) * growth, multipliers / room)
    batch = math.sqrt(max((source.batch_size for source in oracle.sources), default=1))
    constants = TheoremConstants(
        penalty=penalty,
        growths=1 + max(0, math.ceil(math.log(penalty / float(method.penalty), growth))),
        gap=gap + penalty * local["constraint_norm"],
        smoothness=float(measured.step_smoothness),
        jacobian_smoothness=local["jacobian_smoothness"],
        gradient_norm=local["gradient_norm"],
        jacobian_norm=local["jacobian_norm"],
        noise=(local["gradient_noise"] * batch, local["constraint_noise"] * batch, local["jacobian_noise"] * batch),
        fractions=float(method.normal_fraction) * float(method.decrease_fraction),
        examples=sum(source.size for source in oracle.sources if isinstance(source, Dataset)),
    )
    return theorem_sizes(method.setting_for(oracle), accuracy, constants)
