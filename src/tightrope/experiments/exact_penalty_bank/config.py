"""The numbers of the experiment on both data sets, and their reasons."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from ...methods import ExactPenalty, InexactALM, LinearizedPenalty, Method, TwoPhaseMomentum

# ---------------------------------------------------------------------- from the paper (Section 6)

EQUATIONS, DRAWS = 10, 1000
BUDGET, SEEDS = 20_000, 5
PAPER: dict[str, Any] = {
    "penalty": 1.0,
    "penalty_growth": 1.2,
    "normal_fraction": 0.8,
    "decrease_fraction": 0.8,
    "step_size": 1e-3,
}
"""ρ0, β, α, ζ and γ of Algorithm 2.1, the same on both data sets."""

# ---------------------------------------------------------------------- ours, as the paper does not say

DATA_SEED = 0
"""A0, a0, the draws of (A, a) and the start are the same for every run; the runs of a curve differ in their samples."""
SAMPLES = 3 * BUDGET
"""A sample of the paper is taken to be one draw for each of gradient, values and Jacobian, which every method draws
independently of each other; the library counts these three."""
BATCH = 1
"""One example per batch, for every method: their papers analyze that, and with larger batches γ = 0.001 makes no progress
within the budget: it takes 1000 steps to move x by the length of a gradient, and ‖x‖ has to grow from 0.01 to 1."""
RECORDS, FEW_RECORDS = 50, 10
"""Records per run, and per run of the sensitivity. Means over the last tenth are compared, since iterates are noisy."""

PERIODS, RESTARTS, LOOP = (50, 125, 300), (0.5, 1.0, 2.0), 5
"""ExactPenalty: τ; the batch size of a restart divided by τ; periods per inner loop (the library's default)."""

# The library's estimates at the start on bank-full, rounded; stored so that both data sets have the same numbers.
SMOOTHNESS, PENALTY_SMOOTHNESS, JACOBIAN_SMOOTHNESS = 3.0, 1.5e4, 2.0
"""L_f, L_c and L_J: Lipschitz constants of ∇F, of the gradient of ½‖c‖² and of the Jacobian."""
RADII: dict[str, Any] = {"gradient_radius": 18.0, "value_radius": 3e3, "jacobian_radius": 3e3}
DUAL_STEP, MAX_DUAL_STEP = 1.7e-3, 0.07
"""γ of the sign steps, and the bound on Stoc-iALM's multiplier steps."""

# The others' initial penalties ρ, and their first step sizes times L_f + ρ L_c: factors of two around the best of wider
# searches on the tuning seed, up to step sizes that diverge.
TWO_PHASE_GRID = (0.06, 0.12, 0.24), (15.0, 30.0, 60.0)
ALM_GRID = (1e-3, 2e-3, 4e-3), (0.125, 0.25, 0.5)
PENALTY_GRID = (5e-3, 1e-2, 2e-2), (1.5, 3.0, 6.0)

FACTORS = (0.5, 1.0, 2.0)
"""Sensitivity: factors for step size and initial penalty of every method: nine settings around the chosen one."""


def exact_penalty(period: int, restart: float) -> Method:
    """ExactPenalty with the paper's numbers, in the fully stochastic setting: a full pass exceeds the budget."""
    return ExactPenalty(
        **PAPER,
        **RADII,
        smoothness=SMOOTHNESS,
        jacobian_smoothness=JACOBIAN_SMOOTHNESS,
        setting="stochastic",
        inner_steps=LOOP * period,
        restart_period=period,
        restart_batch_size=round(restart * period),
    )


def linearized_penalty(penalty: float, step: float) -> Method:
    """LinearizedPenalty with multipliers, and the theory's ratio of momentum to step size."""
    step_size = step / _curvature(penalty)
    momentum = 72.0 * step**2
    return LinearizedPenalty(step_size, penalty, momentum, dual_step_size=DUAL_STEP, dual_offset=0.0, dual=True)


def two_phase(penalty: float, step: float) -> Method:
    """TwoPhaseMomentum: constant steps, which for step = 1 have the sum of `linearized_penalty`'s: Σ k^{-3/5} = 2.5 K^{2/5}."""
    longer = 2.5 / 0.9 * step
    return TwoPhaseMomentum(
        longer / _curvature(penalty),
        penalty,
        momentum=72.0 * longer**2,
        dual_step_size=DUAL_STEP,
        dual_offset=0.0,
    )


def inexact_alm(penalty: float, step: float) -> Method:
    """InexactALM, whose first step size is 1/(8L), with L such that this is step/(L_f + ρ L_c)."""
    scale = 1.0 / (8.0 * step)
    return InexactALM(
        penalty,
        max_dual_step=MAX_DUAL_STEP,
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
    TWO_PHASE: tuple(two_phase(*numbers) for numbers in product(*TWO_PHASE_GRID)),
    ALM: tuple(inexact_alm(*numbers) for numbers in product(*ALM_GRID)),
    PENALTY: tuple(linearized_penalty(*numbers) for numbers in product(*PENALTY_GRID)),
}
"""The settings tried on bank-full, nine each. For ExactPenalty they vary only what the paper does not state."""

CHOSEN: dict[str, Method] = {
    EXACT: exact_penalty(125, 1.0),
    TWO_PHASE: two_phase(0.12, 30.0),
    ALM: inexact_alm(2e-3, 0.25),
    PENALTY: linearized_penalty(1e-2, 3.0),
}
"""The best settings there; sensitivity is measured around them."""

QUICK_SAMPLES, QUICK_EXAMPLES, QUICK_FACTORS, QUICK = 3_000, 1_000, [(0.5, 0.5), (1.0, 1.0)], (EXACT, TWO_PHASE)
"""The quick version: fewer samples and examples, one seed, two settings and two methods, in single runs: most of its time is
compilation, which is shorter without lanes."""


def adjusted(method: Method, step: float, penalty: float) -> Method:
    """The method with its step sizes and its initial penalty multiplied by these factors."""
    if isinstance(method, InexactALM):
        numbers = {name: getattr(method, name) / step for name in ("smoothness", "penalty_smoothness")}
    else:
        numbers = {"step_size": method.step_size * step}  # pyright: ignore[reportAttributeAccessIssue]
    return replace(method, penalty=method.penalty * penalty, **numbers)  # pyright: ignore
