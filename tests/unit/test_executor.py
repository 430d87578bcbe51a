"""Sweeps over executors: the numbers of a local sweep, in order, once each; finished runs are kept, whatever ends the sweep."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import fields, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.runs import sweeping
from tightrope.runs.finished import FinishedRuns

GRID = [tr.methods.GradientDescentAscent(step_size=size, dual_step_size=1.0) for size in (0.1, 0.2)]
SEEDS = [4, 2, 7]
SPAWN = multiprocessing.get_context("spawn")


def problem(target=1.0):
    """Its functions are nested, so they are sent by value, and workers need not import this module."""
    data = tr.Dataset(np.random.default_rng(0).normal(size=(40, 2)), batch_size=4)

    def distance(x, batch):
        return jnp.mean(jnp.sum((x - target - batch) ** 2, axis=1))

    return tr.Problem(distance, tr.at_most(lambda x: jnp.sum(x), 1.0, name="budget"), data=data)


PROBLEM = problem()


def sweep(one=PROBLEM, methods=GRID, steps=20, seeds=SEEDS, **options):
    return tr.sweep(one, jnp.zeros(2), methods, steps=steps, seeds=seeds, record=10, **options)


def which(found):
    return [(round(result.settings["step_size"], 6), result.seed) for result in found.results]


def answers(found):
    return np.stack([result.x for result in found.results])


class Inline(Executor):
    """Runs a part when it is submitted; the part of this number ends with the error instead, or raises it at once."""

    def __init__(self, fail=None, error=None):
        self.fail, self.error, self.submitted = fail, error, 0

    def submit(self, fn, /, *args, **kwargs):
        self.submitted += 1
        future = Future()
        if self.submitted != self.fail:
            future.set_result(fn(*args, **kwargs))
        elif isinstance(self.error, Exception):
            future.set_exception(self.error)
        else:
            raise self.error
        return future


@pytest.fixture(scope="module")
def local():
    return sweep()


@pytest.fixture(scope="module")
def pool():
    with ProcessPoolExecutor(2, mp_context=SPAWN) as executor:
        yield executor


# ---------------------------------------------------------------------- results


def test_spawned_workers_give_the_results_of_a_local_sweep_in_the_order_asked_for(pool):
    with jax.enable_x64(True):
        here, there = (sweep(problem(), executor=executor) for executor in (None, pool))
    assert which(here) == which(there) == [(size, seed) for size in (0.1, 0.2) for seed in SEEDS]
    assert {result.x.dtype for result in there.results} == {np.dtype("float64")}
    np.testing.assert_allclose(answers(there), answers(here), rtol=1e-12)
    for one, other in zip(here.results, there.results, strict=True):
        assert one.calls == other.calls
        assert one.certificate.verdict == other.certificate.verdict


def test_parts_of_the_same_lanes_are_bit_equal_and_others_are_close(local):
    with ThreadPoolExecutor(2) as threads:
        same, smaller = (sweep(executor=threads, part_size=size) for size in (6, 3))
    assert np.array_equal(answers(same), answers(local))
    np.testing.assert_allclose(answers(smaller), answers(local), rtol=1e-5)


@pytest.mark.full
def test_models_with_lambdas_travel(tmp_path):
    key = jax.random.key(0)
    model = eqx.nn.MLP(2, "scalar", 3, 1, activation=lambda z: jnp.tanh(z), key=key)
    layers = eqx.nn.Sequential([model, eqx.nn.Dropout(0.5)])
    data = tr.Dataset(np.random.default_rng(0).normal(size=(40, 2)), batch_size=4)

    def loss(layers, batch):
        return jnp.mean(jax.vmap(layers.layers[0])(batch) ** 2)

    def found(**options):
        return tr.sweep(tr.Problem(loss, data=data), layers, GRID, steps=20, seeds=1, **options).results[0].x

    with ProcessPoolExecutor(1, mp_context=SPAWN) as executor:
        swept = [found(), found(executor=executor, checkpoint=tmp_path), found(checkpoint=tmp_path)]
    for other in swept[1:]:
        assert jax.tree.structure(other) == jax.tree.structure(swept[0])
        jax.tree.map(np.testing.assert_allclose, *(eqx.filter(each, eqx.is_array) for each in (swept[0], other)))


# ---------------------------------------------------------------------- what is kept


def kept(folder):
    return sorted(int(path.stem.rpartition("seed")[2]) for path in folder.glob("*.npz"))


def test_a_part_that_fails_is_named_and_the_same_call_goes_on_from_the_others(tmp_path, local, monkeypatch):
    with pytest.raises(MemoryError) as raised:
        sweep(executor=Inline(5, MemoryError("too large")), checkpoint=tmp_path)
    assert "GradientDescentAscent (methods[1]), seeds 2" in "\n".join(raised.value.__notes__)
    assert "the same call goes on" in raised.value.__notes__[-1]
    assert kept(tmp_path) == [2, 4, 4, 7, 7]
    shown, second = [], Inline()

    @contextmanager
    def bar(asked, total, title):
        yield lambda done, note: shown.append((done, total))

    monkeypatch.setattr(sweeping, "progress_bar", bar)
    found = sweep(executor=second, checkpoint=tmp_path)
    assert second.submitted == 1
    assert shown == [(5, 6), (6, 6)]
    assert which(found) == which(local)
    np.testing.assert_allclose(answers(found), answers(local), rtol=1e-5)


def test_ctrl_c_keeps_the_finished_parts(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        sweep(executor=Inline(3, KeyboardInterrupt()), checkpoint=tmp_path)
    assert kept(tmp_path) == [2, 4]


def test_ctrl_c_ends_a_sweep_without_executor_and_keeps_the_parts_before(tmp_path, monkeypatch):
    run_lanes, parts = sweeping.run_lanes, []

    def interrupted(fitted, shared, lanes):
        parts.append(lanes)
        results = run_lanes(fitted, shared, lanes)
        return [replace(result, status="interrupted") for result in results] if len(parts) == 2 else results

    monkeypatch.setattr(sweeping, "run_lanes", interrupted)
    with pytest.raises(KeyboardInterrupt, match="part 2 of 3"):
        sweep(checkpoint=tmp_path, part_size=2)
    assert kept(tmp_path) == [2, 4]


def test_finished_runs_come_back_as_they_were_and_serve_a_larger_sweep(tmp_path, local):
    first, again = sweep(checkpoint=tmp_path), sweep(checkpoint=tmp_path)
    for one, other in zip(first.results, again.results, strict=True):
        for name in (f.name for f in fields(one) if f.name not in ("x", "compile_seconds")):
            assert getattr(one, name) == getattr(other, name), name
    assert np.array_equal(answers(again), answers(first))
    more = Inline()
    larger = sweep(seeds=[1, *SEEDS], executor=more, checkpoint=tmp_path)
    assert more.submitted == 2
    assert np.array_equal(answers(larger)[[1, 2, 3, 5, 6, 7]], answers(local))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"one": problem(target=2.0)}, "differs in the objective;"),
        ({"steps": 30}, "differs in the number of steps;"),
        ({"stop": tr.Stop(violation=1e-5)}, "differs in stop;"),
    ],
    ids=["objective", "steps", "stop"],
)
def test_the_folder_of_another_sweep_is_refused(tmp_path_factory, local, change, named):
    folder = tmp_path_factory.getbasetemp() / "other"
    sweep(checkpoint=folder)
    with pytest.raises(ValueError, match=named):
        sweep(checkpoint=folder, **change)


@pytest.mark.parametrize("content", ["", '{"cut', "[3]", "\0"])
def test_a_damaged_folder_of_a_sweep_is_named(tmp_path, content):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(ValueError, match=f"checkpoint: {tmp_path} cannot be used for a sweep"):
        sweep(checkpoint=tmp_path)


def test_a_run_that_cannot_be_kept_does_not_end_the_sweep(tmp_path, local, monkeypatch, caplog):
    full = tr.Result.save
    failing = [OSError(28, "No space left on device")]
    monkeypatch.setattr(
        tr.Result, "save", lambda result, path: (_ for _ in ()).throw(failing.pop()) if failing else full(result, path)
    )
    found = sweep(checkpoint=tmp_path)
    assert np.array_equal(answers(found), answers(local))
    assert len(list(tmp_path.glob("*.npz"))) == len(found.results) - 1
    assert "No space left on device" in caplog.text


# ---------------------------------------------------------------------- refusals


class Client:
    def get_executor(self):
        raise AssertionError


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"executor": "dask"}, TypeError, "executor must be a concurrent.futures.Executor, got str"),
        ({"executor": Client()}, TypeError, r"got Client; .* client.get_executor\(\)"),
        ({"executor": ProcessPoolExecutor(1, multiprocessing.get_context("fork"))}, ValueError, "spawn"),
        ({"part_size": 0}, ValueError, "part_size must be a positive integer, got 0"),
        ({"checkpoint": tr.Checkpoint("folder")}, TypeError, "checkpoint must be the name of a folder, got Checkpoint"),
        ({"checkpoint": __file__}, ValueError, "is a file; expected a folder"),
        ({"checkpoint": ""}, ValueError, "checkpoint must be the name of a folder, got an empty one"),
        ({"checkpoint": "nul\0"}, ValueError, "checkpoint: .* cannot be used for a sweep"),
    ],
    ids=["no-executor", "client", "fork", "part-size", "checkpoint", "file", "empty", "nul"],
)
def test_what_cannot_work_is_refused_before_anything_runs(options, error, named):
    with pytest.raises(error, match=named):
        sweep(**options)


def test_a_missing_cloudpickle_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ImportError, match="pip install 'tightrope"):
        sweep(executor=Inline())


def test_a_problem_that_cannot_travel_is_explained():
    lock = threading.Lock()
    one = tr.Problem(lambda x: jnp.sum(x**2) * (1.0 if lock else 0.0))
    with pytest.raises(TypeError, match="lock") as raised:
        sweep(one, executor=Inline())
    assert "cloudpickle" in raised.value.__notes__[-1]


def test_an_error_of_a_worker_names_the_part(pool):
    home = os.getpid()

    def objective(x):
        if os.getpid() != home:
            raise FileNotFoundError("no data on this machine")
        return jnp.sum(x**2)

    with pytest.raises(FileNotFoundError, match="no data on this machine") as raised:
        sweep(tr.Problem(objective), GRID[:1], seeds=[5], executor=pool)
    assert raised.value.__notes__[-1] == "in a part of a sweep: GradientDescentAscent (methods[0]), seeds 5"


# ---------------------------------------------------------------------- workers that are killed

MANY, LONG = list(range(8)), 20_000
"""Seeds, and steps of a second or so."""


@pytest.fixture(scope="module")
def long_local():
    return sweep(steps=LONG, seeds=MANY, methods=GRID[:1])


@contextmanager
def kill_after_first_result(folder, process_id):
    """Kill a process once a run is finished; yields a list, which then has the number of finished runs."""
    found = []

    def kill():
        while not (runs := list(folder.glob("*.npz"))):
            time.sleep(0.01)
        os.kill(process_id(), signal.SIGKILL)
        found.append(len(runs))

    thread = threading.Thread(target=kill)
    thread.start()
    yield found
    thread.join()


@pytest.mark.full
def test_a_killed_process_of_a_pool_loses_no_finished_part(tmp_path, long_local):
    def one_by_one(executor):
        return sweep(
            steps=LONG, seeds=MANY, methods=GRID[:1], executor=executor, part_size=1, checkpoint=tmp_path / "runs"
        )

    with (
        ProcessPoolExecutor(2, mp_context=SPAWN) as executor,
        kill_after_first_result(tmp_path / "runs", lambda: next(iter(executor._processes))),
        pytest.raises(BrokenProcessPool),
    ):
        one_by_one(executor)
    finished = len(list((tmp_path / "runs").glob("*.npz")))
    assert 0 < finished < len(MANY)
    with ProcessPoolExecutor(2, mp_context=SPAWN) as executor:
        found = one_by_one(executor)
    np.testing.assert_allclose(answers(found), answers(long_local), rtol=1e-4)


@contextmanager
def dask_cluster(folder):
    """A scheduler and two workers, each a process of its own: the address, and the processes of the workers."""
    file, log = folder / "scheduler.json", (folder / "log").open("w")
    options = {"stdout": log, "stderr": subprocess.STDOUT}
    at_home = ["--no-dashboard", "--host", "127.0.0.1"]

    def start(module, *more):
        return subprocess.Popen([sys.executable, "-m", f"distributed.cli.{module}", *more, *at_home], **options)

    worker = ["--scheduler-file", str(file), "--no-nanny", "--nthreads", "1", "--local-directory", str(folder)]
    processes = [start("dask_scheduler", "--scheduler-file", str(file), "--port", "0")]
    try:
        processes += [start("dask_worker", *worker) for _ in range(2)]
        yield file, processes[1:]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()
        log.close()


@pytest.mark.full
def test_every_result_of_a_dask_cluster_arrives_once_though_a_worker_is_killed(tmp_path, long_local, monkeypatch):
    distributed = pytest.importorskip("distributed")
    saved, save = Counter(), FinishedRuns.save

    def count(store, lane, result):
        saved[lane.seed] += 1
        save(store, lane, result)

    monkeypatch.setattr(FinishedRuns, "save", count)
    with dask_cluster(tmp_path) as (file, workers), distributed.Client(scheduler_file=str(file), timeout=60) as client:
        client.wait_for_workers(2, timeout=120)
        options = {"steps": LONG, "seeds": MANY, "methods": GRID[:1], "part_size": 1}
        with kill_after_first_result(tmp_path / "runs", lambda: workers[0].pid) as finished:
            found = sweep(executor=client.get_executor(), checkpoint=tmp_path / "runs", **options)
        assert workers[0].wait(10) == -signal.SIGKILL
        assert workers[1].poll() is None
    assert finished[0] < len(MANY)
    assert saved == Counter(MANY)
    assert [result.seed for result in found.results] == MANY
    np.testing.assert_allclose(answers(found), answers(long_local), rtol=1e-4)
