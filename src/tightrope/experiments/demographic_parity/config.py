"""The numbers of the experiment, and why; those that are not here are those of `roc_fairness`."""

from __future__ import annotations

from itertools import product

from ...methods import ConstraintExtrapolation, Method, ProximalPoint, SwitchingSubgradient
from ..roc_fairness.config import DATA, EXTRAPOLATION, IPP_CONEX, IPP_SSG, MODULI, NEAR_WEIGHT, ROWS, WEIGHT, Size

__all__ = ["DATA", "IPP_CONEX", "IPP_SSG", "MODULI", "NEAR_WEIGHT"]

# ---------------------------------------------------------------------- from the paper (Section 6.2)

PENALTY = 0.2
"""λ, the weight of SCAD."""
SLACK = {"a9a": 0.005, "bank": 0.02, "COMPAS": 0.02}
"""κ."""
INNER = 600
STEP_SIZES = tuple(product((1e-6, 1e-5), (1e-4, 2e-4, 5e-4, 7.5e-4)))
"""(ε, η), of the switching rule and of IPP-SSG's static one. The paper also tries ε = 2e-6 and 5e-6."""

# ---------------------------------------------------------------------- ours

FROM_ERM = ("COMPAS",)
"""Data sets that start from x_ERM, halved until it is feasible, and not from 0: there 0 is stationary, since |mean of b a_j| is
0.30 or less for every feature (0.29 with all rows), below SCAD's slope 2λ = 0.4, and nothing could be compared."""
STEPS = 15_000
"""In place of 50,000, so that 81 runs fit in 8 minutes: 25 proximal problems for IPP."""
RECORDS = 25
"""Every 600 steps, where the inner loops of IPP end. Near-stationarity is taken at each of them; the paper has 600."""
DECREASE = 0.95
"""Speed: iterations until this share of the decrease that all methods reach."""
LITTLE = 2.0
"""A little faster: between 1 and so many times as fast."""

SSG = "SSG switching step"
NOTES = {
    SSG: "paper 4, Section 6.2: all η, the least and the greatest ε",
    IPP_SSG: f"the same with the static rule; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
    IPP_CONEX: f"paper 4, Section 6.2: all c1, the least and the greatest c2; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
}


FULL = Size(tuple(DATA), (SSG, IPP_SSG, IPP_CONEX), ROWS, 1, STEPS, RECORDS, 8, 5, 7)
QUICK = Size(("COMPAS",), (SSG, IPP_CONEX), 300, 1, 1200, 2, 2, 5, 2)
"""One data set, two methods, fewer rows, steps and settings: most of the time is compilation."""


def modulus(beta: float) -> float:
    """ρ = max{2λ, β}."""
    return max(2.0 * PENALTY, beta)


def grids(modulus: float) -> dict[str, tuple[Method, ...]]:
    """What is tried where ρ is this modulus, eight settings each."""
    weight = WEIGHT * max(modulus, 1.0)

    def switching(rule: str) -> tuple[Method, ...]:
        return tuple(SwitchingSubgradient(tolerance=e, step_size=s, rule=rule) for e, s in STEP_SIZES)

    def proximal(inner: Method) -> Method:
        return ProximalPoint(inner, weight=weight, inner_steps=INNER, constraints="weakly_convex")

    return {
        SSG: switching("switching"),
        IPP_SSG: tuple(proximal(method) for method in switching("static")),
        IPP_CONEX: tuple(
            proximal(ConstraintExtrapolation(step_size=1 / c1, dual_step_size=1 / c2)) for c1, c2 in EXTRAPOLATION
        ),
    }
