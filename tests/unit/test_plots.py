"""Figures: labeled axes, zeros on a logarithmic axis, several runs, runs that diverged."""

import sys
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import tightrope as tr
from tightrope import figures
from tightrope.figures import Column
from tightrope.runs import plots


@pytest.fixture(scope="module")
def solved():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
    return tr.solve(problem, jnp.zeros(2), steps=20)


def like(result, violation, **changes):
    """A result with these violations along its history."""
    columns = {"step": np.arange(len(violation)), "violation": violation, "budget": violation}
    columns |= {name: np.linspace(1.0, 0.1, len(violation)) for name in ("objective", "stationarity")}
    answer = tr.Estimate(violation[-1], violation[-1], violation[-1], "exact")
    certificate = result.certificate._replace(violation={"budget": answer})
    changes = {"violation": violation[-1], "stationarity": 0.1, "certificate": certificate} | changes
    return replace(result, history=tr.History(columns), **changes)


def heights(axes):
    """All heights drawn, of curves and answers."""
    drawn = np.concatenate([np.ravel(np.asarray(line.get_ydata(), float)) for line in axes.lines])
    return drawn[np.isfinite(drawn)]


def rendered(figure, tmp_path):
    figure.savefig(tmp_path / "figure.png")
    return (tmp_path / "figure.png").stat().st_size > 5000


def test_axes_are_labeled(solved, tmp_path):
    figure = plots.history(solved)
    assert [axes.get_ylabel() for axes in figure.axes] == ["objective", "violation", "stationarity"]
    assert figure.axes[-1].get_xlabel() == "steps"
    assert rendered(figure, tmp_path)


@pytest.mark.parametrize(("last", "scale"), [(1e-4, "log"), (1e-2, "linear"), (0.0, "linear"), (-1.0, "linear")])
def test_an_objective_has_a_logarithmic_axis_if_it_is_positive_and_falls_by_a_factor_of_1000(solved, last, scale):
    columns = dict(solved.history) | {"objective": np.linspace(1.0, last, len(solved.history["step"]))}
    figure = plots.history(replace(solved, history=tr.History(columns), objective=last))
    assert figure.axes[0].get_yscale() == scale


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
    """One run shows how far below the tolerance they are; several have a linear axis."""
    feasible = like(solved, [0.0, 0.0, 0.0])
    figure = plots.history(feasible)
    axes = figure.axes[1]
    assert axes.get_yticklabels()[0].get_text() == "0"
    assert set(heights(axes)) == {axes.get_yticks()[0], solved.certificate.tolerance}
    figure = plots.history({"a": feasible, "b": feasible})
    assert figure.axes[1].get_yscale() == "linear"
    assert (heights(figure.axes[1]) == 0).all()
    assert rendered(figure, tmp_path)


def test_one_run_has_a_curve_and_a_tolerance_for_each_constraint_and_no_violation_without_any(solved):
    run = like(solved, [1.0, 0.1, 0.01])
    estimate = run.certificate.violation["budget"]
    both, scale = {"budget": estimate, "first": estimate}, {"budget": 4.0, "first": np.array([0.5, 2.0])}
    columns = dict(run.history) | {"first": run.history["budget"]}
    certificate = run.certificate._replace(violation=both, scale=scale)
    axes = replace(run, certificate=certificate, history=tr.History(columns)).plot().axes[1]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["budget", "first", "tolerance"]
    tolerances = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":" and len(line.get_ydata())]
    np.testing.assert_allclose(tolerances, [4e-3, 5e-4])
    free = replace(run, certificate=run.certificate._replace(violation={}))
    assert [axes.get_ylabel() for axes in free.plot().axes] == ["objective", "stationarity"]


def test_the_axis_of_a_run_may_be_samples_or_seconds(solved):
    assert solved.plot("samples").axes[-1].get_xlabel() == "steps (no samples are drawn)"
    axes = solved.plot("seconds").axes[-1]
    assert axes.get_xlabel() == "wall time (s)"
    assert axes.lines[0].get_xdata()[-1] == pytest.approx(solved.history["seconds"][-1])


