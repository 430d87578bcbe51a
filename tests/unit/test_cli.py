"""The command line: its output, the files it writes, and its error messages."""

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tightrope as tr
from tightrope import cli
from tightrope.cli import lists
from tightrope.cli.solve import compare_with
from tightrope.cli.terminal import show
from tightrope.experiments import base, outcome, running, summary
from tightrope.methods import registry

README = Path(__file__).parents[2] / "README.md"
OWN = """
import jax.numpy as jnp, tightrope as tr

problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget[k]"))
pair = problem, jnp.zeros(2)
known = *pair, tr.zoo.Solution(jnp.full(2, 0.5), 0.5, {"budget[k]": 1.0})

def made():
    return pair

def broken():
    raise KeyError("weights")

x0 = w0 = jnp.zeros(2)

def problem_alone():
    return problem

number = 3
wrong_solution = *pair, 0.5
"""


def call(*arguments, columns=80):
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"COLUMNS": str(columns)})


def letters(text):
    """Counts of the characters of a text, without spaces and table lines: equal if nothing was cut off."""
    return Counter(re.sub(r"[\s─]", "", text))


@pytest.fixture
def own_file(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


# ---------------------------------------------------------------------- help and lists


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_every_command(arguments):
    answer = call(*arguments)
    assert answer.exit_code == 0
    assert all(
        name in answer.output for name in ("demo", "solve", "reproduce", "compare", "methods", "problems", "--version")
    )


@pytest.mark.parametrize("command", ["demo", "solve", "reproduce", "compare", "methods", "problems"])
def test_help_of_a_command_has_an_example(command):
    answer = call(command, "--help")
    assert answer.exit_code == 0
    assert f"  tightrope {command}" in answer.output.partition("Example")[2]
    assert "[bold]" not in answer.output


def test_version():
    assert call("--version").output == f"tightrope {tr.__version__}\n"


def text_about(method):
    return method.__name__ + "".join(lists.facts(method))


@pytest.mark.parametrize("columns", [60, 80, 120, 159])
def test_methods_prints_every_fact_in_a_narrow_terminal(columns):
    output = call("methods", columns=columns).output
    assert max(map(len, output.splitlines())) <= columns
    assert not re.search(r"[ \t]$", output, re.MULTILINE)
    titles = len(tr.methods.available()) * "".join(lists.TITLES)
    said = "".join(map(text_about, tr.methods.available().values()))
    assert letters(output) == letters(said + titles + "".join(lists.GROUPS) + "".join(lists.LEGEND))


@pytest.mark.parametrize("columns", [160, 200])
def test_methods_prints_every_fact_in_a_wide_terminal(columns):
    output = call("methods", columns=columns).output
    assert max(map(len, output.splitlines())) <= columns
    titles = len(lists.GROUPS) * "".join(["method and paper", *lists.TITLES[1:]])
    said = "".join(map(text_about, tr.methods.available().values()))
    assert letters(output) == letters(said + titles + "".join(lists.GROUPS) + "".join(lists.LEGEND))


@pytest.mark.parametrize("columns", [80, 200])
def test_methods_of_the_papers_come_before_those_compared_with_them(columns):
    output = call("methods", columns=columns).output
    order = [line.split()[0] for line in output.splitlines() if line.strip().split(" ")[0] in tr.methods.available()]
    assert order == list(tr.methods.available())
    first, _, second = output.partition("Compared with them")
    assert all(method.__name__ in first for method in registry.PAPERS)
    assert all(re.search(rf"^ *{method.__name__}\b", second, re.MULTILINE) for method in registry.COMPARED)


def test_reconstructed_parts_are_highlighted():
    text = lists.highlighted(lists.Text("TStoM [inner\n budget reconstructed], [1]"))
    assert [text.plain[span.start : span.end] for span in text.spans] == ["[inner\n budget reconstructed]"]


def test_the_accepted_problems_are_listed_in_words():
    accepts = tr.methods.Accepts("affine", inequalities=True, stochastic=False, form="native", needs="lmo")
    assert (
        lists.in_words(accepts)
        == "affine equalities; inequalities without data; sets with a linear minimization oracle"
    )
    assert lists.in_words(accepts._replace(equalities="none", stochastic=True)).startswith(
        "inequalities with or without"
    )
    assert lists.in_words(accepts._replace(equalities="any")).startswith("equalities and inequalities without data;")
    only_linear = accepts._replace(inequalities=False, needs="everywhere")
    assert lists.in_words(only_linear) == "affine equalities; no set: x unrestricted"


def test_problems_cuts_nothing_off():
    output = call("problems").output
    assert max(map(len, output.splitlines())) <= 80
    cells = ["problem", "description"]
    for name, make in tr.zoo.available().items():
        assert re.search(rf"^ *{name} ", output, re.MULTILINE)
        cells += [name, make.__doc__.splitlines()[0]]
    assert letters(output) == letters("".join(cells))


# ---------------------------------------------------------------------- solve


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The output of `solve` on a problem of the zoo, and the file it saved."""
    file = tmp_path_factory.mktemp("solved") / "result.npz"
    return call("solve", "linear_on_circle", "--steps", 300, "--out", file), file


def test_solve_compares_with_the_zoo(solved):
    answer, _ = solved
    assert answer.exit_code == 0, answer.output
    assert re.search(r"objective +-\d\S* +-5 +[+-]\d\S*e", answer.output)
    assert re.search(r"multiplier of circle +\d\S* +2.5 ", answer.output)
    assert re.search(r"x +\d\S* away", answer.output)


def test_solve_saves_what_it_printed(solved):
    answer, file = solved
    loaded = tr.load(file)
    assert 0 < loaded.steps < 300  # it ends at rounding level
    assert str(loaded) in answer.output
    assert repr(str(file)) in answer.output


def test_solve_compares_where_no_point_is_feasible(solved, capsys):
    *_, solution = tr.zoo.circle_and_wall()
    show(compare_with(replace(tr.load(solved[1]), violation=0.75), solution))
    assert re.search(r"no point is feasible\) +0.75 +0.697\d* +\+5.28e-02", capsys.readouterr().out)


def test_solve_where_there_is_no_least_objective(tmp_path):
    (tmp_path / "own.py").write_text("import tightrope as tr\nfall = tr.zoo.infeasible.unbounded()['falling_line']")
    answer = call("solve", f"{tmp_path / 'own.py'}:fall", "--steps", 200)
    assert answer.exit_code == 0, answer.output
    assert re.search(r"objective +-\S+ +-inf *$", answer.stdout, re.MULTILINE)
    assert "away" not in answer.stdout


def test_solve_leaves_out_what_the_solution_does_not_state(solved, capsys):
    show(compare_with(tr.load(solved[1]), tr.zoo.Solution(None, float("nan"), {"circle": 2.5})))
    printed = capsys.readouterr().out
    assert "multiplier of circle" in printed
    assert "objective" not in printed


@pytest.mark.parametrize(
    ("name", "compared"), [("known", True), ("made", False), ("problem", False), ("problem_alone", False)]
)
def test_solve_a_file(own_file, name, compared):
    answer = call("solve", f"{own_file}:{name}", "--steps", 50, "--method", "truncated-momentum", "--seed", 7)
    assert answer.exit_code == 0, answer.output
    assert "TruncatedMomentum" in answer.output
    assert ("multiplier of budget[k]" in answer.output) == compared


def test_solve_goes_on_from_a_checkpoint(own_file, tmp_path):
    command = ["solve", f"{own_file}:known", "--steps", 50, "--method", "truncated-momentum", "--seed", 7]
    first, again = (call(*command, "--checkpoint", tmp_path / "run") for _ in range(2))
    assert "resumed" not in first.output
    assert "resumed at step 50" in " ".join(again.output.split())
    refused = call(*command[:-1], 8, "--checkpoint", tmp_path / "run")
    assert refused.exit_code == 2
    assert "differs in the seed" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "hints"),
    [
        (["linear_on_circel"], ["linear_on_circle", "tightrope problems"]),
        (["nothing like it"], ["tightrope problems", "file.py:object"]),
        (["lens", "--method", "SwitchinSubgradient"], ["SwitchingSubgradient", "tightrope methods"]),
        (["noisy_sphere", "--method", "TruncatedMomentum"], ["deterministic", "GradientDescentAscent"]),
        (["lens", "--out", "/no/such/folder/result.npz"], ["--out", "folder that exists"]),
        (["{own}:mad"], ["no object 'mad'", "made"]),
        (["{own}:number"], ["a Problem, (problem, x0)", "int"]),
        (["{own}:problem", "--x0", "x1"], ["no start 'x1'", "--x0 NAME"]),
        (["{own}:pair", "--x0", "w0"], ["--x0", "has a start of its own"]),
        (["lens", "--x0", "w0"], ["--x0", "has a start of its own"]),
        (["{own}:wrong_solution"], ["tightrope.zoo.Solution", "float"]),
        (["{own}:broken"], ["own.py:broken raised KeyError: 'weights'"]),
        (["{own}.missing.py:made"], ["no file"]),
        (["LICENSE:made"], ["not a Python file"]),
    ],
)
def test_bad_input_gives_a_one_line_error(own_file, arguments, hints, monkeypatch):
    (own_file.parent / "LICENSE").write_text("")
    monkeypatch.chdir(own_file.parent)
    answer = call("solve", *(argument.replace("{own}", str(own_file)) for argument in arguments))
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("tightrope: ")
    assert answer.stderr.count("\n") == 1
    assert "Traceback" not in answer.output
    for hint in hints:
        assert hint in answer.stderr


# ---------------------------------------------------------------------- compare and reproduce


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The output of `compare` on a problem in a file, and the folder of that file."""
    folder = tmp_path_factory.mktemp("compared")
    (folder / "own.py").write_text(OWN)
    methods = ["--methods", "gradient-descent-ascent,TruncatedMomentum", "--grid", "step_size=0.01,0.1"]
    limits = ["--grid", "TruncatedMomentum.penalty=1,2,4", "--steps", 40, "--seeds", 2]
    return call("compare", f"{folder / 'own.py'}:made", *methods, *limits, "--out", folder / "out", columns=120), folder


def test_compare_prints_the_numbers_and_writes_the_files_of_reproduce(compared):
    answer, folder = compared
    assert answer.exit_code == 0, answer.output
    out = folder / "out" / "own-made"
    assert re.search(r"GradientDescentAscent +TruncatedMomentum", answer.stdout)
    assert re.search(r"objective +[-\d.]+ .* [\d.]+", answer.stdout)
    assert str(out / "report.html") in answer.stdout.replace("\n", "")
    assert {"report.html", "checks.json", "figure.png", "figure.svg", "runs"} <= {path.name for path in out.iterdir()}


def test_compare_tries_all_combinations_of_the_grid(compared):
    _, folder = compared
    tried = {}
    for file in (folder / "out" / "own-made" / "runs").glob("*.json"):
        about = json.loads(file.read_text())
        tried[about["chosen"].partition("(")[0]] = {one["settings"] for one in about["tuning"]}
    assert tried["GradientDescentAscent"] == {f"GradientDescentAscent(step_size={s})" for s in (0.01, 0.1)}
    grid = {f"TruncatedMomentum(step_size={s}, penalty={p})" for s in (0.01, 0.1) for p in (1.0, 2.0, 4.0)}
    assert tried["TruncatedMomentum"] == grid


def test_an_interrupted_compare_says_how_to_resume(own_file, monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_experiment", interrupted)
    answer = call("compare", f"{own_file}:made", "--methods", "TruncatedMomentum", "--out", tmp_path)
    assert answer.exit_code == 130
    assert "the same command resumes" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "hints"),
    [
        (["lens", "--methods", "SwitchinSubgradient"], ["--methods", "SwitchingSubgradient"]),
        (["lans", "--methods", "AdaptivePenalty"], ["TARGET", "lens"]),
        (["lens", "--methods", "StochasticSQP"], ["StochasticSQP"]),
        (["lens", "--methods", "AdaptivePenalty", "--steps", "5", "--samples", "5"], ["--steps and --samples"]),
        (["lens", "--methods", "AdaptivePenalty", "--samples", "50"], ["draws none; use steps"]),
        (["lens", "--methods", "GradientDescentAscent", "--grid", "step_size"], ["--grid", "'step_size'"]),
        (["lens", "--methods", "GradientDescentAscent", "--grid", "step_size=a,b"], ["with numbers"]),
        (
            ["lens", "--methods", "GradientDescentAscent", "--grid", "stepsize=1,2"],
            ["'stepsize'", "did you mean 'step_size'?"],
        ),
        (["lens", "--methods", "GradientDescentAscent", "--grid", "step_size=-1"], ["step_size", "> 0"]),
        (
            ["lens", "--methods", "GradientDescentAscent", "--grid", "LinearizedPenalty.penalty=1"],
            ["not among --methods"],
        ),
    ],
)
def test_a_bad_comparison_gives_a_one_line_error(arguments, hints, tmp_path):
    answer = call("compare", *arguments, "--out", tmp_path)
    assert answer.exit_code == 2
    assert "Traceback" not in answer.output
    for hint in hints:
        assert hint in answer.stderr


