"""Convergence rates of the methods of papers 1, 2 and 5, measured as slopes over the last decade of a run."""

from functools import partial

from ..base import Column, Entry, Experiment, Part
from . import config
from .claims import check_claims
from .measure import averages, outputs

ABOUT = """
The theorems of papers 1 and 2 have no figures; they state how fast squared residuals fall. Here each method runs on a problem
that meets the assumptions of its theorem and whose expectations are known in closed form: Ax = b with a rank-deficient A (1a),
stochastic nonlinear equalities (1b, 1c), deterministic equalities in a ball and in a box (1d, 2a, 2b), and c(x) = x₁³, where
the error bound has the exponent θ = 5/3 (2a). Paper 5's methods run on least squares under a sampled budget.

Papers 1 and 2: every record has the running means, over all steps so far, of the squared distance to stationarity and of the
squared violation, and the current squared violation. The slope is that of a least-squares line through the logarithms over the
last decade of steps. Paper 5: the gap F(x̄) − F* and H(x̄) of the method's output, for five horizons over a decade. A slope may
exceed the rate by 0.05.

Constants are ours; nothing is tuned: defaults, or constants for which the last decade is in the asymptotic regime of the
theorem (config.py has the reasons). Seconds are those of all seeds together, spread evenly over the steps.

The quick version has one method of paper 1 and one of paper 2, fewer seeds and fewer steps: its slopes can fail, but they are
not asymptotic.
"""

COLUMNS = (
    Column("mean_stationarity", "stationarity², mean so far", log=True),
    Column("mean_violation", "‖c‖², mean so far", log=True),
    Column("last_violation", "‖c‖²", log=True),
    Column("gap", "gap F(x̄) − F*", log=True),
    Column("output_violation", "H(x̄)"),
)


def parts(quick: bool) -> list[Part]:
    """One part per paper, with its own measurements."""
    steps = config.QUICK_STEPS if quick else config.STEPS
    papers = {
        "paper 1": (config.AVERAGES, averages, config.SEEDS),
        "paper 2": (config.WORST_SEED, averages, config.SEEDS),
        "paper 5": (config.CONSERVATIVE, outputs, config.OUTPUT_SEEDS),
    }
    found = []
    for name in config.QUICK if quick else papers:
        rates, measure, seeds = papers[name]
        seeds = config.QUICK_SEEDS if quick else seeds
        labels = [config.QUICK[name]] if quick else list(rates)
        entries = tuple(Entry(label, (rates[label].method,)) for label in labels)
        found.append(Part(name, None, entries, steps=steps, seeds=seeds, measure=partial(measure, steps, seeds)))
    return found


experiment = Experiment(
    name="rates",
    title="Convergence rates",
    paper="papers 1, 2 and 5",
    about=ABOUT,
    parts=parts,
    claims=check_claims,
    columns=COLUMNS,
    log_samples=True,
)
