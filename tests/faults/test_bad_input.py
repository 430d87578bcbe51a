"""Bad input gets a ValueError or TypeError that names the argument, what came and what was expected, before compiling."""

from __future__ import annotations

import re
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import X0, fair_problem, loss, parity, points, sphere_problem, unit_norm

DATA = tr.Dataset(points(), batch_size=16)
QUICK = "GradientDescentAscent"
"""A method that compiles fast."""


def solve(objective=loss, constraints=(), x0=X0, method=None, data=DATA, domain=None, steps=5, **options):
    return tr.solve(tr.Problem(objective, constraints, domain=domain, data=data), x0, method, steps=steps, **options)


def sweep(methods="GradientDescentAscent", seeds=1):
    return tr.sweep(fair_problem(), X0, methods, steps=5, seeds=seeds)


def nan_at_start(w, batch):
    return jnp.mean(jnp.log(w[0] - 1.0) * batch["y"])


class Pull(tr.domains.Domain):
    """A set that can only be minimized over."""

    def lmo(self, gradient):
        return jax.tree.map(jnp.zeros_like, gradient)

    def contains(self, x, tolerance=None):
        return jnp.bool_(False)


BAD = {
    # what is wrong: (the call, the error, words the message must have)
    "non-scalar objective": (lambda: solve(lambda w, b: b["x"] @ w), ValueError, ["objective", "scalar", "(16,)"]),
    "integer objective": (lambda: solve(lambda w, b: jnp.sum(w > 0)), TypeError, ["objective", "floats", "int32"]),
    "objective returns None": (lambda: solve(lambda w, b: None), TypeError, ["objective", "NoneType"]),
    "matrix constraint": (
        lambda: solve(constraints=tr.equals(lambda w: jnp.outer(w, w), name="square")),
        ValueError,
        ["'square'", "scalar or a vector", "(4, 4)"],
    ),
    "integer constraint": (
        lambda: solve(constraints=tr.equals(lambda w: jnp.argmax(w), name="top")),
        TypeError,
        ["'top'", "floats", "int32"],
    ),
    "more values than bounds": (
        lambda: solve(constraints=tr.at_most(lambda w: w, np.ones(3), name="each")),
        ValueError,
        ["'each'", "4 numbers", "3 bounds"],
    ),
    "the class of a set": (lambda: tr.Problem(loss, domain=tr.domains.NonNegative), TypeError, ["write NonNegative("]),
    "NaN in x0": (lambda: solve(x0=X0.at[1].set(jnp.nan)), ValueError, ["x0", "NaN", "finite"]),
    "NaN in data": (
        lambda: tr.Dataset({"x": np.array([1.0, np.nan])}, 1),
        ValueError,
        ["Dataset", "arrays['x']", "NaN", "finite"],
    ),
    "NaN at the first evaluation": (lambda: solve(nan_at_start), ValueError, ["objective", "nan", "finite"]),
    "NaN in a constraint at the first evaluation": (
        lambda: solve(constraints=tr.at_most(lambda w: jnp.log(w[0] - 1.0), name="log")),
        ValueError,
        ["'log'", "nan", "finite"],
    ),
    "integer parameters": (lambda: solve(x0=np.arange(4)), TypeError, ["x0", "int", "floats"]),
    "integer leaf": (lambda: solve(x0={"a": X0, "b": 3}), TypeError, ["x0['b']", "int", "floats"]),
    "parameters that are not arrays": (lambda: solve(x0={"a": "text"}), TypeError, ["x0['a']", "str", "array"]),
    "no parameters": (lambda: solve(x0={}), ValueError, ["x0", "no parameters"]),
    "leaves of different lengths": (
        lambda: tr.Dataset({"x": np.ones(3), "y": np.ones(4)}, 1),
        ValueError,
        ["arrays['x'] has 3", "arrays['y'] has 4"],
    ),
    "empty data": (lambda: tr.Dataset({"x": np.ones((0, 2))}, 1), ValueError, ["Dataset", "no examples"]),
    "no arrays": (lambda: tr.Dataset({}, 1), ValueError, ["Dataset", "empty"]),
    "a shape as data": (
        lambda: tr.Dataset({"x": jax.ShapeDtypeStruct((3,), float)}, 1),
        TypeError,
        ["arrays['x']", "shape"],
    ),
    "a number as data": (lambda: tr.Dataset({"x": 1.0}, 1), ValueError, ["Dataset", "first axis"]),
    "batch_size 0": (lambda: tr.Dataset(np.ones(3), 0), ValueError, ["batch_size", "positive integer", "0"]),
    "batch_size 1.5": (lambda: tr.Dataset(np.ones(3), 1.5), TypeError, ["batch_size", "positive integer", "1.5"]),
    "a sampler that returns too few examples": (
        lambda: tr.Sampler(lambda key, n: jnp.ones(3), 4),
        ValueError,
        ["Sampler", "4 examples", "(3,)"],
    ),
    "a sampler that is not a function": (lambda: tr.Sampler(3, 4), TypeError, ["Sampler", "fn", "int"]),
    "a sampler that takes no key": (lambda: tr.Sampler(lambda n: n, 4), TypeError, ["fn(key, n)", "<lambda>(n)"]),
    "an empty example of a batch": (lambda: tr.Batches(like={}), ValueError, ["Batches", "like", "empty"]),
    "an example of a batch with different lengths": (
        lambda: tr.Batches(like={"x": np.ones(3), "y": np.ones(4)}),
        ValueError,
        ["Batches", "like['x'] has 3", "like['y'] has 4"],
    ),
    "an iterator as an example of a batch": (
        lambda: tr.Batches(like={"x": iter([np.ones(3)])}),
        TypeError,
        ["Batches: like['x']", "iterator", "np.stack"],
    ),
    "a number as an example of a batch": (lambda: tr.Batches(like=64), ValueError, ["Batches", "first axis"]),
    "steps 0": (lambda: solve(steps=0), ValueError, ["steps", "positive integer", "0"]),
    "steps 1.5": (lambda: solve(steps=1.5), TypeError, ["steps", "positive integer", "1.5"]),
    "seed -1": (lambda: solve(seed=-1), ValueError, ["seed", "-1"]),
    "seed 'a'": (lambda: solve(seed="a"), TypeError, ["seed", "integer", "'a'"]),
    "record 0": (lambda: solve(record=0), ValueError, ["record", "positive integer"]),
    "stop that is none": (lambda: solve(stop=1e-3), TypeError, ["stop", "tightrope.Stop", "float"]),
    "negative tolerance": (lambda: tr.Stop(violation=-1.0), ValueError, ["violation", "≥ 0", "-1"]),
    "callback that is none": (lambda: solve(callback=3), TypeError, ["callback", "int"]),
    "callback that takes no record": (lambda: solve(callback=lambda: None), TypeError, ["callback", "a record", "()"]),
    "warm_start that is none": (lambda: solve(warm_start=X0), TypeError, ["warm_start", "Result"]),
    "unknown method name": (lambda: solve(method="Adam"), ValueError, ["'Adam'", "TruncatedMomentum"]),
    "method of wrong type": (lambda: solve(method=3), TypeError, ["method", "int"]),
    "problem of wrong type": (lambda: tr.solve(loss, X0, steps=5), TypeError, ["problem", "function"]),
    "domain of another structure": (
        lambda: solve(domain=tr.domains.Product({"a": tr.domains.Reals()})),
        ValueError,
        ["Product"],
    ),
    "domain of another shape": (lambda: solve(domain=tr.domains.Box(np.zeros(3), np.ones(3))), ValueError, ["Box"]),
    "affine domain of another size": (
        lambda: solve(domain=tr.domains.Affine(np.ones((1, 3)), np.ones(1))),
        ValueError,
        ["Affine"],
    ),
    "a domain that is not a set": (lambda: solve(domain=3), TypeError, ["domain", "int"]),
    "domain that cannot project": (
        lambda: solve(method="AdaptivePenalty", domain=Pull()),
        ValueError,
        ["projection", "Pull"],
    ),
    "A and b of different sizes": (
        lambda: tr.affine(np.ones((2, 4)), np.ones(3)),
        ValueError,
        ["affine", "(2, 4)", "(3,)"],
    ),
    "A of wrong width": (
        lambda: solve(constraints=tr.affine(np.ones((1, 3)), np.ones(1))),
        ValueError,
        ["affine", "3 columns", "4 entries"],
    ),
    "an A that is not a matrix": (lambda: tr.affine(np.ones(3), np.ones(3)), ValueError, ["affine", "matrix", "(3,)"]),
    "bounds of different shapes": (
        lambda: tr.between(parity, np.zeros(2), np.ones(3)),
        ValueError,
        ["between", "(2,)", "(3,)"],
    ),
    "a name that is not a string": (lambda: tr.equals(parity, name=3), TypeError, ["equals", "name", "int"]),
    "smooth that is not a bool": (lambda: tr.Problem(loss, smooth=1), TypeError, ["Problem", "smooth", "int"]),
    "low > high": (lambda: tr.between(parity, 0.1, -0.1), ValueError, ["low", "high", "0.1", "-0.1"]),
    "NaN bound": (lambda: tr.at_most(parity, np.nan), ValueError, ["bound", "nan"]),
    "a bound that is not a number": (lambda: tr.at_most(parity, "a"), TypeError, ["bound", "'a'"]),
    "a constraint that is not a function": (lambda: tr.equals(3), TypeError, ["fn", "int"]),
    "a function in place of a constraint": (
        lambda: solve(constraints=[parity]),
        TypeError,
        ["constraints", "function"],
    ),
    "an objective that is not a function": (lambda: tr.Problem(3), TypeError, ["objective", "int"]),
    "arrays in place of a Dataset": (
        lambda: tr.Problem(loss, data=points()),
        TypeError,
        ["data", "dict", "tightrope.Dataset"],
    ),
    "two constraints of one name": (
        lambda: tr.Problem(loss, [tr.equals(unit_norm, name="a"), tr.equals(unit_norm, name="a")]),
        ValueError,
        ["'a'", "two constraints"],
    ),
    "a constraint named like a column": (
        lambda: tr.Problem(loss, tr.equals(unit_norm, name="objective")),
        ValueError,
        ["'objective'", "column"],
    ),
    "a method that cannot take the problem": (
        lambda: tr.solve(fair_problem(), X0, "TruncatedMomentum", steps=5),
        ValueError,
        ["TruncatedMomentum", "deterministic", "'parity'", "SwitchingSubgradient", "GradientDescentAscent"],
    ),
    "equalities for switching subgradients": (
        lambda: tr.solve(sphere_problem(), X0, "SwitchingSubgradient", steps=5),
        ValueError,
        ["affine equalities", "'unit_norm'", "TruncatedMomentum"],
    ),
    "an unexpected key": (
        lambda: solve(lambda w, b: jnp.mean(b["label"])),
        ValueError,
        ["objective", "'label'", "['s', 'x', 'y']"],
    ),
    "an unexpected key in a constraint": (
        lambda: solve(constraints=tr.at_most(lambda w, b: jnp.mean(b["z"]), data=DATA, name="z")),
        ValueError,
        ["'z'", "['s', 'x', 'y']"],
    ),
    "negative step size": (
        lambda: tr.methods.TruncatedMomentum(step_size=-0.1),
        ValueError,
        ["TruncatedMomentum", "step_size", "> 0", "-0.1"],
    ),
    "infinite penalty": (lambda: tr.methods.TruncatedMomentum(penalty=np.inf), ValueError, ["penalty", "finite"]),
    "step size of wrong type": (
        lambda: tr.methods.SwitchingSubgradient(step_size="large"),
        TypeError,
        ["SwitchingSubgradient", "step_size", "number", "'large'"],
    ),
    "error bound of 2": (
        lambda: tr.methods.TruncatedMomentum(error_bound_exponent=2.0),
        ValueError,
        ["error_bound_exponent", "< 2"],
    ),
    "unknown choice": (
        lambda: tr.methods.TruncatedMomentum(estimator="sgd"),
        ValueError,
        ["estimator", "'recursive'", "'sgd'"],
    ),
    "value_batch_size 0": (
        lambda: tr.methods.SwitchingSubgradient(value_batch_size=0),
        ValueError,
        ["value_batch_size", "0"],
    ),
    "an optimizer that is none": (
        lambda: tr.methods.GradientDescentAscent(primal=0.1),
        TypeError,
        ["primal", "optax.scale_by_adam()", "float"],
    ),
    "checkpoint of wrong type": (lambda: solve(checkpoint=3), TypeError, ["folder", "int"]),
    "metrics that are none": (lambda: tr.Record(5, metrics={"a": 3}), TypeError, ["metrics['a']", "int"]),
    "sweep of no problem": (lambda: tr.sweep("p", X0, None, steps=5, seeds=2), TypeError, ["sweep: problem", "str"]),
    "sweep with a bad stop": (
        lambda: tr.sweep(fair_problem(), X0, None, steps=5, seeds=2, stop=3),
        TypeError,
        ["sweep: stop", "tightrope.Stop", "int"],
    ),
    "sweep over a number for methods": (
        lambda: tr.sweep(fair_problem(), X0, 3, steps=5, seeds=2),
        TypeError,
        ["sweep: methods", "int"],
    ),
    "sweep over a half seed": (
        lambda: tr.sweep(fair_problem(), X0, None, steps=5, seeds=1.5),
        TypeError,
        ["sweep: seeds", "1.5"],
    ),
    "certify no problem": (lambda: tr.certify("p", X0), TypeError, ["certify: problem", "str"]),
    "certify with a negative seed": (
        lambda: tr.certify(fair_problem(), X0, seed=-1),
        ValueError,
        ["certify: seed", "-1"],
    ),
    "certify with half a seed": (lambda: tr.certify(fair_problem(), X0, seed=1.5), TypeError, ["certify: seed", "1.5"]),
    "certify integers": (lambda: tr.certify(fair_problem(), np.array([1, 2])), TypeError, ["certify: x", "int"]),
    "stepper of no problem": (lambda: tr.Stepper("p", X0, steps=5), TypeError, ["Stepper: problem", "str"]),
    "stepper of no steps": (lambda: tr.Stepper(fair_problem(), X0, steps=0), ValueError, ["Stepper: steps", "0"]),
    "stepper with an unknown method": (
        lambda: tr.Stepper(fair_problem(), X0, "ExactPenalti", steps=5),
        ValueError,
        ["'ExactPenalti'", "did you mean 'ExactPenalty'"],
    ),
    "certify at a bad tolerance": (
        lambda: tr.certify(fair_problem(), X0, tolerance=-1.0),
        ValueError,
        ["certify", "tolerance"],
    ),
    "certify at a bad confidence": (
        lambda: tr.certify(fair_problem(), X0, confidence=1.5),
        ValueError,
        ["certify", "confidence", "1.5"],
    ),
    "certify at integers": (
        lambda: tr.certify(fair_problem(), np.arange(4)),
        TypeError,
        ["certify: x", "int", "floats"],
    ),
    "certify in a domain of another shape": (
        lambda: tr.certify(tr.Problem(loss, domain=tr.domains.Box(np.zeros(3), np.ones(3)), data=DATA), X0),
        ValueError,
        ["Box", "does not match x:"],
    ),
    "sweep from NaN": (
        lambda: tr.sweep(fair_problem(), X0.at[0].set(jnp.nan), "GradientDescentAscent", steps=5, seeds=1),
        ValueError,
        ["sweep: x0", "NaN", "finite"],
    ),
    "sweep over no seeds": (
        lambda: tr.sweep(fair_problem(), X0, "GradientDescentAscent", steps=5, seeds=[]),
        ValueError,
        ["seeds"],
    ),
    "sweep over no methods": (lambda: sweep([]), ValueError, ["methods"]),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_bad_input_is_refused_with_a_message_that_names_it(what, monkeypatch):
    call, error, words = BAD[what]
    import tightrope.runs.programs

    monkeypatch.setattr(
        tightrope.runs.programs, "run_steps", lambda *a, **k: pytest.fail("the loop was traced before the refusal")
    )
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    for word in words:
        assert word in message, message


def test_a_functions_own_error_comes_through_with_a_note_where_it_happened():
    with pytest.raises(TypeError) as raised:
        solve(lambda w, b: jnp.mean(b["x"] @ w + "a"))
    assert any("tracing the objective" in note for note in raised.value.__notes__)


def test_the_note_has_the_shapes_that_the_function_was_given_and_says_if_it_has_no_data():
    for call, words in (
        (lambda: solve(lambda w, b: jnp.mean(b["x"] @ w[:1])), ["x0: f32[4], and a batch: ", "'x': f32["]),
        (lambda: solve(constraints=tr.at_most(lambda w, b: w[0], 1.0, name="c")), ["x0: f32[4], and no batch"]),
    ):
        with pytest.raises(TypeError) as raised:
            call()
        assert all(word in raised.value.__notes__[-1] for word in words), raised.value.__notes__


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, jax.grad])
def test_solve_inside_a_transformation_is_refused_with_a_pointer_to_sweep(wrap):
    def run(x):
        return tr.solve(sphere_problem(), x, steps=5).objective

    with pytest.raises(TypeError, match=re.compile("sweep")):
        wrap(run)(X0[None] if wrap is jax.vmap else X0)


