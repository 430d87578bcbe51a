"""Randomness depends on (seed, step) alone."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import tightrope as tr
from conftest import fair_problem, iterates, started
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters
from tightrope.runs import run
from tightrope.runs.stepper import draw_samples


def assert_same(first, second):
    assert np.array_equal(first.x, second.x)
    assert (first.objective, first.stationarity) == (second.objective, second.stationarity)
    assert all(np.array_equal(first.multipliers[name], second.multipliers[name]) for name in first.multipliers)
    assert (first.steps, first.samples, first.calls) == (second.steps, second.samples, second.calls)


@pytest.mark.by_default("TruncatedMomentum")
def test_how_often_is_recorded_changes_no_bit_of_the_iterates(case):
    often, _ = iterates(*case, steps=500, record=7)
    seldom, _ = iterates(*case, steps=500, record=250)
    for step in (0, 500):
        assert np.array_equal(often[step], seldom[step])
    assert len(often) == 73
    assert len(seldom) == 3


def test_one_chunk_or_fifty_changes_no_bit(case, monkeypatch):
    whole = tr.solve(*case, steps=500, record=250)
    monkeypatch.setattr(run, "FIRST_CHUNK", 5)
    monkeypatch.setattr(run, "GROWTH", 1)
    assert_same(whole, tr.solve(*case, steps=500, record=250))


def test_the_same_seed_gives_the_same_run_and_another_seed_another(case):
    problem, x0, method = case
    first, again, other = (tr.solve(problem, x0, method, steps=200, seed=seed) for seed in (3, 3, 4))
    assert_same(first, again)
    assert not np.array_equal(first.history["objective"], other.history["objective"])


def test_a_short_run_is_a_prefix_of_a_long_one_in_iterates_and_history(case):
    short, first = iterates(*case, steps=300, record=50)
    long, second = iterates(*case, steps=600, record=50)
    assert not case[2].uses_horizon
    assert all(np.array_equal(x, long[step]) for step, x in short.items())
    for column in set(first.history) - {"seconds"}:
        assert np.array_equal(first.history[column], second.history[column][: first.history.records]), column


@pytest.mark.by_default("SwitchingSubgradient")
def test_a_run_killed_at_any_step_and_resumed_is_bit_identical(case, tmp_path):
    problem, x0, method = case
    whole = tr.solve(problem, x0, method, steps=400, record=40)
    rng = np.random.default_rng(0)
    for kill_at in rng.integers(1, 400, size=3):
        folder = tmp_path / str(kill_at)

        def die(row, kill_at=kill_at):
            if row["step"] >= kill_at:
                raise ZeroDivisionError("killed")

        checkpoint = tr.Checkpoint(folder, every=0.0)
        with pytest.raises(ZeroDivisionError):
            tr.solve(problem, x0, method, steps=400, record=40, checkpoint=checkpoint, callback=die)
        resumed = tr.solve(problem, x0, method, steps=400, record=40, checkpoint=checkpoint)
        assert_same(whole, resumed)
        for column in set(whole.history) - {"seconds"}:
            assert np.array_equal(whole.history[column], resumed.history[column]), column


def test_samples_that_a_method_calls_independent_come_from_different_streams():
    problem = fair_problem()
    parameters = Parameters(np.zeros(4, np.float32))
    oracle = oracle_for(problem, parameters)
    drawn = [draw_samples(oracle, {"first": 64, "second": 64}, jax.random.key(0), k)[0] for k in range(200)]
    first, second = (np.concatenate([d[role][0] for d in drawn]) for role in ("first", "second"))
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(first.size)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 4 / np.sqrt(first.size)
    expected = first.size / 400
    counts = np.bincount(first, minlength=400)
    assert np.sum((counts - expected) ** 2 / expected) < 400 + 5 * np.sqrt(800)  # chi-square, 399 degrees of freedom


def test_sources_of_one_role_are_drawn_independently():
    rows = np.zeros((1000, 1), np.float32)
    objective, constraint = tr.Dataset(rows, 32), tr.Dataset(rows, 32)
    problem = tr.Problem(
        lambda x, b: b.mean() + x.sum(), tr.at_most(lambda x, b: b.mean() + x.sum(), data=constraint), data=objective
    )
    oracle = oracle_for(problem, Parameters(np.zeros(1, np.float32)))
    sample = draw_samples(oracle, {"joint": None}, jax.random.key(0), 1)[0]["joint"]
    assert not np.array_equal(sample[0], sample[1])


def primitives(jaxpr):
    """The primitives of a jaxpr, and the jaxprs inside it."""
    names, inner = set(), []
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        parts = jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: hasattr(v, "jaxpr") or hasattr(v, "eqns")
        )
        for value in parts:
            body = getattr(value, "jaxpr", value)
            if hasattr(body, "eqns"):
                inner.append((equation.primitive.name, body))
    return names, inner


def everything_in(jaxpr):
    names, inner = primitives(jaxpr)
    return names.union(*(everything_in(body) for _, body in inner)) if inner else names


def loops_in(jaxpr):
    """The bodies of the while loops directly inside a jaxpr, jits looked through."""
    found = []
    for name, body in primitives(jaxpr)[1]:
        found += [body] if name == "while" else loops_in(body)
    return found


def test_indices_are_drawn_for_a_block_of_steps_and_not_inside_the_step(case):
    problem, x0, method = case
    run = started(problem, x0, method, steps=5)
    arguments = run.leaves, run.carry.run, run.carry.finite, np.array([5, 5], np.int32)
    jaxpr = jax.make_jaxpr(run.programs.loop(run.room).fn)(*arguments).jaxpr
    blocks = [body for body in loops_in(jaxpr) if "random_bits" in everything_in(body)]
    assert len(blocks) == 1
    (steps,) = [body for body in loops_in(blocks[0]) if "dynamic_slice" in everything_in(body)]
    assert "random_bits" not in everything_in(steps)
