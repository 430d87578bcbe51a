"""The demo: its table and figure, and measurements that show that the constraint works."""

import json
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from tightrope import cli
from tightrope.cli import demo_figure, demo_problem


def call(*arguments):
    return CliRunner().invoke(cli.app, ["demo", *map(str, arguments)], env={"COLUMNS": "80"})


def test_demo_prints_a_table_and_draws(tmp_path):
    answer = call("--steps", 400, "--out", tmp_path / "new" / "folder")
    assert answer.exit_code == 0, answer.output
    for row in ("accuracy", "group A", "group B", "p%-rule", "covariance", "violation", "steps per second"):
        assert re.search(rf"{row}.* [-\d].* [-\d]", answer.output), row
    assert "Tightrope result" in answer.output
    assert (tmp_path / "new" / "folder" / "demo.png").read_bytes()[1:4] == b"PNG"
    page = (tmp_path / "new" / "folder" / "demo.html").read_text()
    points = json.loads(re.search(r"const data = (.*);\n", page)[1])["points"]
    assert [point["bound"] for point in points] == list(demo_problem.BOUNDS)
    assert len(page) < 200_000
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.full
def test_demo_shows_that_the_constraint_works():
    demo = demo_problem.run()
    without, within = demo.test["unconstrained"], demo.test["constrained"]
    assert within.p_rule > without.p_rule + 20
    assert without.accuracy - 0.1 < within.accuracy
    assert demo.train["unconstrained"].violation > 0.1
    assert demo.results["constrained"].certificate.verdict == "feasible"
    assert demo.train["constrained"].violation == pytest.approx(demo.results["constrained"].violation, abs=1e-5)
    assert within.violation < 3 * within.error
    assert not set(map(tuple, demo.training_half.features)) & set(map(tuple, demo.test_half.features))


def test_demo_measurements_match_a_small_example():
    crowd = demo_problem.People(
        np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [3.0, 0.0]]), np.array([0, 0, 1, 1]) > 0, np.ones(4) > 0
    )
    outcome = demo_problem.measure([1.0, 5.0, 0.0], crowd)
    assert (outcome.accuracy, outcome.selected, outcome.p_rule) == (0.75, {"A": 0.5, "B": 1.0}, 50.0)
    assert outcome.covariance == 0.5
    assert outcome.violation == pytest.approx(0.45)
    assert demo_problem.measure([0.0, 0.0, -1.0], crowd).p_rule == 100.0


def test_demo_people_depend_on_the_seed_alone():
    first, again, other = (demo_problem.people(50, seed).features for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).all()


def test_demo_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "taken").write_text("")
    answer = call("--out", tmp_path / "taken")
    assert answer.exit_code == 2
    assert "--out must be a folder" in answer.stderr


@pytest.mark.parametrize("weights", [[1.0, 2.0, -1.0], [1.0, 0.0, -0.3], [0.0, 1.0, 0.2]])
def test_the_boundary_of_the_demo_is_where_the_score_is_zero(weights):
    axes = Figure().subplots()
    crowd = demo_problem.people(20, seed=0)
    demo_figure.draw_boundaries(axes, crowd, {"classifier": weights, "constant": np.zeros(3)})
    (line,) = axes.lines
    points = np.stack(line.get_data(), axis=1)
    assert points @ weights[:2] + weights[2] == pytest.approx(0, abs=1e-9)
    assert np.linalg.norm(points[0] - points[1]) > np.ptp(crowd.features, axis=0).max()
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == 20
