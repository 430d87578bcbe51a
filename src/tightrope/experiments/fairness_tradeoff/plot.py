"""The decision boundaries, and accuracy and p%-rule against covariance: Figures 4c to 4e."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...figures import COLORS, FONT, LINES
from . import config
from .claims import FREE, late
from .problem import for_angle, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN, REACH = 400, 10.0
"""Number of points plotted, and the limit of the axes."""
LINE_COLORS = ("#0072B2", "#D55E00", "#56B4E9", "#E69F00", "#7F7F7F")
"""Colors not used for points."""


def draw_boundaries(axes: Axes, name: str, frame: pd.DataFrame) -> None:
    """Plot the points of an angle and the boundary of every classifier."""
    data, means = for_angle(points(SHOWN), list(config.ANGLES).index(name)), late(frame)
    for positive, color in ((True, "#009E73"), (False, "#CC79A7")):
        for first, marker in ((True, "o"), (False, "x")):
            chosen = ((data["y"] > 0) == positive) & ((data["group"] > 0) == first)
            label = f"y = {'+' if positive else '−'}1, s = {int(first)}"
            axes.scatter(*data["x"][chosen, :2].T, s=12, c=color, marker=marker, alpha=0.45, lw=0.8, label=label)
    across = np.array([-REACH, REACH])
    for number, (entry, row) in enumerate(means.iterrows()):
        free = entry == FREE
        line = -(row["theta 0"] * across + row["theta 2"]) / row["theta 1"]
        color, style = ("black", "-") if free else (LINE_COLORS[number % len(LINE_COLORS)], LINES[1 + number % 3])
        axes.plot(across, line, style, color=color, lw=2.0, label=str(entry))
    axes.set(title=name, xlabel="x₁", ylabel="x₂", xlim=(-REACH, REACH), ylim=(-REACH, REACH))


def figures(runs: dict[str, pd.DataFrame]) -> dict[str, Figure]:
    """A figure of the boundaries and one of the trade-off."""
    from matplotlib.figure import Figure

    plane = Figure(figsize=(5.0 * len(runs) + 2.0, 4.6), layout="constrained")
    places = plane.subplots(1, len(runs), squeeze=False)[0]
    for axes, (name, frame) in zip(places, runs.items(), strict=True):
        draw_boundaries(axes, name, frame)
    places[-1].legend(fontsize=FONT - 1, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    trade = Figure(figsize=(9.0, 3.6), layout="constrained")
    panels = trade.subplots(1, 2)
    for axes, column, label in zip(panels, ("p-rule", "accuracy"), ("p%-rule (%)", "accuracy (%)"), strict=True):
        for (name, frame), color, style in zip(runs.items(), COLORS, LINES, strict=False):
            means = late(frame)
            axes.plot(means["signed covariance"].abs(), means[column], style, color=color, marker="o", label=name)
        axes.set(xlabel="covariance reached", ylabel=label)
    panels[0].legend(fontsize=FONT, frameon=False)
    return {"boundaries": plane, "trade-off": trade}
