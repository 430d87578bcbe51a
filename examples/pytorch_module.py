"""A PyTorch module under a constraint: translate it, solve, and put the answer back into the module.

PyTorch traces the module, and Tightrope runs what it traced as a JAX function: compiled, and without PyTorch. Afterwards the
module has the new parameters and running statistics, and can be used or saved as always.
Needs PyTorch (pip install 'tightrope[torch]').

Run: python examples/pytorch_module.py
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

import tightrope as tr
from tightrope.torch import from_module, into_module

rng = np.random.default_rng(0)
x = rng.normal(size=(4000, 10)).astype(np.float32)
y = (x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=4000) > 0).astype(np.float32)
data = tr.Dataset({"x": x, "y": y, "negative": (1 - y) / np.mean(1 - y)}, batch_size=64)

torch.manual_seed(0)
module = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
model = from_module(module, x[:2])  # the number of examples may change, other sizes may not


def loss(params: Any, batch: Any, state: Any, key: Any = None) -> Any:
    """The objective; with a key as in training, and it returns the next running statistics."""
    score, new = model(params, batch["x"], state=state, key=key)
    return jnp.mean(jnp.logaddexp(0.0, score[:, 0]) - batch["y"] * score[:, 0]), new


def alarms(params: Any, batch: Any, state: Any, key: Any = None) -> Any:
    """The mean probability over the negative examples."""
    score, _ = model(params, batch["x"], state=state, key=key)
    return jnp.mean(batch["negative"] * jax.nn.sigmoid(score[:, 0]))


def main() -> None:
    """Solve, and use the module."""
    problem = tr.Problem(loss, tr.at_most(alarms, 0.1, data=data), data=data)
    result = tr.solve(problem, tr.WithState(model.params, model.state), steps=1500)
    print(result)
    assert result.certificate.verdict == "feasible"
    into_module(module, result.x.params, result.x.state)
    with torch.no_grad():
        score = module.eval()(torch.from_numpy(x))[:, 0]
    found = float(torch.sigmoid(score)[torch.from_numpy(y) == 0].mean())
    print(f"PyTorch says: false alarms {found:.4f}, accuracy {float(((score > 0).numpy() == y).mean()):.3f}")
    assert found < 0.1 + 1e-4


if __name__ == "__main__":
    main()
