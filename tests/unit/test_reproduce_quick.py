"""Every quick version runs and writes its files, on real data if TIGHTROPE_DATA is set, else on generated data."""

from __future__ import annotations

import json
import os
import time
from functools import cache

import generated_files as generated
import pytest

from tightrope.experiments.base import available
from tightrope.experiments.running import run_experiment

SECONDS = 30
"""Twice the time that a quick version may take alone, since it shares the machine with the rest of the suite."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A function that runs a quick version once and returns its outcome and time."""
    folder = tmp_path_factory.mktemp("quick")
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("TIGHTROPE_DATA"):
            generated.install(folder, patch)

        @cache
        def run(name):
            wall, busy = time.perf_counter(), time.process_time()
            outcome = run_experiment(available()[name], folder / "out", quick=True)
            return outcome, min(
                time.perf_counter() - wall, time.process_time() - busy
            )  # other processes may use the cores

        yield run


@pytest.mark.by_default("matrix-completion")
@pytest.mark.parametrize("name", sorted(available()))
def test_the_quick_version_takes_seconds_and_writes_its_files(name, ran):
    outcome, seconds = ran(name)
    assert seconds <= SECONDS
    written = json.loads((outcome.folder / "checks.json").read_text(encoding="utf-8"))
    assert (written["experiment"], written["quick"]) == (name, True)
    assert len(written["checks"]) == len(outcome.checks) > 0
    for file in ("figure.png", "figure.svg", "report.html"):
        assert (outcome.folder / file).stat().st_size > 1000
    for part in outcome.parts.values():
        frame = outcome.frames[part.name]
        assert set(frame["entry"]) == {entry.label for entry in part.entries}
        assert any(column.name in frame for column in outcome.experiment.columns)


@pytest.mark.by_default("matrix-completion")
@pytest.mark.parametrize("name", sorted(set(available()) - {"rates"}))
def test_the_quick_version_compares_curves(name, ran):
    for frame in ran(name)[0].frames.values():
        assert frame["entry"].nunique() >= 2


@pytest.mark.full
def test_the_slopes_of_the_quick_rates_are_steep_enough(ran):
    """At few steps and seeds: a method that does not converge fails here, too."""
    assert all(check.holds for check in ran("rates")[0].checks)
