"""Pictures: the curves of runs, and the data of the demonstration with its decision boundaries.

Figures are made without pyplot, so nothing is shown and no state is shared between threads; `figure.savefig(path)` writes a
file. Colours are those of Okabe and Ito, which people with any kind of colour vision tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Bool, Float

from .result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
"""Past the last colour the next line style comes, so that 28 curves differ."""
COLUMNS = ("objective", "violation", "stationarity")
LABELS = {"objective": "objective", "violation": "largest violation", "stationarity": "stationarity"}
FONT = 10
DECADES = 9
"""How far below its largest value a logarithmic axis reaches; what is smaller is drawn as 0."""


def history(results: Result | Mapping[str, Result], axes: Sequence[Axes] | None = None) -> Figure:
    """Draw objective, violation and stationarity against the steps, for one run or several.

    Curves are those of the iterate; a diamond at their end is the answer, as certified. Violation and stationarity are on a
    logarithmic axis; where there are zeros, as at feasible iterates, its lowest tick is 0. Values that are not finite are
    left out, and a run that diverged says so in the legend.

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
    from matplotlib.ticker import MaxNLocator

    several = {"iterate": results} if isinstance(results, Result) else dict(results)
    if not several:
        raise ValueError("history: results is empty; expected a Result or {label: Result}")
    axes = _stacked(len(COLUMNS)) if axes is None else list(axes)
    for column, ax in zip(COLUMNS, axes, strict=False):
        _draw_column(ax, several, column)
    axes[-1].set_xlabel("steps", fontsize=FONT)
    axes[-1].xaxis.set_major_locator(MaxNLocator(5))
    axes[-1].xaxis.set_major_formatter("{x:,.0f}")
    axes[0].plot([], [], color="black", linestyle="", marker="D", markersize=5, label="answer")
    axes[0].legend(fontsize=FONT - 1, frameon=False)
    return cast("Figure", axes[0].get_figure(root=True))


def boundary(
    axes: Axes,
    features: Float[np.ndarray, "rows 2"],
    in_b: Bool[np.ndarray, " rows"],
    accepted: Bool[np.ndarray, " rows"],
    lines: Mapping[str, Any],
) -> None:
    """Draw people of two groups by their two features, and the lines on which linear classifiers decide.

    Args:
        axes: where to draw.
        features: the two features, one row a person.
        in_b: whether a person belongs to group B: another colour.
        accepted: the recorded decision: a dot where accepted, a cross where not.
        lines: {label: weights}, one weight for each feature, then the constant; accepted is where the score is positive.

    Example:
        >>> import numpy as np
        >>> from matplotlib.figure import Figure
        >>> from tightrope import plots
        >>> axes = Figure().subplots()
        >>> plots.boundary(axes, np.eye(2), np.array([True, False]), np.array([True, True]), {"rule": [1.0, 2.0, 0.0]})
        >>> [text.get_text() for text in axes.get_legend().get_texts()][-1]
        'rule'
    """
    for group, colour, is_b in (("A", COLOURS[5], False), ("B", COLOURS[4], True)):
        for decision, marker, was_accepted in (("accepted", "o", True), ("rejected", "x", False)):
            rows = features[(in_b == is_b) & (accepted == was_accepted)]
            style = {"s": 16, "marker": marker, "color": colour, "linewidth": 1.0, "alpha": 0.75}
            axes.scatter(*rows.T, label=f"group {group}, {decision}", **style)
    low, high = _reach(features)
    for number, (label, weights) in enumerate(lines.items()):
        _draw_line(axes, np.asarray(weights, float), low, high, label=label, color="black", linestyle=LINES[number])
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.legend(fontsize=FONT - 1, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)
    _tidy(axes)


def _stacked(count: int) -> list[Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 2.4 * count), dpi=150, layout="constrained")
    return list(figure.subplots(count, sharex=True))


def _draw_column(axes: Axes, several: Mapping[str, Result], column: str) -> None:
    """The curve of each run and its answer, as one array with the answer in the last place."""
    curves = {label: np.append(run.history[column], getattr(run, column)) for label, run in several.items()}
    floor = -np.inf if column == "objective" else _floor(np.concatenate(list(curves.values())))
    for number, (label, run) in enumerate(several.items()):
        values = np.where(np.isfinite(curves[label]), curves[label], np.nan)
        low = values <= floor  # drawn as dots at 0 that no line joins
        places = np.append(run.history["step"], run.steps)
        ending = " (diverged)" if run.status == "diverged" else ""
        style = {"color": COLOURS[number % len(COLOURS)], "marker": ".", "markersize": 4}
        line = {"linestyle": LINES[number // len(COLOURS) % len(LINES)], "linewidth": 1.2}
        axes.plot(places[:-1], np.where(low, np.nan, values)[:-1], label=f"{label}{ending}", **style, **line)
        axes.plot(places[:-1], np.where(low, floor, np.nan)[:-1], linestyle="", **style)
        answer = style | {"marker": "D", "markersize": 6, "markeredgecolor": "black"}
        axes.plot(places[-1], np.where(low, floor, values)[-1], clip_on=False, zorder=3, **answer)
    if floor > 0:
        axes.set_yscale("log")
    if floor > 0 and min(np.nanmin(values, initial=np.inf) for values in curves.values()) <= floor:
        _zero_tick(axes, floor)
    axes.set_ylabel(LABELS[column], fontsize=FONT)
    _tidy(axes)


def _floor(values: Float[np.ndarray, " records"]) -> float:
    """Where 0 is drawn: the decade below the smallest positive value; 0 itself where no value is positive."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not positive.size:
        return 0.0
    smallest = max(positive.min(), positive.max() * 10.0**-DECADES)
    return 10.0 ** (np.floor(np.log10(smallest)) - 1)


def _zero_tick(axes: Axes, floor: float) -> None:
    """Make the lowest tick of a logarithmic axis, at `floor`, read 0."""
    first, last = round(np.log10(floor)), int(np.ceil(np.log10(axes.get_ylim()[1])))
    powers = range(first + 1, last + 1, max(1, (last - first) // 4))
    axes.set_yticks([floor, *(10.0**power for power in powers)], ["0", *(f"$10^{{{power}}}$" for power in powers)])
    axes.minorticks_off()
    axes.set_ylim(bottom=floor / 2)


def _reach(features: Float[np.ndarray, "rows 2"]) -> tuple[Float[np.ndarray, " two"], Float[np.ndarray, " two"]]:
    """The lower left and the upper right corner of the data, with a margin."""
    margin = 0.05 * np.ptp(features, axis=0)
    return features.min(axis=0) - margin, features.max(axis=0) + margin


def _draw_line(axes: Axes, weights: Float[np.ndarray, " three"], low: Any, high: Any, **style: Any) -> None:
    """The line where the score is 0, as far as the data reach; it may be vertical."""
    direction, constant = weights[:2], weights[2]
    length = direction @ direction
    if length == 0:
        return
    foot = -constant * direction / length
    along = np.array([-direction[1], direction[0]]) / np.sqrt(length)
    reach = np.linalg.norm(high - low) + np.linalg.norm(foot)
    axes.plot(*np.stack([foot - reach * along, foot + reach * along], axis=1), linewidth=2.0, **style)


def _tidy(axes: Axes) -> None:
    axes.tick_params(labelsize=FONT - 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