def test_a_sweep_has_a_curve_per_setting_with_a_band_over_seeds(solved, tmp_path):
    def run(step_size, seed, level):
        return like(solved, [level, level / 2], seed=seed, settings={"step_size": step_size, "rule": "a"})

    runs = [run(s, seed, s * (1 + seed)) for s in (0.1, 0.2) for seed in (0, 1)]
    found = tr.SweepResult([replace(r, history=with_samples(r.history)) for r in runs])
    figure = found.plot()
    labels = [text.get_text() for text in figure.subfigs[0].legends[0].get_texts()]
    assert labels == ["AdaptivePenalty: step_size = 0.1", "AdaptivePenalty: step_size = 0.2"]
    violation = figure.subfigs[0].axes[1]
    np.testing.assert_allclose(violation.lines[0].get_ydata(), [0.15, 0.075])
    assert len(violation.collections) == 2
    assert rendered(figure, tmp_path)
    assert labels[1] in str(found)


def with_samples(history):
    columns = dict(history) | {"samples": 10 * history["step"], "seconds": 0.1 * history["step"]}
    return tr.History(columns)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_trade_off_has_its_points_slopes_and_infeasible_bounds(solved, pairs, tmp_path):
    def at(objective, multiplier, verdict="feasible"):
        certificate = solved.certificate._replace(verdict=verdict)
        return replace(solved, objective=objective, multipliers={"budget": multiplier}, certificate=certificate)

    results = [at(1.0, 2.0), at(9.0, 5.0, "infeasible"), at(0.0, 0.5), at(0.4, 1.0, "undecided")]
    bounds = np.array([1.0, 0.5, 2.0, 1.5])
    curve = tr.Tradeoff("budget", "at_most", np.stack([-bounds, bounds], axis=1) if pairs else bounds, results)
    above, below = (figure := curve.plot()).axes
    texts = [text.get_text() for text in above.get_legend().get_texts()]
    assert texts == ["feasible", "undecided", "infeasible", *(["slope"] * (not pairs))]
    assert heights(above).max() < 2.5  # the objective where no point is feasible means nothing
    if pairs:
        assert [label.get_text() for label in below.get_xticklabels()][1] == "[-0.5, 0.5]"
    else:
        first = next(line for line in above.lines if line.get_color() == plots.COLORS[1] and len(line.get_xdata()))
        tangents = [line for line in above.lines if line.get_color() == plots.COLORS[1] and len(line.get_xdata())]
        slopes = [np.ptp(line.get_ydata()) / np.ptp(line.get_xdata()) for line in tangents[1:]]
        assert np.isnan(first.get_ydata()).all()
        np.testing.assert_allclose(slopes, [2.0, 1.0, 0.5])
        assert below.get_xlabel() == "upper bound of budget"
    assert rendered(figure, tmp_path)


def test_notebooks_show_figures(solved):
    assert solved.plot()._repr_png_().startswith(b"\x89PNG")


def test_the_answer_is_drawn_at_the_last_step(solved):
    axes = plots.history(solved).axes[0]
    answer = axes.lines[2]
    assert answer.get_marker() == "D"
    assert (answer.get_xdata()[0], answer.get_ydata()[0]) == (solved.steps, pytest.approx(solved.objective))


def test_several_runs_have_their_names_and_colors(solved):
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
    assert below.get_ylabel() == "violation"
    assert below.get_xlabel() == "steps"
    assert plots.history(solved, axes=[Figure().subfigures().subplots()]).savefig


def test_no_results_are_refused():
    with pytest.raises(ValueError, match="results is empty"):
        plots.history({})


