"""Streams that raise, change, hang or run dry: each ends a run with a status, a message and the last good iterate."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

POINTS = np.random.default_rng(0).normal(1.0, 1.0, size=(64, 8, 2)).astype("float32")
X0 = jnp.zeros(2)
METHOD = tr.methods.GradientDescentAscent(step_size=0.05, dual_step_size=0.05)


def endless(first):
    """Batch number `first` and those after it, for ever."""
    for number in range(first, 10**9):
        yield {"x": POINTS[number % 64]}


class Source:
    """What the stream of the one problem gives: `batches`, which tests replace."""

    batches = staticmethod(endless)


STREAM = tr.Stream(lambda first: Source.batches(first), timeout=1.0)


def distance(x, batch):
    return jnp.mean(jnp.sum((x - batch["x"]) ** 2, axis=1))


PROBLEM = tr.Problem(distance, tr.at_most(jnp.sum, 1.0, name="budget"), data=STREAM)


def solve(steps=40, **options):
    return tr.solve(PROBLEM, X0, METHOD, steps=steps, record=10, **options)


@pytest.fixture(autouse=True)
def _endless_afterwards(monkeypatch):
    monkeypatch.setattr("tightrope.runs.streamed.EVALUATION_EXAMPLES", 64)  # few batches are kept: the rest is read on
    yield
    Source.batches = staticmethod(endless)


def changed_at(step, change):
    """Batches of which that of this step is changed."""

    def batches(first):
        for number, batch in enumerate(endless(first), first + 1):
            yield change(batch) if number == step else batch

    return batches


def fail(batch):
    raise OSError("the disk went away")


# ---- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (fail, OSError, "OSError: the disk went away"),
        (lambda batch: {"x": batch["x"][:, :1]}, ValueError, "batch['x'] is float32[8, 1] in batch 23 of the stream"),
        (
            lambda batch: {"x": batch["x"][:5]},
            ValueError,
            "is float32[5, 2] in batch 23 of the stream; expected float32[8",
        ),
        (
            lambda batch: {"x": batch["x"].astype(int)},
            ValueError,
            "is int64[8, 2] in batch 23 of the stream; expected float",
        ),
        (lambda batch: [batch["x"]], ValueError, "batch 23 of the stream is a PyTreeDef([*])"),
        (lambda batch: {"x": "text"}, ValueError, "batch['x'] is <U4[] in batch 23"),
    ],
    ids=["raises", "shape", "length", "dtype", "structure", "text"],
)
def test_a_stream_that_fails_ends_the_run_with_all_steps_before_it(change, kind, said):
    Source.batches = staticmethod(changed_at(23, change))
    result = solve()
    assert result.status == "data_error"
    assert result.steps == 22
    assert isinstance(result.cause, kind)
    assert said in result.message
    assert "batch of step 23 could not be read" in result.message
    assert list(result.history["step"]) == [0, 10, 20]
    assert np.array_equal(solve(steps=22).x, result.x)


def test_a_stream_that_hangs_ends_the_run_after_its_timeout():
    released = threading.Event()
    Source.batches = staticmethod(changed_at(23, lambda batch: released.wait(60) and batch))
    began = time.monotonic()
    result = solve()
    assert time.monotonic() - began < 30
    released.set()
    assert (result.status, result.steps) == ("data_error", 22)
    assert isinstance(result.cause, TimeoutError)
    assert "no batch came within 1 s" in result.message


def test_numbers_that_are_not_finite_keep_the_last_good_iterate():
    Source.batches = staticmethod(changed_at(23, lambda batch: {"x": np.full_like(batch["x"], np.nan)}))
    result = solve()
    assert (result.status, result.steps) == ("diverged", 22)
    assert np.isfinite(result.x).all()
    assert np.array_equal(solve(steps=22).x, result.x)


def test_an_iterator_that_cannot_begin_again_is_named():
    once = itertools.islice(endless(0), 12)
    Source.batches = staticmethod(lambda first: once)
    result = solve()
    assert (result.status, result.steps) == ("data_error", 12)
    assert "after 12 batches make_iterator returned an iterator without a whole batch" in result.message


def test_ctrl_c_is_answered_while_the_run_waits_for_a_batch(monkeypatch):
    monkeypatch.setattr(STREAM, "timeout", 60.0)
    asked, released = threading.Event(), threading.Event()
    Source.batches = staticmethod(changed_at(13, lambda batch: asked.set() or (released.wait(60) and batch)))

    def press_ctrl_c(row):
        if row["step"] == 10:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()  # after step 12

    result = solve(callback=press_ctrl_c)
    released.set()
    assert asked.is_set()
    assert (result.status, result.steps) == ("interrupted", 12)


def test_no_thread_is_left_after_a_run():
    solve()
    deadline = time.monotonic() + 5.0
    while (
        left := [t.name for t in threading.enumerate() if t.name == "tightrope-stream"]
    ) and deadline > time.monotonic():
        time.sleep(0.01)
    assert not left


# ---- checkpoints -------------------------------------------------------------------------------------------------------


OPENED = []
"""Every iterator of the class below."""


class WithState:
    """An iterator whose state can be saved, like Grain's."""

    def __init__(self):
        self.number, self.read = 0, 0
        OPENED.append(self)

    def __iter__(self):
        return self

    def __next__(self):
        if self.number == 64:
            raise StopIteration
        self.number, self.read = self.number + 1, self.read + 1
        return {"x": POINTS[self.number - 1]}

    def get_state(self):
        return {"number": self.number}

    def set_state(self, state):
        self.number = state["number"]


