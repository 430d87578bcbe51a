"""Running experiments: equal budgets, a choice by score, resuming from saved runs, committed claims."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import tightrope as tr
from tightrope.experiments import base, entries, running, summary
from tightrope.experiments.base import Check, Entry, Experiment, Part
from tightrope.experiments.entries import TUNING_SEED
from tightrope.experiments.fingerprint import fingerprint, modules
from tightrope.experiments.running import run_experiment

ROOT = Path(__file__).parents[2]
GDA, SSG = tr.methods.GradientDescentAscent, tr.methods.SwitchingSubgradient
SAMPLES = 1200
STEP_SIZES = [0.01, 0.1, 0.3]


@cache
def make():
    """Least squares under a sampled budget; cached, so that programs are compiled once."""
    data = tr.Sampler(lambda key, n: 1.0 + jax.random.normal(key, (n, 2)), batch_size=2)
    budget = tr.at_most(lambda x, batch: jnp.sum(x) + 0.1 * jnp.mean(batch), 1.0, data=data, name="budget")
    return tr.Problem(lambda x, batch: jnp.mean((x - batch) ** 2), budget, data=data), jnp.zeros(2)


ENTRIES = (
    Entry("GDA", tuple(GDA(step_size=s) for s in STEP_SIZES), note="ours"),
    Entry("SSG (sampled)", tuple(SSG(step_size=s, values="sampled") for s in STEP_SIZES)),
)
PART = Part(
    "tiny", make, ENTRIES, samples=SAMPLES, seeds=2, records=5, metrics=lambda: {"norm": lambda x, _: (x**2).sum()}
)


def experiment(*parts, claims=lambda runs: [Check("it ran", {"records": float(len(runs["tiny"]))}, True, "counted")]):
    return Experiment("test", "A test", "no paper", "", lambda quick: parts, claims)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run_experiment(experiment(PART), tmp_path_factory.mktemp("done"))


@pytest.fixture(autouse=True)
def _no_figures(done, monkeypatch):
    """Only the first run writes figures."""
    monkeypatch.setattr(running, "write_files", lambda outcome: None)


@pytest.fixture
def sweeps(monkeypatch):
    """The methods of every call of `sweep`."""
    calls = []

    def counted(problem, x0, methods, **options):
        calls.append(methods)
        return tr.sweep(problem, x0, methods, **options)

    monkeypatch.setattr(entries, "sweep", counted)
    return calls


def test_everything_is_written(done):
    files = {path.relative_to(done.folder).as_posix() for path in done.folder.rglob("*") if path.is_file()}
    runs = {f"runs/tiny.{entry}.{ending}" for entry in ("GDA", "SSG-sampled") for ending in ("json", "parquet")}
    figures = {f"{name}.{ending}" for name in ("figure", "figure-time") for ending in ("png", "svg")}
    assert files == runs | figures | {"report.html", "checks.json"}


def test_claims_are_in_checks_json(done):
    written = json.loads((done.folder / "checks.json").read_text())
    assert written["checks"] == [asdict(check) for check in done.checks]
    assert written["checks"][0] == {
        "claim": "it ran",
        "measured": {"records": 24.0},
        "holds": True,
        "detail": "counted",
        "basis": "as printed",
        "why": "",
    }
    assert (written["experiment"], written["quick"]) == ("test", False)
    assert written["versions"]["jax"]
    assert written["seconds"] >= 0


def test_the_frame_has_a_row_for_each_entry_seed_and_record(done):
    frame = done.frames["tiny"]
    columns = "entry seed step samples epochs seconds objective violation stationarity budget norm status"
    assert list(frame.columns) == columns.split(" ")
    assert frame.groupby(["entry", "seed"]).size().to_dict() == {(e.label, s): 6 for e in ENTRIES for s in (0, 1)}
    saved = pd.read_parquet(done.folder / "runs" / "tiny.GDA.parquet")
    pd.testing.assert_frame_equal(saved, frame[frame["entry"] == "GDA"].reset_index(drop=True))


def test_every_entry_draws_equally_many_samples_in_tuning_and_final_runs(done):
    for run in done.runs["tiny"].values():
        drawn = [tried["samples"] for tried in run["tuning"]] + run["samples"]
        assert all(SAMPLES - drawn[0] / run["steps"] < samples <= SAMPLES for samples in drawn)
    assert len({run["steps"] for run in done.runs["tiny"].values()}) == 2  # the methods draw differently per step
    recorded = done.frames["tiny"].query("entry == 'GDA'").groupby("seed")["samples"].max()
    assert recorded.tolist() == done.runs["tiny"]["GDA"]["samples"]


def test_the_setting_with_the_smallest_score_is_chosen(done):
    for entry in ENTRIES:
        run = done.runs["tiny"][entry.label]
        scores = [tried["score"] for tried in run["tuning"]]
        assert run["chosen"] == repr(entry.grid[scores.index(min(scores))])
        assert len(set(map(tuple, scores))) == len(STEP_SIZES)


def test_tuning_runs_have_the_budget_of_final_ones_and_a_seed_of_their_own(done):
    problem, x0 = make()
    run = done.runs["tiny"]["GDA"]
    found = tr.sweep(problem, x0, list(ENTRIES[0].grid), steps=run["steps"], seeds=[TUNING_SEED]).results
    for tried, again in zip(run["tuning"], found, strict=True):
        assert tried["steps"] == run["steps"]
        assert tried["score"] == pytest.approx([again.history["objective"][-1]], rel=1e-5)
    finals = done.frames["tiny"].query("entry == 'GDA'").groupby("seed")["objective"].last()
    assert not np.isclose(finals, min(run["tuning"], key=lambda tried: tried["score"])["score"][0], rtol=1e-6).any()


def test_the_score_decides(done, tmp_path):
    highest = replace(PART, entries=ENTRIES[:1], score=lambda run: -run["objective"].iloc[-1], score_text="the highest")
    chosen = run_experiment(experiment(highest), tmp_path).runs["tiny"]["GDA"]["chosen"]
    scores = [tried["score"] for tried in done.runs["tiny"]["GDA"]["tuning"]]
    assert chosen == repr(ENTRIES[0].grid[scores.index(max(scores))])


def test_a_run_that_diverged_is_never_chosen():
    class Run:
        status = "diverged"
        history = tr.History({"objective": [0.0]})

    assert entries.score_of(PART, Run()) > (1e300,)
    Run.status = "budget"
    assert entries.score_of(PART, Run()) == (0.0,)
    Run.history = tr.History({"objective": [float("nan")]})
    assert entries.score_of(PART, Run()) > (1e300,)


def test_settings_are_one_line():
    inner = tr.methods.ConstraintExtrapolation(step_size=0.05, dual_step_size=500.0)
    text = entries.one_line(
        tr.methods.ProximalPoint(inner=inner, proximal_weight=7.939301371574402, constraints="convex")
    )
    assert text.startswith(
        "ProximalPoint(inner=ConstraintExtrapolation(step_size=0.05, dual_step_size=500.0), proximal_weight=7.9"
    )
    assert text.endswith("constraints='convex')")


def test_finished_entries_are_not_run_again(done, sweeps):
    untouched = replace(PART, make=make)
    again = run_experiment(experiment(untouched), done.folder.parent)
    assert sweeps == []
    pd.testing.assert_frame_equal(again.frames["tiny"], done.frames["tiny"])
    assert again.runs == done.runs


def test_an_interrupted_experiment_resumes_with_the_missing_entries(tmp_path, monkeypatch, sweeps):
    stop = replace(ENTRIES[1], grid=ENTRIES[1].grid[:1])
    part = replace(PART, entries=(replace(ENTRIES[0], grid=ENTRIES[0].grid[:1]), stop), samples=None, steps=10)
    interrupted = entries.sweep

    def stopped(problem, x0, methods, **options):
        found = interrupted(problem, x0, methods, **options)
        if isinstance(methods[0], SSG):
            found.results[1].status = "interrupted"
        return found

    with monkeypatch.context() as patch:
        patch.setattr(entries, "sweep", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(experiment(part), tmp_path)
    runs = tmp_path / "test" / "runs"
    assert sorted(path.name for path in runs.iterdir()) == ["tiny.GDA.json", "tiny.GDA.parquet"]
    sweeps.clear()
    outcome = run_experiment(experiment(part), tmp_path)
    assert [type(method) for (method,) in sweeps] == [SSG]
    assert set(outcome.frames["tiny"]["entry"]) == {"GDA", "SSG (sampled)"}


CHANGES = [
    {"samples": SAMPLES + 1},
    {"seeds": 3},
    {"records": 6},
    {"lanes": 2},
    {"score_text": "another"},
    {"make": partial(make, 1)},
    {"metrics": partial(dict, one=1)},
    {"final_metrics": partial(dict, one=1)},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_other_numbers_change_the_fingerprint(change):
    mark = fingerprint(PART, ENTRIES[0])
    assert fingerprint(replace(PART, **change), ENTRIES[0]) != mark


def test_another_grid_changes_the_fingerprint_and_another_note_does_not():
    mark = fingerprint(PART, ENTRIES[0])
    assert fingerprint(PART, replace(ENTRIES[0], grid=ENTRIES[0].grid[:2])) != mark
    assert fingerprint(PART, replace(ENTRIES[0], note="elsewhere")) == mark


def test_a_changed_file_changes_the_fingerprint(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("a = 1")
    part = replace(PART, make=partial(make, file))
    mark = fingerprint(part, ENTRIES[0])
    assert fingerprint(part, ENTRIES[0]) == mark
    file.write_text("a = 2")
    assert fingerprint(part, ENTRIES[0]) != mark


def test_the_fingerprint_covers_code_that_runs_but_not_code_that_judges_or_plots():
    for name, experiment in base.available().items():
        for part in experiment.parts(False):
            functions = [getattr(function, "func", function) for function in (part.make, part.measure, part.metrics)]
            found = {each for function in functions if function for each in modules(function.__module__)}
            files = {each.rpartition(".")[2] for each in found}
            assert {"config", "problems" if name == "rates" else "problem"} <= files
            assert not files & {"claims", "plot", "panels", "entries"}
    parity = "tightrope.experiments.demographic_parity.problem"
    assert "tightrope.experiments.roc_fairness.near" in modules(parity)  # an import of an import
    assert "tightrope.experiments.base" not in modules(parity)
    assert modules("builtins") == {}
    import tightrope.runs.plots  # results import it where they are drawn

    drawn = {"tightrope.figures", "tightrope.tables", tightrope.runs.plots.__name__}
    assert not drawn & set(modules("tightrope.runs.solving", "tightrope.runs.sweeping"))


def test_the_fingerprint_covers_the_library_that_a_run_uses_and_no_other_method():
    found = modules("tightrope.runs.sweeping", "tightrope.methods.linearized_alm")
    inside = {"methods.linearized_alm", "methods.base", "methods.shared.constants", "runs.loop", "oracles.oracle"}
    assert {f"tightrope.{name}" for name in inside} <= set(found)
    assert not [name for name in found if "adaptive_penalty" in name or name.startswith("tightrope.experiments")]
    assert "tightrope.methods.adaptive_penalty.steering" in modules("tightrope.methods.adaptive_penalty.method")
    code = found["tightrope.methods.linearized_alm"]
    assert "def step(" in code
    assert '"""' not in code


