"""An Equinox network under two constraints: the model is x, and the answer is a model again.

The score of a classifier must be nearly uncorrelated with group membership, and its recall at least 0.8.

Run: python examples/equinox_network.py
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr

rng = np.random.default_rng(0)
group = rng.integers(0, 2, 4000)
x = rng.normal(size=(4000, 8)).astype(np.float32)
x[:, 0] += group
y = (np.tanh(x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * rng.normal(size=4000) > 0.3).astype(np.float32)
data = tr.Dataset({"x": x, "y": y, "group": group - group.mean(), "positive": y / y.mean()}, batch_size=64)


def loss(model: Any, batch: Any) -> Any:
    logits = jax.vmap(model)(batch["x"])
    return jnp.mean(jnp.logaddexp(0.0, logits) - batch["y"] * logits)


def covariance(model: Any, batch: Any) -> Any:
    return jnp.mean(batch["group"] * jax.nn.sigmoid(jax.vmap(model)(batch["x"])))


def recall(model: Any, batch: Any) -> Any:
    return jnp.mean(batch["positive"] * jax.nn.sigmoid(jax.vmap(model)(batch["x"])))


def main() -> None:
    """Solve, and use the answer."""
    network = eqx.nn.MLP(in_size=8, out_size="scalar", width_size=32, depth=2, key=jax.random.key(0))
    constraints = [tr.between(covariance, -0.01, 0.01, data=data), tr.at_least(recall, 0.8, data=data)]
    result = tr.solve(tr.Problem(loss, constraints, data=data), network, "AdaptiveLagrangian", steps=1500)
    print(result)
    assert result.certificate.verdict == "feasible"
    print("probability of the first example:", float(jax.nn.sigmoid(result.x(jnp.asarray(x[0])))))


if __name__ == "__main__":
    main()
