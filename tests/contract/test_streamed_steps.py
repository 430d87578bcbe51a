"""`solve` on a Stream: one batch a step, in order, the same steps as a Stepper's on the same batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

BATCHES = np.random.default_rng(0).normal(1.0, 1.0, size=(30, 8, 2)).astype("float32")
X0 = jnp.zeros(2)


def distance(x, batch):
    return jnp.mean(jnp.sum((x - batch) ** 2, axis=1))


def problem_on(data):
    return tr.Problem(distance, tr.at_most(jnp.sum, 1.0, name="budget"), data=data)


class Tensor:
    """As much of a Torch tensor as counts."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    def cpu(self):
        return self.array


@pytest.fixture(scope="module")
def two_epochs():
    """A run over two epochs of a loader whose last batch is short, and its iterates by step."""
    stream = tr.Stream(lambda: [*map(Tensor, BATCHES), Tensor(BATCHES[0][:3])])
    found = {}
    result = tr.solve(
        problem_on(stream),
        X0,
        "GradientDescentAscent",
        steps=60,
        record=15,
        callback=lambda row: found.update({row["step"]: np.asarray(row["x"])}),
    )
    return result, found


def test_the_steps_are_those_of_a_stepper_on_the_same_batches(two_epochs):
    stepper = tr.Stepper(problem_on(tr.Batches(like=BATCHES[0])), X0, "GradientDescentAscent", steps=60)
    batches = jnp.concatenate([BATCHES, BATCHES])

    def one(state, batch):
        state, _ = stepper.step(state, batch)
        return state, state.x

    path = jax.jit(lambda batches: jax.lax.scan(one, stepper.init(batches[0]), batches)[1])(batches)
    for step, x in two_epochs[1].items():
        if step:
            np.testing.assert_array_equal(x, path[step - 1])


def test_a_certificate_says_as_streamed_and_on_which_examples(two_epochs):
    result, _ = two_epochs
    assert result.certificate.objective.kind == result.certificate.stationarity.kind == "as streamed"
    assert result.certificate.violation["budget"].kind == "exact"  # it has no data
    assert "as streamed" in str(result)
    assert "evaluated as streamed, on the first 240 examples" in result.message
    expected = distance(result.x, BATCHES.reshape(-1, 2))
    assert result.objective == pytest.approx(float(expected), rel=1e-5)
    assert np.isnan(result.history["epochs"]).all()


def test_data_of_the_records_take_the_place_of_the_stream_where_answers_are_evaluated():
    other = tr.Dataset(BATCHES[:2].reshape(-1, 2) + 1.0, batch_size=8)
    problem = problem_on(tr.Stream(lambda: BATCHES))
    result = tr.solve(problem, X0, "GradientDescentAscent", steps=30, record=tr.Record(15, data=other))
    assert result.certificate.objective.kind == "exact"
    assert result.objective == pytest.approx(float(distance(result.x, other.arrays)), rel=1e-5)


def test_a_stream_may_stand_beside_data_that_are_drawn():
    stream, drawn = tr.Stream(lambda: BATCHES), tr.Dataset(BATCHES[0], batch_size=4)
    near = tr.at_most(lambda x, batch: jnp.mean(batch @ x), 0.5, data=drawn, name="near")
    result = tr.solve(tr.Problem(distance, near, data=stream), X0, "GradientDescentAscent", steps=40, record=20)
    assert result.status == "budget"
    assert result.certificate.violation["near"].kind == "exact"
    assert result.certificate.objective.kind == "as streamed"
