"""Programs that are found by what they are made of: never another one, and again in another process."""

from __future__ import annotations

import functools
import json
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad

import tightrope as tr
from tightrope.oracles.build import definition_of
from tightrope.problems import compiling, persistent_cache, program_folder
from tightrope.problems.calls import Call
from tightrope.problems.canonical import digest
from tightrope.problems.known_programs import KnownPrograms
from tightrope.problems.returned import read, written
from tightrope.problems.structure import UnknownStructure, structure
from tightrope.runs.fitting import fit
from traced_hits import every_hit_traced

DATA = tr.Dataset(np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), batch_size=8)
NUMBERS = np.arange(3.0, dtype="float32")


def computed(fn, constraint=None, x0=NUMBERS, examples=8, keyed=False):
    """The digest of what these functions compute on batches of this size."""
    constraints = [] if constraint is None else [tr.at_most(constraint, 1.0, data=DATA)]
    problem = tr.Problem(fn, constraints, data=DATA)
    fitted = fit("solve", problem, x0, "GradientDescentAscent", 5)
    return definition_of(problem, fitted.original).computed([Call(examples, keyed)])


def with_rules(primal, tangent, forward=None):
    """A mean of a function with these values and derivatives."""
    fn = jax.custom_jvp(primal)
    fn.defjvp(lambda given, along: ((forward or primal)(*given), tangent(*given) * along[0]))
    return lambda x, batch: jnp.mean(fn(batch @ x))


def backward(pull):
    """A mean of a function with this backward pass."""
    fn = jax.custom_vjp(jnp.sin)
    fn.defvjp(lambda s: (jnp.sin(s), s), lambda s, g: (pull(s, g),))
    return lambda x, batch: jnp.mean(fn(batch @ x))


class Model(eqx.Module):
    weights: jax.Array
    power: int = eqx.field(static=True)


DIFFERENT = {
    "numbers": [lambda x, b: jnp.mean(2.0 * b @ x), lambda x, b: jnp.mean(3.0 * b @ x)],
    "arrays": [lambda x, b, a=a: jnp.mean(b @ (x * a)) for a in (NUMBERS, 2 * NUMBERS)],
    "values, but not the rule of the derivative": [
        with_rules(primal, jnp.cos, jnp.sin) for primal in (jnp.sin, jnp.cos)
    ],
    "the rule of the derivative": [with_rules(jnp.sin, tangent) for tangent in (jnp.cos, jnp.sin)],
    "the backward pass": [backward(pull) for pull in (lambda s, g: g * jnp.cos(s), lambda s, g: 2 * g * jnp.cos(s))],
    "the order of subtraction": [lambda x, b: jnp.mean(b @ x - x[0]), lambda x, b: jnp.mean(x[0] - b @ x)],
    "what small batches give": [lambda x, b, f=f: jnp.mean((b @ x) * (f if len(b) == 4 else 1.0)) for f in (1.0, 2.0)],
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_functions_that_differ_have_different_digests(difference):
    one, other = DIFFERENT[difference]
    examples = 4 if "small" in difference else 8
    assert None is not computed(one, examples=examples) != computed(other, examples=examples)
    assert computed(one, examples=examples) == computed(lambda *given: one(*given), examples=examples)


def test_settings_of_a_model_and_what_a_random_key_does_belong_to_the_digest():
    def power(model, batch):
        return jnp.mean((batch @ model.weights) ** model.power)

    models = [Model(jnp.ones(3), power) for power in (2, 3)]
    assert computed(power, x0=models[0]) != computed(power, x0=models[1])
    noisy = [
        lambda x, b, key=None, s=s: jnp.mean(b @ x) + (0.0 if key is None else s * jax.random.normal(key))
        for s in (1, 2)
    ]
    assert computed(noisy[0]) == computed(noisy[1])
    assert computed(noisy[0], keyed=True) != computed(noisy[1], keyed=True)


def test_functions_that_share_a_large_array_are_others_than_those_with_copies_of_it():
    """What they share is computed once (see `sharing`), so the programs differ."""
    large = np.random.default_rng(0).normal(size=(3, 2000)).astype("float32")

    def pair(one, other):
        return [lambda x, b, a=a: jnp.mean((b * x) @ a) for a in (one, other)]

    copies = [jnp.asarray(large), jnp.asarray(large.copy())]
    assert computed(*pair(copies[0], copies[0])) != computed(*pair(*copies))


def test_functions_with_code_outside_of_jax_have_no_digest():
    shape = jax.ShapeDtypeStruct((), "float32")
    assert computed(lambda x, b: jnp.mean(b @ x) + 0.0 * jax.pure_callback(np.sum, shape, b)) is None

    own = Primitive("tripled")
    own.def_abstract_eval(lambda a: a)
    ad.deflinear2(own, lambda along, a: [3.0 * along])
    assert computed(lambda x, b: jnp.mean(own.bind(b @ x))) is None


@functools.wraps(optax.sgd)
def disguised(x):
    return x


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x,
        disguised,
        Model(jnp.ones(1), 2),
        optax.GradientTransformation(lambda params: (), lambda *given: given),
        np.random.default_rng(0),
        jax.jit(jnp.sin),
        functools.partial(len, []).__call__,
    ],
    ids=("function", "disguised function", "model", "optimizer", "generator", "jitted function", "bound method"),
)
def test_code_and_objects_of_an_unknown_kind_have_no_description(value):
    with pytest.raises(UnknownStructure):
        list(structure(value, {}))


