"""Monitors decide when they may, refuse bad batches unharmed, and see when the population changes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

X = jnp.array([0.5, 2.0])
RNG = np.random.default_rng(0)


def share(x, batch):
    return jnp.mean(batch["u"] < x[0])


def shift(x, batch):
    return jnp.mean(batch["v"] * x[1:], axis=0)


def examples(n, probability=0.5, mean=0.0):
    """`share` is `probability` and `shift` is 2 · mean at X."""
    return {
        "u": (0.5 + RNG.random(n) - probability).astype("float32"),
        "v": RNG.normal(mean, 1.0, (n, 1)).astype("float32"),
    }


DATA = tr.Batches(like=examples(8))
PROBLEM = tr.Problem(
    lambda x: jnp.sum(x**2),
    [
        tr.at_most(share, 0.6, data=DATA, sample_range=(0.0, 1.0)),
        tr.between(shift, -1.0, 1.0, data=DATA),
        tr.at_most(lambda x: x[0], 1.0, name="size"),
    ],
)


def watched(monitor, batches, **population):
    for _ in range(batches):
        monitor.update(examples(500, **population))
    return monitor.report


def test_a_feasible_point_is_shown_to_be_feasible_and_intervals_shrink_on_the_way():
    monitor = tr.Monitor(PROBLEM, X)
    assert monitor.report.verdict == "undecided"
    first = monitor.update(examples(64))
    assert first.verdict == "undecided"
    assert {name: e.kind for name, e in first.violation.items()} == {
        "share": "bound",
        "shift": "asymptotic",
        "size": "exact",
    }
    assert np.isinf(first.violation["shift"].high)
    last = watched(monitor, 6)
    assert last.verdict == "feasible"
    assert last.examples == 3064
    for name in ("share", "shift"):
        assert first.low[name] <= last.low[name] <= last.mean[name] <= last.high[name] <= first.high[name]


def test_an_infeasible_point_is_shown_to_be_infeasible():
    report = watched(tr.Monitor(PROBLEM, X), 6, mean=1.0)
    assert report.verdict == "infeasible"
    assert report.violation["shift"].low > 0.0
    assert report.violation["share"].value == 0.0


def test_a_violation_within_the_tolerance_counts_as_feasible():
    assert watched(tr.Monitor(PROBLEM, X, tolerance=2.0), 6, mean=1.0).verdict == "feasible"


def test_a_violated_deterministic_constraint_decides():
    assert tr.Monitor(PROBLEM, jnp.array([1.5, 2.0])).report.verdict == "infeasible"


def test_a_change_of_the_population_is_reported_and_nothing_is_decided():
    monitor = tr.Monitor(PROBLEM, X)
    assert watched(monitor, 10).changed == ()
    report = watched(monitor, 30, probability=1.0)
    assert report.changed == ("share",)
    assert report.verdict == "undecided"
    assert "has changed" in str(report)


def test_printing_a_report_explains_it():
    text = str(watched(tr.Monitor(PROBLEM, X), 1))
    for word in ("after 500 examples", "95% confidence", "violation of share", "bound", "asymptotic"):
        assert word in text


def spoiled(**changes):
    return examples(10) | changes


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (np.zeros(3), "structure"),
        (spoiled(u=np.zeros(9, "float32")), "share a first axis"),
        (examples(0), "at least one example"),
        (spoiled(v=np.zeros((10, 2))), r"batch\['v'\] has examples float64\[2\]; expected float32\[1\]"),
        (spoiled(v=np.zeros((10, 1), complex)), "complex"),
        (spoiled(u=np.full(10, np.nan, "float32")), "NaN or infinity"),
    ],
)
def test_a_bad_batch_is_refused_and_leaves_the_monitor_as_it_was(batch, said):
    monitor = tr.Monitor(PROBLEM, X)
    before = watched(monitor, 1)
    with pytest.raises(ValueError, match=said):
        monitor.update(batch)
    assert monitor.report is before
    assert monitor.update(examples(500)).examples == 1000


def test_a_value_outside_its_sample_range_and_a_function_that_is_no_mean_are_refused():
    wrong = tr.at_most(lambda x, batch: jnp.mean(batch["v"]), 0.0, data=DATA, name="wrong", sample_range=(0.0, 1.0))
    with pytest.raises(ValueError, match=r"'wrong' is .* outside its sample_range"):
        tr.Monitor(tr.Problem(jnp.sum, wrong), X).update(examples(100))
    ratio = tr.at_most(lambda x, b: jnp.sum(b["v"] ** 2) / jnp.sum(b["u"]), 9.0, data=DATA, name="ratio")
    with pytest.raises(ValueError, match="'ratio' is not a mean over the examples"):
        tr.Monitor(tr.Problem(jnp.sum, ratio), X).update(examples(100))


def test_constraints_on_different_data_take_batches_by_name():
    other = tr.Batches(like=np.zeros(4, "float32"))
    rows = [PROBLEM.constraints[0], tr.at_most(lambda x, b: jnp.mean(b), 0.5, data=other, name="other")]
    monitor = tr.Monitor(tr.Problem(jnp.sum, rows), X)
    assert monitor.update({"other": np.zeros(200, "float32")}).examples == 200
    assert monitor.update({"share": examples(100), "other": np.zeros(100)}).examples == 400
    with pytest.raises(ValueError, match="a dict with a batch for some of share, other"):
        monitor.update(examples(100))


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match=r"Monitor: problem must be a tightrope\.Problem"):
        tr.Monitor(None, X)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="Monitor: confidence must be > 0 and < 1"):
        tr.Monitor(PROBLEM, X, confidence=1.0)
    with pytest.raises(ValueError, match="Monitor: tolerance must be ≥ 0"):
        tr.Monitor(PROBLEM, X, tolerance=-1.0)
    with pytest.raises(ValueError, match="nothing to watch"):
        tr.Monitor(tr.Problem(jnp.sum, tr.at_most(jnp.sum, 1.0)), X)
