"""Folders of checkpoints that are full, read-only, damaged or not ours: the run goes on or is refused, and nothing is lost."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import shutil
import subprocess
import threading
from contextlib import suppress

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.runs.checkpoint import FORMAT, CheckpointStore

POINTS = np.random.default_rng(0).normal(1.0, 1.0, size=(40, 2)).astype("float32")
METHOD = tr.methods.GradientDescentAscent(step_size=0.05, dual_step_size=0.05)


def distance(x, batch):
    return jnp.mean(jnp.sum((x - batch) ** 2, axis=1))


PROBLEM = tr.Problem(distance, tr.at_most(jnp.sum, 1.0, name="budget"), data=tr.Dataset(POINTS, batch_size=4))


def solve(folder, steps=60, **options):
    checkpoint = tr.Checkpoint(folder, every=0.0)
    return tr.solve(PROBLEM, jnp.zeros(2), METHOD, steps=steps, record=10, checkpoint=checkpoint, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return solve(tmp_path_factory.mktemp("whole") / "run")


def steps_in(folder):
    """The steps saved; a thread of a save that failed can leave a temporary folder behind, which the next run removes."""
    return sorted(int(entry.name) for entry in folder.iterdir() if not entry.name.endswith(".orbax-checkpoint-tmp"))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB in memory, where this user may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def fill(folder, room):
    """Fill a disk up to this many bytes."""
    with open(folder / "filler", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"0" * 1024)
    os.truncate(folder / "filler", os.path.getsize(folder / "filler") - room)


@pytest.mark.parametrize("room", [0, 30_000], ids=["no room", "room for half a checkpoint"])
def test_a_full_disk_does_not_stop_the_run_and_the_checkpoint_before_stays(small_disk, whole, caplog, room):
    folder = small_disk / "run"
    solve(folder, steps=20)
    fill(small_disk, room)
    with caplog.at_level(logging.WARNING, logger="tightrope"):
        unsaved = solve(folder)
    assert unsaved.steps == 60
    assert np.array_equal(unsaved.x, whole.x)
    assert "the checkpoint of step 60 could not be saved" in unsaved.message
    assert f"the newest checkpoint in {folder} is that of step 20" in unsaved.message
    assert any("could not be saved" in record.getMessage() for record in caplog.records)
    assert steps_in(folder)[-1] == 20
    (small_disk / "filler").unlink()
    again = solve(folder)
    assert "resumed at step 20" in again.message
    assert "could not be saved" not in again.message
    assert np.array_equal(again.x, whole.x)
    assert not list(folder.glob("*-tmp"))


def test_a_read_only_folder_is_resumed_and_the_result_says_that_nothing_was_saved(small_disk, whole):
    folder = small_disk / "run"
    solve(folder, steps=20)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    resumed = solve(folder)
    assert np.array_equal(resumed.x, whole.x)
    assert "Read-only file system" in resumed.message
    assert steps_in(folder)[-1] == 20
    with pytest.raises(ValueError, match=r"checkpoint: .* cannot be used"):
        solve(small_disk / "new")


def test_a_checkpoint_that_cannot_be_saved_is_tried_again(tmp_path, whole, monkeypatch):
    failing = [OSError(errno.ENOSPC, "No space left on device")] * 2
    original = CheckpointStore._open

    def opened(store):
        manager = original(store)
        save = manager.save

        def fail_twice(*args, **options):
            if failing:
                raise failing.pop()
            return save(*args, **options)

        monkeypatch.setattr(manager, "save", fail_twice)
        return manager

    monkeypatch.setattr(CheckpointStore, "_open", opened)
    result = solve(tmp_path / "run")
    assert not failing
    assert "could not be saved" not in result.message
    assert np.array_equal(result.x, whole.x)
    assert steps_in(tmp_path / "run")[-1] == 60


@pytest.mark.parametrize("name", ["file", "file/run", "nul\0", "a" * 300])
def test_a_folder_that_cannot_be_used_is_refused_at_once(tmp_path, name, monkeypatch):
    (tmp_path / "file").write_text("kept")
    monkeypatch.setattr("tightrope.runs.solving.start_run", lambda *a, **k: pytest.fail("the run was started"))
    with pytest.raises(ValueError, match=r"checkpoint: .* cannot be used"):
        solve(tmp_path / name)
    assert (tmp_path / "file").read_text() == "kept"


def test_an_empty_name_of_a_folder_is_refused():
    with pytest.raises(ValueError, match="folder must be a path"):
        tr.Checkpoint("")


def test_a_folder_of_something_else_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "2024").mkdir()
    (tmp_path / "2024" / "data.csv").write_text("mine")
    with pytest.raises(ValueError, match="damaged or no checkpoint of Tightrope"):
        solve(tmp_path)
    assert (tmp_path / "2024" / "data.csv").read_text() == "mine"


def test_a_checkpoint_of_another_format_is_refused_with_both_named(tmp_path):
    solve(tmp_path, steps=20)
    file = tmp_path / "20" / "notes" / "metadata"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": FORMAT + 1}))
    with pytest.raises(ValueError, match=f"has format {FORMAT + 1}, .* reads format {FORMAT}"):
        solve(tmp_path)


def cut(content):
    return content[: len(content) // 2]


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


def test_damage_of_any_file_is_found_or_changes_nothing(tmp_path, whole):
    solve(tmp_path / "run", steps=20)
    shutil.rmtree(tmp_path / "run" / "0", ignore_errors=True)
    files = sorted(path.relative_to(tmp_path) for path in (tmp_path / "run").rglob("*") if path.is_file())
    refused, folder = 0, tmp_path / "damaged"
    for file, damage in itertools.product(files, (cut, flip)):
        content = (tmp_path / file).read_bytes()
        if content:
            shutil.copytree(tmp_path / "run", folder / "run")
            (folder / file).write_bytes(damage(content))
            try:
                assert np.array_equal(solve(folder / "run").x, whole.x), file
            except ValueError as error:
                refused += "damaged" in str(error)
            shutil.rmtree(folder)
    assert refused >= 6


def test_no_thread_and_no_file_is_left_open_by_checkpoints(tmp_path):
    solve(tmp_path / "run", steps=20)
    threads = {thread.name for thread in threading.enumerate()}
    files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for steps in (40, 60, 80):
        solve(tmp_path / "run", steps=steps)
    assert {thread.name for thread in threading.enumerate()} <= threads
    if files:
        assert len(os.listdir("/proc/self/fd")) <= files