def test_reproduce_lists_every_experiment():
    output = call("reproduce", "--list").output
    for name, experiment in base.available().items():
        assert re.search(rf"^ *{name} ", output, re.MULTILINE)
        assert letters(experiment.title) <= letters(output)


def test_an_unknown_experiment_gives_a_one_line_error():
    answer = call("reproduce", "rate")
    assert answer.exit_code == 2
    assert "did you mean 'rates'?" in answer.stderr
    assert call("reproduce").exit_code == 2


def test_reproduce_writes_the_summary(tmp_path):
    assert call("reproduce", "--summary", tmp_path / "all.md").exit_code == 0
    assert (tmp_path / "all.md").read_text(encoding="utf-8") == summary.markdown_summary(base.committed())
    assert call("reproduce", "--summary", tmp_path).exit_code == 2


def test_reproduce_prints_the_claims_and_where_the_report_is(monkeypatch, tmp_path):
    def made(experiment, out, quick):
        checks = [base.Check("a is lower", {"a": 1.0}, True), base.Check("b is lower", 2.0, False)]
        return outcome.Outcome(experiment, quick, out / experiment.name, {}, {}, {}, checks)

    monkeypatch.setattr(running, "run_experiment", made)
    answer = call("reproduce", "rates", "--quick", "--out", tmp_path)
    assert re.search(r"a is lower +as printed +a: 1 +yes", answer.stdout)
    assert re.search(r"b is lower +as printed +2 +no", answer.stdout)
    assert "1 of 2 claims hold as printed, 1 does not. The quick version is too short" in answer.stdout
    assert "report.html" in answer.stdout


def test_without_plotly_there_is_a_hint(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "plotly" else find(name, *rest)
    )
    answer = call("reproduce", "--list")
    assert answer.exit_code == 2
    assert "plotly: pip install 'tightrope[all]'" in answer.stderr


# ---------------------------------------------------------------------- imports


def test_import_of_the_library_is_light():
    heavy = "{'typer', 'rich', 'matplotlib', 'pandas'}"
    program = f"import sys, tightrope; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_typer_or_rich_there_is_a_hint(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    spec = importlib.util.spec_from_file_location("tightrope.cli_again", cli.__file__)
    with pytest.raises(SystemExit, match=r"pip install 'tightrope\[cli\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
