"""The stepper: one step as a pure function, which `solve` loops over."""

from __future__ import annotations

import traceback
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import tightrope as tr
from conftest import X0, fair_problem, iterates, loss, parity, points, sphere_problem
from tightrope.methods.registry import available
from tightrope.methods.selection import refusal

SEED = 3


def problem_for(name):
    return next(p for p in (fair_problem(), sphere_problem()) if refusal(p, available()[name]) is None)


@cache
def solved(name, steps):
    """The iterates of `solve`, by step."""
    return iterates(problem_for(name), X0, name, steps=steps, record=steps // 4, seed=SEED)[0]


def scanned(stepper, state, steps):
    def one(state, _):
        state, _ = stepper.step(state)
        return state, state.x

    return jax.jit(lambda state: jax.lax.scan(one, state, length=steps))(state)


FEW = ("AdaptivePenalty", "SwitchingSubgradient", "TruncatedMomentum")
NAMES = [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in available()]


@pytest.mark.parametrize("name", NAMES)
def test_a_scanned_stepper_gives_the_iterates_of_solve_to_the_bit(name):
    expected = solved(name, 60)
    stepper = tr.Stepper(problem_for(name), X0, name, steps=60)
    last, path = scanned(stepper, jax.jit(lambda: stepper.init(seed=SEED))(), 60)
    assert int(last.k) == 60
    for step in (15, 30, 45, 60):
        assert np.array_equal(path[step - 1], expected[step]), step


def test_the_draws_of_solve_are_taken_in_place_of_a_batch():
    expected = solved("SmoothedLagrangian", 60)
    stepper = tr.Stepper(fair_problem(), X0, "SmoothedLagrangian", steps=60)

    @jax.jit
    def whole(state):
        step = lambda state, k: (stepper.step(state, stepper.draw(k, seed=SEED))[0], None)
        return jax.lax.scan(step, state, jnp.arange(1, 61))[0]

    assert np.array_equal(whole(jax.jit(lambda: stepper.init(seed=SEED))()).x, expected[60])


@pytest.mark.by_default("GradientDescentAscent")
@pytest.mark.parametrize("name", ["GradientDescentAscent", "AdaptivePenalty"])
def test_steps_from_python_stay_within_1e_6_of_solve_over_100_steps(name):
    expected = solved(name, 100)
    stepper = tr.Stepper(fair_problem(), X0, name, steps=100)
    state, step = jax.jit(lambda: stepper.init(seed=SEED))(), jax.jit(stepper.step)
    for _ in range(100):
        state, _ = step(state)
    np.testing.assert_allclose(state.x, expected[100], rtol=0, atol=1e-6)


# ---- batches of the user's ---------------------------------------------------------------------------------------------


def own_batch(data, draw):
    """The examples of a draw, role by role, as a user's loader would give them."""
    parts = [
        jax.tree.map(lambda a, i=i: a[i], data.arrays) for (i,) in (draw.samples[role] for role in sorted(draw.samples))
    ]
    return jax.tree.map(lambda *a: np.concatenate(a), *parts)


@pytest.mark.by_default("SmoothedLagrangian")
@pytest.mark.parametrize("name", ["GradientDescentAscent", "SmoothedLagrangian"])
def test_a_batch_is_split_over_the_samples_of_a_step(name):
    """Fed with the examples that solve drew, in the order of the roles' names, the stepper takes the same steps."""
    problem = fair_problem()
    stepper = tr.Stepper(problem, X0, name, steps=20)
    assert stepper.batch_size == 16 * len(jax.eval_shape(stepper.draw, 1).samples)
    state, step = jax.jit(lambda: stepper.init(seed=SEED))(), jax.jit(stepper.step)
    draw = jax.jit(lambda k: stepper.draw(k, seed=SEED))
    for k in range(1, 21):
        state, _ = step(state, own_batch(problem.data, draw(k)))
    expected = iterates(problem, X0, name, steps=20, record=20, seed=SEED)[0]
    np.testing.assert_allclose(state.x, expected[20], rtol=0, atol=1e-6)


def on_batches(size=32):
    batches = tr.Batches(like={name: column[:size] for name, column in points().items()})
    return tr.Problem(loss, tr.between(parity, -0.05, 0.05, data=batches), domain=tr.domains.L2Ball(5.0), data=batches)


def loader(size, count, seed=0):
    """A generator of NumPy batches."""
    columns, rng = points(), np.random.default_rng(seed)
    for _ in range(count):
        rows = rng.integers(400, size=size)
        yield {name: column[rows] for name, column in columns.items()}


@pytest.mark.by_default("None")
@pytest.mark.parametrize("name", [None, "GradientDescentAscent"])
def test_batches_alone_are_enough_and_the_answer_is_certified_on_data_given_later(name):
    stepper = tr.Stepper(on_batches(), X0, name, steps=2000)
    first, *rest = loader(stepper.batch_size, 2001)
    state, step = jax.jit(stepper.init)(first), jax.jit(stepper.step)
    for batch in rest:
        state, _ = step(state, batch)
    result = stepper.answer(state, data=tr.Dataset(points(), batch_size=16))
    known = tr.solve(fair_problem(), X0, steps=2000)
    assert result.steps == 2000
    assert result.output in ("method", "last", "average")
    assert result.violation < 1e-2
    assert result.objective < known.objective + 1e-2
    assert "2,000 steps" in result.message
    with pytest.raises(ValueError, match=r"Stepper.answer: data is missing"):
        stepper.answer(state)


def test_constants_are_estimated_on_the_first_batch():
    stepper = tr.Stepper(on_batches(), X0, "GradientDescentAscent", steps=10)
    one, other = (jax.jit(stepper.init)(batch).method.dual_step_size for batch in loader(32, 2))
    assert one > 0
    assert one != other


def test_a_method_that_needs_more_than_batches_is_refused_and_others_are_named():
    with pytest.raises(ValueError, match=r"ExactPenalty needs more than batches.*GradientDescentAscent") as raised:
        tr.Stepper(on_batches(), X0, "ExactPenalty", steps=10)
    assert "ExactPenalty" not in str(raised.value).partition("alone:")[2]


def test_solve_and_sweep_point_to_the_stepper_if_there_is_nothing_to_draw_from():
    for call in (
        lambda: tr.solve(on_batches(), X0, steps=5),
        lambda: tr.sweep(on_batches(), X0, None, steps=5, seeds=2),
    ):
        with pytest.raises(ValueError, match=r"nothing to draw from.*tightrope\.Stepper"):
            call()


def test_wrong_batches_are_refused():
    stepper = tr.Stepper(on_batches(), X0, "GradientDescentAscent", steps=10)
    (batch,) = loader(32, 1)
    state = jax.jit(stepper.init)(batch)
    with pytest.raises(ValueError, match="batch is missing"):
        stepper.step(state)
    with pytest.raises(ValueError, match=r"must have 32 examples for 'objective' \(32 for joint\), got .*31"):
        stepper.step(state, {name: column[:31] for name, column in batch.items()})
    with pytest.raises(ValueError, match="nothing to draw from"):
        stepper.draw(1)
    with pytest.raises(
        ValueError,
        match=r"ConstraintExtrapolation splits its batch over 3 samples .* a multiple of 3 examples; Batches has 32",
    ):
        tr.Stepper(on_batches(), X0, "ConstraintExtrapolation", steps=10)
    with pytest.raises(TypeError, match="seed must be an integer"):
        stepper.init(batch, seed=0.5)


def test_several_sources_take_a_dict_of_batches():
    objective, constraint = (tr.Batches(like={n: c[:8] for n, c in points().items()}) for _ in range(2))
    problem = tr.Problem(loss, tr.at_most(parity, 0.05, data=constraint, name="parity"), data=objective)
    stepper = tr.Stepper(problem, X0, "GradientDescentAscent", steps=10)
    assert stepper.sources == ("objective", "parity")
    assert stepper.batch_size == {"objective": 8, "parity": 8}
    one, other = loader(8, 2)
    batch = {"objective": one, "parity": other}
    state, info = jax.jit(lambda batch: stepper.step(stepper.init(batch), batch))(batch)
    assert int(info.samples) == 16
    with pytest.raises(ValueError, match="a dict with a batch for each of objective, parity"):
        stepper.step(state, one)


# ---- transformations ---------------------------------------------------------------------------------------------------


def test_runs_are_vmapped_over_seeds_and_batches_with_one_step_number():
    stepper = tr.Stepper(on_batches(), X0, "GradientDescentAscent", steps=10)
    axes, lanes = stepper.axes, 3
    batches = [jax.tree.map(lambda *a: np.stack(a), *loader(32, lanes, seed=k)) for k in range(11)]
    begin = jax.jit(jax.vmap(lambda batch, seed: stepper.init(batch, seed=seed), out_axes=axes))
    states = begin(batches[0], jnp.arange(lanes, dtype=jnp.uint32))
    step = jax.jit(jax.vmap(stepper.step, in_axes=(axes, 0), out_axes=(axes, 0)))
    for batch in batches[1:]:
        states, info = step(states, batch)
    assert states.k.shape == ()
    assert info.samples.shape == (lanes,)
    alone = jax.jit(lambda batch: stepper.init(batch, seed=1))(jax.tree.map(lambda a: a[1], batches[0]))
    for batch in batches[1:]:
        alone, _ = stepper.step(alone, jax.tree.map(lambda a: a[1], batch))
    np.testing.assert_allclose(states.state.x[1], alone.x, rtol=0, atol=1e-6)


def test_a_state_is_saved_and_restored_with_orbax(tmp_path):
    stepper = tr.Stepper(fair_problem(), X0, "GradientDescentAscent", steps=10)
    step = jax.jit(stepper.step)
    state, _ = step(jax.jit(stepper.init)())
    arrays = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(state)) if leaf.size}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", arrays)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "state", arrays)
    again = jax.tree.unflatten(jax.tree.structure(state), [restored[str(i)] for i in range(len(restored))])
    assert np.array_equal(step(state)[0].x, step(again)[0].x)


