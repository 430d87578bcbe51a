"""The figure of the demo: people with both decision boundaries, what fairness costs, and how fast the run converges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ..figures import COLORS, FONT, LINES, set_style
from .demo_problem import BATCH, BOUND, Demo, People

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN = 500
"""People in the figure; more would cover each other."""
FEATURES = ("wealth", "test result")

Corner = Float[np.ndarray, " 2"]


def draw(demo: Demo) -> Figure:
    """Draw the figure.

    Args:
        demo: both runs.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 5.6), dpi=150, layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=[1.15, 1.0])
    _draw_people(figure.add_subfigure(grid[0]).subplots(), demo)
    above, below = figure.add_subfigure(grid[1]).subplots(2, 1)
    _draw_cost(above, demo)
    _draw_convergence(below, demo)
    return figure


def _draw_cost(axes: Axes, demo: Demo) -> None:
    """Accuracy and p%-rule on held-out people, against the bound."""
    shown = {"p%-rule": [o.p_rule for o in demo.along], "accuracy": [100 * o.accuracy for o in demo.along]}
    for number, (label, values) in enumerate(shown.items()):
        axes.plot(demo.curve.bounds, values, marker="o", markersize=3.5, color=COLORS[number], label=label)
    axes.axvline(BOUND, color="black", linewidth=1.0, linestyle=LINES[0], label="constrained, as on the left")
    axes.set_xlabel("bound of |covariance of group and score|", fontsize=FONT)
    axes.set_ylabel("% of held-out people", fontsize=FONT)
    axes.set_title(f"What fairness costs: one program, {len(demo.curve.bounds)} bounds", fontsize=FONT + 1)
    axes.legend(fontsize=FONT - 1, frameon=False)
    set_style(axes)


def _draw_convergence(axes: Axes, demo: Demo) -> None:
    """The distance of the objective from its end and the violation, step by step."""
    history = demo.results["constrained"].history
    falling = {"objective above its end": np.abs(history["objective"] - demo.results["constrained"].objective)}
    falling |= {"violation": history["violation"]}
    for number, (label, values) in enumerate(falling.items()):
        positive = values > 0
        axes.semilogy(history["step"][positive], values[positive], color=COLORS[number], label=label, linewidth=1.2)
    axes.set_xlabel(f"steps, of {BATCH} people each", fontsize=FONT)
    axes.set_title("The constrained run converges to rounding", fontsize=FONT + 1)
    axes.legend(fontsize=FONT - 1, frameon=False)
    set_style(axes)


def _draw_people(axes: Axes, demo: Demo) -> None:
    lines = {}
    for name in ("constrained", "unconstrained"):
        shares = " and ".join(f"{share:.0%} of {group}" for group, share in demo.test[name].selected.items())
        lines[f"{name}: accepts {shares}"] = demo.results[name].x
    draw_boundaries(axes, demo.test_half[:DRAWN], lines)
    axes.set_xlabel(f"{FEATURES[0]} (standard deviations)", fontsize=FONT)
    axes.set_ylabel(f"{FEATURES[1]} (standard deviations)", fontsize=FONT)
    title = f"{DRAWN} held-out people with their recorded decisions;\na classifier accepts above its line"
    axes.set_title(title, fontsize=FONT + 1)


def draw_boundaries(axes: Axes, crowd: People, lines: Mapping[str, Any]) -> None:
    """Draw people by their two features, and the decision boundaries of linear classifiers.

    The groups differ in color; a dot is an accepted person, a cross a rejected one.

    Args:
        axes: axes to draw on.
        crowd: the people.
        lines: {label: weights}, as in `demo_problem.scores`.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from tightrope.cli import demo_figure, demo_problem
        >>> axes = Figure().subplots()
        >>> demo_figure.draw_boundaries(axes, demo_problem.people(50, seed=0), {"classifier": [1.0, 2.0, 0.0]})
        >>> [text.get_text() for text in axes.get_legend().get_texts()][-1]
        'classifier'
    """
    for group, color, is_b in (("A", COLORS[5], False), ("B", COLORS[4], True)):
        for decision, marker, was_accepted in (("accepted", "o", True), ("rejected", "x", False)):
            points = crowd.features[(crowd.in_b == is_b) & (crowd.accepted == was_accepted)]
            style = {"s": 16, "marker": marker, "color": color, "linewidth": 1.0, "alpha": 0.75}
            axes.scatter(*points.T, label=f"group {group}, {decision}", **style)
    low, high = _corners(crowd.features)
    for number, (label, weights) in enumerate(lines.items()):
        _draw_line(axes, np.asarray(weights, float), low, high, label=label, color="black", linestyle=LINES[number])
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.legend(fontsize=FONT - 1, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False)
    set_style(axes)


def _corners(features: Float[np.ndarray, "people 2"]) -> tuple[Corner, Corner]:
    """The lower left and upper right corners of the data, with a margin."""
    margin = 0.05 * np.ptp(features, axis=0)
    return features.min(axis=0) - margin, features.max(axis=0) + margin


def _draw_line(axes: Axes, weights: Float[np.ndarray, " 3"], low: Corner, high: Corner, **style: Any) -> None:
    """Draw the line on which the score is 0, long enough to cross the data; it may be vertical."""
    direction, intercept = weights[:2], weights[2]
    length = direction @ direction
    if length == 0:
        return
    foot = -intercept * direction / length
    along = np.array([-direction[1], direction[0]]) / np.sqrt(length)
    reach = np.linalg.norm(high - low) + np.linalg.norm(foot)
    axes.plot(*np.stack([foot - reach * along, foot + reach * along], axis=1), linewidth=2.0, **style)
