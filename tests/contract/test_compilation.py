"""A new number never compiles again, problems that compute the same share their programs, and no program keeps a closure."""

from __future__ import annotations

import gc
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import X0, loss, points, started, unit_norm
from tightrope.problems import compiling
from tightrope.problems.compiling import Program


class CountedObjective:
    """An objective that counts how often it is traced."""

    def __init__(self):
        self.traces = 0

    def __call__(self, w, batch):
        self.traces += 1
        return loss(w, batch)


def counted(constraint):
    objective = CountedObjective()
    return objective, tr.Problem(objective, constraint, data=tr.Dataset(points(), batch_size=16))


@pytest.mark.by_default("GradientDescentAscent-scalars", "SwitchingSubgradient-strong", "TruncatedMomentum-weak")
@pytest.mark.parametrize(
    "x0", [jnp.array([0.5, 0.5]), jnp.full(2, 0.5), [jnp.asarray(0.5), 0.5]], ids=["strong", "weak", "scalars"]
)
def test_every_program_of_a_run_is_compiled_once(x0, case):
    """A weakly typed start compiled the loop twice, the second time within the timed part."""
    method = type(case[2])()
    problem = tr.Problem(
        lambda x: sum(jnp.sum(jnp.asarray(p) ** 2) for p in x), tr.at_most(lambda x: -x[0], -0.1, name="first")
    )
    tr.solve(problem, x0, method, steps=50)
    programs = {key[0]: program for key, program in problem._cache.items()}
    (loop,) = programs["run"]._loops.values()
    evaluation = programs["original"]
    every = (
        programs["run"].start,
        loop,
        programs["run"].output,
        evaluation._evaluate,
        evaluation._curvatures,
        programs["probe"],
    )
    assert [len(program._ready) for program in every] == [1] * 6


def test_the_start_is_timed_and_its_compilation_is_not():
    def slow_to_compile(w, batch):
        time.sleep(0.3)
        return loss(w, batch)

    problem = tr.Problem(slow_to_compile, data=tr.Dataset(points(), batch_size=16))
    first, second = (tr.solve(problem, X0, "GradientDescentAscent", steps=5).history["seconds"] for _ in range(2))
    assert 0 < first[0] < 0.3
    assert 0 < second[0] < 0.3


def test_only_a_new_static_choice_or_shape_calls_the_users_functions_again():
    objective, problem = counted(tr.at_most(unit_norm, 1.0))
    tr.solve(problem, X0, tr.methods.TruncatedMomentum(), steps=10)
    before = objective.traces
    tr.solve(problem, 2.0 * X0, tr.methods.TruncatedMomentum(), steps=20, seed=1)
    assert objective.traces == before
    tr.solve(problem, X0, tr.methods.TruncatedMomentum(estimator="polyak"), steps=10)
    assert objective.traces > before
    before = objective.traces
    with pytest.raises(TypeError):  # the data have another number of columns: seen only where the function is called
        tr.solve(problem, jnp.zeros(7), tr.methods.TruncatedMomentum(), steps=10)
    assert objective.traces > before


def test_compiled_programs_and_closures_die_with_the_problem():
    big = jnp.ones(1000)

    def objective(x):
        return jnp.sum((x - big[:4]) ** 2)

    problem = tr.Problem(objective, tr.equals(jnp.sum, 1.0))
    tr.solve(problem, X0, steps=10)
    watched = weakref.ref(objective), weakref.ref(problem)
    del problem, objective
    gc.collect()
    assert [ref() for ref in watched] == [None, None]


def test_data_are_arguments_and_not_constants_of_the_program():
    data = tr.Dataset(points(5000), batch_size=16)
    problem = tr.Problem(loss, data=data)
    run = started(problem, X0, tr.methods.TruncatedMomentum(), steps=5)
    numbers = np.array([1, 5], np.int32)
    loop = jax.jit(run.programs.loop(run.room).fn)
    text = loop.lower(run.leaves, run.carry.run, run.carry.finite, numbers).as_text()
    assert "tensor<5000x4xf32>" in text  # the data is there, as an argument
    assert len(text) < 200_000  # a constant of 20,000 numbers would be written out


# ---- problems that compute the same ------------------------------------------------------------------------------------


@pytest.fixture
def compiled():
    """The names of the programs that are compiled, as they are."""
    names = []

    def note(event, seconds, **about):
        if event.endswith("backend_compile_duration"):
            names.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


