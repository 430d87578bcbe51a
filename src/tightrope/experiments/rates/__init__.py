"""How fast the methods of papers 1, 2 and 5 converge, measured as slopes over the last decade of a run."""

from functools import partial

from ..base import Column, Entry, Experiment, Part
from . import config
from .claims import claims
from .measure import averages, outputs

ABOUT = """
The theorems of papers 1 and 2 have no figures: they say how fast squared residuals fall. Here each method runs on a
problem that meets its theorem's assumptions and whose expectations are known in closed form: Ax = b with a
rank-deficient A (1a), stochastic nonlinear equalities (1b, 1c), deterministic equalities in a ball and in a box (1d,
2a, 2b), and c(x) = x₁³, where the error bound's exponent is θ = 5/3 (2a). Paper 5's methods run on least squares
under a sampled budget.

Papers 1 and 2: at every record the means over all steps so far of the squared distance to stationarity and of the
squared violation, and the squared violation there. The slope is that of a least-squares line through logarithms over
the last decade of steps. Paper 5: the gap F(x̄) − F* and H(x̄) of the method's output, runs with five horizons over a
decade. A slope may exceed the rate by 0.05.

Constants are ours, nothing is tuned: the defaults where nothing is said, and elsewhere such that the last decade is
late enough for the theorem to speak of it (config.py says why). Seconds are those of all seeds together, shared out
evenly over the steps.

The quick version has one method of paper 1 and one of paper 2, fewer seeds and fewer steps: its slopes can fail, but
they are not those of late steps.
"""

COLUMNS = (
    Column("mean_stationarity", "stationarity², mean so far", log=True),
    Column("mean_violation", "‖c‖², mean so far", log=True),
    Column("last_violation", "‖c‖²", log=True),
    Column("gap", "gap F(x̄) − F*", log=True),
    Column("output_violation", "H(x̄)"),
)


def parts(quick: bool) -> list[Part]:
    """One for each paper; entries measure themselves."""
    steps = config.QUICK_STEPS if quick else config.STEPS
    papers = {
        "paper 1": (config.AVERAGES, averages, config.SEEDS),
        "paper 2": (config.CERTAIN, averages, config.SEEDS),
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
    title="How fast the methods converge",
    paper="papers 1, 2 and 5",
    about=ABOUT,
    parts=parts,
    claims=claims,
    columns=COLUMNS,
    log_samples=True,
)
