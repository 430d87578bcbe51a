"""The installed compiler computes products correctly; jaxlib 0.10.2 does not (jax-ml/jax issue 39103)."""

import jax
import jax.numpy as jnp
import numpy as np


def test_a_compiled_jacobian_of_many_rows_over_thousands_of_examples_is_that_of_numpy():
    random = np.random.default_rng(0)
    inputs, groups = random.normal(size=(4096, 5)), random.integers(0, 2, size=(4096, 16)).astype(float)
    hidden, output = random.normal(size=(5, 4)), random.normal(size=4)

    def rates(weights):
        return jnp.mean(groups * jax.nn.sigmoid(jnp.tanh(inputs @ weights) @ output)[:, None], axis=0)

    tanh = np.tanh(inputs @ hidden)
    rate = 1.0 / (1.0 + np.exp(-tanh @ output))
    slopes = (rate * (1.0 - rate))[:, None] * output * (1.0 - tanh**2)
    expected = np.einsum("er,ei,eh->rih", groups, inputs, slopes) / len(inputs)
    np.testing.assert_allclose(jax.jit(jax.jacrev(rates))(jnp.asarray(hidden)), expected, rtol=1e-4, atol=1e-6)
