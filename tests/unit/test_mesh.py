"""`mesh=` splits data and batches over devices and processes; what is computed stays the same."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import tightrope as tr

TOLERANCE = 2e-4
"""The largest difference after 50 steps in single precision, relative to the largest number of x; 1e-7 a step is rounding."""
COLLECTIVE = r"= (.*?) (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("


def checked(part):
    """What mesh_checks.py finds on eight virtual devices."""
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, Path(__file__).with_name("mesh_checks.py"), part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found():
    return checked("default")


@pytest.fixture(scope="module")
def found_in_full():
    return checked("full")


@pytest.fixture(scope="module")
def found_split():
    return checked("split")


def assert_agree(one, *others):
    for other in others:
        assert np.max(np.abs(np.subtract(other["x"], one["x"]))) <= TOLERANCE * np.max(np.abs(one["x"]))
        assert other["objective"] == pytest.approx(one["objective"], rel=TOLERANCE)
        assert other["violation"] == pytest.approx(one["violation"], abs=TOLERANCE)
        assert other["samples"] == one["samples"]


def assert_same_examples(layout):
    assert layout["fetched"]
    assert layout["types"]
    assert layout["subset"]
    assert layout["same draws"]
    assert layout["same key"]
    assert layout["pass"] < 1e-6


def test_examples_and_passes_are_those_of_one_device(found):
    assert_same_examples(found["layout"])


def test_every_device_holds_an_eighth_of_the_data(found):
    assert found["layout"]["rows on each device"] == [626] * 8


@pytest.mark.full
def test_data_may_have_fewer_examples_than_there_are_devices(found_in_full):
    assert_same_examples(found_in_full["few examples"])
    assert found_in_full["few examples"]["rows on each device"] == [1] * 8


def test_a_run_on_eight_devices_gives_the_result_of_one(found):
    assert_agree(*found["agreement"])


def test_a_step_moves_gradients_and_batches_and_never_the_data(found):
    moved = [
        int(np.prod([int(size) for size in shape.split(",") if size]))
        for text in found["texts"].values()
        for kinds in re.findall(COLLECTIVE, text)
        for shape in re.findall(r"\[([\d,]*)\]", kinds)
    ]
    in_loop = re.findall(COLLECTIVE, found["texts"]["jit_run_steps"])
    assert any("f32[8,10]" in kinds or "f32[80]" in kinds for kinds in in_loop)  # the gradient of the first layer
    assert max(moved) <= 128 * 64 * 10 // 8  # a device's part of the batches of a block; the data have 3,003 rows


def test_what_cannot_be_split_is_refused(found):
    refused = found["refused"]
    assert refused["not a mesh"].startswith("TypeError: solve: mesh must be a jax.sharding.Mesh")
    assert "a batch of 12 examples cannot be split evenly over the 8 devices" in refused["indivisible"]
    assert "first axis 'data'" in refused["indivisible"]
    assert refused["stream"].startswith("ValueError: solve: mesh splits a Dataset or a Sampler, got a Stream")
    assert refused["no data"].startswith("ValueError: solve: mesh splits batches and data, and the problem has none")
    assert refused["spec alone"].startswith("ValueError: solve: spec names axes of a mesh")
    assert refused["not a spec"].startswith("TypeError: solve: spec must be a jax.sharding.PartitionSpec of one entry")
    for wrong in ("two entries", "no axis"):
        assert refused[wrong].startswith("ValueError: solve: spec must be a jax.sharding.PartitionSpec of one entry")
    assert refused["unknown axis"].startswith("ValueError: solve: spec must name axes of the mesh, ('data',)")


@pytest.mark.parametrize("devices", ["1", "2", "3", "8"])
def test_large_arrays_lie_in_equal_parts_and_come_back_whole(found, devices):
    placed, part = found["placed"][devices], -(-99 // int(devices))
    assert placed["parts"] == {"vector": [part], "rows": [3, part]}
    assert placed["same"]


def test_checksums_of_split_arrays_know_neither_devices_nor_padding_but_the_place_of_every_number(found):
    (one, *others) = found["placed"].values()
    assert all(other["checksums"] == one["checksums"] for other in others)
    assert all(each["of another"] != one["checksums"]["rows"] for each in (one, *others))


@pytest.mark.full
@pytest.mark.parametrize("method", ["AdaptivePenalty", "AdaptiveLagrangian", "LinearizedPenalty"])
def test_results_on_one_two_and_eight_devices_agree(found_in_full, method):
    assert_agree(*found_in_full["agreement"][method])


@pytest.mark.full
@pytest.mark.parametrize("case", ["sampled", "large batch"])
def test_samplers_and_batches_in_pieces_give_the_result_of_one_device(found_in_full, case):
    assert_agree(*found_in_full[case])


@pytest.mark.full
def test_a_second_axis_changes_nothing(found, found_in_full):
    assert_agree(found["agreement"][0], found_in_full["two axes"])


@pytest.mark.full
def test_a_checkpoint_is_resumed_on_another_number_of_devices(found, found_in_full):
    assert_agree(found["agreement"][0], found_in_full["resumed"])


@pytest.mark.full
@pytest.mark.parametrize(
    "method", ["AdaptivePenalty", "AdaptiveLagrangian", "LinearizedPenalty", "GradientDescentAscent"]
)
def test_parameters_that_are_split_give_the_result_of_one_device(found_split, method):
    assert_agree(*found_split["agreement"][method])


@pytest.mark.full
@pytest.mark.parametrize(("case", "parts"), [("carried", 2), ("carried by all", 8), ("carried rows", 8)])
def test_every_array_as_long_as_x_that_a_run_carries_is_split(found_split, case, parts):
    assert len(found_split[case]) >= 4  # x, its average and two moments
    for shape, own in found_split[case]:
        assert own == [-(-99 // parts) if size == 99 else size for size in shape]


@pytest.mark.full
def test_a_checkpoint_of_split_parameters_is_resumed_on_another_number_of_devices(found_split):
    checkpoints = found_split["checkpoints"]
    assert_agree(checkpoints["whole"], checkpoints["resumed"])
    assert "differs in whether parameters are split (spec)" in checkpoints["without a spec"]


PROBLEM = """
    import jax.numpy as jnp
    import numpy as np
    import tightrope as tr

    data = tr.Dataset(np.memmap("rows", dtype="float32", mode="r", shape=(1001, 3)), batch_size=8)
    loss = lambda w, batch: jnp.mean(jnp.sum((w - batch) ** 2, axis=1))
    problem = tr.Problem(loss, tr.at_least(lambda w: w.sum(), 1.0, name="total"), data=data)
    x0 = jnp.zeros(3)
