"""Results print, save and load; histories have the columns they promise."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import X0, fair_problem, sphere_problem, started
from tightrope.runs.options import as_record

LIGHT = "GradientDescentAscent"
"""Compiled in half the time of the default."""


def some_result():
    record = tr.Record(25, metrics={"norm": lambda w, batch: jnp.linalg.norm(w)})
    return tr.solve(sphere_problem(), X0, tr.methods.TruncatedMomentum(), steps=100, record=record)


def test_a_history_is_a_mapping_of_columns():
    history = tr.History({"step": [0, 10], "stationarity": [1.0, np.nan]})
    assert len(history) == 2 == len(list(history))
    assert history.records == 2
    assert history == tr.History({"step": [0, 10], "stationarity": [1.0, np.nan]})
    assert history != tr.History({"step": [0, 10], "stationarity": [1.0, 0.0]})
    assert history != tr.History({"step": [0, 10]})
    assert "objective" not in history
    with pytest.raises(KeyError, match="no column 'stationary'; did you mean 'stationarity'"):
        history["stationary"]


def test_a_history_has_one_entry_per_record_and_one_column_per_quantity():
    history = some_result().history
    expected = [
        "step",
        "samples",
        "epochs",
        "seconds",
        "objective",
        "violation",
        "stationarity",
        "unit_norm",
        "bound",
        "norm",
    ]
    frame = history.to_pandas()
    assert list(frame.columns) == expected == list(history)
    assert frame["step"].tolist() == [0, 25, 50, 75, 100]
    assert frame["samples"].tolist() == [16 * k for k in (0, 25, 50, 75, 100)]
    assert np.allclose(frame["epochs"], frame["samples"] / 400)
    assert np.allclose(frame["violation"], frame[["unit_norm", "bound"]].max(axis=1))
    assert frame["seconds"].is_monotonic_increasing
    assert frame["norm"][0] == pytest.approx(0.6)


def test_printing_a_result_explains_it():
    result = some_result()
    text = str(result)
    for word in (
        "objective",
        "violation of unit_norm",
        "violation of bound",
        "stationarity",
        "TruncatedMomentum",
        "100",
    ):
        assert word in text
    assert "multiplier" in text
    assert result.message in " ".join(text.split())
    assert result.status in text
    assert all(len(line) < 160 for line in text.splitlines())


def test_a_saved_result_comes_back_as_it_was(tmp_path):
    result = some_result()
    result.save(tmp_path / "result.npz")
    again = tr.load(tmp_path / "result.npz")
    assert np.array_equal(again.x, result.x)
    assert str(again) == str(result)
    assert str(again.certificate) == str(result.certificate)
    assert again.history.to_pandas().equals(result.history.to_pandas())
    assert again.settings == result.settings
    assert list(tmp_path.iterdir()) == [tmp_path / "result.npz"]  # nothing half-written is left


@pytest.mark.parametrize(
    "x0", [{"b": [jnp.ones(2), (jnp.ones(1), 2.0)], "a": jnp.ones((2, 2))}, (jnp.ones(1), {"k": jnp.zeros(3)})]
)
def test_containers_of_x_survive_saving(tmp_path, x0):
    problem = tr.Problem(lambda x: sum(jnp.sum(jnp.asarray(leaf) ** 2) for leaf in jax.tree.leaves(x)))
    result = tr.solve(problem, x0, LIGHT, steps=5)
    result.save(tmp_path / "r.npz")
    again = tr.load(tmp_path / "r.npz")
    assert jax.tree.structure(again.x) == jax.tree.structure(result.x)
    jax.tree.map(np.testing.assert_array_equal, again.x, result.x)


def test_a_model_needs_like_to_come_back(tmp_path):
    model = eqx.nn.Linear(2, 1, key=jax.random.key(0))
    result = tr.solve(tr.Problem(lambda m: jnp.sum(m.weight**2) + jnp.sum(m.bias**2)), model, LIGHT, steps=5)
    result.save(tmp_path / "r.npz")
    with pytest.raises(ValueError, match="like="):
        tr.load(tmp_path / "r.npz")
    again = tr.load(tmp_path / "r.npz", like=model)
    assert np.array_equal(again.x.weight, result.x.weight)


def test_a_file_that_is_no_result_is_refused(tmp_path):
    (tmp_path / "r.npz").write_bytes(b"something else")
    with pytest.raises(ValueError, match="it is damaged, or not a file that"):
        tr.load(tmp_path / "r.npz")
    with pytest.raises(FileNotFoundError):
        tr.load(tmp_path / "absent.npz")


def test_metrics_are_evaluated_on_the_data_given_for_them():
    test_set = tr.Dataset({"x": np.ones((7, 4)), "y": np.ones(7), "s": np.zeros(7)}, batch_size=7)
    record = tr.Record(5, metrics={"rows": lambda w, batch: batch["y"].sum()}, data=test_set)
    assert tr.solve(fair_problem(), X0, LIGHT, steps=5, record=record).history["rows"].tolist() == [7.0, 7.0]
    own = tr.Record(5, metrics={"rows": lambda w, batch: batch["y"].shape[0]})
    assert tr.solve(fair_problem(), X0, LIGHT, steps=5, record=own).history["rows"].tolist() == [400.0, 400.0]


def test_the_answer_is_the_best_candidate_and_not_a_feasible_start():
    """x0 is feasible and bad; the last iterates are good and violate a little: the answer must not be x0."""
    problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(jnp.sum, 0.0, name="sum"))
    result = tr.solve(problem, jnp.array([3.0, -3.0]), tr.methods.TruncatedMomentum(), steps=2000)
    assert result.history["violation"][0] == 0.0
    assert np.abs(result.x).max() < 0.2


def test_the_average_is_weighed_like_k_cubed_and_known_at_every_step():
    """Through the loop's carry: Σ k³-like weights of the iterates, by the recursion w_k = 4/(k+3)."""
    run = started(sphere_problem(), X0, tr.methods.TruncatedMomentum(), steps=50, every=1)
    average = None
    for k in range(1, 51):
        run.chunk = 1
        run.advance(1)
        x = np.asarray(run.carry.run.state.x, float)
        average = x if average is None else average + 4.0 / (k + 3.0) * (x - average)
    np.testing.assert_allclose(run.carry.run.average, average, rtol=1e-4)
    weights = np.array([k * (k + 1) * (k + 2) for k in range(1, 51)], float)
    assert weights[-1] / weights.sum() == pytest.approx(4.0 / 53.0)


def test_many_rows_have_the_fewest_records():
    """Their multipliers take longer than a step."""
    assert [as_record("solve", None, 1000, (), rows).every for rows in (1, 64, 65, 1000)] == [10, 10, 50, 50]
