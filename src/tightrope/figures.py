"""Figures: their style, logarithmic axes that show zeros, and curves over seeds.

Figures are made without pyplot, so no window opens and no state is shared between threads; `figure.savefig(path)` writes a
file, and notebooks show a figure that is returned. Colors are those of Okabe and Ito, which are distinct in all kinds of
color vision.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Against = Literal["steps", "samples", "seconds"]
"""What is on the horizontal axis of curves."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
"""After the last color comes the next line style, so that 28 curves differ."""
FONT = 10
LABEL_WIDTH = 30
"""Characters per line in the label of a vertical axis."""
LEGEND_WIDTH = 4
"""Curves per line in a legend."""
DECADES = 9
"""Decades below the largest value on a logarithmic axis; smaller values are drawn as 0."""


@dataclass(frozen=True)
class Column:
    """A plotted column.

    Args:
        name: name of the column in the tidy frame.
        label: label of its axis, with the unit.
        log: whether the axis is logarithmic.
        start: whether x0 is plotted; False if the column has no meaning there.

    Example:
        >>> from tightrope import figures
        >>> figures.Column("violation", "largest violation", log=True).name
        'violation'
    """

    name: str
    label: str
    log: bool = False
    start: bool = True


COLUMNS = (
    Column("objective", "objective"),
    Column("violation", "largest violation", log=True),
    Column("stationarity", "stationarity", log=True),
)


class Band(NamedTuple):
    """A curve over seeds, one value per record: means over seeds, with a band of one standard deviation.

    Attributes:
        steps: steps taken.
        samples: samples drawn.
        seconds: wall time.
        mean: mean of the column.
        low: mean minus one standard deviation, but not below 0 if all values are nonnegative; on a logarithmic axis not below
            the lowest seed.
        high: mean plus one standard deviation.
    """

    steps: Float[np.ndarray, " records"]
    samples: Float[np.ndarray, " records"]
    seconds: Float[np.ndarray, " records"]
    mean: Float[np.ndarray, " records"]
    low: Float[np.ndarray, " records"]
    high: Float[np.ndarray, " records"]


def bands(frame: pd.DataFrame, column: Column) -> tuple[dict[str, Band], float]:
    """The curve of every entry of a tidy frame, and the height at which a logarithmic axis draws 0.

    That height is −∞ if there are no zeros, and 0 if there is nothing else. Values that are not finite are left out, and so are
    records without finite values, and runs that diverged if others of their entry did not.

    Args:
        frame: one row per entry, seed and record, as `tightrope reproduce` writes them.
        column: the column to plot.

    Example:
        >>> import pandas as pd
        >>> from tightrope import figures
        >>> frame = pd.DataFrame({"entry": "a", "step": 1, "samples": 2, "seconds": 0.1, "objective": [1.0, 3.0]})
        >>> found, floor = figures.bands(frame, figures.Column("objective", "objective"))
        >>> found["a"].mean, found["a"].high.round(2)
        (array([2.]), array([3.41]))
    """
    name = column.name
    kept = _without_diverged(frame)
    finite: Any = kept[np.isfinite(kept[name]) & (column.start | (kept["step"] > 0))]
    least = 0.0 if (finite[name] >= 0).all() else -math.inf
    curves = {}
    for label in frame["entry"].unique():
        at = finite[finite["entry"] == label].groupby("step")
        mean, spread = at[name].mean().to_numpy(float), at[name].std().fillna(0.0).to_numpy()
        low = np.maximum(mean - spread, at[name].min().to_numpy() if column.log else least)
        samples, seconds = (at[along].mean().to_numpy(float) for along in ("samples", "seconds"))
        curves[str(label)] = Band(np.array(list(at.groups), float), samples, seconds, mean, low, mean + spread)
    numbers = np.concatenate([np.concatenate([band.mean, band.low]) for band in curves.values()])
    if not column.log or not (numbers <= (floor := floor_of(numbers))).any():
        return curves, -math.inf
    clipped = {
        label: band._replace(**{field: np.maximum(getattr(band, field), floor) for field in ("mean", "low", "high")})
        for label, band in curves.items()
    }
    return clipped, float(floor)


