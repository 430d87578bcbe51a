"""How a run ends other than by its last step: Ctrl-C, divergence, a time budget, a kill; nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tightrope as tr
from conftest import X0, fair_problem, iterates, points, sphere_problem, started
from tightrope.runs.run import Run

HANDLER = signal.getsignal(signal.SIGINT)  # a run in the background begins with Ctrl-C ignored

PLAIN = optax.identity()


def press_ctrl_c_at(step):
    def callback(row):
        if row["step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    return callback


@pytest.mark.by_default("GradientDescentAscent")
def test_ctrl_c_returns_the_result_so_far(case):
    problem, x0, method = case
    whole, _ = iterates(problem, x0, method, steps=200, record=20)
    result = tr.solve(problem, x0, method, steps=10_000, record=20, callback=press_ctrl_c_at(200))
    assert result.status == "interrupted"
    assert not np.isnan(result.objective)
    assert result.steps == 200
    assert "interrupted after 200 steps" in result.message
    assert signal.getsignal(signal.SIGINT) is HANDLER
    assert list(result.history["step"]) == sorted(whole)


def test_ctrl_c_saves_a_last_checkpoint_that_is_taken_up_again(tmp_path):
    problem, method = fair_problem(), tr.methods.GradientDescentAscent()
    whole = tr.solve(problem, X0, method, steps=300, record=20)
    stopped = tr.solve(
        problem, X0, method, steps=300, record=20, callback=press_ctrl_c_at(140), checkpoint=tmp_path / "run"
    )
    assert stopped.status == "interrupted"
    seen = []
    resumed = tr.solve(
        problem,
        X0,
        method,
        steps=300,
        record=20,
        callback=lambda r: seen.append(r["step"]),
        checkpoint=tmp_path / "run",
    )
    assert seen == list(range(160, 301, 20))
    assert np.array_equal(resumed.x, whole.x)


def test_a_second_ctrl_c_raises_at_once():
    def twice(row):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=50, callback=twice)
    assert signal.getsignal(signal.SIGINT) is HANDLER


def test_solve_works_in_a_thread_where_signals_cannot_be_set():
    found = []
    thread = threading.Thread(
        target=lambda: found.append(tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=20))
    )
    thread.start()
    thread.join()
    assert found[0].steps == 20


def growing(x):
    return -jnp.sum(x**4)


@pytest.mark.by_default("1", "7")
@pytest.mark.parametrize("record", [1, 7, 100])
def test_divergence_ends_the_run_with_the_iterate_before_it(record):
    """X ← x − 2x³ from 1.5, too long a step for x⁴: the iterates change sign and grow."""
    problem = tr.Problem(lambda x: jnp.sum(x**4))
    method = tr.methods.GradientDescentAscent(step_size=0.5, dual_step_size=1.0, decay=0.0, primal=PLAIN)
    expected, x = [], np.full(2, 1.5, np.float32)
    with np.errstate(over="ignore"):
        while np.isfinite(x).all():
            expected.append(x)
            x = x - np.float32(0.5) * 4 * x**3
    seen, result = iterates(problem, jnp.full(2, 1.5), method, steps=100, record=record)
    assert result.status == "diverged"
    assert not result.success
    assert result.steps == len(expected) - 1
    assert np.isfinite(result.x).all()
    assert f"step {len(expected)} gave" in result.message
    if record == 1:
        np.testing.assert_allclose(seen[max(seen)], expected[-1], rtol=1e-4)


def diverging_run(steps, lanes=False):
    """X ← x + 2x³ from ½: the iterates in NumPy, and a run of them."""
    expected, x = [], np.full(2, 0.5, np.float32)
    with np.errstate(over="ignore"):
        while np.isfinite(x).all():
            expected.append(x)
            x = x + np.float32(2.0) * x**3
    method = tr.methods.GradientDescentAscent(step_size=0.5, dual_step_size=1.0, decay=0.0, primal=PLAIN)
    return expected, started(tr.Problem(growing), jnp.full(2, 0.5), method, steps=steps, lanes=lanes)


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("lanes", [False, True])
def test_the_last_finite_iterate_is_kept_however_the_run_was_cut(chunk, lanes):
    expected, run = diverging_run(100, lanes)
    while not run.diverged and np.asarray(run.carry.finite).all():
        run.chunk = chunk
        run.advance(1)
    np.testing.assert_allclose(np.reshape(run.carry.run.state.x, -1), expected[-1], rtol=1e-4)
    assert np.isfinite(run.carry.run.average).all()
    if not lanes:
        assert run.step == len(expected) - 1
        assert run.calls[0]["objective_gradients"] == len(expected) - 1


def test_a_lane_that_diverges_keeps_its_last_iterate_and_the_others_go_on():
    methods = [
        tr.methods.GradientDescentAscent(step_size=s, dual_step_size=1.0, decay=0.0, primal=PLAIN) for s in (0.05, 40.0)
    ]
    found = tr.sweep(tr.Problem(lambda x: jnp.sum(x**4)), jnp.ones(2), methods, steps=50, seeds=1).results
    assert [r.status for r in found] == ["budget", "diverged"]
    assert all(np.isfinite(r.x).all() for r in found)
    assert found[0].objective < 0.5


def test_a_time_budget_ends_the_run_with_status_budget():
    stop = tr.Stop(violation=0.0, stationarity=0.0, seconds=0.05)
    result = tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=10**7, record=200, stop=stop)
    assert result.status == "budget"
    assert result.steps < 10**7
    assert 0.05 <= result.seconds < 2.0


def test_stop_ends_the_run_when_the_answer_meets_all_tolerances():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.equals(jnp.sum, 1.0))
    result = tr.solve(
        problem, jnp.zeros(2), tr.methods.GradientDescentAscent(), steps=20_000, record=100, stop=tr.Stop()
    )
    assert result.status == "converged"
    assert result.success
    assert result.steps < 20_000
    assert result.violation <= 1e-3
    assert result.certificate.relative_stationarity <= 1e-2
    assert result.certificate.relative_gap <= 1e-2


def test_running_out_of_steps_is_a_status_not_an_exception():
    result = tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=3)
    assert result.status == "budget"
    assert not result.success
    assert "more steps" in result.message


# ---------------------------------------------------------------------- checkpoints


def test_a_checkpoint_of_another_problem_method_or_seed_is_refused(tmp_path):
    method = tr.methods.GradientDescentAscent(step_size=0.1)
    tr.solve(fair_problem(), X0, method, steps=20, checkpoint=tmp_path / "run")
    data = tr.Dataset(points(seed=5), batch_size=16)
    from conftest import loss, parity

    other_data = tr.Problem(loss, tr.between(parity, -0.05, 0.05, data=data), domain=tr.domains.L2Ball(5.0), data=data)
    data = fair_problem().data
    other_bound = tr.Problem(loss, tr.between(parity, -0.05, 0.06, data=data), domain=tr.domains.L2Ball(5.0), data=data)
    other_ball = tr.Problem(loss, tr.between(parity, -0.05, 0.05, data=data), domain=tr.domains.L2Ball(6.0), data=data)
    calls = {
        "the constraint 'unit_norm'": lambda: tr.solve(
            sphere_problem(), X0, method, steps=20, checkpoint=tmp_path / "run"
        ),
        "the data of": lambda: tr.solve(other_data, X0, method, steps=20, checkpoint=tmp_path / "run"),
        "the bounds of": lambda: tr.solve(other_bound, X0, method, steps=20, checkpoint=tmp_path / "run"),
        "the domain": lambda: tr.solve(other_ball, X0, method, steps=20, checkpoint=tmp_path / "run"),
        "the seed": lambda: tr.solve(fair_problem(), X0, method, steps=20, seed=1, checkpoint=tmp_path / "run"),
        "x0": lambda: tr.solve(fair_problem(), X0 + 0.1, method, steps=20, checkpoint=tmp_path / "run"),
        "the method": lambda: tr.solve(
            fair_problem(), X0, tr.methods.GradientDescentAscent(step_size=0.2), steps=20, checkpoint=tmp_path / "run"
        ),
    }
    for part, call in calls.items():
        with pytest.raises(ValueError, match=f"differs in .*{part}"):
            call()


@pytest.mark.parametrize("what", ["notes", "arrays"])
def test_a_damaged_checkpoint_is_refused(tmp_path, what):
    tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=20, checkpoint=tmp_path / "run")
    files = [f for f in (tmp_path / "run").rglob("*") if f.is_file() and what in f.parts]
    assert files
    for file in files:
        file.write_bytes(b"\x00damaged")
    with pytest.raises(ValueError, match="damaged"):
        tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=20, checkpoint=tmp_path / "run")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ValueError, match="expected a folder"):
        tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=20, checkpoint=tmp_path / "run")


def test_a_finished_run_is_read_back_and_a_longer_one_goes_on_from_it(tmp_path):
    problem, method = sphere_problem(), tr.methods.TruncatedMomentum()
    whole = tr.solve(problem, X0, method, steps=400, record=40)
    first = tr.solve(problem, X0, method, steps=200, record=40, checkpoint=tmp_path / "run")
    again = tr.solve(problem, X0, method, steps=200, record=40, checkpoint=tmp_path / "run", callback=pytest.fail)
    assert np.array_equal(first.x, again.x)
    longer = tr.solve(problem, X0, method, steps=400, record=40, checkpoint=tmp_path / "run")
    assert np.array_equal(longer.x, whole.x)
    assert np.array_equal(longer.history["objective"], whole.history["objective"])


def test_the_best_iterate_so_far_survives_a_checkpoint(tmp_path):
    problem, method = fair_problem(), tr.methods.GradientDescentAscent(step_size=0.5, decay=0.0)  # it only gets worse
    first = tr.solve(problem, X0, method, steps=200, record=10, checkpoint=tmp_path / "run")
    again = tr.solve(problem, X0, method, steps=200, record=10, checkpoint=tmp_path / "run")
    assert first.output == again.output == "best"
    assert np.array_equal(first.x, again.x)


@pytest.mark.by_default("GradientDescentAscent")
@pytest.mark.parametrize("name", ["SwitchingSubgradient", "GradientDescentAscent"])
def test_a_process_killed_outright_resumes_to_the_bit(tmp_path, name):
    """Also where the method holds functions, whose addresses differ between processes."""
    script = textwrap.dedent(
        f"""
        import os, pathlib, signal, sys, time
        sys.path.insert(0, {str(os.path.dirname(os.path.dirname(__file__)))!r})
        from conftest import X0, fair_problem
        import tightrope as tr
        def kill(row):
            if row["step"] == 150:
                while not any(entry.name.isdigit() for entry in folder.iterdir()):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
        folder = pathlib.Path({str(tmp_path / "run")!r})
        checkpoint = tr.Checkpoint(folder, every=0.0)
        tr.solve(fair_problem(), X0, {name!r}, steps=300, record=30, callback=kill, checkpoint=checkpoint)
        """
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    problem, folder, seen = fair_problem(), tmp_path / "run", []
    resumed = tr.solve(
        problem, X0, name, steps=300, record=30, checkpoint=folder, callback=lambda r: seen.append(r["step"])
    )
    assert 30 <= seen[0] <= 150  # checkpoints are written in the background: the last was at step 120 or before
    whole = tr.solve(problem, X0, name, steps=300, record=30)
    assert np.array_equal(resumed.x, whole.x)
    assert np.array_equal(resumed.history["objective"], whole.history["objective"])


def test_an_interrupt_in_the_middle_of_a_chunk_saves_nothing_half_done(tmp_path, monkeypatch):
    """A second Ctrl-C can come between the loop's return and the records: that state must not be saved."""
    problem, method = fair_problem(), tr.methods.GradientDescentAscent()
    whole = tr.solve(problem, X0, method, steps=200, record=20)
    points = Run._points_of_chunk

    def interrupted(self, first, *rest):
        if first >= 100:
            raise KeyboardInterrupt
        return points(self, first, *rest)

    checkpoint = tr.Checkpoint(tmp_path / "run", every=0.0)
    monkeypatch.setattr(Run, "_points_of_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tr.solve(problem, X0, method, steps=200, record=20, checkpoint=checkpoint)
    monkeypatch.undo()
    resumed = tr.solve(problem, X0, method, steps=200, record=20, checkpoint=checkpoint)
    assert np.array_equal(resumed.x, whole.x)
    assert np.array_equal(resumed.history["objective"], whole.history["objective"])


def test_warm_start_takes_x_and_multipliers_of_a_result():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_least(lambda x: -x.sum(), -1.0, name="budget"))
    method = tr.methods.GradientDescentAscent()
    first = tr.solve(problem, jnp.zeros(2), method, steps=3000)
    assert first.multipliers["budget"] == pytest.approx(1.0, abs=0.1)
    seen, _ = iterates(problem, jnp.zeros(2), method, steps=5, warm_start=first)
    np.testing.assert_allclose(seen[0], first.x)
    run = started(problem, jnp.zeros(2), method, steps=5, warm_start=first)
    np.testing.assert_allclose(run.carry.run.state.multipliers, [first.multipliers["budget"]], rtol=1e-6)
    with pytest.raises(ValueError, match="structure"):
        tr.solve(problem, jnp.zeros(3), method, steps=5, warm_start=first)
    other = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(jnp.sum, 1.0, name="other"))
    with pytest.raises(ValueError, match="other"):
        tr.solve(other, jnp.zeros(2), method, steps=5, warm_start=first)


