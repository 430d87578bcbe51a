"""Rows of several sources: their Jacobian by source is the Jacobian, and a row is pulled back through its own source only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters


def problem() -> tr.Problem:
    """Deterministic rows between sampled ones, of two sources, and one row with two ends."""
    rng = np.random.default_rng(0)
    data, own = (tr.Dataset(rng.normal(size=(40, 3)).astype("float32"), batch_size=8) for _ in range(2))
    wave = lambda x, batch: jnp.mean(jnp.sin(batch @ x))
    constraints = [
        tr.at_most(wave, 0.3, data=data, name="first"),
        tr.between(lambda x: jnp.stack([x @ x, x[0]]), -1.0, 2.0, name="exact"),
        tr.equals(lambda x, batch: jnp.mean(batch**2 @ x), 0.0, data=own, name="own"),
        tr.at_least(lambda x, batch: jnp.mean(jnp.cos(batch @ x)), 0.1, data=data, name="last"),
    ]
    return tr.Problem(wave, constraints, data=data)


@pytest.mark.by_default("slacks", "ranges")
@pytest.mark.parametrize("form", ["native", "pairs", "slacks", "ranges"])
def test_the_jacobian_by_source_is_the_jacobian(form):
    oracle = oracle_for(problem(), Parameters(jnp.array([0.3, -0.2, 0.5])), form)
    sample = oracle.first()
    x = oracle.with_slacks(oracle.parameters.start, sample)
    for at in (oracle, oracle.shifted(x - 1.0, jnp.float32(0.5), jnp.float32(2.0))):
        rows, jacobian = at.rows_and_jacobian(x, sample)
        np.testing.assert_allclose(rows, at.c(x, sample), rtol=1e-6)
        np.testing.assert_allclose(jacobian, jax.jacfwd(at.c)(x, sample), rtol=1e-5, atol=1e-6)


def test_deterministic_rows_are_not_pulled_back_through_the_data():
    """Two sampled and two deterministic rows: no product with the data has more than the rows of its source."""
    oracle = oracle_for(problem(), Parameters(jnp.ones(3)), "ranges")
    text = str(jax.make_jaxpr(lambda x: oracle.rows_and_jacobian(x, oracle.first())[1])(jnp.ones(3)))
    assert "f32[2,8]" in text
    assert "f32[5,8]" not in text
