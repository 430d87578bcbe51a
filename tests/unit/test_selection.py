"""The method that `method=None` chooses, and the reason it gives."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.methods.selection import choose
from tightrope.oracles.oracle import MAX_JACOBIAN_ENTRIES, MAX_JACOBIAN_ROWS
from tightrope.testing.examples import OnlyLinearMinimization


def distance(x):
    return jnp.sum((x - 2.0) ** 2)


def rows(count):
    return tr.at_most(lambda x: jnp.sum(x) * jnp.ones(count), 1.0, name="rows")


def flat(count):
    return tr.affine(lambda x: jnp.diff(x), np.zeros(count), name="flat")


CASES = {
    "no constraints": (tr.Problem(distance), 0, 4, "AdaptivePenalty", "without constraints"),
    "deterministic": (tr.Problem(distance, rows(3)), 3, 4, "AdaptivePenalty", "3 deterministic constraints"),
    "kinks": (tr.Problem(distance, rows(1), smooth=False), 1, 4, "AdaptivePenalty", "non-smooth problem with 1 "),
    "many rows": (
        tr.Problem(distance, rows(MAX_JACOBIAN_ROWS + 1)),
        MAX_JACOBIAN_ROWS + 1,
        4,
        "MatrixFreePenalty",
        "501",
    ),
    "as many as allowed": (
        tr.Problem(distance, rows(MAX_JACOBIAN_ROWS)),
        MAX_JACOBIAN_ROWS,
        4,
        "AdaptivePenalty",
        "500",
    ),
    "a large Jacobian": (tr.Problem(distance, rows(2)), 2, MAX_JACOBIAN_ENTRIES, "MatrixFreePenalty", "parameters"),
    "many linear equations": (tr.Problem(distance, flat(999)), 999, 1000, "MatrixFreePenalty", "999"),
    "no projection": (
        tr.Problem(distance, rows(1), domain=OnlyLinearMinimization()),
        1,
        4,
        "ConservativeFrankWolfe",
        "no projection",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_structure_of_the_problem_decides(case):
    problem, values, parameters, expected, words = CASES[case]
    method, reason = choose(problem, values, parameters)
    assert type(method).__name__ == expected
    assert words in reason


IMAGES = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 30)), batch_size=8)


@pytest.mark.parametrize(
    ("hidden", "data", "expected"),
    [(16, IMAGES, "AdaptiveLagrangian"), (8, IMAGES, "AdaptivePenalty"), (16, None, "AdaptivePenalty")],
    ids=["a network", "fewer than 500 parameters", "a network without data"],
)
def test_networks_on_data_get_the_first_order_default(hidden, data, expected):
    def square(params, batch=1.0):
        return jnp.mean(jnp.tanh(jnp.mean(batch) * params["hidden"]) @ params["output"]) ** 2

    start = {"hidden": jnp.ones((30, hidden)) / 30, "output": jnp.ones((hidden, 2)) / hidden}
    stepper = tr.Stepper(tr.Problem(square, data=data), start, steps=10)
    assert type(stepper.method).__name__ == expected


def test_many_parameters_on_data_get_the_first_order_default():
    problem = tr.Problem(lambda x, batch: jnp.mean(batch) * distance(x), data=IMAGES)
    assert isinstance(choose(problem, 0, 20_000)[0], tr.methods.AdaptiveLagrangian)
    assert isinstance(choose(problem, 0, 19_999)[0], tr.methods.AdaptivePenalty)


def test_solve_gives_the_reason_in_the_message_and_the_log(caplog):
    with caplog.at_level(logging.INFO, logger="tightrope"):
        result = tr.solve(tr.Problem(distance, rows(1)), jnp.zeros(2), steps=20)
    assert "AdaptivePenalty was chosen: a smooth problem with 1 deterministic constraint" in result.message
    assert "1 deterministic constraint" in caplog.text


def test_a_name_is_found_whatever_its_case_hyphens_and_underscores():
    for name in ("SwitchingSubgradient", "switching-subgradient", "switching_subgradient"):
        assert tr.methods.by_name(name) is tr.methods.SwitchingSubgradient


def test_an_unknown_name_gets_the_closest_one_and_then_the_list():
    with pytest.raises(ValueError, match=r"; did you mean 'SwitchingSubgradient'\? There are AdaptivePenalty, "):
        tr.methods.by_name("switching_subgradients")
    with pytest.raises(ValueError, match=r"got 'zzz'\. There are AdaptivePenalty, "):
        tr.methods.by_name("zzz")
    with pytest.raises(TypeError, match="by_name: name must be the name of a method"):
        tr.methods.by_name(tr.methods.SwitchingSubgradient)  # pyright: ignore[reportArgumentType]


def test_an_unknown_hyperparameter_is_named_with_its_method():
    with pytest.raises(TypeError, match=r"SwitchingSubgradient.*'stepsize'"):
        tr.methods.SwitchingSubgradient(stepsize=0.1)  # pyright: ignore[reportCallIssue]
