"""Tables in notebooks: well formed, escaped, loading nothing; results as JSON; bars of progress in notebooks."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.runs import progress
from tightrope.tables import Table

NAME = 'a <b> & "c"'


@pytest.fixture(scope="module")
def problem():
    return tr.Problem(
        lambda x: sum(jnp.sum((leaf - 1.0) ** 2) for leaf in x.values()), tr.at_most(first, 1.0, name=NAME)
    )


def first(x):
    return x["a"][0, 0]


@pytest.fixture(scope="module")
def result(problem):
    return tr.solve(problem, {"a": jnp.zeros((1, 2)), "b": jnp.zeros(())}, "GradientDescentAscent", steps=20)


class Page(HTMLParser):
    """The texts of a page; an error if its tags do not match, or if one loads something."""

    def __init__(self, page):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in {"div", "p", "b", "table", "thead", "tr", "th", "td"}
        assert all(name == "style" and "color" not in value and "url" not in value for name, value in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def shown(problem, result):
    return {
        "Problem": problem,
        "Result": result,
        "Certificate": result.certificate,
        "SweepResult": tr.SweepResult([result, replace(result, seed=1)]),
        "Tradeoff": tr.Tradeoff(NAME, "at_most", np.array([1.0]), [result]),
        "Plan": tr.Plan(result.method, 0.1, math.inf, 10.0, NAME, 0.5, {}, result),
        "Explanation": tr.explain(problem, result.x),
        "MonitorReport": tr.MonitorReport("undecided", result.certificate.violation, {}, {}, {}, (), 5, 0.0, 0.95),
    }


def test_notebooks_show_well_formed_tables_with_every_name_escaped(problem, result):
    for kind, each in shown(problem, result).items():
        texts = Page(each._repr_html_()).texts
        assert kind == "SweepResult" or any(NAME in text for text in texts), kind


def test_a_table_in_a_notebook_says_what_the_text_says(problem, result):
    for kind, each in shown(problem, result).items():
        if kind != "Problem":  # its text is one line
            words = " ".join(Page(each._repr_html_()).texts).split()
            assert words == str(each).split(), kind


def test_columns_are_aligned_and_a_table_may_have_no_rows():
    text = str(Table("T", [("a", "1.5"), ("long", "2")], ("x", "value")))
    assert text == "T\n  x     value\n  a     1.5\n  long  2"
    assert str(Table("T", [])) == "T"


def test_long_texts_go_on_in_their_column_and_short_ones_are_left_as_they_are():
    lines = str(Table("T", [("a", "word " * 50), ("b", "1   2")], note="note " * 50)).splitlines()
    assert max(map(len, lines)) <= 2 + 1 + 2 + 100
    assert lines[1].startswith("  a  word")
    assert lines[2].startswith("     word")
    assert "  b  1   2" in lines
    assert lines[-1].startswith("  note")


def test_long_sweeps_are_cut_off(result):
    text = str(tr.SweepResult([replace(result, seed=i) for i in range(40)]))
    assert len(text.splitlines()) == 2 + 30 + 1
    assert "10 more runs" in text


def test_a_result_is_json_with_the_structure_of_x(result):
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert np.shape(found["x"]["a"]) == (1, 2)
    assert found["x"]["b"] == pytest.approx(float(result.x["b"]))
    assert found["certificate"]["objective"]["value"] == result.objective
    assert found["history"]["step"] == result.history["step"].tolist()
    assert found["multipliers"] == result.multipliers
    assert found["history"]["epochs"][0] is None  # NaN: there are no data


def test_models_failures_and_infinite_numbers_are_json_too(result):
    model = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    x = {"net": model, "pair": (np.ones(1), 2.0)}
    found = replace(result, x=x, objective=math.inf, cause=OSError("no disk")).to_dict()
    assert found["objective"] is None
    assert found["cause"] == "OSError: no disk"
    assert found["x"]["pair"] == [[1.0], 2.0]
    assert np.shape(found["x"]["net"][".weight"]) == (1, 2)
    json.dumps(found, allow_nan=False)


def test_an_axis_that_is_none_is_refused(result):
    with pytest.raises(ValueError, match=r"against must be one of .*got 'time'"):
        result.plot("time")


@pytest.fixture
def notebook(monkeypatch):
    """What a kernel would show."""
    pages = []

    class Handle:
        def display(self, page):
            pages.append(page)

        update = display

    display = SimpleNamespace(HTML=lambda page: page, DisplayHandle=Handle)
    shell = SimpleNamespace(kernel=True)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "NOTEBOOK_INTERVAL", 0.0)
    return pages


def test_a_notebook_shows_a_bar_that_goes_at_the_end(notebook):
    with progress.progress_bar(None, 100, "Me<th>od") as show:
        show(40, "objective < 1")
    assert notebook[1] == ('Me&lt;th&gt;od <progress value="40" max="100"></progress> 40/100 objective &lt; 1')
    assert notebook[-1] == ""


def test_a_notebook_shows_no_bar_if_none_is_asked_for(notebook):
    with progress.progress_bar(False, 100, "method") as show:
        show(40, "")
    assert notebook == []