def _without_diverged(frame: pd.DataFrame) -> Any:
    """The runs that did not diverge, and those of entries whose runs all did."""
    if "status" not in frame:
        return frame
    diverged: Any = frame["status"] == "diverged"
    return frame[~diverged | diverged.groupby(frame["entry"]).transform("all")]


def curves(
    frames: Mapping[str, pd.DataFrame],
    columns: Sequence[Column],
    against: Against = "samples",
    log_samples: bool = False,
) -> Figure:
    """Plot the runs of an experiment, a row of panels per part: mean over seeds ± one standard deviation.

    Args:
        frames: {part: tidy frame}.
        columns: columns to plot, one panel each; a part shows those that it has.
        against: the horizontal axis; steps instead of samples if none are drawn.
        log_samples: whether the axis of samples is logarithmic.

    Example:
        >>> import pandas as pd
        >>> from tightrope import figures
        >>> frame = pd.DataFrame({"entry": "a", "step": [1, 2], "samples": [2, 4], "seconds": 0.1, "gap": [1.0, 0.1]})
        >>> figure = figures.curves({"part": frame}, [figures.Column("gap", "gap to the optimum", log=True)])
        >>> figure.subfigs[0].axes[0].get_ylabel()
        'gap to the optimum'
    """
    from .shown import ShownFigure

    drawn = {part: [c for c in columns if c.name in frame] for part, frame in frames.items()}
    heights = [2.9 + 0.25 * -(-len(legend(frame)) // LEGEND_WIDTH) for frame in frames.values()]
    across = max(*map(len, drawn.values()), 2)
    figure = ShownFigure(figsize=(4.0 * across, sum(heights)), dpi=150, layout="constrained")
    rows = figure.subfigures(len(frames), height_ratios=heights, squeeze=False)[:, 0]
    for row, (part, frame) in zip(rows, frames.items(), strict=True):
        row.suptitle(part, fontsize=FONT + 2)
        panels = np.ravel(row.subplots(1, across))
        for axes in panels[len(drawn[part]) :]:
            axes.set_visible(False)
        for axes, column in zip(panels, drawn[part], strict=False):
            _draw_bands(axes, frame, column, against, log_samples)
        handles, labels = panels[0].get_legend_handles_labels()
        lines = -(-len(labels) // LEGEND_WIDTH)
        place = {"loc": "outside lower center", "ncols": -(-len(labels) // lines), "frameon": False}
        row.legend(handles, labels, fontsize=FONT, **place)
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.execute(figure)
    figure.set_layout_engine(None)  # an engine would lay the figure out again for every file
    return figure


def axis(frame: Mapping[str, Any] | pd.DataFrame, against: str) -> tuple[str, str]:
    """The field of a `Band` for the horizontal axis, and its label: steps instead of samples if none are drawn.

    Example:
        >>> import pandas as pd
        >>> from tightrope import figures
        >>> figures.axis(pd.DataFrame({"samples": [0, 0]}), "samples")
        ('steps', 'steps (no samples are drawn)')
    """
    if against not in get_args(Against):
        raise ValueError(f"plot: against must be one of {get_args(Against)}, got {against!r}")
    if against != "samples":
        return against, "wall time (s)" if against == "seconds" else against
    return ("samples", "samples drawn") if np.any(frame["samples"]) else ("steps", "steps (no samples are drawn)")


def legend(frame: pd.DataFrame) -> dict[str, str]:
    """The legend text of each entry: its label, and the number of runs that diverged if there are any.

    Example:
        >>> import pandas as pd
        >>> from tightrope import figures
        >>> figures.legend(pd.DataFrame({"entry": "a", "seed": [0, 1], "status": ["budget", "diverged"]}))
        {'a': 'a (1 of 2 runs diverged)'}
    """
    names = {str(label): str(label) for label in frame["entry"].unique()}
    if "status" in frame:
        for label in names:
            runs: Any = frame[frame["entry"] == label].groupby("seed")
            ends = runs["status"].last()
            diverged = int((ends == "diverged").sum())
            names[label] += f" ({diverged} of {len(ends)} runs diverged)" * (diverged > 0)
    return names


def wrapped(label: str) -> list[str]:
    """The label of a vertical axis, broken into lines that fit.

    Example:
        >>> from tightrope import figures
        >>> figures.wrapped("distance to the nearest stationary point (m)")
        ['distance to the nearest', 'stationary point (m)']
    """
    return textwrap.wrap(label, LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)


def style(number: int) -> tuple[str, str]:
    """Color and line style of a curve, by its position in the legend.

    Example:
        >>> from tightrope import figures
        >>> figures.style(0), figures.style(7)
        (('#0072B2', '-'), ('#0072B2', '--'))
    """
    return COLORS[number % len(COLORS)], LINES[number // len(COLORS) % len(LINES)]


def _draw_bands(axes: Axes, frame: pd.DataFrame, column: Column, against: str, log_samples: bool) -> None:
    found, floor = bands(frame, column)
    (place, title), names = axis(frame, against), legend(frame)
    for number, (label, band) in enumerate(found.items()):
        color, line = style(number)
        x = getattr(band, place)
        axes.fill_between(x, band.low, band.high, color=color, alpha=0.18, linewidth=0)
        axes.plot(x, band.mean, color=color, linestyle=line, linewidth=1.6, label=names[label])
    if column.log and floor != 0:
        axes.set_yscale("log")
    if floor > 0:
        zero_tick(axes, floor)
    if floor == 0:
        axes.set_ylim(-0.05, 1.0)
    if axes.get_yscale() == "linear":
        axes.ticklabel_format(axis="y", useOffset=False)
    if log_samples and against == "samples":
        axes.set_xscale("log")
    else:
        axes.ticklabel_format(axis="x", scilimits=(-3, 4), useMathText=True)
    axes.set_xlabel(title, fontsize=FONT)
    axes.set_ylabel("\n".join(wrapped(column.label)), fontsize=FONT)
    set_style(axes)


def floor_of(values: Float[np.ndarray, " records"]) -> float:
    """The height at which 0 is drawn: a decade below the smallest positive value; 0 if no value is positive."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not positive.size:
        return 0.0
    smallest = max(positive.min(), positive.max() * 10.0**-DECADES)
    return 10.0 ** (np.floor(np.log10(smallest)) - 1)


def powers_above(floor: float, top: float) -> range:
    """The powers of ten at the ticks of a logarithmic axis, above the lowest tick at `floor`, which reads 0.

    Example:
        >>> from tightrope import figures
        >>> list(figures.powers_above(1e-4, 30.0))
        [-3, -2, -1, 0, 1, 2]
    """
    first, last = round(np.log10(floor)), int(np.ceil(np.log10(top)))
    return range(first + 1, last + 1, max(1, (last - first) // 4))


def zero_tick(axes: Axes, floor: float) -> None:
    """Make the lowest tick of a logarithmic axis, at `floor`, read 0."""
    powers = powers_above(floor, axes.get_ylim()[1])
    axes.set_yticks([floor, *(10.0**power for power in powers)], ["0", *(f"$10^{{{power}}}$" for power in powers)])
    axes.minorticks_off()
    axes.set_ylim(bottom=floor / 2)


def set_style(axes: Axes) -> None:
    """Apply the style of all figures: a light grid, no upper and right border, few ticks."""
    for each in (axes.xaxis, axes.yaxis):
        low, high = sorted(each.get_view_interval())
        if each.get_scale() == "log" and high > 100 * low:
            each.minorticks_off()  # every tick takes time to draw
    axes.tick_params(labelsize=FONT - 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