def epoch(first=0):
    return ({"x": batch} for batch in POINTS[first:])


STREAMS = {"endless": endless, "indexed": lambda first: epoch(first), "with-state": WithState, "plain": epoch}
Source.batches = staticmethod(epoch)
NOT_INDEXED = tr.Problem(distance, PROBLEM.constraints, data=tr.Stream(lambda: Source.batches()))
Source.batches = staticmethod(endless)


@pytest.mark.parametrize("kind", STREAMS)
def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(kind, tmp_path):
    problem = PROBLEM if kind in ("endless", "indexed") else NOT_INDEXED
    Source.batches = staticmethod(STREAMS[kind])

    def run(steps, folder):
        found = {}
        options = {"record": 10, "callback": lambda row: found.update({row["step"]: np.asarray(row["x"])})}
        result = tr.solve(problem, X0, METHOD, steps=steps, checkpoint=tmp_path / folder, **options)
        return result, found

    whole, path = run(120, "whole")
    run(90, "parts")
    OPENED.clear()
    resumed, rest = run(120, "parts")
    assert "resumed at step 90" in resumed.message
    assert ("the first 90 batches of the stream were read again" in resumed.message) == (kind == "plain")
    assert np.array_equal(resumed.x, whole.x)
    assert all(np.array_equal(rest[step], path[step]) for step in (100, 110, 120))
    assert list(resumed.history["step"]) == list(whole.history["step"])
    if kind == "with-state":
        assert sum(one.read for one in OPENED) == 8 + 30  # those kept to evaluate on, and the new ones


def test_a_stream_that_is_not_the_same_any_more_is_resumed_with_a_remark(tmp_path):
    solve(steps=20, checkpoint=tmp_path)
    Source.batches = staticmethod(lambda first: endless(first + 5))
    assert "begins with another batch than when the checkpoint was saved" in solve(checkpoint=tmp_path).message


def test_a_run_that_ended_with_a_data_error_goes_on_where_it_was(tmp_path):
    Source.batches = staticmethod(changed_at(23, fail))
    assert solve(checkpoint=tmp_path).status == "data_error"
    Source.batches = staticmethod(endless)
    resumed = solve(checkpoint=tmp_path)
    assert "resumed at step 22" in resumed.message
    assert np.array_equal(resumed.x, solve().x)


# ---- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: tr.Stream(iter([POINTS[0]])), TypeError, "make_iterator must be a function that returns an iterator"),
        (lambda: tr.Stream(lambda: iter([])), ValueError, "without a batch"),
        (lambda: tr.Stream(lambda: 1 / 0), ValueError, "no first batch (ZeroDivisionError"),
        (lambda: tr.Stream(lambda: iter([np.float32(1.0)])), ValueError, "every leaf needs a first axis"),
        (lambda: tr.Stream(lambda: iter([np.array(["a"])])), TypeError, "expected numbers"),
        (lambda: tr.Stream(lambda: iter([POINTS[0]]), timeout=-1.0), ValueError, "timeout must be > 0"),
        (lambda: tr.Stream(lambda: time.sleep(9), timeout=0.05), ValueError, "none came within 0.05 s"),
        (lambda: tr.sweep(PROBLEM, X0, METHOD, steps=9, seeds=2), ValueError, "sweep: problem has a tightrope.Stream"),
        (lambda: tr.plan(PROBLEM, X0, accuracy=0.1), ValueError, "plan: problem has a tightrope.Stream"),
        (lambda: tr.certify(PROBLEM, X0), ValueError, "certify: data is missing"),
        (lambda: tr.solve(PROBLEM, X0, "ExactPenalty", steps=9), ValueError, "needs more than batches"),
        (
            lambda: solve_with(record=tr.Record(10, data=tr.Dataset({"x": np.ones((5, 3))}, 1))),
            ValueError,
            "record: data has examples",
        ),
    ],
)
def test_bad_streams_are_refused_before_anything_is_compiled(make, kind, said):
    with pytest.raises(kind, match=r".") as caught:
        make()
    assert said in str(caught.value)


def solve_with(**options):
    return tr.solve(PROBLEM, X0, METHOD, steps=9, **options)


def test_a_batch_that_cannot_be_shared_out_is_refused():
    odd = tr.Stream(lambda: iter([{"x": POINTS[0][:7]}]))
    with pytest.raises(ValueError, match=r"solve: a step of .* needs 8 examples; Stream has 7"):
        tr.solve(tr.Problem(distance, data=odd), X0, "AdaptivePenalty", steps=9)
