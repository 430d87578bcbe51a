"""A new number never compiles again, and compiled programs die with their problem."""

from __future__ import annotations

import gc
import time
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import X0, loss, points, started, unit_norm


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
    assert programs["run"]._start._cache_size() == 1
    (loop,) = programs["run"]._loops.values()
    assert loop._cache_size() == 1
    assert programs["run"].output._cache_size() == 1
    assert programs["original"]._evaluate._cache_size() == 1
    assert programs["probe"]._cache_size() == 1


def test_the_start_is_timed_and_its_compilation_is_not():
    def slow_to_compile(w, batch):
        time.sleep(0.3)
        return loss(w, batch)

    problem = tr.Problem(slow_to_compile, data=tr.Dataset(points(), batch_size=16))
    first, second = (tr.solve(problem, X0, "AdaptivePenalty", steps=5).history["seconds"] for _ in range(2))
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
    text = run.programs.loop(run.room).lower(run.leaves, run.carry, numbers).as_text()
    assert "tensor<5000x4xf32>" in text  # the data is there, as an argument
    assert len(text) < 200_000  # a constant of 20,000 numbers would be written out