def test_final_metrics_are_not_computed_while_tuning(tmp_path):
    seen = []
    costly = replace(
        PART,
        entries=(Entry("GDA", ENTRIES[0].grid[:2]),),
        samples=None,
        steps=10,
        final_metrics=lambda: {"costly": lambda x, _: seen.append(1) or len(seen)},
    )
    frame = run_experiment(experiment(costly), tmp_path).frames["tiny"]
    assert sorted(frame["costly"]) == list(range(1, len(frame) + 1))
    assert {"norm", "costly"} <= set(frame.columns)


def test_a_changed_number_runs_again_and_replaces_the_file(tmp_path, sweeps):
    part = replace(PART, entries=(Entry("GDA", ENTRIES[0].grid[:1]),), samples=None, steps=10)
    run_experiment(experiment(part), tmp_path)
    sweeps.clear()
    outcome = run_experiment(experiment(replace(part, steps=20)), tmp_path)
    assert len(sweeps) == 1
    assert outcome.frames["tiny"]["step"].max() == 20


def test_single_runs_equal_lanes_and_have_times_of_their_own(done, tmp_path, sweeps):
    steps = done.runs["tiny"]["GDA"]["steps"]
    alone = replace(
        PART,
        entries=(Entry("GDA", ENTRIES[0].grid[:2]),),
        lanes=1,
        samples=None,
        steps=steps,
    )
    outcome = run_experiment(experiment(alone), tmp_path)
    assert sweeps == []
    scores = [tried["score"][0] for tried in outcome.runs["tiny"]["GDA"]["tuning"]]
    together = [tried["score"][0] for tried in done.runs["tiny"]["GDA"]["tuning"]]
    assert scores == pytest.approx(together[:2], rel=1e-4)
    assert outcome.frames["tiny"].groupby("seed")["seconds"].max().nunique() == 2


