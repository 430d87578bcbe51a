"""The numbers of the experiment, and why."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from ...methods import ConstraintExtrapolation, Method, ProximalPoint, SwitchingSubgradient

# ---------------------------------------------------------------------- from the paper (Section 6.1)

STEPS, THRESHOLDS, INNER = 5_000, 400, 100
STATIC = tuple(product((1e-6, 1e-5), (2e-4, 5e-4, 1e-3, 2e-3)))
"""(ε, η) of the static rule. The paper also tries ε = 2e-6 and 5e-6; we have the ends alone."""
DIMINISHING = tuple(product((5e-5, 5e-4), (0.02, 0.05, 0.1, 0.2)))
"""(E1, E2). The paper also tries E1 = 1e-4 and 2e-4."""
EXTRAPOLATION = tuple(product((20.0, 50.0, 100.0, 200.0), (2e-3, 2e-2)))
"""(c1, c2) of ConEx. The paper also tries c2 = 5e-3 and 1e-2."""
WEIGHT = 1.0
"""ρ̂ of both IPP methods in multiples of max{ρ, 1}. The paper also tries 1.5 and 2; the least holds x back least."""

# ---------------------------------------------------------------------- ours

DATA = {"a9a": "a9a", "bank": "bank-additional", "COMPAS": "compas"}
ROWS = 3_000
"""Of every data set, drawn with a fixed seed, in place of 48,842, 41,188 and 6,172: a step looks at all rows, and 108 runs of
5,000 steps have to fit in 8 minutes."""
MODULI = {"a9a": 6.9426634, "bank": 9.8970265, "COMPAS": 4.2730926}
"""ρ = β of (77) on these rows, written down so that settings are known before data are read; also in the quick version."""
RECORDS = 50
"""Every 100 steps, where the inner loops of IPP end: in between, an inner loop has only begun anew, and records at other places
show that and not the method (a first run had 40 and was dropped for it). Near-stationarity is taken at each; the paper has
100."""
NEAR_WEIGHT = 1.5
"""ρ̂ of the near-stationarity (4) in multiples of max{ρ, 1}: the paper only says ρ̂ > ρ."""
NEARLY = 0.1
"""Nearly feasible: the violation is at most so many times κ, on average over the last tenth of the records."""
TIMED = 500
"""Time of a step: so many steps of each method in turn, with a setting from the middle of its grid (`timed`, from 0)."""

SSG_STATIC, SSG, IPP_SSG, IPP_CONEX = "SSG static", "SSG diminishing", "IPP-SSG", "IPP-ConEx"


class Size(NamedTuple):
    """How much is run."""

    data: tuple[str, ...]
    methods: tuple[str, ...]
    rows: int
    thresholds: int
    steps: int
    records: int
    settings: int
    timed: int
    turns: int


FULL = Size(tuple(DATA), (SSG_STATIC, SSG, IPP_SSG, IPP_CONEX), ROWS, THRESHOLDS, STEPS, RECORDS, 8, 2, 7)
QUICK = Size(("COMPAS",), (SSG, IPP_CONEX), 300, 50, 400, 4, 2, 2, 2)
"""One data set, two methods, fewer rows, thresholds, steps and settings: most of the time is compilation."""

NOTES = {
    SSG_STATIC: "paper 4, Section 6.1: all η, the least and the greatest ε",
    SSG: "paper 4, Section 6.1: all E2, the least and the greatest E1",
    IPP_SSG: f"the static grid; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
    IPP_CONEX: f"paper 4, Section 6.1: all c1, the least and the greatest c2; ρ̂ = max{{ρ, 1}}, {INNER} inner steps",
}


def grids(modulus: float) -> dict[str, tuple[Method, ...]]:
    """What is tried where R has this modulus ρ, eight settings each."""
    weight = WEIGHT * max(modulus, 1.0)

    def proximal(inner: Method) -> Method:
        return ProximalPoint(inner, weight=weight, inner_steps=INNER, constraints="convex")

    static = tuple(SwitchingSubgradient(tolerance=e, step_size=s, rule="static") for e, s in STATIC)
    return {
        SSG_STATIC: static,
        SSG: tuple(SwitchingSubgradient(tolerance=e, step_size=s, rule="diminishing") for e, s in DIMINISHING),
        IPP_SSG: tuple(proximal(method) for method in static),
        IPP_CONEX: tuple(
            proximal(ConstraintExtrapolation(step_size=1 / c1, dual_step_size=1 / c2)) for c1, c2 in EXTRAPOLATION
        ),
    }
