"""AdaptiveLagrangian on rectified networks with zero biases: an objective that saturates does not outrun the multiplier."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

SIZES = {"two layers": (2, 32, 32, 1), "three wide layers": (2, 128, 128, 128, 1)}


def screening():
    """The fewest false alarms at a detection rate of 0.9; the ill lie within a ring of the healthy."""
    rng = np.random.default_rng(0)
    ill = rng.random(4000) < 0.2
    angle, radius = rng.uniform(0, 2 * np.pi, 4000), 1.5 + 0.3 * rng.normal(size=4000)
    ring = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    noise = rng.normal(size=(4000, 2))
    x = np.where(ill[:, None], 0.5 * noise + 1.0, 0.4 * noise + ring).astype(np.float32)
    data = tr.Dataset({"x": x, "ill": ill / ill.mean(), "healthy": ~ill / (1 - ill.mean())}, batch_size=64)

    def positive(layers, batch):
        x = batch["x"]
        for kernel, bias in layers[:-1]:
            x = jax.nn.relu(x @ kernel + bias)
        return jax.nn.sigmoid(x @ layers[-1][0] + layers[-1][1])[:, 0]

    def rate(of):
        return lambda layers, batch: jnp.mean(batch[of] * positive(layers, batch))

    return tr.Problem(rate("healthy"), tr.at_least(rate("ill"), 0.9, data=data), data=data)


def layers_of(sizes, seed):
    """Layers as Flax makes them."""
    keys = jax.random.split(jax.random.key(seed), len(sizes))
    kernel = jax.nn.initializers.lecun_normal()
    return [(kernel(k, (a, b)), jnp.zeros(b)) for k, a, b in zip(keys, sizes, sizes[1:], strict=False)]


@pytest.mark.full
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_nearly_all_rectified_networks_with_zero_biases_are_trained(sizes):
    """Without saturation, where all answers are positive and the objective is 1."""
    problem = screening()
    results = [
        tr.solve(problem, layers_of(sizes, seed), "AdaptiveLagrangian", steps=2000, seed=seed) for seed in range(10)
    ]
    trained = [result.certificate.verdict == "feasible" and result.objective < 0.22 for result in results]
    assert sum(trained) >= 8, [(round(result.objective, 3), result.violation) for result in results]
