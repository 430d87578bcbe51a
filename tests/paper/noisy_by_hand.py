"""Two small nonlinear problems in two forms: for the library, and in NumPy with derivatives by hand.

`noisy()` has a random equality, a random band and a fixed floor, in a ball; `fixed()` has the same without data, in a box.
Raw values h are in the user's order and signs. With slacks the point is z = [x, s], the rows are h − target and h − s, and
each s stays within its bounds.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import tightrope as tr

N, DIM, BATCH, FEW = 40, 3, 3, 2
RNG = np.random.default_rng(8)
A, B, W = RNG.normal(size=(N, DIM)), RNG.normal(size=N), RNG.normal(size=(N, DIM))
C, D = RNG.normal(size=(N, DIM)), RNG.normal(size=(N, DIM))
TARGET, LOW, HIGH, FLOOR = 0.8, -0.1, 0.05, -0.1
RADIUS, BOX = 0.6, (-0.45, 0.42)
X1 = np.array([0.4, -0.3, 0.25])
START = np.array([*X1, 0.0, 0.05])
"""X1 with slacks inside their bounds."""

Sample = tuple[np.ndarray, ...]
"""Indices of the examples of a sample: of the objective's data, and for `noisy` of the constraint's own data."""


@functools.cache
def noisy() -> tr.Problem:
    """The equality has data of its own; the band shares the objective's."""
    data = tr.Dataset({"a": A, "b": B, "w": W}, batch_size=BATCH)
    own = tr.Dataset({"c": C, "d": D}, batch_size=FEW)
    constraints = [
        tr.equals(
            lambda x, batch: jnp.mean((batch["c"] @ x) ** 2 + 0.3 * batch["d"] @ x), TARGET, data=own, name="energy"
        ),
        tr.between(lambda x, batch: jnp.mean(jnp.sin(batch["a"] @ x)), LOW, HIGH, data=data, name="band"),
        tr.at_least(lambda x: x[0] * x[1] - x[2], FLOOR, name="floor"),
    ]
    return tr.Problem(_objective, constraints, domain=tr.domains.L2Ball(RADIUS), data=data)


@functools.cache
def fixed() -> tr.Problem:
    """The objective is random and the constraints are not."""
    data = tr.Dataset({"a": A, "b": B, "w": W}, batch_size=BATCH)
    constraints = [
        tr.equals(lambda x: x @ x, TARGET, name="energy"),
        tr.between(lambda x: jnp.sin(x[0] + 2 * x[1]), LOW, HIGH, name="band"),
        tr.at_least(lambda x: x[0] * x[1] - x[2], FLOOR, name="floor"),
    ]
    return tr.Problem(_objective, constraints, domain=tr.domains.Box(*BOX), data=data)


def _objective(x, batch):
    return jnp.mean(0.5 * (batch["a"] @ x - batch["b"]) ** 2 + jnp.sin(batch["w"] @ x))


# ---- by hand ---------------------------------------------------------------------------------------------------------


def gradient(x: np.ndarray, sample: Sample) -> np.ndarray:
    total = np.zeros(DIM)
    for i in sample[0]:
        total += A[i] * (A[i] @ x - B[i]) + W[i] * np.cos(W[i] @ x)
    return total / len(sample[0])


def noisy_raw(x: np.ndarray, sample: Sample) -> np.ndarray:
    energy, band = 0.0, 0.0
    for i in sample[1]:
        energy += ((C[i] @ x) ** 2 + 0.3 * D[i] @ x) / len(sample[1])
    for i in sample[0]:
        band += np.sin(A[i] @ x) / len(sample[0])
    return np.array([energy, band, x[0] * x[1] - x[2]])


def noisy_raw_jacobian(x: np.ndarray, sample: Sample) -> np.ndarray:
    energy, band = np.zeros(DIM), np.zeros(DIM)
    for i in sample[1]:
        energy += (2 * C[i] * (C[i] @ x) + 0.3 * D[i]) / len(sample[1])
    for i in sample[0]:
        band += A[i] * np.cos(A[i] @ x) / len(sample[0])
    return np.array([energy, band, [x[1], x[0], -1.0]])


def fixed_raw(x: np.ndarray, sample: Sample = ()) -> np.ndarray:
    return np.array([x @ x, np.sin(x[0] + 2 * x[1]), x[0] * x[1] - x[2]])


def fixed_raw_jacobian(x: np.ndarray, sample: Sample = ()) -> np.ndarray:
    slope = np.cos(x[0] + 2 * x[1])
    return np.array([2 * x, [slope, 2 * slope, 0.0], [x[1], x[0], -1.0]])


def in_ball(x: np.ndarray) -> np.ndarray:
    norm = np.sqrt(np.sum(x * x))
    return x if norm <= RADIUS else x * (RADIUS / norm)


def in_box(x: np.ndarray) -> np.ndarray:
    return np.array([min(max(entry, BOX[0]), BOX[1]) for entry in x])


class WithSlacks(NamedTuple):
    """Equalities only, at z = [x, s]."""

    raw: Callable
    raw_jacobian: Callable
    into_set: Callable

    def gradient(self, z: np.ndarray, sample: Sample) -> np.ndarray:
        return np.array([*gradient(z[:DIM], sample), 0.0, 0.0])

    def c(self, z: np.ndarray, sample: Sample = ()) -> np.ndarray:
        energy, band, floor = self.raw(z[:DIM], sample)
        return np.array([energy - TARGET, band - z[DIM], floor - z[DIM + 1]])

    def jacobian(self, z: np.ndarray, sample: Sample = ()) -> np.ndarray:
        energy, band, floor = self.raw_jacobian(z[:DIM], sample)
        return np.array([[*energy, 0, 0], [*band, -1, 0], [*floor, 0, -1]])

    def project(self, z: np.ndarray) -> np.ndarray:
        return np.array([*self.into_set(z[:DIM]), min(max(z[DIM], LOW), HIGH), max(z[DIM + 1], FLOOR)])


NOISY = WithSlacks(noisy_raw, noisy_raw_jacobian, in_ball)
FIXED = WithSlacks(fixed_raw, fixed_raw_jacobian, in_box)


# ---- what a run must have encountered ----------------------------------------------------------------------------------


def independent(path, roles: list[str]) -> bool:
    """Whether these roles have different samples: two draws from N examples coincide in about one entry of N."""
    for i, first in enumerate(roles):
        for second in roles[:i]:
            for source in range(len(path.samples[first][0])):
                left = np.stack([entry[source] for entry in path.samples[first]])
                right = np.stack([entry[source] for entry in path.samples[second]])
                if np.mean(left == right) > 0.1:
                    return False
    return True


def slacks_visit_their_bounds(z: np.ndarray) -> bool:
    band, floor = z[:, DIM], z[:, DIM + 1]
    return bool(
        np.any((band == LOW) | (band == HIGH)) and np.any((band > LOW) & (band < HIGH))
        and np.any(floor == FLOOR) and np.any(floor > FLOOR)
    )  # fmt: skip


def ball_is_active(z: np.ndarray) -> bool:
    norms = np.linalg.norm(z[:, :DIM], axis=1)
    return bool(np.any(norms > RADIUS - 1e-12) and np.any(norms < RADIUS - 1e-6))


def box_is_active(z: np.ndarray) -> bool:
    x = z[:, :DIM]
    return bool(np.any((x == BOX[0]) | (x == BOX[1])) and np.any(np.all((x > BOX[0]) & (x < BOX[1]), axis=1)))