def test_constructing_a_stepper_compiles_and_runs_nothing():
    seen = []

    def watched(w, batch):
        seen.append(isinstance(w, jax.core.Tracer))
        return loss(w, batch)

    tr.Stepper(tr.Problem(watched, data=tr.Dataset(points(), batch_size=16)), X0, steps=10)
    assert seen
    assert all(seen)


# ---- the path to a step ------------------------------------------------------------------------------------------------


class Raising(tr.methods.GradientDescentAscent):
    """A method whose step raises when it is traced for the second time, or at once."""

    traces = 0

    def step(self, oracle, state, draw):
        if Raising.traces == 0:
            raise ZeroDivisionError("in the step")
        Raising.traces -= 1
        return super().step(oracle, state, draw)


def solve_raising(traces):
    Raising.traces = traces
    return tr.solve(tr.Problem(loss, data=tr.Dataset(points(), batch_size=16)), X0, Raising(), steps=5)


def test_at_most_five_frames_lie_between_the_user_and_a_step_beside_those_of_the_compiler():
    with pytest.raises(ZeroDivisionError) as raised:
        solve_raising(traces=0)
    files = [(Path(frame.filename), frame.name) for frame in traceback.extract_tb(raised.tb)]
    frames = [name for file, name in files if "tightrope" in file.parts and file.name != "compiling.py"]
    assert len(frames) <= 5, frames


def test_a_step_is_traced_once():
    assert solve_raising(traces=1).steps == 5
