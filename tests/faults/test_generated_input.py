"""Generated bad input: every call raises an error that names what is wrong, or agrees with NumPy."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import tightrope as tr

FILE = Path(__file__).parents[2] / "benchmarks" / "bad_input.py"


@pytest.fixture(scope="module")
def bad_input():
    spec = importlib.util.spec_from_file_location("bad_input", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sweep_over(methods=None, seeds=1):
    return tr.sweep(tr.Problem(np.sum), np.ones(2, np.float32), methods, steps=2, seeds=seeds)


def test_generated_bad_input_is_refused_clearly_or_handled_right(bad_input, tmp_path):
    """The benchmark runs many more: `python benchmarks/reliability.py bad_input`."""
    found = bad_input.run_cases(300, seed=11, base=tmp_path)
    assert found["cases"] == 300
    assert found["findings"] == []


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: tr.equals(np.sum, 10**400), TypeError, ["equals", "target"]),
        (lambda: tr.Checkpoint("run", every=10**400), ValueError, ["Checkpoint", "every"]),
        (lambda: tr.Problem(np.sum, 1.5), TypeError, ["Problem", "constraints", "float"]),
        (lambda: tr.affine(np.ones((1, 2)), [1.0], name=np.ones(2)), TypeError, ["affine", "name"]),
        (lambda: tr.domains.Affine([[1.0]], [1.0, [2.0]]), TypeError, ["Affine", "b must be"]),
        (lambda: tr.methods.ExactPenalty(setting=b"auto"), ValueError, ["ExactPenalty", "setting"]),
        (lambda: tr.methods.AdaptivePenalty(noise_tolerance=np.array(["a"])), TypeError, ["noise_tolerance"]),
        (
            lambda: tr.Dataset({1: np.ones(2), "a": np.ones(2)}, 1),
            ValueError,
            ["Dataset", "arrays", "keys of one type"],
        ),
        (lambda: tr.Stream(lambda: iter([np.ones(2)]), timeout=1e300), ValueError, ["Stream", "timeout"]),
        (lambda: tr.solve(tr.Problem(np.sum), np.ones(2, np.float32), steps=2**31), ValueError, ["steps", "2**31 - 1"]),
        (
            lambda: tr.solve(tr.Problem(np.sum), np.zeros(2, [("a", float)]), steps=2),
            TypeError,
            ["solve: x0", "floats"],
        ),
        (lambda: tr.load(3), TypeError, ["load", "path"]),
        (lambda: sweep_over(methods=np.array(1.0)), TypeError, ["sweep", "methods"]),
        (lambda: sweep_over(seeds=np.array(1.0)), TypeError, ["sweep", "seeds"]),
    ],
)
def test_input_that_the_generator_once_found_to_be_unclear_is_named(call, kind, words):
    with pytest.raises(kind) as raised:
        call()
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_a_result_that_cannot_be_written_leaves_the_one_before_it(tmp_path, monkeypatch):
    problem = tr.Problem(lambda x: (x**2).sum())
    result = tr.solve(problem, np.ones(2, np.float32), "GradientDescentAscent", steps=10)
    result.save(tmp_path / "result.npz")
    before = (tmp_path / "result.npz").read_bytes()

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        result.save(tmp_path / "result.npz")
    assert (tmp_path / "result.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["result.npz"]
