"""A small convolutional network for ten digits, with an upper bound on the mean loss of every digit.

The digits are those of MNIST if TIGHTROPE_DATA names a folder that has them, and generated ones otherwise: ten fixed patterns,
shifted and noisy.

Run: python examples/convolution.py
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr

STEPS, BATCH_SIZE, BOUND = 400, 64, 0.4


def generated(examples: int = 1000, size: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Images of ten patterns, and the numbers of the patterns."""
    random = np.random.default_rng(0)
    patterns = random.normal(size=(10, size, size))
    y = random.integers(0, 10, examples)
    shifts = random.integers(-1, 2, (examples, 2))
    images = np.stack([np.roll(patterns[i], shift, axis=(0, 1)) for i, shift in zip(y, shifts, strict=True)])
    return (images + 2.0 * random.normal(size=images.shape)).astype(np.float32), y.astype(np.int32)


def mnist(examples: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Every second pixel of the first images."""
    train = tr.datasets.load("mnist").train
    images = train["x"][:examples].reshape(-1, 28, 28).astype(np.float32)
    return images[:, ::2, ::2], train["y"][:examples]


images, digits = mnist() if os.environ.get("TIGHTROPE_DATA") else generated()
data = tr.Dataset({"x": images[..., None], "y": digits}, BATCH_SIZE)
share = np.bincount(digits, minlength=10) / len(digits)


def convolved(x: Any, kernel: Any) -> Any:
    """A 3×3 convolution of stride 2 as a product with patches: on CPUs its derivatives are faster than XLA's."""
    size = (x.shape[1] - 1) // 2
    patches = [x[:, i : i + 2 * size - 1 : 2, j : j + 2 * size - 1 : 2] for i in range(3) for j in range(3)]
    return jax.nn.relu(jnp.concatenate(patches, axis=-1) @ kernel)


def losses(params: Any, batch: Any) -> Any:
    """The loss of each example."""
    hidden = convolved(convolved(batch["x"], params["first"]), params["second"])
    logits = hidden.reshape(len(hidden), -1) @ params["dense"] + params["shift"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)[:, 0]


def loss(params: Any, batch: Any) -> Any:
    return jnp.mean(losses(params, batch))


def loss_of_each_digit(params: Any, batch: Any) -> Any:
    """Ten means, each over the examples of one digit, written as means over all examples."""
    return jnp.mean(jax.nn.one_hot(batch["y"], 10) / share * losses(params, batch)[:, None], axis=0)


def main() -> None:
    """Solve, and show the loss of each digit."""
    random = np.random.default_rng(1)
    start = {
        "first": jnp.asarray(random.normal(size=(9, 8)) / 3, jnp.float32),
        "second": jnp.asarray(random.normal(size=(72, 16)) / np.sqrt(72), jnp.float32),
        "dense": jnp.asarray(random.normal(size=(64, 10)) / 8, jnp.float32),
        "shift": jnp.zeros(10),
    }
    problem = tr.Problem(loss, tr.at_most(loss_of_each_digit, BOUND, data=data), data=data)
    result = tr.solve(problem, start, "AdaptiveLagrangian", steps=STEPS, record=STEPS)
    print(result)
    print("loss of each digit:", np.round(loss_of_each_digit(result.x, data.arrays), 3))
    assert result.certificate.verdict == "feasible"


if __name__ == "__main__":
    main()
