"""The figure of the violation of the average iterate, which the curves of single iterates do not show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...figures import COLORS, FONT
from .claims import average_violation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(runs: dict[str, pd.DataFrame]) -> dict[str, Figure]:
    """The violation of the average of the iterates so far, one panel per horizon."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0 * len(runs), 3.6), layout="constrained")
    for axes, (name, frame) in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs.items(), strict=True):
        for (entry, some), color in zip(frame.groupby("entry", sort=False), COLORS, strict=False):
            curves = np.stack([average_violation(run) for _, run in some.groupby("seed")])
            steps, mean, spread = some["step"].unique(), curves.mean(axis=0), curves.std(axis=0)
            axes.plot(steps, mean, color=color, label=str(entry))
            axes.fill_between(steps, np.maximum(mean - spread, 0.0), mean + spread, color=color, alpha=0.2, lw=0)
        axes.set_title(name, fontsize=FONT)
        axes.set_xlabel("steps (samples drawn)")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("violation of the average iterate")
        axes.set_ylim(bottom=0.0)
        axes.locator_params(axis="x", nbins=4)
    figure.axes[0].legend(fontsize=FONT - 1, frameon=False)
    return {"violation of the average": figure}
