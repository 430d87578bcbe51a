"""Pictures: the curves of runs, and the data of the demonstration with its decision boundaries.

Figures are made without pyplot, so nothing is shown and no state is shared between threads; `figure.savefig(path)` writes a
file. Colours are those of Okabe and Ito, which people with any kind of colour vision tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from .result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .demo import Demo

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
"""Past the last colour the next line style comes, so that 28 curves differ."""
COLUMNS = ("objective", "violation", "stationarity")
LABELS = {
    "objective": "objective",
    "violation": "largest violation",
    "stationarity": "stationarity",
}
FONT = 10


def history(results: Result | Mapping[str, Result], axes: Sequence[Axes] | None = None) -> Figure:
    """Draw objective, violation and stationarity against the steps, for one run or several.

    Violation and stationarity are on a logarithmic axis whose lowest tick is 0: a feasible iterate is drawn there. Values that
    are not finite are left out, and a run that diverged says so in the legend.

    Args:
        results: a `Result`, or {label: Result}.
        axes: where to draw, at most three, for objective, violation and stationarity in this order; None: a new figure.

    Returns:
        The figure; save it with `figure.savefig("history.png")`.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> from tightrope import plots
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> figure = plots.history(tr.solve(problem, jnp.zeros(2), steps=100))
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['objective', 'largest violation', 'stationarity']
    """
    several = {"": results} if isinstance(results, Result) else dict(results)
    if not several:
        raise ValueError("history: results is empty; expected a Result or {label: Result}")
    axes = _stacked(len(COLUMNS)) if axes is None else list(axes)
    for column, ax in zip(COLUMNS, axes, strict=False):
        _draw_column(ax, several, column)
    axes[-1].set_xlabel("steps", fontsize=FONT)
    if any(several):
        axes[0].legend(fontsize=FONT - 1, frameon=False)
    return _figure_of(axes[0])
