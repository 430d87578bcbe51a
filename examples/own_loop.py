"""A training loop of your own: you shuffle and feed the batches, Tightrope takes the steps and keeps the constraint.

A small network learns an interaction of two features; its mean probability over the negative examples, its rate of false
alarms, must not exceed 0.1.

Run: python examples/own_loop.py
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr

EXAMPLES, FEATURES, UNITS, EPOCHS, BATCH_SIZE, BOUND = 4096, 10, 16, 12, 64, 0.1
STEPS = EPOCHS * EXAMPLES // BATCH_SIZE

rng = np.random.default_rng(0)
x = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
y = (x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=EXAMPLES) > 0).astype(np.float32)
examples = {"x": x, "y": y, "negative": (1 - y) / np.mean(1 - y)}
start = {
    "hidden": jnp.asarray(rng.normal(size=(FEATURES, UNITS)) / np.sqrt(FEATURES), jnp.float32),
    "shift": jnp.zeros(UNITS),
    "output": jnp.asarray(rng.normal(size=UNITS) / np.sqrt(UNITS), jnp.float32),
}


def score(params: Any, batch: Any) -> Any:
    return jnp.tanh(batch["x"] @ params["hidden"] + params["shift"]) @ params["output"]


def loss(params: Any, batch: Any) -> Any:
    logits = score(params, batch)
    return jnp.mean(jnp.logaddexp(0.0, logits) - batch["y"] * logits)


def alarms(params: Any, batch: Any) -> Any:
    return jnp.mean(batch["negative"] * jax.nn.sigmoid(score(params, batch)))


def batches(seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Shuffled epochs."""
    random = np.random.default_rng(seed)
    for _ in range(EPOCHS):
        for index in random.permutation(EXAMPLES).reshape(-1, BATCH_SIZE):
            yield {name: array[index] for name, array in examples.items()}


def train(problem: tr.Problem, method: tr.methods.Method) -> Any:
    """The parameters after one pass through the batches."""
    stepper = tr.Stepper(problem, start, method, steps=STEPS)
    state = stepper.init(next(batches(seed=0)))  # the method's constants are measured on this batch
    step = jax.jit(stepper.step)
    for k, batch in enumerate(batches(seed=1), start=1):
        state, _ = step(state, batch)
        if k % (STEPS // 4) == 0:
            print(f"  step {k}: loss {loss(state.x, examples):.4f}, false alarms {alarms(state.x, examples):.4f}")
    return state.x


def main() -> None:
    """Train with two methods and certify both answers."""
    data = tr.Dataset(examples, BATCH_SIZE)
    certified = tr.Problem(loss, tr.at_most(alarms, BOUND, data=data), data=data)

    print("AdaptiveLagrangian: nothing to tune; its last step restores the constraint on all data")
    answer = tr.certify(certified, train(certified, tr.methods.AdaptiveLagrangian()))
    print(answer)
    assert answer.verdict == "feasible"

    print("GradientDescentAscent: knows the batches alone; a margin leaves room for the noise of its last iterates")
    like = tr.Batches(like=next(batches(seed=0)))
    with_margin = tr.Problem(loss, tr.at_most(alarms, 0.9 * BOUND, data=like), data=like)
    method = tr.methods.GradientDescentAscent(step_size=1e-2, dual_step_size=0.1, decay=0.0)
    answer = tr.certify(certified, train(with_margin, method))
    print(answer)
    assert answer.verdict == "feasible"


if __name__ == "__main__":
    main()
