"""The numbers of the experiment, on both of its data sets, and why."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from ...methods import ExactPenalty, InexactALM, LinearizedPenalty, Method, TwoPhaseMomentum

# ---------------------------------------------------------------------- from the paper (Section 6)

EQUATIONS, DRAWS = 10, 1000
SAMPLES, SEEDS = 20_000, 5
PAPER = {"penalty": 1.0, "growth": 1.2, "steering": 0.8, "decrease": 0.8, "step_size": 1e-3}
"""ρ0, β, α, ζ and γ of Algorithm 2.1, the same on both data sets."""

# ---------------------------------------------------------------------- ours, as the paper does not say

DATA_SEED = 0
"""A0, a0, the draws of (A, a) and the start are the same for every run: the runs of a curve differ in their samples."""
BATCH = 1
"""One row a draw, for every method: their papers analyze that, and γ = 0.001 leads nowhere in 20,000 samples with more: it
takes 1000 steps to move x by the length of a gradient, and x has to get from 0.01 to 1."""
RECORDS, FEW_RECORDS = 50, 10
"""Along a run, and along those of the sensitivity. Means over the last tenth of a run are compared: iterates are noisy."""

PERIODS, RESTARTS, LOOP = (10, 20, 50), (1, 2, 4), 5
"""ExactPenalty: τ; rows of a restart's samples in multiples of τ; periods of an inner loop, as the library's defaults."""

# What the library estimates at the start on bank-full, rounded; written down so that both data sets have the same numbers.
SMOOTHNESS, PENALTY_SMOOTHNESS, JACOBIAN_SMOOTHNESS = 3.0, 1.5e4, 2.0
"""L_f, L_c and L_J: Lipschitz constants of ∇F, of the gradient of ½‖c‖² and of the Jacobian."""
RADII = {"gradient_radius": 18.0, "value_radius": 3e3, "jacobian_radius": 3e3}
DUAL_STEP, DUAL_BOUND, FEASIBILITY_STEP = 1.7e-3, 0.07, 3.4e-5
"""γ of the sign steps, the bound on Stoc-iALM's multiplier steps, and the step of TStoM's first phase."""

PENALTIES = (2e-3, 2e-2, 2e-1)
"""The others' first penalty ρ, from the library's estimate up; with a tenth of it, tried first, they do not get near c = 0."""
STEPS = (0.3, 1.0, 3.0)
"""Their first step in multiples of 1/(L_f + ρ L_c); the largest is about as long as is stable at the first steps."""
STEADY = (1.0, 3.0, 10.0)
"""The same for TStoM, whose steps are constant and smaller at first, so that longer ones are stable."""

FACTORS = (0.5, 1.0, 2.0)
"""Sensitivity: step size and first penalty of every method times each of these: nine settings around the chosen one."""


def exact_penalty(period: int, restart: int) -> Method:
    """ExactPenalty with the paper's numbers, in the fully stochastic setting: all rows are more than the budget."""
    return ExactPenalty(
        **PAPER,
        **RADII,
        smoothness=SMOOTHNESS,
        jacobian_smoothness=JACOBIAN_SMOOTHNESS,
        setting="stochastic",
        inner_steps=LOOP * period,
        period=period,
        restart_batch=restart * period,
    )


def linearized_penalty(penalty: float, step: float) -> Method:
    """LinearizedPenalty with multipliers, the momentum in the theory's ratio to the step."""
    step_size = step / _curvature(penalty)
    return LinearizedPenalty(step_size, penalty, momentum=72.0 * step**2, dual_step_size=DUAL_STEP, dual=True)


def two_phase(penalty: float, step: float) -> Method:
    """TwoPhaseMomentum: constant steps, for step = 1 with the sum of `linearized_penalty`'s: Σ k^{-3/5} = 2.5 K^{2/5}."""
    longer = 2.5 / 0.9 * step
    return TwoPhaseMomentum(
        longer / _curvature(penalty),
        penalty,
        momentum=72.0 * longer**2,
        dual_step_size=DUAL_STEP,
        feasibility_step_size=FEASIBILITY_STEP,
    )


def inexact_alm(penalty: float, step: float) -> Method:
    """InexactALM, whose first step is 1/(8L): L such that it is step/(L_f + ρ L_c)."""
    scale = 1.0 / (8.0 * step)
    return InexactALM(
        penalty,
        dual_bound=DUAL_BOUND,
        smoothness=scale * SMOOTHNESS,
        penalty_smoothness=scale * PENALTY_SMOOTHNESS,
    )


def _curvature(penalty: float) -> float:
    return SMOOTHNESS + penalty * PENALTY_SMOOTHNESS


EXACT, TWO_PHASE, ALM, PENALTY = (
    "ExactPenalty (3a)",
    "TwoPhaseMomentum",
    "InexactALM",
    "LinearizedPenalty (1c)",
)
GRIDS: dict[str, tuple[Method, ...]] = {
    EXACT: tuple(exact_penalty(*numbers) for numbers in product(PERIODS, RESTARTS)),
    TWO_PHASE: tuple(two_phase(*numbers) for numbers in product(PENALTIES, STEADY)),
    ALM: tuple(inexact_alm(*numbers) for numbers in product(PENALTIES, STEPS)),
    PENALTY: tuple(linearized_penalty(*numbers) for numbers in product(PENALTIES, STEPS)),
}
"""What is tried on bank-full, nine settings each. ExactPenalty: only what the paper does not state."""

CHOSEN: dict[str, Method] = {
    EXACT: exact_penalty(50, 1),
    TWO_PHASE: two_phase(2e-2, 10.0),
    ALM: inexact_alm(2e-3, 0.3),
    PENALTY: linearized_penalty(2e-2, 3.0),
}
"""What came out best there; the loan data get these numbers, and sensitivity is measured around them."""

QUICK_SAMPLES, QUICK_ROWS, QUICK_FACTORS, QUICK = 1_000, 1_000, [(0.5, 0.5), (1.0, 1.0)], (EXACT, TWO_PHASE)
"""The quick version: a tenth of the samples, the first rows, one seed, the chosen setting and another, and two methods, run
alone: most of its time is compilation, which is shorter then."""


def adjusted(method: Method, step: float, penalty: float) -> Method:
    """The method with its step sizes and its first penalty multiplied by these."""
    if isinstance(method, InexactALM):
        numbers = {name: getattr(method, name) / step for name in ("smoothness", "penalty_smoothness")}
    else:
        numbers = {"step_size": method.step_size * step}  # pyright: ignore[reportAttributeAccessIssue]
    return replace(method, penalty=method.penalty * penalty, **numbers)  # pyright: ignore