def test_a_description_has_every_setting_and_no_number_of_an_argument():
    def description(value, static=True):
        return digest(*structure(value, {}, static))

    rates = [optax.scale_by_adam(b1=rate) for rate in (0.9, 0.8)]
    assert description(rates[0]) != description(rates[1])
    assert description({1: 2}) != description({2: 2})
    assert description({1: 2}, False) != description({2: 2}, False)
    assert description(2, False) == description(3, False) != description(3.0, False)
    assert description(NUMBERS, False) == description(2 * NUMBERS, False) != description(NUMBERS[:2], False)
    assert description(NUMBERS) != description(2 * NUMBERS)
    assert description(jnp.full(2, 1.0), False) != description(jnp.ones(2), False)  # the first has a weak type
    balls = [jax.tree.structure(tr.domains.L2Ball(radius)) for radius in (1.0, 2.0)]
    assert description(balls[0]) == description(balls[1])


def test_the_structure_of_what_a_program_returns_is_read_back_with_other_objects():
    state = {"a": (1, None), "b": tr.domains.L2Ball(1.0)}
    text = written(jax.tree.structure(state), {})
    assert text is not None
    assert read(text, {}) == jax.tree.structure(state)
    assert written(jax.tree.structure(Model(jnp.ones(1), 2)), {}) is None
    with pytest.raises(UnknownStructure):
        read(json.dumps(["tuple of", "os:system", []]), {})


def solve(scale, bound=1.0, seed=0):
    """The result of a problem that is made anew."""
    data = tr.Dataset(scale * np.asarray(DATA.arrays), batch_size=8)
    constraint = tr.at_most(lambda x, batch: jnp.mean(batch @ x), bound, data=data, name="mean")
    problem = tr.Problem(lambda x, b: jnp.mean((b @ x - 1.0) ** 2), constraint, data=data)
    return tr.solve(problem, jnp.zeros(3), "GradientDescentAscent", steps=20, seed=seed)


@pytest.fixture
def programs_of_a_new_process(monkeypatch):
    """Forgets all programs, as often as it is called."""

    def forget():
        monkeypatch.setattr(compiling, "_known", KnownPrograms())
        monkeypatch.setattr(compiling, "_cache", compiling._Cache())

    settings = {name: jax.config.values[name] for name in jax.config.values if "compilation_cache_dir" in name}
    settings |= {
        name: jax.config.values[name] for name in jax.config.values if name.startswith("jax_persistent_cache_min")
    }
    forget()
    yield forget
    for name, value in settings.items():
        jax.config.update(name, value)
    persistent_cache.compilation_cache.reset_cache()


def test_a_problem_that_computes_the_same_is_found_and_every_program_is_the_right_one(programs_of_a_new_process):
    first = solve(1.0)
    with every_hit_traced() as found:
        solve(2.0, bound=3.0, seed=1)
        again = solve(1.0)
    assert {"_probe", "_start", "run_steps", "_output", "evaluate_points"} <= set(found)
    assert np.array_equal(first.x, again.x)
    assert first.objective == again.objective


def test_another_process_finds_its_programs_in_the_folder_and_traces_none(
    programs_of_a_new_process, monkeypatch, tmp_path
):
    plain = solve(1.0)
    programs_of_a_new_process()
    tr.cache(tmp_path)
    first = solve(1.0)
    programs_of_a_new_process()
    with monkeypatch.context() as patched:
        patched.setattr(compiling.Program, "_trace", lambda *_: pytest.fail("a program is traced"))
        again = solve(1.0)
    assert np.array_equal(first.x, plain.x)
    assert np.array_equal(first.x, again.x)
    assert first.objective == again.objective == plain.objective
    assert not any(path.name.endswith((".pkl", ".pickle")) for path in tmp_path.iterdir())

    for path in tmp_path.glob("tightrope-*"):  # damaged, each in another way
        content = path.read_bytes()
        path.write_bytes([content[: len(content) // 2], b"", b"[[1]]", content[::-1]][hash(path.name) % 4])
    programs_of_a_new_process()
    assert np.array_equal(solve(1.0).x, first.x)


def test_a_folder_that_is_gone_or_cannot_be_written_is_as_good_as_none(
    programs_of_a_new_process, monkeypatch, tmp_path
):
    tr.cache(tmp_path / "programs")

    def fail(*_):
        raise OSError("read-only file system")

    monkeypatch.setattr(program_folder, "_replace", fail)
    assert program_folder.write("described", (), "computed", ("a", "b", ()), None) is None  # pyright: ignore
    (tmp_path / "programs").rmdir()
    assert program_folder.read_calls("described") is None
    assert program_folder.read("described", "computed") is None


def test_the_folder_loses_the_programs_that_were_used_longest_ago(monkeypatch, tmp_path):
    monkeypatch.setattr(program_folder, "MAX_FOLDER_BYTES", 250)
    for age, name in enumerate(["new-trace", "middle-cache", "old-calls", "oldest-cache"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / "other").write_bytes(bytes(1000))
    program_folder.prune(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"new-trace", "middle-cache", "other"}
