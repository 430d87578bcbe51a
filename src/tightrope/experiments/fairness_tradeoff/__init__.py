"""Fairness against accuracy on two Gaussian classes (paper 5, Appendix F, Figure 4)."""

from functools import partial

from ..base import Column, Entry, Experiment, Part
from . import config
from .claims import check_claims
from .measure import classifier_frame
from .plot import figures
from .problem import make

ABOUT = """
4000 points of two Gaussian classes; a sensitive attribute s with p(s = 1) = p(x̂|1) / (p(x̂|1) + p(x̂|−1)), x̂ = x rotated by
φ: for smaller φ it is more correlated with the label. Logistic regression with the covariance of score and s between −c and c,
solved by CSOA for several c.

Not stated in the paper: T, η0, δ, v0, X and c. Here T = 200,000, η0 = 0.15 and δ = 0.01 as in the paper for Adult, v0 = 1 so
that v = 0.002 is a small part of the smallest c, X is the whole space, and c ranges from 0.05 to 0.8, with one classifier
without a bound, whose covariance is about 1.2. Every step draws one point; the start is θ = 0. The classifiers have an
intercept. Nothing is tuned.

The classifiers for all c and both φ are solved together as one separable problem, which is the same as separate runs on the
same samples. Accuracy, p%-rule and covariance are on all 4000 points. Seconds are those of all classifiers together. Accuracy
and p%-rule of the start are not plotted, since it predicts the same for everyone.
"""

COLUMNS = (
    Column("loss", "objective: mean logistic loss"),
    Column("excess", "violation of the iterate"),
    Column("accuracy", "accuracy (%)", start=False),
    Column("p-rule", "p%-rule (%)", start=False),
)


def parts(quick: bool) -> list[Part]:
    """One part per angle."""
    sizes = config.QUICK if quick else config.FULL
    count, steps, seeds, records = sizes
    entries = tuple(Entry(config.label(bound), (config.METHOD,), "ours") for bound in config.BOUNDS)
    return [
        Part(
            name,
            partial(make, count),
            entries,
            steps=steps,
            seeds=seeds,
            records=records,
            measure=partial(classifier_frame, place, sizes),
        )
        for place, name in enumerate(config.ANGLES)
    ]


experiment = Experiment(
    name="fairness-tradeoff",
    title="Fairness against accuracy on two Gaussian classes",
    paper="paper 5, Appendix F, Figure 4",
    about=ABOUT,
    parts=parts,
    claims=check_claims,
    columns=COLUMNS,
    figures=figures,
)