"""


@pytest.mark.full
def test_two_processes_of_a_job_give_the_result_of_one(tmp_path):
    """Slurm says through the environment who is in the job; the processes talk over the loopback, by Gloo."""
    rows = np.random.default_rng(0).normal(size=(1001, 3)).astype("float32")
    rows.tofile(tmp_path / "rows")
    (tmp_path / "case.py").write_text(textwrap.dedent(PROBLEM))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        job = free.getsockname()[1] % 4096
    command = [
        sys.executable,
        "-c",
        "from tightrope.cli import app; app()",
        "solve",
        "case.py:problem",
        "--distributed",
    ]
    command += ["--steps", "30", "--method", "GradientDescentAscent", "--checkpoint", "run"]
    slurm = {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [*command, "--out", f"result{i}.npz"],
            cwd=tmp_path,
            env=os.environ | slurm | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=1200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "30 steps were taken" in said[0][0]
    assert "Tightrope result" not in said[1][0]
    assert not (tmp_path / "result1.npz").exists()
    assert (tmp_path / "run" / "30").is_dir()
    split = tr.load(tmp_path / "result0.npz")

    def loss(w, batch):
        return jax.numpy.mean(jax.numpy.sum((w - batch) ** 2, axis=1))

    total = tr.at_least(lambda w: w.sum(), 1.0, name="total")
    problem = tr.Problem(loss, total, data=tr.Dataset(rows, batch_size=8))
    whole = tr.solve(problem, jax.numpy.zeros(3), "GradientDescentAscent", steps=30)
    np.testing.assert_allclose(split.x, whole.x, atol=TOLERANCE)
    assert split.objective == pytest.approx(whole.objective, rel=TOLERANCE)
    assert split.steps == whole.steps == 30


JOB = """
    import sys, time

    import jax

    jax.distributed.initialize("127.0.0.1:" + sys.argv[1], 2, int(sys.argv[2]))
    import jax.numpy as jnp
    import numpy as np
    import tightrope as tr
    from tightrope.problems import partition

    partition.LONG = 16  # so that 33 parameters are split
    data = tr.Dataset(np.memmap("rows", dtype="float32", mode="r", shape=(1001, 33)), batch_size=8)
    loss = lambda w, batch: jnp.mean(jnp.sum((w - batch) ** 2, axis=1))
    problem = tr.Problem(loss, tr.at_least(lambda w: w.sum(), 1.0, name="total"), data=data)
    spec = jax.sharding.PartitionSpec(("data", "model"))
    slowly = None if sys.argv[3] == "fast" else lambda row: time.sleep(1.0)
    result = tr.solve(
        problem, jnp.zeros(33), "GradientDescentAscent", steps=2000, record=100, callback=slowly,
        checkpoint=tr.Checkpoint("run", every=0.0), mesh=jax.make_mesh((2, 2), ("data", "model")), spec=spec,
    )
    result.save(f"result{sys.argv[2]}.npz")
    print(result.message)
