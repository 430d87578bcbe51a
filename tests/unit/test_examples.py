"""The examples run, and the certificates that they assert hold."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {"flax_nnx": "flax", "pytorch_module": "torch"}
"""Packages of examples that are no dependencies."""


@pytest.mark.by_default("own_loop")
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_the_example_runs_and_its_answer_is_certified(name, monkeypatch, capsys):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.delenv("TIGHTROPE_DATA", raising=False)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "feasible" in capsys.readouterr().out
