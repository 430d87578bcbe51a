"""A sparse classifier under demographic parity: switching subgradients against proximal-point methods."""

from functools import partial

from ..base import Column, Experiment, Part
from ..roc_fairness.panels import COLUMNS, panels
from . import claims, config
from .problem import make, metrics, near_stationarity

ABOUT = """
A linear classifier x with few features is learned while two groups are called positive about equally often: minimize the mean
hinge loss + 0.2 SCAD(x) subject to R0(x) ≤ κ, where R0 is the gap between the groups' shares, smoothed by a sigmoid, and κ is
0.005 (a9a) or 0.02 (bank, COMPAS). Both objective and constraint are weakly convex. Every step looks at all rows; nothing is
random, so there is one run of each method. The steps of IPP methods are their inner ones; records are taken where inner loops
end.

As in the paper: λ, κ, 2:1 for loss and groups, 600 inner steps, ρ = max{2λ, β} with β of (77), and the values of the grids.
Reduced, for all methods alike: 15,000 steps in place of 50,000, 3,000 rows of every data set, drawn with a fixed seed, and
eight settings for each method (the paper has 16 for SSG and 48 for IPP): all step sizes with the least and the greatest
tolerance; ρ̂ = max{ρ, 1}.

Chosen by us where the paper is silent or for accuracy: the start, which has to be feasible, is x = 0; on COMPAS, where 0 is
stationary and no method would move, it is x_ERM, the start of roc-fairness, halved until it is feasible. SCAD's middle piece
is −x² + 4|x| − 1, since with the +1 of print it jumps; the next center of IPP is the last inner iterate; settings that end
with a violation above 0.1 κ are not chosen. Near-stationarity ‖x̂ − x‖ has ρ̂ = ρ̃ = 1.5 max{ρ, 1} and is solved by cutting
planes in double precision at 26 points, where the paper takes the last of 2500 SSG steps at 600 points. Runs are in float32.

The time of a step is measured apart, with settings from the middle of the grids: 500 steps of each method in turn, seven
times.
"""


def parts(quick: bool) -> list[Part]:
    """The curves on each data set, then the times of a step."""
    size = config.QUICK if quick else config.FULL
    found = []
    for label in size.data:
        numbers = label, size.rows
        observed = partial(metrics, *numbers), partial(near_stationarity, *numbers)
        grids = config.grids(config.modulus(config.MODULI[label]))
        found.append(panels(label, size, grids, config.NOTES, partial(make, *numbers), *observed))
    return [part for several in zip(*found, strict=True) for part in several]


experiment = Experiment(
    name="demographic-parity",
    title="Demographic parity",
    paper="paper 4, Figures 3 and 4",
    about=ABOUT,
    parts=parts,
    claims=claims.claims,
    columns=(Column("objective", "L(x) + 0.2 SCAD(x)"), *COLUMNS),
)
