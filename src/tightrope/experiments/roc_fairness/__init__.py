"""The least unfairness at next to no cost in accuracy: switching subgradients against proximal-point methods."""

from functools import partial

from ..base import Column, Experiment, Part
from . import claims, config
from .panels import COLUMNS, panels
from .problem import make, metrics, near_stationarity

ABOUT = """
A linear classifier x is made as fair as possible while its hinge loss stays within 0.1% of the least: minimize R(x), the
largest gap over 400 thresholds between the shares of two groups that are called positive (smoothed by a sigmoid), subject to
L(x) ≤ L* + κ with κ = 0.001 L*, within a ball of radius 5 ‖x_ERM‖, from x_ERM. Groups: men and women (a9a), ages 25 to 60 or
not (bank), caucasian or not (COMPAS). Every step looks at all rows; nothing is random, so there is one run of each method. The
steps of IPP methods are their inner ones; records are taken where inner loops end.

As in the paper: 5,000 steps, 400 thresholds, 2:1 for loss and groups, 100 inner steps, ρ = β of (77), and the values of the
grids. Reduced, for all methods alike: 3,000 rows of every data set, drawn with a fixed seed, and eight settings for each method
(the paper has 16 for SSG and 48 for IPP): all step sizes with the least and the greatest tolerance; ρ̂ = max{ρ, 1}.

Chosen by us where the paper is silent or for accuracy: x_ERM and L* come from the linear program, exactly, where the paper
runs a subgradient method. The next center of IPP is the last inner iterate. Settings that end with a violation above 0.1 κ
are not chosen. Near-stationarity ‖x̂ − x‖ has ρ̂ = 1.5 max{ρ, 1} and is solved by cutting planes in double precision at 51
points, where the paper takes the last of 2500 SSG steps at 100 points. Runs are in float32.

The time of a step is measured apart, with settings from the middle of the grids: 500 steps of each method in turn, seven
times.
"""


def parts(quick: bool) -> list[Part]:
    """The curves on each data set, then the times of a step."""
    size = config.QUICK if quick else config.FULL
    found = []
    for label in size.data:
        numbers = config.DATA[label], size.rows, size.thresholds
        observed = partial(metrics, *numbers), partial(near_stationarity, *numbers)
        grids = config.grids(config.MODULI[label])
        found.append(panels(label, size, grids, config.NOTES, partial(make, *numbers), *observed))
    return [part for several in zip(*found, strict=True) for part in several]


experiment = Experiment(
    name="roc-fairness",
    title="Fairness at all thresholds",
    paper="paper 4, Figures 1 and 2",
    about=ABOUT,
    parts=parts,
    claims=claims.claims,
    columns=(Column("objective", "unfairness R(x)"), *COLUMNS),
)
