"""`solve` with `holdout`: what is kept aside is seen once, by a test that does what its formula says."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tightrope as tr
from tightrope.runs.fitting import fit
from tightrope.runs.holdout import MISS, solve_with_promise, split_rows

SIZE, SHARE, METHOD = 400, 0.3, tr.methods.GradientDescentAscent(step_size=0.05)
X0 = jnp.array([0.1, 0.2])


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(1.0, 0.5, (SIZE, 2)).astype("float32"), "u": rng.random(SIZE).astype("float32")}


def loss(w, batch):
    return jnp.mean((batch["x"] @ w - 2.0) ** 2)


def share(w, batch):
    return jnp.mean(jax.nn.sigmoid(batch["x"] @ w - 1.0 + batch["u"]))


def each(w, batch):
    return jnp.mean(batch["x"] * w, axis=0)


def solve(problem, seed=0, **options):
    return tr.solve(problem, X0, METHOD, steps=100, record=50, seed=seed, holdout=SHARE, progress=False, **options)


def bounded_problem():
    data = tr.Dataset(arrays(), batch_size=16)
    return tr.Problem(loss, tr.at_most(share, 0.6, data=data, sample_range=(0.0, 1.0)), data=data)


def mixed_problem():
    """A vector between bounds, an equality, a lower bound and a deterministic constraint."""
    data = tr.Dataset(arrays(), batch_size=16)
    rows = [
        tr.between(each, np.array([0.2, 0.4]), np.array([1.2, 1.4]), data=data),
        tr.equals(lambda w, batch: jnp.mean(batch["x"] @ w), 1.2, data=data, name="total"),
        tr.at_least(share, 0.3, data=data),
        tr.at_most(lambda w: w @ w, 9.0, name="size"),
    ]
    return tr.Problem(loss, rows, data=data)


def promise_of(result):
    """The promise of a result, which must have one."""
    assert result.holdout is not None
    return result.holdout


@pytest.fixture(scope="module")
def bounded():
    """A problem and its result."""
    problem = bounded_problem()
    return problem, solve(problem)


@pytest.fixture(scope="module")
def mixed_program():
    return mixed_problem()


@pytest.fixture(scope="module")
def mixed(mixed_program):
    return solve(mixed_program, stop=tr.Stop(violation=0.5))


def single_values(fn, w, rows, seed=0):
    """The values on single examples, in NumPy."""
    one = [jax.tree.map(lambda a, i=i: a[i : i + 1], arrays(seed)) for i in rows]
    return np.array([np.ravel(fn(w, batch)) for batch in one], float)


def test_both_parts_are_a_function_of_size_share_and_seed_and_every_row_is_in_one():
    training, aside = split_rows(SIZE, SHARE, 7)
    assert sorted([*training, *aside]) == list(range(SIZE))
    assert len(aside) == 120
    assert np.array_equal(split_rows(SIZE, SHARE, 7)[1], aside)
    assert not np.array_equal(split_rows(SIZE, SHARE, 8)[1], aside)


def test_numbers_kept_aside_do_not_change_the_answer(bounded):
    """They are NaN here: one look at them before the test would show."""
    problem, clean = bounded
    _, aside = split_rows(SIZE, SHARE, 0)
    before = problem.data.arrays
    problem.data.arrays = jax.tree.map(lambda a: a.at[aside].set(jnp.nan), before)
    try:
        with pytest.warns(UserWarning, match="outside its sample_range"):
            spoiled = solve(problem)
    finally:
        problem.data.arrays = before
    assert np.array_equal(spoiled.x, clean.x)
    assert not promise_of(spoiled).passed
    assert promise_of(spoiled).violation["share"] == math.inf
    assert "no number of examples" in str(spoiled.holdout)


def test_the_second_run_and_other_seeds_compile_nothing(bounded, caplog):
    problem, first = bounded
    with caplog.at_level(logging.DEBUG, logger="tightrope"):
        second = solve(problem, seed=1)
    assert not [record for record in caplog.records if record.message.startswith("compiling")]
    assert not np.array_equal(second.x, first.x)


def test_the_promise_is_the_bound_of_the_docstring_on_the_examples_kept_aside(bounded):
    """The one-sided empirical Bernstein bound, with constants from the training part, in NumPy."""
    _, result = bounded
    training, aside = split_rows(SIZE, SHARE, 0)
    pilot, held = (single_values(share, result.x, rows)[:, 0] for rows in (training, aside))
    log, n = math.log(1.0 / 0.05), len(held)
    mean = (0.5 + pilot.sum()) / (len(pilot) + 1)
    variance = (0.25 + np.sum((pilot - mean) ** 2)) / (len(pilot) + 1)
    bet = math.sqrt(2.0 * log / (n * variance))
    bet = bet / (1.0 + bet)
    cost = -math.log(1.0 - bet) - bet
    expected = held.mean() + (log / n + cost * np.mean((held - mean) ** 2)) / bet
    promise = result.holdout
    assert promise.high["share"] == pytest.approx([expected], abs=1e-5)
    assert promise.low["share"] == [-math.inf]
    assert promise.violation["share"] == pytest.approx(max(expected - 0.6, 0.0), abs=1e-5)
    assert (promise.kind, promise.examples, promise.confidence) == ("bound", 120, 0.95)


def test_the_second_run_begins_at_the_first_answer_with_bounds_tightened_by_the_formula_there(bounded):
    """The half-width that the test will have for values like those of the training part, and z σ √(1/n_h + 1/n_t)."""
    problem, result = bounded
    runs = []

    def run(training, **options):
        runs.append((training.constraints[0].high, options))
        return result

    fitted = fit("solve", problem, X0, METHOD, 100)
    solve_with_promise(run, fitted, (SHARE, 0.95), 0, ({"warm_start": None}, {"callback": None}))
    pilot = single_values(share, result.x, split_rows(SIZE, SHARE, 0)[0])[:, 0]
    log, kept, aside = math.log(1.0 / 0.05), len(pilot), 120
    mean = (0.5 + pilot.sum()) / (kept + 1)
    bet = math.sqrt(2.0 * log / (aside * (0.25 + np.sum((pilot - mean) ** 2)) * (1 / (kept + 1))))
    bet = bet / (1.0 + bet)
    width = (log / aside + (-math.log(1.0 - bet) - bet) * np.mean((pilot - mean) ** 2)) / bet
    apart = stats.norm.isf(MISS) * pilot.std(ddof=1) * math.sqrt(1 / aside + 1 / kept)
    assert runs[0] == (0.6, {"warm_start": None})
    assert runs[1][0] == pytest.approx(0.6 - width - apart, abs=1e-5)
    assert runs[1][1] == {"warm_start": result, "callback": None}


def test_a_test_that_is_passed_is_said_to_be_one(bounded):
    _, result = bounded
    assert result.holdout.passed
    assert str(result.holdout) == "with 95% confidence the true violation is ≤ 0 (120 examples kept aside)"
    assert result.message.endswith("the answer was found on 70% of the examples, with tightened constraints.")


def test_asymptotic_promises_are_those_of_students_t_over_all_ends(mixed):
    """`each` has four ends, `total` two and `share` one."""
    promise, (_, aside) = mixed.holdout, split_rows(SIZE, SHARE, 0)
    assert promise.kind == "asymptotic"
    held = single_values(each, mixed.x, aside)
    reach = stats.t.isf(0.05 / 7, len(aside) - 1) * held.std(axis=0, ddof=1) / math.sqrt(len(aside))
    assert promise.low["each"] == pytest.approx(held.mean(axis=0) - reach, abs=1e-5)
    assert promise.high["each"] == pytest.approx(held.mean(axis=0) + reach, abs=1e-5)
    assert promise.high["share"] == [math.inf]
    assert promise.violation["size"] == mixed.certificate.violation["size"].value


def test_an_equality_is_promised_to_a_distance_and_not_tightened(mixed):
    promise = mixed.holdout
    assert promise.tightening["total"] == [0.0]
    assert 0.0 < promise.violation["total"] <= promise.tolerance * mixed.certificate.scale["total"]
    farthest = max(promise.high["total"][0] - 1.2, 1.2 - promise.low["total"][0])
    assert promise.violation["total"] == pytest.approx(farthest)
    assert promise.passed


def test_what_is_not_shown_says_about_how_many_examples_would_be_needed(mixed_program):
    result = solve(mixed_program)
    promise = promise_of(result)
    assert not promise.passed
    assert not result.success
    assert promise.examples_needed is not None
    assert promise.examples_needed > SIZE
    assert "examples in all would be needed" in str(promise)
    assert "do not show that it is feasible" in result.message


def test_printing_and_saving_a_result_keep_its_promise(bounded, mixed, tmp_path):
    for result in (bounded[1], mixed):
        assert "on unseen data" in str(result)
        assert str(result.holdout) in " ".join(str(result).split())
        result.save(tmp_path / "result.npz")
        again = tr.load(tmp_path / "result.npz")
        assert str(again) == str(result)
        assert promise_of(again).violation == result.holdout.violation
        for name, ends in result.holdout.high.items():
            assert np.array_equal(promise_of(again).high[name], ends)


@pytest.mark.parametrize("status", ["interrupted", "diverged"])
def test_a_first_run_that_was_cut_short_is_tested_as_it_is(bounded, status):
    problem, result = bounded
    calls = []

    def run(training, **options):
        calls.append(options)
        return replace(result, status=status)

    fitted = fit("solve", problem, X0, METHOD, 100)
    found = solve_with_promise(run, fitted, (SHARE, 0.95), 0, ({"warm_start": None}, {"callback": None}))
    assert calls == [{"warm_start": None}]
    assert found.status == status
    assert promise_of(found).tightening == {}
    assert promise_of(found).high == result.holdout.high


def test_a_value_outside_its_range_is_an_error_at_the_start():
    data = tr.Dataset(arrays(), batch_size=16)
    problem = tr.Problem(loss, tr.at_most(each, 1.0, data=data, sample_range=(-0.01, 0.01)), data=data)
    with pytest.raises(ValueError, match=r"'each' is .* outside its sample_range"):
        solve(problem)


def test_a_constraint_that_is_not_a_mean_is_refused():
    data = tr.Dataset(arrays(), batch_size=16)
    ratio = tr.at_most(lambda w, b: jnp.sum(b["u"] * w[0]) / jnp.sum(b["x"] ** 2), 9.0, data=data, name="ratio")
    with pytest.raises(ValueError, match="'ratio' is not a mean over the examples"):
        solve(tr.Problem(loss, ratio, data=data))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"holdout": 0.0}, ValueError, "holdout must be > 0 and < 1"),
        ({"holdout": "a third"}, TypeError, "holdout must be a number"),
        ({"holdout": 0.001}, ValueError, "keeps 0 aside and trains on 400"),
        ({"holdout": 0.3, "confidence": 1.5}, ValueError, "confidence must be > 0 and < 1"),
        ({"holdout": 0.3, "steps": 0}, ValueError, "steps must be a positive integer"),
    ],
)
def test_bad_arguments_are_named(bounded, options, error, said):
    with pytest.raises(error, match=said):
        tr.solve(bounded[0], X0, METHOD, **({"steps": 10} | options))


def test_data_without_a_finite_number_of_examples_are_refused(tmp_path):
    endless = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 2)), batch_size=4)
    rate = tr.at_most(lambda w, batch: jnp.mean(batch @ w), 1.0, data=endless, name="rate")
    with pytest.raises(ValueError, match="the data of the constraint 'rate' are a Sampler"):
        solve(tr.Problem(jnp.sum, rate))
    np.save(tmp_path / "u.npy", np.ones(50, "float32"))
    on_disk = tr.Dataset(np.load(tmp_path / "u.npy", mmap_mode="r"), batch_size=4)
    rate = tr.at_most(lambda w, batch: jnp.mean(batch * w[0]), 1.0, data=on_disk, name="rate")
    with pytest.raises(ValueError, match="is a memory map; split the file"):
        solve(tr.Problem(jnp.sum, rate))


def table_row(row):
    """A row of the benchmark as the page shows it."""
    kind = {"tightrope": "bound" if row["case"] == "rate" else "asymptotic", "Seldonian": "Hoeffding"}
    test = kind.get(row["method"], "Student's t")
    shown = "–" if row["median true loss"] is None else f"{row['median true loss']:.3f}"
    shares = f"{row['broken']:.1%} | {row['solutions']:.1%}"
    return (
        f"| {row['case']} | {row['examples']:,} | {row['method']} | {test} | {row['repeats']:,} | {shares} | {shown} |"
    )


def test_the_table_on_the_page_about_guarantees_is_that_of_the_benchmark():
    root = Path(__file__).parents[2]
    rows = json.loads((root / "benchmarks" / "results" / "holdout.json").read_text())["rows"]
    page = (root / "docs" / "guarantees.md").read_text().splitlines()
    table = page[page.index("|---|---|---|---|---|---|---|---|") + 1 :]
    assert table[: len(rows)] == [table_row(row) for row in rows]
    assert table[len(rows)] == ""
    assert all(row["broken"] <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / row["repeats"]) for row in rows)