def test_pyplot_is_not_used(solved, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would raise
    assert plots.history(solved).axes


# ---------------------------------------------------------------------- curves over seeds


VALUE = Column("value", "v")


def tidy(values, **columns):
    """Two seeds of one entry, a record for each pair of values."""
    rows = [
        {"entry": "a", "seed": seed, "step": step, "samples": 4 * step, "seconds": 0.5 * step, "value": pair[seed]}
        for step, pair in enumerate(values)
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows).assign(**columns)


def test_a_band_is_the_mean_and_one_standard_deviation_to_both_sides():
    found, floor = figures.bands(tidy([(1.0, 3.0), (2.0, 2.0)]), VALUE)
    band, spread = found["a"], np.sqrt(2.0)
    np.testing.assert_allclose(band.mean, [2.0, 2.0])
    np.testing.assert_allclose(band.low, [2.0 - spread, 2.0])
    np.testing.assert_allclose(band.high, [2.0 + spread, 2.0])
    np.testing.assert_array_equal(band.steps, [0, 1])
    np.testing.assert_array_equal(band.samples, [0, 4])
    np.testing.assert_array_equal(band.seconds, [0, 0.5])
    assert floor == -np.inf


def test_on_a_logarithmic_axis_a_band_ends_at_the_lowest_seed_and_zeros_are_drawn_below_all():
    found, floor = figures.bands(tidy([(0.1, 10.0), (0.0, 0.0)]), replace(VALUE, log=True))
    assert found["a"].low[0] == 0.1
    assert floor == pytest.approx(0.01)
    assert found["a"].mean[1] == floor
    found, floor = figures.bands(tidy([(0.0, 0.0)]), replace(VALUE, log=True))
    assert floor == 0.0


def test_a_band_goes_below_0_only_where_a_value_does():
    found, _ = figures.bands(tidy([(0.0, 3.0), (1.0, 1.0)]), VALUE)
    np.testing.assert_array_equal(found["a"].low, [0.0, 1.0])
    found, _ = figures.bands(tidy([(0.0, 3.0), (-1.0, -1.0)]), VALUE)
    np.testing.assert_allclose(found["a"].low, [1.5 - 3.0 / np.sqrt(2.0), -1.0])


def test_the_start_is_left_out_if_a_column_has_no_meaning_there():
    found, _ = figures.bands(tidy([(9.0, 9.0), (1.0, 3.0)]), replace(VALUE, start=False))
    np.testing.assert_array_equal(found["a"].steps, [1])
    np.testing.assert_array_equal(found["a"].mean, [2.0])


def test_values_that_are_not_finite_are_left_out_of_a_band():
    found, _ = figures.bands(tidy([(1.0, np.inf), (np.nan, np.nan)]), VALUE)
    np.testing.assert_array_equal(found["a"].mean, [1.0])
    np.testing.assert_array_equal(found["a"].low, [1.0])


def test_runs_that_diverged_are_left_out_of_a_band_if_others_did_not():
    frame = tidy([(1.0, 1.0), (2.0, 1e24)])
    found, _ = figures.bands(frame.assign(status=["budget", "diverged"] * 2), VALUE)
    np.testing.assert_array_equal(found["a"].mean, [1.0, 2.0])
    found, _ = figures.bands(frame.assign(status="diverged"), VALUE)
    np.testing.assert_array_equal(found["a"].mean, [1.0, 5e23 + 1.0])


def test_curves_have_a_panel_for_each_part_and_column_that_it_has_with_units():
    frames = {"first": tidy([(1.0, 3.0), (0.0, 0.0)]), "second": tidy([(1.0, 2.0)], other=1.0, samples=0)}
    columns = [Column("value", "value (m)", log=True), Column("other", "other (kg)")]
    figure = figures.curves(frames, columns)
    first, second = figure.subfigs
    assert [axes.get_ylabel() for axes in first.axes if axes.get_visible()] == ["value (m)"]
    assert [axes.get_ylabel() for axes in second.axes] == ["value (m)", "other (kg)"]
    assert first.axes[0].get_xlabel() == "samples drawn"
    assert second.axes[0].get_xlabel() == "steps (no samples are drawn)"
    assert first.axes[0].get_yscale() == "log"
    assert first.axes[0].get_yticklabels()[0].get_text() == "0"
    assert figures.curves(frames, columns, "seconds").subfigs[0].axes[0].get_xlabel() == "wall time (s)"
    assert min(text.get_fontsize() for axes in first.axes for text in axes.get_yticklabels()) >= 9


def test_the_axis_of_samples_may_be_logarithmic_that_of_time_is_not():
    frames = {"first": tidy([(1.0, 3.0), (2.0, 2.0)])}
    scales = [
        figures.curves(frames, [VALUE], against, log_samples=True).subfigs[0].axes[0].get_xscale()
        for against in ("samples", "seconds")
    ]
    assert scales == ["log", "linear"]
