"""The numbers of the experiment and their reasons."""

from __future__ import annotations

from itertools import product

from ...methods import ConservativeFrankWolfe, Method, StochasticFrankWolfe

# ---------------------------------------------------------------------- from the paper (Section IV-B)

ROWS, COLUMNS, RANK = 200, 300, 10
ZEROS_LEFT, ZEROS_RIGHT = 0.7, 0.5
"""The probability that an entry of a factor is zero."""
OBSERVED_ZEROS, OBSERVED_OTHERS = 0.01, 0.9
"""The shares of the zeros and of the other entries that are observed."""
NOISE = 1e-3
"""γ."""
STEPS, BATCH = 3000, 200
STEP_SIZE, MOMENTUM, REGULARIZATION, TIGHTENING = 0.68, 1.25, 0.25, 0.77
"""η0, ρ0, δ and v0 of FW-CSOA; v = v0/√T, as in the paper's experiment."""
WEIGHT = 5e-6
"""τ of SCGD."""

# ---------------------------------------------------------------------- ours, as the paper does not say

DATA_SEED = 0
"""The matrix and its observed entries are the same for every run."""
BATCHES = (50, BATCH, 800)
"""b; the paper has 200 only."""
SEEDS, RECORDS = 3, 60
QUICK = {"shape": (20, 30, 2), "batches": (20,), "steps": 200, "seeds": 2}
"""The quick version: a smaller matrix of smaller rank, one b, fewer steps and seeds."""

NEAR_ZERO, MUCH = 0.01, 0.5
"""An average violation is almost zero if it is at most this share of β; an error is much smaller if it is at most half."""
STEP_SIZES, MOMENTA = (0.125, 0.25, 0.5), (0.25, 0.5, 1.0)
"""η0 and ρ0 that are tried for the tuned FW-CSOA: nine settings around the best of a first search for b = 200."""
WEIGHTS = tuple(10.0 ** (i / 2 - 4) for i in range(9))
"""τ that are tried for the tuned SCGD, divided by 5e-6 on the sum; the smallest has almost no effect."""

CONSERVATIVE, BY_ENTRY, BY_MEAN = "FW-CSOA", "SCGD, τ on the sum", "SCGD, τ on the mean"
TUNED_CONSERVATIVE, TUNED_PENALTY = "FW-CSOA, tuned", "SCGD, tuned"


def methods(unobserved: int) -> dict[str, Method]:
    """The methods with the paper's settings, by label.

    Objective and constraint are means over entries here, which a batch of entries estimates. τ = 5e-6 makes sense in these
    units if it weights the SUM of ½X² over the unobserved entries, that is, the mean by τ times their number; as a weight of
    the mean itself it has almost no effect. Both are run.
    """
    return {
        CONSERVATIVE: conservative(STEP_SIZE, MOMENTUM),
        BY_ENTRY: StochasticFrankWolfe(WEIGHT * unobserved),
        BY_MEAN: StochasticFrankWolfe(WEIGHT),
    }


def conservative(step_size: float, momentum: float) -> Method:
    """FW-CSOA with these η0 and ρ0 and the paper's δ and v0."""
    return ConservativeFrankWolfe(step_size, momentum, TIGHTENING, REGULARIZATION, tightening_rate="experiment")


def grids(unobserved: int) -> dict[str, tuple[Method, ...]]:
    """The settings tried for the tuned methods, nine each."""
    return {
        TUNED_CONSERVATIVE: tuple(conservative(*numbers) for numbers in product(STEP_SIZES, MOMENTA)),
        TUNED_PENALTY: tuple(StochasticFrankWolfe(WEIGHT * unobserved * factor) for factor in WEIGHTS),
    }
