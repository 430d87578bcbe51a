"""A Flax NNX model under a constraint: split the model into its definition and its state, solve, merge.

Tightrope optimizes a pytree of arrays. `nnx.split` gives one, and the functions of the problem put the model together again.
Needs Flax (pip install flax).

Run: python examples/flax_nnx.py
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import tightrope as tr

rng = np.random.default_rng(0)
x = rng.normal(size=(4000, 10)).astype(np.float32)
y = (x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=4000) > 0).astype(np.float32)
data = tr.Dataset({"x": x, "y": y, "negative": (1 - y) / np.mean(1 - y)}, batch_size=64)


class Network(nnx.Module):
    """One hidden layer."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(10, 32, rngs=rngs)
        self.output = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, inputs: Any) -> Any:
        return self.output(nnx.tanh(self.hidden(inputs)))[:, 0]


definition, start = nnx.split(Network(nnx.Rngs(0)))


def score(state: Any, batch: Any) -> Any:
    return nnx.merge(definition, state)(batch["x"])


def loss(state: Any, batch: Any) -> Any:
    logits = score(state, batch)
    return jnp.mean(jnp.logaddexp(0.0, logits) - batch["y"] * logits)


def alarms(state: Any, batch: Any) -> Any:
    return jnp.mean(batch["negative"] * jax.nn.sigmoid(score(state, batch)))


def main() -> None:
    """Solve, and use the trained model."""
    problem = tr.Problem(loss, tr.at_most(alarms, 0.1, data=data), data=data)
    result = tr.solve(problem, start, "AdaptiveLagrangian", steps=1500)
    print(result)
    assert result.certificate.verdict == "feasible"
    model = nnx.merge(definition, result.x)
    print("accuracy:", float(jnp.mean((model(jnp.asarray(x)) > 0) == y)))


if __name__ == "__main__":
    main()