def test_lanes_limit_the_size_of_a_sweep(done, tmp_path, sweeps):
    few = replace(PART, entries=ENTRIES[:1], lanes=2, seeds=3, samples=None, steps=done.runs["tiny"]["GDA"]["steps"])
    outcome = run_experiment(experiment(few), tmp_path)
    assert [len(methods) for methods in sweeps] == [2, 1, 1, 1]
    scores = [tried["score"][0] for tried in outcome.runs["tiny"]["GDA"]["tuning"]]
    assert scores == pytest.approx([tried["score"][0] for tried in done.runs["tiny"]["GDA"]["tuning"]], rel=1e-4)
    assert sorted(set(outcome.frames["tiny"]["seed"])) == [0, 1, 2]


def test_a_part_may_have_its_own_measurements(tmp_path):
    asked = []

    def measure(entry):
        asked.append(entry.label)
        values = {"seed": [0, 1], "step": 3, "samples": 6, "seconds": 0.1, "objective": [1.0, 2.0]}
        return pd.DataFrame(values)

    part = Part("tiny", None, (Entry("by hand", (GDA(),)),), steps=3, measure=measure)
    outcome = run_experiment(experiment(part), tmp_path)
    assert outcome.frames["tiny"]["entry"].tolist() == ["by hand"] * 2
    run_experiment(experiment(part), tmp_path)
    assert asked == ["by hand"]


