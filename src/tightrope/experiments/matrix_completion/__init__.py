"""Matrix completion without projections (paper 5, Figure 3)."""

from dataclasses import replace
from functools import partial

from ..base import Column, Entry, Experiment, Part
from . import config
from .claims import check_claims
from .measure import curves, scores
from .problem import instance, make

ABOUT = """
A 200 x 300 matrix X* of rank 10 with sparse factors; 90% of its nonzero entries and 1% of its zeros are observed with noise.
The squared error on the observed entries is minimized over X in the nuclear ball of radius ‖X*‖_* while ½ Σ X² over the
unobserved entries is at most that of X*. FW-CSOA with η0 = 0.68, ρ0 = 1.25, δ = 0.25, v0 = 0.77 (v = v0/√T) against SCGD with
γ_t = 2/(t+8), ρ_t = 4/(t+8)^(2/3), τ = 5e-6; T = 3000, from X = 0.

The paper tuned η0 and ρ0 for the smallest error and τ for the best performance, on data that differ from ours. So both methods
also have an entry with tuned constants: for each b, nine (η0, ρ0) and nine τ, each in one run on a seed that is not among the
final ones; chosen is the smallest error at the end with an average violation of at most 0.01.
For b = 50 the chosen η0 is the smallest of the three. SCGD's error hardly depends on τ below a tenth of the printed τ.

Not stated in the paper: how a batch is scaled and how the constraint is sampled. Here objective and constraint are means over
their entries, the bound is β divided by their number, and every step draws b observed and b unobserved entries, with
replacement; samples count both. SCGD's τ may weight the sum of ½X² over the unobserved entries or their mean: the first has the
size of the objective's gradient, the second has almost no effect; both are run. The paper has b = 200; we add 50 and 800.

Normalized error: Σ (X − M)² / Σ M² over the observed entries, where M is X* with noise. Violation: ½ Σ X² over the unobserved
entries minus β, divided by β, so that it is negative where the constraint holds; the average violation is the mean over all
iterates so far. The nuclear norm constraint holds by construction.
"""

COLUMNS = (
    Column("normalized error", "normalized error", log=True),
    Column("violation", "violation ½ΣX²/β − 1"),
    Column("average violation", "average violation"),
)


def parts(quick: bool) -> list[Part]:
    """One part per b."""
    full = ((config.ROWS, config.COLUMNS, config.RANK), config.BATCHES, config.STEPS, config.SEEDS)
    shape, batches, steps, seeds = config.QUICK.values() if quick else full
    hidden = int((~instance(*shape).observed).sum())
    printed = tuple(Entry(label, (method,), "the paper's") for label, method in config.methods(hidden).items())
    tuned = tuple(Entry(label, grid, "nine settings, ours") for label, grid in config.grids(hidden).items())
    if quick:
        printed, tuned = printed[:2], tuple(replace(entry, grid=entry.grid[3:5]) for entry in tuned)
    return [
        Part(
            f"b = {batch}",
            partial(make, batch, *shape),
            (*printed, *tuned),
            steps=steps,
            seeds=seeds,
            records=config.RECORDS,
            score_text="the smallest error at the end with an average violation of at most 0.01",
            measure=partial(curves, shape, batch, steps, seeds),
            scores=partial(scores, shape, batch, steps),
        )
        for batch in batches
    ]


experiment = Experiment(
    name="matrix-completion",
    title="Matrix completion without projections",
    paper="paper 5, Figure 3",
    about=ABOUT,
    parts=parts,
    claims=check_claims,
    columns=COLUMNS,
)
