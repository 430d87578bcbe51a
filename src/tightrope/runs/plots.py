"""The figures of results: histories of runs, bands of a sweep, and the curve of a trade-off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ..figures import COLORS, COLUMNS, FONT, Against, axis, curves, floor_of, set_style, style, zero_tick
from .result import Result
from .sweeping import SweepResult, labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .tradeoffs import Tradeoff

TANGENT = 0.12
"""Half the length of a tangent, as a share of the range of the bounds."""


LOGARITHMIC = 1e3
"""The axis of a positive objective is logarithmic if its largest value is at least this times the least."""


class Curve(NamedTuple):
    """A column of the history of a run, the value of its answer, and the tolerance that this is judged by; None: none."""

    label: str
    run: Result
    column: str
    answer: float
    tolerance: float | None = None


def history(
    results: Result | Mapping[str, Result], axes: Sequence[Axes] | None = None, against: Against = "steps"
) -> Figure:
    """Plot objective, violation and stationarity along one or several runs.

    Curves show the iterate; a diamond at the end shows the certified answer. One run has a curve for each constraint, with a
    dotted line at its tolerance. Violation and stationarity have a logarithmic axis, and so has a positive objective that falls
    by a factor of 1,000; if there are zeros, as at feasible iterates, the lowest tick reads 0. Values that are not finite are
    left out, and the legend marks runs that diverged.

    Args:
        results: a `Result`, or {label: Result}.
        axes: up to three axes, for objective, violation and stationarity in this order; None: a new figure.
        against: the horizontal axis; steps instead of samples if none are drawn.

    Returns:
        The figure; save it with `figure.savefig("history.png")`.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> from tightrope.runs import plots
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> figure = plots.history(tr.solve(problem, jnp.zeros(2), steps=100))
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['objective', 'violation', 'stationarity']
    """
    from matplotlib.ticker import MaxNLocator

    several = {"iterate": results} if isinstance(results, Result) else dict(results)
    if not several:
        raise ValueError("history: results is empty; expected a Result or {label: Result}")
    panels = _panels_of_one(results) if isinstance(results, Result) else _panels_of_several(several)
    axes = _stacked(len(panels)) if axes is None else list(axes)
    place, title = axis(next(iter(several.values())).history, against)
    for (label, drawn), ax in zip(panels.items(), axes, strict=False):
        _draw(ax, drawn, place, log=label != "objective" or _spans(drawn, LOGARITHMIC))
        ax.set_ylabel(label, fontsize=FONT)
    axes[-1].set_xlabel(title, fontsize=FONT)
    axes[-1].xaxis.set_major_locator(MaxNLocator(5))
    axes[-1].xaxis.set_major_formatter("{x:g}" if place == "seconds" else "{x:,.0f}")
    axes[0].plot([], [], color="black", linestyle="", marker="D", markersize=5, label="answer")
    axes[0].legend(fontsize=FONT - 1, frameon=False)
    return cast("Figure", axes[0].get_figure(root=True))


def sweep_figure(found: SweepResult, against: Against = "samples") -> Figure:
    """Plot a sweep: objective, largest violation and stationarity, one curve per method and setting.

    Args:
        found: the sweep.
        against: the horizontal axis; steps instead of samples if none are drawn.
    """
    import pandas as pd

    frames = [
        run.history.to_pandas().assign(entry=label, seed=run.seed, status=run.status)
        for label, run in zip(labels(found.results), found.results, strict=True)
    ]
    constrained = bool(found.results[0].certificate.violation)
    columns = [column for column in COLUMNS if constrained or column.name != "violation"]
    seeds = len({run.seed for run in found.results})
    title = f"Mean of {seeds} seeds ± one standard deviation" if seeds > 1 else "One seed"
    return curves({title: pd.concat(frames)}, columns, against)


def tradeoff_figure(curve: Tradeoff) -> Figure:
    """Plot a trade-off: the objective, with tangents from the multipliers, and their slopes below."""
    above, below = _stacked(2)
    pairs = curve.bounds.ndim == 2
    places = np.arange(len(curve.bounds)) if pairs else curve.bounds
    order = np.argsort(places)
    places, objective, slope = places[order], curve.objective[order], curve.slope[order]
    verdicts = np.array([curve.results[i].certificate.verdict for i in order])
    for axes, values in ((above, objective), (below, slope)):
        if not pairs:
            axes.plot(places, np.where(verdicts == "infeasible", np.nan, values), color=COLORS[0], linewidth=1.2)
        _draw_points(axes, places, values, verdicts)
    if pairs:
        below.set_xticks(places, [f"[{low:g}, {high:g}]" for low, high in curve.bounds])
    else:
        _draw_tangents(above, places, objective, slope)
    above.set_ylabel("objective", fontsize=FONT)
    below.set_ylabel("its slope, from the multiplier", fontsize=FONT)
    below.set_xlabel(f"{'ends' if pairs else _BOUND[curve.kind]} of {curve.constraint}", fontsize=FONT)
    for axes in (above, below):
        set_style(axes)
    above.legend(fontsize=FONT - 1, frameon=False)
    return cast("Figure", above.get_figure(root=True))


_BOUND = {"equals": "target", "at_most": "upper bound", "at_least": "lower bound", "between": "±bound"}


def _draw_tangents(axes: Axes, places: np.ndarray, objective: np.ndarray, slope: np.ndarray) -> None:
    """Short lines with the slopes; none where the slope is NaN."""
    reach = TANGENT * np.ptp(places) * np.array([-1.0, 1.0])
    for x, y, rise in zip(places, objective, slope, strict=True):
        along = np.clip(x + reach, places[0], places[-1])
        axes.plot(along, y + rise * (along - x), color=COLORS[1], linewidth=1.0, zorder=1)
    axes.plot([], [], color=COLORS[1], linewidth=1.0, label="slope")


def _draw_points(axes: Axes, places: np.ndarray, values: np.ndarray, verdicts: np.ndarray) -> None:
    """A dot for each bound; a cross on the lower edge where no point is feasible."""
    kinds: dict[str, dict[str, Any]] = {
        "feasible": {"marker": "o", "color": COLORS[0]},
        "undecided": {"marker": "o", "markeredgecolor": COLORS[0], "color": "white"},
        "infeasible": {"marker": "x", "color": COLORS[6], "transform": axes.get_xaxis_transform(), "clip_on": False},
    }
    for verdict, drawn in kinds.items():
        at = verdicts == verdict
        heights = np.zeros(at.sum()) if verdict == "infeasible" else values[at]
        if at.any():
            axes.plot(places[at], heights, linestyle="", markersize=6, zorder=3, label=verdict, **drawn)


def _panels_of_one(run: Result) -> dict[str, list[Curve]]:
    """The curves of one run by the label of their panel; without constraints there is no violation."""
    found = run.certificate
    violation = [
        Curve(name, run, name, found.violation[name].value, found.tolerance * float(np.min(found.scale[name])))
        for name in found.violation
    ]
    panels = {
        "objective": [Curve("iterate", run, "objective", run.objective)],
        "violation": violation,
        "stationarity": [Curve("iterate", run, "stationarity", run.stationarity)],
    }
    return {label: drawn for label, drawn in panels.items() if drawn}


def _panels_of_several(several: Mapping[str, Result]) -> dict[str, list[Curve]]:
    return {
        column.label: [Curve(label, run, column.name, getattr(run, column.name)) for label, run in several.items()]
        for column in COLUMNS
    }


def _spans(drawn: list[Curve], factor: float) -> bool:
    """Whether all values are positive and the largest is at least `factor` times the least."""
    values = np.concatenate([np.append(curve.run.history[curve.column], curve.answer) for curve in drawn])
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0.0 and values.max() >= factor * values.min())


def _stacked(count: int) -> list[Axes]:
    from ..shown import ShownFigure

    figure = ShownFigure(figsize=(7.0, 2.4 * count), dpi=150, layout="constrained")
    return list(np.ravel(figure.subplots(count, sharex=True)))


def _draw(axes: Axes, drawn: list[Curve], place: str, log: bool) -> None:
    """Draw curves on one panel."""
    numbers = [np.append(curve.run.history[curve.column], curve.answer) for curve in drawn]
    tolerances = [curve.tolerance for curve in drawn if curve.tolerance is not None]
    floor = floor_of(np.concatenate([*numbers, tolerances])) if log else -np.inf
    for number, (curve, values) in enumerate(zip(drawn, numbers, strict=True)):
        values = np.where(np.isfinite(values), values, np.nan)
        low = values <= floor  # drawn as dots at 0, not joined by lines
        places = np.append(curve.run.history["step" if place == "steps" else place], getattr(curve.run, place))
        ending = " (diverged)" if curve.run.status == "diverged" else ""
        color, dashes = style(number)
        dots = {"color": color, "marker": ".", "markersize": 4}
        line = {"linestyle": dashes, "linewidth": 1.2}
        axes.plot(places[:-1], np.where(low, np.nan, values)[:-1], label=f"{curve.label}{ending}", **dots, **line)
        axes.plot(places[:-1], np.where(low, floor, np.nan)[:-1], linestyle="", **dots)
        answer = dots | {"marker": "D", "markersize": 6, "markeredgecolor": "black"}
        axes.plot(places[-1], np.where(low, floor, values)[-1], clip_on=False, zorder=3, **answer)
        if curve.tolerance is not None:
            axes.axhline(max(curve.tolerance, floor), color=color, linestyle=":", linewidth=1.0)
    if floor > 0:
        axes.set_yscale("log")
    if floor > 0 and min(np.nanmin(values, initial=np.inf) for values in numbers) <= floor:
        zero_tick(axes, floor)
    if tolerances:
        axes.plot([], [], color="black", linestyle=":", linewidth=1.0, label="tolerance")
        axes.legend(fontsize=FONT - 1, frameon=False)
    set_style(axes)
