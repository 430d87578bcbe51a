"""Sources of data, samples, and means over their examples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import loss, parity, points
from tightrope.oracles import oracle as oracle_module
from tightrope.oracles.build import oracle_for
from tightrope.problems.data import Given, Span, batch_shape, examples_in, part_of
from tightrope.problems.parameters import Parameters


def make_oracle(examples=100):
    data = tr.Dataset(points(examples), batch_size=16)
    problem = tr.Problem(
        loss, tr.at_most(lambda w, b: jnp.stack([parity(w, b), loss(w, b)]), 0.0, data=data, name="two"), data=data
    )
    return oracle_for(problem, Parameters(jnp.array([0.1, -0.3, 0.5, 1.0])))


def test_a_sample_evaluated_in_pieces_gives_the_same_values_as_at_once(monkeypatch):
    oracle = make_oracle()
    x, sample = oracle.parameters.start, (np.random.default_rng(0).integers(0, 100, 77),)

    def everything():
        value, pullback = oracle.vjp(x, sample)
        y = jnp.array([0.3, -2.0])
        return (
            oracle.f(x, sample),
            oracle.grad(x, sample),
            value,
            pullback(y),
            oracle.jac(x, sample),
            *oracle.first_order(x, sample),
        )

    at_once = everything()
    monkeypatch.setattr(oracle_module, "PIECE", 10)  # seven pieces and a rest of seven examples
    for whole, pieces in zip(at_once, everything(), strict=True):
        np.testing.assert_allclose(whole, pieces, rtol=1e-5, atol=1e-6)


def test_everything_is_the_whole_data_once():
    oracle = make_oracle(37)
    assert oracle.everything() == (Span(0, 37),)
    assert oracle.count_examples("both", oracle.everything()) == 37


def test_a_span_gives_the_values_of_its_indices(monkeypatch):
    oracle = make_oracle()
    x, indices, span = oracle.parameters.start, (np.arange(20, 97),), (Span(20, 77),)
    for pieces in (2048, 10):
        monkeypatch.setattr(oracle_module, "PIECE", pieces)
        for expected, found in zip(oracle.first_order(x, indices), oracle.first_order(x, span), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_first_order_is_the_objective_its_gradient_the_rows_and_their_jacobian():
    oracle = make_oracle()
    x, sample = oracle.parameters.start, (np.arange(7, 60),)
    expected = *oracle.value_and_grad(x, sample), oracle.c(x, sample), oracle.jac(x, sample)
    for one, other in zip(oracle.first_order(x, sample), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_vjp_is_the_product_with_the_jacobian():
    oracle = make_oracle()
    x, sample, y = oracle.parameters.start, (np.arange(20),), jnp.array([1.5, -0.5])
    np.testing.assert_allclose(oracle.vjp(x, sample)[1](y), oracle.jac(x, sample).T @ y, rtol=1e-5)


@pytest.mark.parametrize("piece", [2048, 10])
def test_a_given_batch_gives_the_values_and_gradients_of_its_indices(piece, monkeypatch):
    monkeypatch.setattr(oracle_module, "PIECE", piece)
    oracle = make_oracle()
    x, indices = oracle.parameters.start, np.random.default_rng(1).integers(0, 100, 77)
    given = (Given(jax.tree.map(lambda a: a[indices], oracle.data[0])),)
    assert oracle.count_examples("both", given) == 77
    assert oracle.f(x, given) == oracle.f(x, (indices,))
    for found, expected in zip(oracle.first_order(x, given), oracle.first_order(x, (indices,)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_given_batch_can_be_split():
    given = Given({"x": jnp.arange(12.0).reshape(6, 2), "y": jnp.arange(6)})
    part = part_of(given, 2, 3)
    assert isinstance(part, Given)
    assert (examples_in(given), examples_in(part)) == (6, 3)
    np.testing.assert_array_equal(part.examples["y"], [2, 3, 4])


def batches_like(*, abstract=False):
    like = jax.tree.map(lambda a: a[:16], points())
    return tr.Batches(like=jax.eval_shape(lambda: jax.tree.map(jnp.asarray, like)) if abstract else like)


@pytest.mark.parametrize("abstract", [False, True])
def test_batches_have_the_shapes_of_their_example(abstract):
    batches = batches_like(abstract=abstract)
    assert batches.batch_size == 16
    assert jax.tree.leaves(batches.arrays) == []
    assert batch_shape(batches) == batch_shape(tr.Dataset(points(), batch_size=16))


def test_functions_of_batches_are_traced_and_evaluated_on_the_batch_that_is_passed():
    batches, data = batches_like(), tr.Dataset(points(), batch_size=16)
    start, indices = Parameters(jnp.array([0.1, -0.3, 0.5, 1.0])), np.arange(16)
    problems = [tr.Problem(loss, tr.at_most(parity, 0.1, data=s), data=s) for s in (batches, data)]
    assert [problem.needs_batches for problem in problems] == [True, False]
    passed, drawn = (oracle_for(p, start) for p in problems)
    batch = (jax.tree.map(lambda a: a[indices], data.arrays),)
    for found, expected in zip(
        passed.first_order(start.start, batch), drawn.first_order(start.start, (indices,)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_batches_have_nothing_to_draw_from():
    with pytest.raises(TypeError, match=r"nothing to draw from; pass batches to Stepper\.step"):
        batches_like().draw(jax.random.key(0), 4)


def test_a_sampler_makes_fresh_examples_for_every_step_and_role():
    source = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 2)), batch_size=4)
    problem = tr.Problem(lambda x, b: jnp.mean(b @ x), data=source)
    oracle = oracle_for(problem, Parameters(jnp.ones(2)))
    from tightrope.runs.stepper import draw_samples

    drawn = [draw_samples(oracle, {"a": None, "b": 6}, jax.random.key(0), k)[0] for k in (1, 2)]
    assert drawn[0]["a"][0].shape == (4, 2)
    assert drawn[0]["b"][0].shape == (6, 2)
    assert not np.array_equal(drawn[0]["a"][0], drawn[1]["a"][0])
    assert not np.array_equal(drawn[0]["a"][0], drawn[0]["b"][0][:4])


def test_blocks_of_draws_shrink_as_batches_grow():
    from tightrope.runs.loop import BLOCK, BLOCK_BYTES, block_length

    for batch_size in (8, 20_000):
        source = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 100)), batch_size=batch_size)
        oracle = oracle_for(tr.Problem(lambda x, b: jnp.mean(b @ x), data=source), Parameters(jnp.ones(100)))
        length = block_length(oracle, {"joint": None}, 1)
        assert 1 <= length <= BLOCK
        assert length * batch_size * 400 <= BLOCK_BYTES + 400 * batch_size
    assert length < BLOCK
