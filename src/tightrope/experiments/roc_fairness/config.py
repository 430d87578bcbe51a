"""The numbers of the experiment and their reasons."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from ...methods import ConstraintExtrapolation, Method, ProximalPoint, SwitchingSubgradient

# ---------------------------------------------------------------------- from the paper (Section 6.1)

STEPS, THRESHOLDS, INNER = 5_000, 400, 100
STATIC = tuple(product((1e-6, 1e-5), (2e-4, 5e-4, 1e-3, 2e-3)))
"""(ε, η) of the static rule. The paper also tries ε = 2e-6 and 5e-6."""
DIMINISHING = tuple(product((5e-5, 5e-4), (0.02, 0.05, 0.1, 0.2)))
"""(E1, E2). The paper also tries E1 = 1e-4 and 2e-4."""
EXTRAPOLATION = tuple(product((20.0, 50.0, 100.0, 200.0), (2e-3, 2e-2)))
"""(c1, c2) of ConEx. The paper also tries c2 = 5e-3 and 1e-2."""
CONEX = tuple(ConstraintExtrapolation(step_size=1 / c1, dual_step_size=1 / c2) for c1, c2 in EXTRAPOLATION)
WEIGHT = 1.0
"""ρ̂ of both IPP methods, divided by max{ρ, 1}. The paper also tries 1.5 and 2; the smallest allows the longest steps."""

# ---------------------------------------------------------------------- ours

DATA = {"a9a": "a9a", "bank": "bank-additional", "COMPAS": "compas"}
EXAMPLES = 3_000
"""Examples of every data set, drawn with a fixed seed, instead of 48,842, 41,188 and 6,172: every step evaluates all of them,
and 108 runs of 5,000 steps have to fit in 8 minutes."""
MODULI = {"a9a": 6.9426634, "bank": 9.8970265, "COMPAS": 4.2730926}
"""ρ = β of (77) on these examples, stored so that settings are known before data are read; also used in the quick version."""
RECORDS = 500
"""A record every 10 steps; the paper plots every step, which would take five times as long as the runs. Records at the ends of
IPP's inner loops alone, every 100 steps, hide how far its iterates leave the constraint in between."""
NEAR_RECORDS = tuple(range(0, RECORDS + 1, 10))
"""Near-stationarity is computed at every tenth record, so at 51 points; the paper has 100. On bank a point takes seconds."""
NEAR_WEIGHT = 1.5
"""ρ̂ of the near-stationarity (4), divided by max{ρ, 1}; the paper only says ρ̂ > ρ."""
NEARLY = 0.1
"""A method is nearly feasible if its violation, averaged over the last tenth of the records, is at most NEARLY · κ."""
DECREASE = 0.95
"""Speed is measured by the iterations to this share of the decrease that all methods reach."""
TIMED_STEPS = 500
"""Steps of the runs that measure the time per step, with a setting from the middle of each grid (index `Size.timed`)."""

SSG_STATIC, SSG, IPP_SSG, IPP_CONEX = "SSG static", "SSG diminishing", "IPP-SSG", "IPP-ConEx"


class Size(NamedTuple):
    """The size of the runs: examples, thresholds, steps, records, those with near-stationarity, settings, what is timed."""

    data: tuple[str, ...]
    methods: tuple[str, ...]
    examples: int
    thresholds: int
    steps: int
    records: int
    near: tuple[int, ...]
    settings: int
    timed: int
    turns: int


FULL = Size(
    tuple(DATA), (SSG_STATIC, SSG, IPP_SSG, IPP_CONEX), EXAMPLES, THRESHOLDS, STEPS, RECORDS, NEAR_RECORDS, 8, 2, 7
)
QUICK = Size(("COMPAS",), (SSG, IPP_CONEX), 300, 50, 400, 40, (0, 10, 20, 30, 40), 2, 2, 2)
"""One data set, two methods, fewer examples, thresholds, steps and settings: most of the time is compilation."""

NOTES = {
    SSG_STATIC: "paper 4, Section 6.1: all η, the smallest and the largest ε",
    SSG: "paper 4, Section 6.1: all E2, the smallest and the largest E1",
    IPP_SSG: f"the static grid; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
    IPP_CONEX: f"paper 4, Section 6.1: all c1, the smallest and the largest c2; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
}


def grids(modulus: float) -> dict[str, tuple[Method, ...]]:
    """The settings of each method for a modulus ρ of R, eight each."""
    weight = WEIGHT * max(modulus, 1.0)

    def proximal(inner: Method) -> Method:
        return ProximalPoint(inner, proximal_weight=weight, inner_steps=INNER, constraints="convex")

    static = tuple(SwitchingSubgradient(tolerance=e, step_size=s, rule="static") for e, s in STATIC)
    return {
        SSG_STATIC: static,
        SSG: tuple(SwitchingSubgradient(tolerance=e, step_size=s, rule="diminishing") for e, s in DIMINISHING),
        IPP_SSG: tuple(proximal(method) for method in static),
        IPP_CONEX: tuple(proximal(method) for method in CONEX),
    }
