"""The numbers of the experiment and their reasons; the others are those of `roc_fairness`."""

from __future__ import annotations

from itertools import product

from ...methods import Method, ProximalPoint, SwitchingSubgradient
from ..roc_fairness.config import CONEX, DATA, EXAMPLES, IPP_CONEX, IPP_SSG, MODULI, NEAR_WEIGHT, WEIGHT, Size

__all__ = ["DATA", "IPP_CONEX", "IPP_SSG", "MODULI", "NEAR_WEIGHT"]

# ---------------------------------------------------------------------- from the paper (Section 6.2)

PENALTY = 0.2
"""λ, the weight of SCAD."""
SLACK = {"a9a": 0.005, "bank": 0.02, "COMPAS": 0.02}
"""κ."""
INNER = 600
STEP_SIZES = tuple(product((1e-6, 1e-5), (1e-4, 2e-4, 5e-4, 7.5e-4)))
"""(ε, η) of the switching rule and of IPP-SSG's static rule. The paper also tries ε = 2e-6 and 5e-6."""

# ---------------------------------------------------------------------- ours

FROM_ERM = ("COMPAS",)
"""Data sets on which runs start at x_ERM, halved until it is feasible, instead of 0. On COMPAS 0 is stationary, since
|mean of b a_j| ≤ 0.30 for every feature (0.29 with all examples), below SCAD's slope 2λ = 0.4: no method would move."""
STEPS = 15_000
"""Instead of 50,000, so that 81 runs fit in 8 minutes: 25 proximal problems for IPP."""
RECORDS = 25
"""A record every 600 steps, at the ends of IPP's inner loops. Near-stationarity is computed at each; the paper has 600."""
DECREASE = 0.95
"""Speed is measured by the iterations to this share of the decrease that all methods reach."""
LITTLE = 2.0
"""A little faster: at most this many times as fast."""

SSG = "SSG switching step"
NOTES = {
    SSG: "paper 4, Section 6.2: all η, the smallest and the largest ε",
    IPP_SSG: f"the same with the static rule; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
    IPP_CONEX: f"paper 4, Section 6.2: all c1, the smallest and the largest c2; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
}


FULL = Size(tuple(DATA), (SSG, IPP_SSG, IPP_CONEX), EXAMPLES, 1, STEPS, RECORDS, 8, 5, 7)
QUICK = Size(("COMPAS",), (SSG, IPP_CONEX), 300, 1, 1200, 2, 2, 5, 2)
"""One data set, two methods, fewer examples, steps and settings: most of the time is compilation."""


def modulus(beta: float) -> float:
    """ρ = max{2λ, β}."""
    return max(2.0 * PENALTY, beta)


def grids(modulus: float) -> dict[str, tuple[Method, ...]]:
    """The settings of each method for this modulus ρ, eight each."""
    weight = WEIGHT * max(modulus, 1.0)

    def switching(rule: str) -> tuple[Method, ...]:
        return tuple(SwitchingSubgradient(tolerance=e, step_size=s, rule=rule) for e, s in STEP_SIZES)

    def proximal(inner: Method) -> Method:
        return ProximalPoint(inner, proximal_weight=weight, inner_steps=INNER, constraints="weakly_convex")

    return {
        SSG: switching("switching"),
        IPP_SSG: tuple(proximal(method) for method in switching("static")),
        IPP_CONEX: tuple(proximal(method) for method in CONEX),
    }
