"""Points are evaluated in groups: every point once, and one at a time where several are slower."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.certificates.programs import over_groups, slow_together
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_every_row_is_given_once_and_in_order_whatever_the_padding(count):
    sizes = []

    def program(a, b):
        sizes.append(len(a))
        return {"sum": a + b, "first": a}

    a, b = np.arange(count), 10 * np.arange(count)
    found = over_groups(program, 4, a, b)
    assert found["first"].tolist() == list(range(count))
    assert found["sum"].tolist() == [11 * i for i in range(count)]
    assert set(sizes) == {4}


def image_problem(convolve):
    images = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype(np.float32)
    data = tr.Dataset({"x": images}, batch_size=4)

    def scores(params, batch):
        if not convolve:
            return batch["x"].reshape(len(batch["x"]), -1) @ params.reshape(-1, 1)[:64]
        return jax.lax.conv_general_dilated(
            batch["x"], params, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    problem = tr.Problem(lambda params, batch: jnp.mean(scores(params, batch) ** 2), data=data)
    return oracle_for(problem, Parameters(jnp.ones((8, 8, 1, 2)), owner="test", argument="x0"))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="grouped convolutions are slow on CPUs alone")
def test_networks_with_convolutions_are_evaluated_one_point_at_a_time_on_cpus():
    assert slow_together(image_problem(convolve=True))
    assert not slow_together(image_problem(convolve=False))