def test_a_part_with_its_own_measurements_may_choose_by_its_own_scores(tmp_path):
    asked = []

    def measure(entry):
        asked.append(entry.grid)
        return pd.DataFrame({"seed": [0], "step": 3, "samples": 6, "seconds": 0.1, "objective": 1.0})

    entry = ENTRIES[0]
    part = Part(
        "tiny", None, (entry,), steps=3, measure=measure, scores=lambda entry: [(0.0, 2.0), (0.0, 1.0), (5.0, 0.0)]
    )
    run = run_experiment(experiment(part), tmp_path).runs["tiny"][entry.label]
    assert asked == [(entry.grid[1],)]
    assert run["chosen"] == repr(entry.grid[1])
    assert [tried["score"] for tried in run["tuning"]] == [[0.0, 2.0], [0.0, 1.0], [5.0, 0.0]]
    assert fingerprint(replace(part, scores=partial(max, 2)), entry) != fingerprint(part, entry)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 5}, "give steps or samples"),
        ({"samples": None}, "give steps or samples"),
        ({"entries": ()}, "distinct labels"),
        ({"entries": (ENTRIES[0], ENTRIES[0])}, "distinct labels"),
        ({"entries": (Entry("none", ()),)}, "the grid of 'none' is empty"),
        ({"make": None}, "give make or measure"),
    ],
)
def test_an_invalid_part_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PART, **change)


def test_a_budget_in_samples_needs_a_problem_with_data(tmp_path):
    part = replace(PART, make=tr.zoo.lens, entries=(Entry("GDA", (GDA(),)),))
    with pytest.raises(ValueError, match="draws none; use steps"):
        run_experiment(experiment(part), tmp_path)


def test_samples_tell_the_number_of_steps_unless_a_run_diverged():
    class Run:
        status, samples = "budget", 300

    class Diverged(Run):
        status, samples = "diverged", 6

    assert entries.steps_for(1200, 100, [Run(), Run()]) == 400
    assert entries.steps_for(301, 100, [Run(), Run()]) == 100
    assert entries.steps_for(1200, 400, [Diverged(), Run()]) == 400
    assert entries.steps_for(1200, entries.PILOT_STEPS, [Diverged(), Run()]) == 1200


def test_feasible_objective_prefers_feasible_runs():
    def run(objective, violation):
        return pd.DataFrame({"objective": [9.0, objective], "violation": [4.0, violation]})

    good, infeasible = run(1.0, 0.003), run(-5.0, 0.1)
    assert base.feasible_objective(good) == (0.0, 1.0)
    assert base.feasible_objective(infeasible) == (pytest.approx(0.096), -5.0)
    assert base.feasible_objective(good) < base.feasible_objective(infeasible)


def test_the_committed_page_matches_the_committed_checks():
    """To update it: tightrope reproduce --summary docs/reproduction.md."""
    assert (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8") == summary.markdown_summary(base.committed())


def test_committed_checks_are_of_full_runs_and_say_how_they_were_measured():
    for name, (_, written) in base.committed().items():
        assert (written["experiment"], written["quick"]) == (name, False)
        assert written["checks"]
        for check in written["checks"]:
            assert set(check) == {"claim", "measured", "holds", "detail", "basis", "why"}
            assert check["detail"]
            assert bool(check["why"]) is not check["holds"]
            assert isinstance(check["holds"], bool)


def test_experiments_are_named_after_their_folders():
    for name in base.available():
        assert (base.folder_of(name) / "__init__.py").exists()
