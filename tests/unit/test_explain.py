"""`explain`: what it detects, that it agrees with `solve` about the method, and that it runs nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import X0, fair_problem, loss, parity, points, sphere_problem
from tightrope.methods.selection import refusal
from tightrope.runs.fitting import fit


def row(explanation, label):
    return dict(explanation.found)[label]


@pytest.mark.parametrize("make", [fair_problem, sphere_problem])
def test_the_method_and_the_refusals_are_those_of_solve(make):
    explanation = tr.explain(make(), X0)
    fitted = fit("solve", make(), X0, None, 10)
    assert explanation.method == fitted.name
    assert explanation.reason == fitted.reason
    assert explanation.refused == {
        name: why for name, cls in tr.methods.available().items() if (why := refusal(make(), cls))
    }
    assert set(explanation.applies) == set(tr.methods.available()) - set(explanation.refused)
    assert explanation.applies[fitted.name] == fitted.method.cost


def test_what_is_detected():
    data = tr.Dataset(points(), batch_size=16)
    endless = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 4)), batch_size=8)
    constraints = [
        tr.between(parity, -0.05, 0.05, data=data),
        tr.at_most(lambda w: w[:2], 0.5, name="cap"),
        tr.affine(np.ones((1, 4)), np.ones(1)),
        tr.at_least(lambda w, batch, key=None: jnp.mean(batch @ w), -1.0, data=endless, name="mean"),
    ]
    problem = tr.Problem(loss, constraints, domain=tr.domains.L2Ball(5.0), data=data, smooth=False)
    explanation = tr.explain(problem, X0)
    text = str(explanation)
    assert row(explanation, "parameters") == "4 in 1 array, float32"
    assert row(explanation, "objective").endswith("certified on all of them, non-smooth")
    for said in (
        "-0.05 ≤ parity ≤ 0.05: mean over Dataset(",
        "cap ≤ 0.5: deterministic, 2 rows",
        "affine = 1: deterministic, 1 row, affine",
        "mean ≥ -1: mean over Sampler(<lambda>, batch_size=8), certified from samples, with intervals, 1 row, ",
        "takes a random key in steps",
        "L2Ball: projection, linear minimization",
        "examples: 16 for objective, 8 for mean",
        "a Sampler are independent",
    ):
        assert said in " ".join(text.split()), said
    assert "no kinks" not in text
    assert repr(explanation) == text


def test_nothing_is_compiled_or_run():
    problem = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(jnp.sum, 1.0))
    tr.explain(problem, jnp.ones(2))
    assert [key[0] for key in problem._cache] == ["shapes"]


def test_a_problem_that_no_method_takes_says_so():
    class OnlyLinear(tr.domains.Domain):
        def lmo(self, gradient):
            return gradient

    problem = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(lambda x: x @ x, 1.0, name="c"), domain=OnlyLinear())
    explanation = tr.explain(problem, jnp.ones(2))
    assert explanation.method is None
    assert explanation.applies == {}
    assert row(explanation, "method") == "no method takes this problem"


def test_batches_of_the_users_own_leave_out_methods_that_need_more():
    batches = tr.Batches(like=points(16))
    explanation = tr.explain(tr.Problem(loss, data=batches), X0)
    assert explanation.refused["ExactPenalty"].startswith("it needs more than batches")
    assert "certified on the data given to Stepper.answer" in row(explanation, "objective")


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="explain: problem must be"):
        tr.explain(3, X0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="explain: x0 contains NaN"):
        tr.explain(sphere_problem(), jnp.full(4, jnp.nan))