def test_solve_inside_jit_is_refused_where_x0_is_a_constant():
    with pytest.raises(TypeError, match="sweep"):
        jax.jit(lambda: tr.solve(sphere_problem(), X0, steps=5).objective)()


def test_a_ratio_of_batch_sums_gets_a_warning_and_a_mean_does_not():
    def ratio(w, batch):
        return jnp.sum(batch["y"] * (batch["x"] @ w)) / jnp.sum(jnp.abs(batch["x"] @ w))

    with pytest.warns(UserWarning, match="'ratio' is not a mean"):
        solve(constraints=tr.at_most(ratio, 0.5, data=DATA), method=QUICK)
    with pytest.warns(UserWarning, match="objective is not a mean"):
        solve(lambda w, b: jnp.sum(loss(w, b) * jnp.ones(len(b["y"]))), method=QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(constraints=tr.at_most(parity, 0.5, data=DATA), method=QUICK)


def test_x0_outside_the_domain_is_projected_and_the_result_says_so():
    seen = []
    options = {"domain": tr.domains.L2Ball(1.0), "method": QUICK, "record": 5}
    outside = solve(x0=10.0 * X0, callback=lambda row: seen.append(row["x"]), **options)
    assert "projected" in outside.message
    np.testing.assert_allclose(seen[0], X0 / np.linalg.norm(X0), rtol=1e-5)
    inside = solve(x0=X0, **options)
    assert "projected" not in inside.message


def test_an_equinox_model_is_taken_as_it_is():
    model = eqx.nn.MLP(4, "scalar", 8, 1, key=jax.random.key(0))

    def objective(model, batch):
        return jnp.mean(jax.nn.softplus(-batch["y"] * jax.vmap(model)(batch["x"])))

    result = tr.solve(tr.Problem(objective, data=DATA), model, "GradientDescentAscent", steps=20)
    assert isinstance(result.x, eqx.nn.MLP)
    assert result.x.activation is model.activation
    assert result.objective < float(objective(model, DATA.arrays))
