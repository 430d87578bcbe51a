"""Pictures: labelled axes, zeros on a logarithmic axis, several runs, runs that diverged."""

import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import tightrope as tr
from tightrope import plots


@pytest.fixture(scope="module")
def solved():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
    return tr.solve(problem, jnp.zeros(2), steps=20)


def like(result, violation, **changes):
    """A result with these violations along its history."""
    columns = {"step": np.arange(len(violation)), "violation": violation}
    columns |= {name: np.linspace(1.0, 0.1, len(violation)) for name in ("objective", "stationarity")}
    changes = {"violation": violation[-1], "stationarity": 0.1} | changes
    return replace(result, history=tr.History(columns), **changes)


def heights(axes):
    """All heights drawn, of curves and answers."""
    drawn = np.concatenate([np.ravel(np.asarray(line.get_ydata(), float)) for line in axes.lines])
    return drawn[np.isfinite(drawn)]


def rendered(figure, tmp_path):
    figure.savefig(tmp_path / "figure.png")
    return (tmp_path / "figure.png").stat().st_size > 5000


def test_axes_are_labelled(solved, tmp_path):
    figure = plots.history(solved)
    assert [axes.get_ylabel() for axes in figure.axes] == ["objective", "largest violation", "stationarity"]
    assert figure.axes[-1].get_xlabel() == "steps"
    assert rendered(figure, tmp_path)


def test_zeros_are_drawn_at_the_lowest_tick(solved, tmp_path):
    figure = plots.history(like(solved, [1.0, 0.02, 0.0, 0.003, 0.0]))
    axes = figure.axes[1]
    assert axes.get_yscale() == "log"
    assert axes.get_yticklabels()[0].get_text() == "0"
    assert axes.get_yticks()[0] == pytest.approx(1e-4)
    assert heights(axes).min() == pytest.approx(1e-4)
    assert axes.get_ylim()[0] < 1e-4
    assert np.isnan(axes.lines[0].get_ydata()[[2, 4]]).all()  # no line goes down to 0
    assert "0" not in [label.get_text() for label in figure.axes[2].get_yticklabels()]  # nothing is zero there
    assert rendered(figure, tmp_path)


def test_tiny_violations_do_not_stretch_the_axis(solved):
    axes = plots.history(like(solved, [1.0, 1e-30, 1e-3])).axes[1]
    assert axes.get_ylim()[0] > 1e-11
    assert heights(axes).min() == pytest.approx(1e-10)


def test_violations_that_are_all_zero(solved, tmp_path):
    figure = plots.history(like(solved, [0.0, 0.0, 0.0]))
    assert figure.axes[1].get_yscale() == "linear"
    assert (heights(figure.axes[1]) == 0).all()
    assert rendered(figure, tmp_path)


def test_the_answer_is_drawn_at_the_last_step(solved):
    axes = plots.history(solved).axes[0]
    answer = axes.lines[2]
    assert answer.get_marker() == "D"
    assert (answer.get_xdata()[0], answer.get_ydata()[0]) == (solved.steps, pytest.approx(solved.objective))


def test_several_runs_have_their_names_and_colours(solved):
    runs = {f"run {i}": solved for i in range(9)}
    axes = plots.history(runs).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [*runs, "answer"]
    styles = {(line.get_color(), line.get_linestyle()) for line in axes.lines if line.get_label() in runs}
    assert len(styles) == 9


def test_a_run_that_diverged(solved, tmp_path):
    broken = like(solved, [1.0, 0.1, np.inf, np.nan], status="diverged")
    figure = plots.history({"good": solved, "bad": broken})
    assert "bad (diverged)" in [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert np.isfinite(figure.axes[1].get_ylim()).all()
    assert rendered(figure, tmp_path)
    nothing = like(solved, [np.nan, np.nan], status="diverged")
    assert rendered(plots.history(nothing), tmp_path)


def test_draws_on_given_axes(solved):
    figure = Figure()
    above, below = figure.subplots(2)
    assert plots.history(solved, axes=[above, below]) is figure
    assert below.get_ylabel() == "largest violation"
    assert below.get_xlabel() == "steps"
    assert plots.history(solved, axes=[Figure().subfigures().subplots()]).savefig


def test_no_results_are_refused():
    with pytest.raises(ValueError, match="results is empty"):
        plots.history({})


@pytest.mark.parametrize("weights", [[1.0, 2.0, -1.0], [1.0, 0.0, -0.3], [0.0, 1.0, 0.2]])
def test_boundary_is_where_the_score_is_zero(weights):
    axes = Figure().subplots()
    features = np.random.default_rng(0).normal(size=(20, 2))
    plots.boundary(axes, features, features[:, 0] > 0, features[:, 1] > 0, {"rule": weights, "none": np.zeros(3)})
    (line,) = axes.lines
    points = np.stack(line.get_data(), axis=1)
    assert points @ weights[:2] + weights[2] == pytest.approx(0, abs=1e-9)
    assert np.linalg.norm(points[0] - points[1]) > np.ptp(features, axis=0).max()
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == 20


def test_pyplot_is_not_used(solved, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would raise
    assert plots.history(solved).axes
