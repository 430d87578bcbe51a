"""What is written about the library is true: code in documents runs, every public name is documented."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from statistics import median
from types import ModuleType

import pytest

import tightrope as tr

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SLOW = (
    "adaptive-lagrangian.md",
    "adaptive-penalty.md",
    "adding-a-method.md",
    "coming-from.md",
    "constraints.md",
    "diagnosing.md",
    "fairness.md",
)
"""Pages whose code runs only in the full suite."""
PAGES_WITH_CODE = [
    pytest.param(page, marks=pytest.mark.full if page.name in SLOW else ())
    for page in PAGES
    if "```python\n" in page.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.name)
def test_the_code_on_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    module = ModuleType(page.stem)
    monkeypatch.setitem(sys.modules, page.stem, module)  # classes on the page look their module up
    exec(compile("\n".join(blocks), page.name, "exec"), module.__dict__)


def test_the_shares_on_the_default_methods_page_are_those_of_the_benchmark():
    stored = json.loads((ROOT / "benchmarks" / "results" / "defaults.json").read_text())["rows"]
    share = {(row["section"], row["case"]): f"{row['solved']:.3f}" for row in stored if "solved" in row}
    page = (ROOT / "docs" / "adaptive-penalty.md").read_text()
    for variance in ("1e-08", "1e-04", "1e-02", "1e-01"):
        noisy = f"variance {variance}, "
        ours, alone, short, long = (
            share["gradients", noisy + case]
            for case in (
                "default",
                "default, equations alone",
                "StochasticSQP, 1000 steps",
                "StochasticSQP, 2000 steps",
            )
        )
        both = share["constraints", noisy + "default"]
        assert f"| {variance} | {ours} | {alone} | {short}, {long} | {both} |" in page


def test_the_table_of_default_constants_is_that_of_the_benchmark():
    rows = json.loads((ROOT / "benchmarks" / "results" / "constants.json").read_text())["rows"]
    page = (ROOT / "docs" / "constants.md").read_text().splitlines()
    table = [re.sub(r" \\\*", "", line) for line in page[page.index("|---|---|---|---|---|") + 1 :]]
    numbers = [f"| {r['method']} | {r['problem']} | {r['estimated']:.4f} | {r['true']:.4f} |" for r in rows]
    assert [line.rpartition(" |")[0].rpartition(" ")[0] for line in table] == numbers
    assert f"{sum(row['passes'] for row in rows)} of {len(rows)} cases reach the aim" in " ".join(page)


def test_the_answers_on_the_page_about_networks_are_those_of_the_benchmark():
    rows = json.loads((ROOT / "benchmarks" / "results" / "networks.json").read_text())["rows"]
    page = (ROOT / "docs" / "adaptive-lagrangian.md").read_text()
    for row in (row for row in rows if row["section"] == "answers"):
        best = row["best of the grid"]
        grid = f"{best['objective']:.4f}" if best else "none feasible"
        line = (
            rf"\| {re.escape(row['case'])}.* \| {row['epochs']:g} \| {row['ours']['objective']:.4f} \| .* \| {grid} \|"
        )
        assert re.search(line, page), row["case"]
    for row in (row for row in rows if row["section"] == "steps"):
        assert f"{row['ratio']:.2f} times" in page, row["case"]


def test_the_page_on_performance_and_the_table_of_the_readme_are_those_of_the_benchmarks():
    written = runpy.run_path(str(ROOT / "benchmarks" / "page.py"))
    assert (ROOT / "docs" / "performance.md").read_text() == written["page"]()
    readme = (ROOT / "README.md").read_text()
    assert readme == written["with_table"](readme)


def test_the_tables_on_the_fairness_page_are_those_of_the_benchmark():
    found = json.loads((ROOT / "benchmarks" / "results" / "fairness.json").read_text())
    page = (ROOT / "docs" / "fairness.md").read_text()
    pairs = [(ours, theirs) for theirs in ("ExponentiatedGradient", "GridSearch") for ours in ("log", "error")]
    differences = {
        (c["data"], c["constraint"], c["violation"], c["ours"], c["theirs"]): c for c in found["comparisons"]
    }
    for case in {key[:3] for key, c in differences.items() if c["splits"] > 1}:
        cells = [
            f"{c['difference']:+.2f} ± {c['standard error']:.2f} ({c['splits']})" if c["splits"] > 1 else "–"
            for c in (differences[*case, *pair] for pair in pairs)
        ]
        assert f"| {case[0]}, {case[1].replace('_', ' ')} | {case[2]} | {' | '.join(cells)} |" in page
    seconds = {}
    for row in found["rows"]:
        seconds.setdefault((row["data"], row["constraint"], row["method"]), []).append(row["seconds"])
    for data, constraint in {key[:2] for key in seconds}:
        each = (median(seconds[data, constraint, m]) for m in ("log", "error", "ExponentiatedGradient", "GridSearch"))
        cells = " | ".join(f"{number:.1f}" for number in each)
        assert f"| {data}, {constraint.replace('_', ' ')} | {cells} |" in page


def test_the_figures_on_the_page_about_reliability_are_those_of_the_benchmark():
    found = json.loads((ROOT / "benchmarks" / "results" / "reliability.json").read_text())
    kills, bad, run, solves = (found[name] for name in ("kills", "bad_input", "long_run", "many_solves"))
    moments = ", ".join(f"{count} {moment}" for moment, count in sorted(kills["moments"].items()))
    grown = run["at_the_end"]["megabytes"] - run["after_10_percent"]["megabytes"]
    megabytes = ", ".join(str(number) for number in solves["megabytes_by_10_solves"])
    page = (ROOT / "docs" / "reliability.md").read_text()
    for row in (
        f"| kills of {kills['runs']} runs | {kills['kills']} ({moments}) | {kills['identical']} runs identical to the bit |",
        f"| generated bad input | {bad['cases']:,} cases | {len(bad['findings'])} findings |",
        f"| one long run | {run['steps']:,} steps | {grown:.1f} MB more at the end than after a tenth |",
        f"| solves of different problems | {solves['solves']} | {solves['problems_alive']} problems alive; "
        f"MB after each 10: {megabytes} |",
    ):
        assert row in page, row


def public_names():
    modules = {"": tr, "domains.": tr.domains, "methods.": tr.methods, "rates.": tr.rates, "zoo.": tr.zoo}
    return {
        prefix + name: getattr(module, name)
        for prefix, module in modules.items()
        for name in module.__all__
        if not inspect.ismodule(getattr(module, name))
    }


@pytest.mark.parametrize("name", sorted(public_names()))
def test_every_public_name_has_a_docstring(name):
    assert (inspect.getdoc(public_names()[name]) or "").strip()


CONTRACT = {
    "methods.Accepts",
    "methods.Draw",
    "methods.Info",
    "methods.Method",
    "domains.Domain",
    "Certificate",
    "Constraint",
}
"""Names a user never makes by hand: what is made is shown where it is made."""


@pytest.mark.parametrize(
    "name", sorted(n for n in set(public_names()) - CONTRACT if not n.startswith(("zoo.", "rates.")))
)
def test_every_public_name_that_users_call_shows_a_runnable_example(name):
    assert ">>>" in (inspect.getdoc(public_names()[name]) or "")


def test_the_zoo_shows_one_example_for_all_of_its_problems():
    assert ">>>" in (inspect.getdoc(tr.zoo) or "")


def test_rates_show_one_example_of_their_data_and_one_of_a_solve():
    assert all(">>>" in (inspect.getdoc(fn) or "") for fn in (tr.rates.demographic_parity, tr.rates.solve))


def test_the_readme_names_the_two_commands_that_ci_and_newcomers_run():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_importing_tightrope_brings_in_nothing_heavy_that_is_not_used():
    heavy = ["typer", "rich", "matplotlib", "pandas", "orbax", "scipy.optimize", "cvxpy", "torch", "sklearn"]
    code = f"import sys, tightrope; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_no_file_names_a_path_of_a_machine_or_a_registry():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    words = ["/".join(["", "work", ""]), "/".join(["", "root", ""]), "pypi" + ".org", "--index" + "-url"]
    for name in tracked:
        text = (ROOT / name).read_text(errors="ignore") if (ROOT / name).exists() else ""
        assert not [word for word in words if word in text], name
