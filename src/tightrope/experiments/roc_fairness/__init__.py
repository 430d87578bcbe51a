"""Fairness at all thresholds: switching subgradients against proximal-point methods (paper 4, Figures 1 and 2)."""

from ..base import Column, Experiment, Part
from . import config
from .claims import check_claims
from .panels import COLUMNS, curves_and_times
from .problem import make, metrics, near_stationarity

ABOUT = """
A linear classifier x is made as fair as possible while its hinge loss stays within 0.1% of its minimum: minimize R(x), the
largest gap over 400 thresholds between the positive rates of two groups (smoothed by a sigmoid), subject to L(x) ≤ L* + κ with
κ = 0.001 L*, in a ball of radius 5 ‖x_ERM‖, starting at x_ERM. Groups: men and women (a9a), ages 25 to 60 or not (bank),
caucasian or not (COMPAS). Every step evaluates all examples; nothing is random, so there is one run per method. Steps of IPP
methods are inner steps. Records are taken every 10 steps; the paper plots every step.

As in the paper: 5,000 steps, 400 thresholds, 2:1 for loss and groups, 100 inner steps, ρ = β of (77), and the values of the
grids. Reduced, for all methods alike: 3,000 examples of every data set, drawn with a fixed seed, and eight settings per method
(the paper has 16 for SSG and 48 for IPP): all step sizes with the smallest and the largest tolerance; ρ̂ = max{ρ, 1}.

Chosen by us, where the paper is silent or for accuracy: x_ERM and L* come from the linear program, exactly, where the paper
runs a subgradient method. The next center of IPP is the last inner iterate. Settings that end with a violation above 0.1 κ
are not chosen. Near-stationarity ‖x̂ − x‖ has ρ̂ = 1.5 max{ρ, 1} and is computed by cutting planes in double precision at 51
points, every 100 steps, where the paper takes the last of 2500 SSG steps at 100 points. Runs are in float32. On bank the
points of IPP-SSG and IPP-ConEx are 10 or 20 steps early in the later part of the run, the last at 4,890 and 4,980 steps.

The time per step is measured separately, with settings from the middle of the grids: 500 steps of each method in turn, seven
times.
"""


def parts(quick: bool) -> list[Part]:
    """The curves on each data set, and the times per step."""
    size = config.QUICK if quick else config.FULL
    return curves_and_times(
        size,
        arguments=lambda label: (config.DATA[label], size.examples, size.thresholds),
        grids=lambda label: config.grids(config.MODULI[label]),
        notes=config.NOTES,
        functions=(make, metrics, near_stationarity),
    )


experiment = Experiment(
    name="roc-fairness",
    title="Fairness at all thresholds",
    paper="paper 4, Figures 1 and 2",
    about=ABOUT,
    parts=parts,
    claims=check_claims,
    columns=(Column("objective", "unfairness R(x)"), *COLUMNS),
)
