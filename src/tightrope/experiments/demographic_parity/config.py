"""The numbers of the experiment and their reasons; the others are those of `roc_fairness`."""

from __future__ import annotations

from itertools import product

from ...methods import Method, ProximalPoint, SwitchingSubgradient
from ..roc_fairness.config import CONEX, DATA, DECREASE, EXAMPLES, IPP_CONEX, IPP_SSG, MODULI, NEAR_WEIGHT, WEIGHT, Size

__all__ = ["DATA", "DECREASE", "IPP_CONEX", "IPP_SSG", "MODULI", "NEAR_WEIGHT"]

# ---------------------------------------------------------------------- from the paper (Section 6.2)

PENALTY = 0.2
"""λ, the weight of SCAD."""
SLACK = {"a9a": 0.005, "bank": 0.02, "COMPAS": 0.02}
"""κ."""
INNER = 600
STEPS = 50_000
STEP_SIZES = tuple(product((1e-6, 1e-5), (1e-4, 2e-4, 5e-4, 7.5e-4)))
"""(ε, η) of the switching rule and of IPP-SSG's static rule. The paper also tries ε = 2e-6 and 5e-6."""

# ---------------------------------------------------------------------- ours

FROM_ERM = ("COMPAS",)
"""Data sets on which runs start at x_ERM, halved until it is feasible, instead of 0. On COMPAS 0 is stationary, since
|mean of b a_j| ≤ 0.30 for every feature (0.29 with all examples), below SCAD's slope 2λ = 0.4: no method would move."""
RECORDS = 500
"""A record every 100 steps; the paper plots every step."""
NEAR_POINTS = 30
NEAR_RECORDS = (0, *(round(2 * (RECORDS / 2) ** (i / (NEAR_POINTS - 1))) for i in range(NEAR_POINTS)))
"""Near-stationarity is computed at the start and at these records, spaced geometrically from step 200 to the last, since
methods are compared by the iterations that they need; the paper has 600 points. On bank a point takes seconds."""
SMALL_WEIGHT = 2.0
"""A smaller ρ̂ than max{ρ, 1}, for a second entry of each IPP method: β of (77) is 4 to 10, but a sharper
bound on the curvature of R0 is 0.5 to 1.4, so that the proximal problems are still strongly convex."""
LITTLE = 2.0
"""A little faster: at most this many times as fast."""

SSG = "SSG switching step"
SMALL_IPP_SSG, SMALL_IPP_CONEX = (f"{label}, ρ̂ = {SMALL_WEIGHT:g}" for label in (IPP_SSG, IPP_CONEX))
NOTES = {
    SSG: "paper 4, Section 6.2: all η, the smallest and the largest ε",
    IPP_SSG: f"the same with the static rule; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
    IPP_CONEX: f"paper 4, Section 6.2: all c1, the smallest and the largest c2; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
    SMALL_IPP_SSG: f"ours: as IPP-SSG, with ρ̂ = {SMALL_WEIGHT:g}",
    SMALL_IPP_CONEX: f"ours: as IPP-ConEx, with ρ̂ = {SMALL_WEIGHT:g}",
}


METHODS = (SSG, IPP_SSG, IPP_CONEX, SMALL_IPP_SSG, SMALL_IPP_CONEX)
FULL = Size(tuple(DATA), METHODS, EXAMPLES, 1, STEPS, RECORDS, NEAR_RECORDS, 8, 5, 7)
QUICK = Size(("COMPAS",), (SSG, IPP_CONEX), 300, 1, 1200, 12, (0, 6, 12), 2, 5, 2)
"""One data set, two methods, fewer examples, steps and settings: most of the time is compilation."""


def modulus(beta: float) -> float:
    """ρ = max{2λ, β}."""
    return max(2.0 * PENALTY, beta)


def grids(modulus: float) -> dict[str, tuple[Method, ...]]:
    """The settings of each method for this modulus ρ, eight each."""
    weight = WEIGHT * max(modulus, 1.0)

    def switching(rule: str) -> tuple[Method, ...]:
        return tuple(SwitchingSubgradient(tolerance=e, step_size=s, rule=rule) for e, s in STEP_SIZES)

    def proximal(inner: tuple[Method, ...], weight: float) -> tuple[Method, ...]:
        return tuple(ProximalPoint(method, weight, INNER, constraints="weakly_convex") for method in inner)

    return {
        SSG: switching("switching"),
        IPP_SSG: proximal(switching("static"), weight),
        IPP_CONEX: proximal(CONEX, weight),
        SMALL_IPP_SSG: proximal(switching("static"), SMALL_WEIGHT),
        SMALL_IPP_CONEX: proximal(CONEX, SMALL_WEIGHT),
    }