def defined_anew(bound, radius, scale):
    """A problem made of new functions, whose numbers are other ones each time."""
    data = tr.Dataset(scale * np.random.default_rng(0).normal(size=(200, 4)), batch_size=16)
    constraint = tr.at_most(lambda w, batch: jnp.mean(batch @ w), bound, data=data, name="mean")
    return tr.Problem(
        lambda w, batch: jnp.mean((batch @ w - 1.0) ** 2), constraint, domain=tr.domains.L2Ball(radius), data=data
    )


def test_a_problem_that_computes_the_same_compiles_nothing(compiled):
    """Other bounds, data, sets, starts, seeds, steps and hyperparameters, and functions that are defined anew."""
    tr.solve(defined_anew(0.1, 5.0, 1.0), X0, tr.methods.AdaptivePenalty(), steps=20)
    assert compiled
    compiled.clear()
    method = tr.methods.AdaptivePenalty(noise_tolerance=0.5)
    result = tr.solve(defined_anew(-0.2, 3.0, 2.0), np.full(4, 0.25, np.float32), method, steps=30, seed=3)
    assert compiled == []
    assert result.certificate.verdict == "feasible"


def test_a_problem_that_computes_something_else_is_not_given_the_programs_of_another():
    x0 = jnp.ones(3)
    first, second = (
        tr.solve(tr.Problem(lambda x, a=a: jnp.sum((x - a) ** 2)), x0, "GradientDescentAscent", steps=5)
        for a in (2.0, 3.0)
    )
    assert first.objective != second.objective


def test_a_program_is_shared_by_functions_that_compute_the_same_and_by_no_others(compiled):
    x = np.ones(3, np.float32)
    values = [Program(lambda x, a=a: jnp.sum(a * x))(x) for a in (2.0, 2.0, 5.0)]
    assert [float(value) for value in values] == [6.0, 6.0, 15.0]
    assert len(compiled) == 2


def test_programs_that_call_back_into_python_are_not_shared():
    x = np.ones(3, np.float32)

    def calling(state):
        return lambda x: jax.pure_callback(lambda x: x * np.float32(state[0]), jax.ShapeDtypeStruct((3,), "float32"), x)

    assert [float(Program(calling([a]))(x)[0]) for a in (2.0, 5.0)] == [2.0, 5.0]


def test_the_cache_of_programs_is_bounded_and_keeps_those_used_last(monkeypatch, compiled):
    monkeypatch.setattr(compiling, "_cache", compiling._Cache())
    monkeypatch.setattr(compiling, "MAX_EXECUTABLES", 2)
    x = np.ones(3, np.float32)
    for a in (1.5, 2.5, 1.5, 3.5, 1.5, 2.5):
        Program(lambda x, a=a: a * x)(x)
    assert len(compiling._cache._found) == 2
    assert len(compiled) == 4  # the second 2.5 had gone, 1.5 stayed


def test_a_program_that_fails_to_compile_raises_and_is_forgotten(monkeypatch):
    monkeypatch.setattr(compiling, "_cache", compiling._Cache())

    def fail(*_):
        raise RuntimeError("no compiler")

    with monkeypatch.context() as patched:
        patched.setattr(compiling, "_compile", fail)
        with pytest.raises(RuntimeError, match="no compiler"):
            Program(jnp.sin)(np.float32(0.0))
    assert float(Program(jnp.sin)(np.float32(0.0))) == 0.0


def test_compile_seconds_are_those_of_the_call_and_are_kept(tmp_path):
    problem = tr.Problem(lambda x: jnp.sum((x - 0.123) ** 2))
    first, second = (tr.solve(problem, X0, "GradientDescentAscent", steps=5) for _ in range(2))
    assert first.compile_seconds > 10 * second.compile_seconds >= 0.0
    assert "to compile" in str(first)
    first.save(tmp_path / "first.npz")
    assert tr.load(tmp_path / "first.npz").compile_seconds == first.compile_seconds


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the options are for CPUs")
@pytest.mark.parametrize(("lines", "effort"), [(10, "fused"), (compiling.MAX_FUSED_LINES + 1, "full")])
def test_of_loops_in_few_dimensions_only_short_ones_are_fused(lines, effort):
    used = []

    class Lowered:
        def as_text(self):
            return "\n" * lines

        def compile(self, compiler_options):
            used.append(compiler_options)

    compiling._compile(Lowered(), "fused")
    assert used == [compiling.CPU_OPTIONS[effort]]
