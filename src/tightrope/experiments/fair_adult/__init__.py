"""Fair classification on census data: paper 5, Figures 1 and 2."""

from functools import partial

from ..base import Column, Entry, Experiment, Part
from . import config
from .claims import claims
from .plot import figures
from .problem import make, metrics

ABOUT = """
Logistic loss on Adult (45,222 complete rows, 101 features without sex) such that the covariance of the score with sex
stays between −0.05 and 0.05: two constraints. 28,350 rows for training, 3,150 for validation, the rest for testing. CSOA
with η0 = 0.15, δ = 0.01 and v0 = 80 and others; G-OCO with α = 2.5 T, V = 0.5 √T. These are the paper's; nothing is
tuned, and the validation rows are not used.

The paper states neither T nor X. Its v = v0/√T is below c only for T > (v0/c)² = 2.56 million: below that no point meets
the tightened constraints, both multipliers grow and drive the covariance to 0; as they grow alike, v0 does not matter any
more. So there are two horizons: T = 28,350, one sample for each training row, where that happens, and T = 4,000,000,
where v = 0.04 leaves 0.01. X is the whole space: the theorem wants a bounded set, but the longest θ that was seen has length
3.6. The start is θ = 0; a step draws one row, its loss and its covariance together.

Objective, covariance and violation are those of the iterate, on all training rows; accuracy and p%-rule those of the
iterate on the test rows. A figure of its own has the violation of the average of the iterates so far (over the records),
which is what the theorem is about. Accuracy and p%-rule of the start are not drawn: θ = 0 decides nothing, and by θᵀx ≥ 0 all
are called positive.
"""

COLUMNS = (
    Column("loss", "objective: mean logistic loss"),
    Column("excess", "violation of the iterate"),
    Column("accuracy", "test accuracy (%)", start=False),
    Column("p-rule", "test p%-rule (%)", start=False),
)


def parts(quick: bool) -> list[Part]:
    """One for each horizon."""
    horizons, tightenings, rows, seeds = (
        (config.QUICK_HORIZONS, config.QUICK_TIGHTENINGS, config.QUICK_ROWS, config.QUICK_SEEDS)
        if quick
        else (config.HORIZONS, config.TIGHTENINGS, None, config.SEEDS)
    )
    entries = tuple(
        Entry(label, (method,), "the paper's constants; v0 other than 80 are ours")
        for label, method in config.methods(tightenings).items()
    )
    return [
        Part(
            f"T = {steps:,}",
            partial(make, rows),
            entries,
            steps=steps,
            seeds=seeds,
            records=config.QUICK_RECORDS if quick else config.RECORDS,
            metrics=partial(metrics, rows),
            score_text="nothing is tuned",
        )
        for steps in horizons
    ]


experiment = Experiment(
    name="fair-adult",
    title="Fair classification on census data",
    paper="paper 5, Figures 1 and 2",
    about=ABOUT,
    parts=parts,
    claims=claims,
    columns=COLUMNS,
    figures=figures,
)
