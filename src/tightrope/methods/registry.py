"""All methods by name: the defaults, those of the five papers, and the baselines."""

from __future__ import annotations

from ..arguments import check_type, did_you_mean
from .adaptive_lagrangian import AdaptiveLagrangian
from .adaptive_penalty.matrix_free import MatrixFreePenalty
from .adaptive_penalty.method import AdaptivePenalty
from .base import Method
from .conservative_frank_wolfe import ConservativeFrankWolfe
from .conservative_saddle import ConservativeSaddle
from .constraint_extrapolation import ConstraintExtrapolation
from .cooperative_approximation import CooperativeApproximation
from .drift_plus_penalty import DriftPlusPenalty
from .exact_penalty import ExactPenalty
from .gradient_descent_ascent import GradientDescentAscent
from .inexact_alm import InexactALM
from .linearized_alm import LinearizedALM
from .linearized_penalty import LinearizedPenalty
from .momentum_alm import MomentumALM
from .proximal_point import ProximalPoint
from .smoothed_lagrangian import SmoothedLagrangian
from .stochastic_frank_wolfe import StochasticFrankWolfe
from .stochastic_sqp import StochasticSQP
from .switching_subgradient import SwitchingSubgradient
from .truncated_momentum import TruncatedMomentum
from .two_phase_momentum import TwoPhaseMomentum

OURS: tuple[type[Method], ...] = (AdaptivePenalty, MatrixFreePenalty, AdaptiveLagrangian)
"""The default method, the default for very many constraints, and the default for networks."""

PAPERS: tuple[type[Method], ...] = (
    LinearizedALM,
    LinearizedPenalty,
    TruncatedMomentum,
    ExactPenalty,
    SwitchingSubgradient,
    ConservativeSaddle,
    ConservativeFrankWolfe,
)
"""The methods of the five papers that this library implements, in the order of the papers."""

COMPARED: tuple[type[Method], ...] = (
    TwoPhaseMomentum,
    InexactALM,
    MomentumALM,
    ConstraintExtrapolation,
    CooperativeApproximation,
    ProximalPoint,
    DriftPlusPenalty,
    StochasticFrankWolfe,
    StochasticSQP,
    SmoothedLagrangian,
    GradientDescentAscent,
)
"""Baselines: the methods the papers compare with, and other standard ones."""


def available() -> dict[str, type[Method]]:
    """All methods by name: the defaults, those of the papers, the baselines.

    Example:
        >>> import tightrope as tr
        >>> "TruncatedMomentum" in tr.methods.available()
        True
    """
    return {cls.__name__: cls for cls in OURS + PAPERS + COMPARED}


def by_name(name: str) -> type[Method]:
    """The method with this name; case, hyphens and underscores do not matter.

    Example:
        >>> import tightrope as tr
        >>> tr.methods.by_name("switching-subgradient").__name__
        'SwitchingSubgradient'
    """
    check_type("by_name", "name", name, str, "the name of a method, such as 'SwitchingSubgradient'")
    methods = available()
    plain = name.replace("-", "").replace("_", "").lower()
    for full, cls in methods.items():
        if full.lower() == plain:
            return cls
    hint = did_you_mean(name, methods) or "."
    raise ValueError(f"method must be the name of a method, got {name!r}{hint} There are {', '.join(methods)}")