def test_the_message_says_whether_the_tolerances_or_the_methods_own_test_were_met():
    problem = tr.Problem(lambda x: jnp.sum((x - 2.0) ** 2), tr.equals(lambda x: x @ x, 1.0, name="circle"))
    x0, method = jnp.array([1.0, 0.0]), tr.methods.ExactPenalty()
    own = tr.solve(problem, x0, method, steps=400, record=400)
    assert own.status == "converged"
    assert "400 steps were taken" in own.message
    assert "the termination test was met" in own.message
    assert "within the tolerances" not in own.message
    stopped = tr.solve(problem, x0, method, steps=1000, stop=tr.Stop())
    assert stopped.status == "converged"
    assert stopped.steps < 1000
    assert "violation, stationarity and gap are within the tolerances" in stopped.message


def test_a_run_that_finds_no_way_to_the_constraints_is_called_infeasible():
    problem, x0, _ = tr.zoo.circle_and_wall()
    result = tr.solve(problem, x0, tr.methods.ExactPenalty(), steps=2000)
    assert result.status == "infeasible"
    assert "the constraints cannot be met" in result.message
    assert not result.success


@pytest.mark.parametrize("how", ["returns True", "raises StopIteration"])
def test_a_callback_may_stop_the_run(how):
    seen = []

    def callback(row):
        seen.append(row["step"])
        if row["step"] >= 40:
            if how == "returns True":
                return True
            raise StopIteration
        return None

    result = tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=200, record=20, callback=callback)
    assert seen == [0, 20, 40]
    assert result.steps == 40
    assert result.status == "interrupted"
    assert "the callback stopped the run" in result.message
    assert result.history.records == 3


def test_what_a_callback_returns_matters_only_if_it_is_true():
    result = tr.solve(
        fair_problem(), X0, "GradientDescentAscent", steps=60, record=20, callback=lambda row: row["step"]
    )
    assert result.steps == 60


def test_an_error_of_a_callback_says_where_it_was_raised():
    with pytest.raises(ZeroDivisionError) as raised:
        tr.solve(fair_problem(), X0, "GradientDescentAscent", steps=60, record=20, callback=lambda row: 1 / 0)
    assert raised.value.__notes__ == ["in the callback, at the record of step 0"]
