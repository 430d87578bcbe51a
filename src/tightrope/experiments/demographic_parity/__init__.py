"""A sparse classifier under demographic parity: switching subgradients against proximal-point methods (paper 4, Section C)."""

from ..base import Column, Experiment, Part
from ..roc_fairness.panels import COLUMNS, curves_and_times
from . import config
from .claims import check_claims
from .problem import make, metrics, near_stationarity

ABOUT = """
A sparse linear classifier x is trained while two groups get positive predictions about equally often: minimize the mean hinge
loss + 0.2 SCAD(x) subject to R0(x) ≤ κ, where R0 is the gap between the groups' positive rates, smoothed by a sigmoid, and κ is
0.005 (a9a) or 0.02 (bank, COMPAS). Objective and constraint are weakly convex. Every step evaluates all examples; nothing is
random, so there is one run per method. Steps of IPP methods are inner steps. Records are taken every 100 steps; the paper plots
every step.

As in the paper: 50,000 steps, λ, κ, 2:1 for loss and groups, 600 inner steps, ρ = max{2λ, β} with β of (77), and the values of
the grids. Reduced, for all methods alike: 3,000 examples of every data set, drawn with a fixed seed, and eight settings per
method (the paper has 16 for SSG and 48 for IPP): all step sizes with the smallest and the largest tolerance; ρ̂ = max{ρ, 1}.

Our extension: both IPP methods also with ρ̂ = 2. β of (77), 4 to 10 here, is an upper bound on the modulus of weak convexity;
a sharper one is 0.5 to 1.4. A smaller ρ̂ allows longer steps from one proximal problem to the next.

Chosen by us, where the paper is silent or for accuracy: the start, which has to be feasible, is x = 0; on COMPAS, where 0 is
stationary and no method would move, it is x_ERM, the start of roc-fairness, halved until it is feasible. SCAD's middle piece
is −x² + 4|x| − 1, since with the printed +1 it is discontinuous; the next center of IPP is the last inner iterate; settings
that end with a violation above 0.1 κ are not chosen. Near-stationarity ‖x̂ − x‖ has ρ̂ = ρ̃ = 1.5 max{ρ, 1} and is computed by
cutting planes in double precision at 31 points, spaced geometrically, where the paper takes the last of 2500 SSG steps at 600
points. Runs are in float32.

The time per step is measured separately, with settings from the middle of the grids: 500 steps of each method in turn, seven
times.
"""


def parts(quick: bool) -> list[Part]:
    """The curves on each data set, and the times per step."""
    size = config.QUICK if quick else config.FULL
    return curves_and_times(
        size,
        arguments=lambda label: (label, size.examples),
        grids=lambda label: config.grids(config.modulus(config.MODULI[label])),
        notes=config.NOTES,
        functions=(make, metrics, near_stationarity),
    )


experiment = Experiment(
    name="demographic-parity",
    title="Demographic parity",
    paper="paper 4, Figures 3 and 4",
    about=ABOUT,
    parts=parts,
    claims=check_claims,
    columns=(Column("objective", "L(x) + 0.2 SCAD(x)"), *COLUMNS),
)
