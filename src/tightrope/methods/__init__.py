"""The methods, one algorithm per file."""

from .adaptive_lagrangian import AdaptiveLagrangian
from .adaptive_penalty.matrix_free import MatrixFreePenalty
from .adaptive_penalty.method import AdaptivePenalty
from .base import Accepts, Draw, Info, Method
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
from .registry import available, by_name
from .smoothed_lagrangian import SmoothedLagrangian
from .stochastic_frank_wolfe import StochasticFrankWolfe
from .stochastic_sqp import StochasticSQP
from .switching_subgradient import SwitchingSubgradient
from .truncated_momentum import TruncatedMomentum
from .two_phase_momentum import TwoPhaseMomentum

__all__ = [
    "Accepts",
    "AdaptiveLagrangian",
    "AdaptivePenalty",
    "ConservativeFrankWolfe",
    "ConservativeSaddle",
    "ConstraintExtrapolation",
    "CooperativeApproximation",
    "Draw",
    "DriftPlusPenalty",
    "ExactPenalty",
    "GradientDescentAscent",
    "InexactALM",
    "Info",
    "LinearizedALM",
    "LinearizedPenalty",
    "MatrixFreePenalty",
    "Method",
    "MomentumALM",
    "ProximalPoint",
    "SmoothedLagrangian",
    "StochasticFrankWolfe",
    "StochasticSQP",
    "SwitchingSubgradient",
    "TruncatedMomentum",
    "TwoPhaseMomentum",
    "available",
    "by_name",
]