"""


def start_job(folder, pace):
    """The two processes of JOB, with two virtual devices each; they talk over the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    commands = [[sys.executable, "job.py", str(port), str(i), pace] for i in range(2)]
    return [
        subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]


@pytest.mark.full
def test_two_processes_that_hold_parts_of_the_parameters_are_killed_and_resumed(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1001, 33)).astype("float32")
    rows.tofile(tmp_path / "rows")
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    killed = start_job(tmp_path, "slowly")
    while not any(step.name.isdigit() and int(step.name) for step in (tmp_path / "run").glob("*")):
        assert all(process.poll() is None for process in killed), [process.communicate() for process in killed]
        time.sleep(0.1)
    for process in killed:
        process.kill()
    assert [process.wait() for process in killed] == [-9, -9]
    resumed = start_job(tmp_path, "fast")
    said = [process.communicate(timeout=1200) for process in resumed]
    assert [process.returncode for process in resumed] == [0, 0], said
    assert all("resumed at step" in out for out, _ in said)
    assert (tmp_path / "run" / "2000").is_dir()
    one, other = (tr.load(tmp_path / f"result{i}.npz") for i in range(2))

    def loss(w, batch):
        return jax.numpy.mean(jax.numpy.sum((w - batch) ** 2, axis=1))

    total = tr.at_least(lambda w: w.sum(), 1.0, name="total")
    problem = tr.Problem(loss, total, data=tr.Dataset(rows, batch_size=8))
    whole = tr.solve(problem, jax.numpy.zeros(33), "GradientDescentAscent", steps=2000, record=100)
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_allclose(one.x, whole.x, atol=TOLERANCE)
    assert one.steps == whole.steps == 2000


def test_distributed_says_what_it_needs(monkeypatch):
    from typer.testing import CliRunner

    from tightrope.cli import app

    monkeypatch.setattr(jax.distributed, "initialize", lambda: (_ for _ in ()).throw(ValueError("no cluster")))
    answer = CliRunner().invoke(app, ["solve", "lens", "--distributed"])
    assert answer.exit_code == 2
    assert "--distributed: JAX cannot join the processes of a Slurm or Open MPI job" in answer.stderr
