"""A convex problem in two forms: for the library, and by hand in NumPy with plain loops.

    min  mean ½(a·x − b)²   s.t.  mean (c·x)² ≤ 0.4,   mean |d·x| ≤ 0.45,   x_0 − x_1² ≥ −0.1
                                  and, where the method takes it, 0.2x_0 − 0.4x_1 + 0.6x_2 = 0.1

The objective and the first two rows have data of their own, with batches of different sizes: the counts can be told apart.
"""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from sample_paths import quick_jit

import tightrope as tr
from tightrope.methods.base import Draw, Method
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

N, M, DIM, BATCH, CONSTRAINT_BATCH = 40, 60, 3, 2, 3
RNG = np.random.default_rng(5)
A, B = RNG.normal(size=(N, DIM)) + np.array([-0.6, 0.9, 0.5]), RNG.normal(size=N) + 0.8
C, D = RNG.normal(size=(M, DIM)) + np.array([0.6, 0, 0]), RNG.normal(size=(M, DIM)) + np.array([0, 0.4, 0.2])
LIMITS, FLOOR, PLANE, LEVEL = (0.4, 0.45), -0.1, np.array([0.2, -0.4, 0.6]), 0.1
START = np.array([0.5, 0.2, -0.3])


def make_problem(domain: tr.domains.Domain, *, plane: bool) -> tr.Problem:
    """The problem for the library."""
    data = tr.Dataset({"a": A, "b": B}, batch_size=BATCH)
    constraint_data = tr.Dataset({"c": C, "d": D}, batch_size=CONSTRAINT_BATCH)
    spread = lambda x, s: jnp.stack([jnp.mean((s["c"] @ x) ** 2), jnp.mean(jnp.abs(s["d"] @ x))])
    constraints = [
        tr.at_most(spread, np.array(LIMITS), data=constraint_data, name="spread"),
        tr.at_least(lambda x: x[0] - x[1] ** 2, FLOOR, name="bowl"),
    ]
    if plane:
        constraints.append(tr.affine(PLANE[None], np.array([LEVEL]), name="plane"))
    return tr.Problem(lambda x, s: 0.5 * jnp.mean((s["a"] @ x - s["b"]) ** 2), constraints, domain=domain, data=data)


def gradient(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """∇f on these examples of the objective's data."""
    total = np.zeros(DIM)
    for i in examples:
        total += (A[i] @ x - B[i]) * A[i]
    return total / len(examples)


def values(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """The three inequalities g(x) ≤ 0 on these examples of the constraints' data."""
    first = sum((C[i] @ x) ** 2 for i in examples) / len(examples) - LIMITS[0]
    second = sum(abs(D[i] @ x) for i in examples) / len(examples) - LIMITS[1]
    return np.array([first, second, FLOOR - (x[0] - x[1] ** 2)])


def jacobian(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """One row per inequality."""
    first = sum(2 * (C[i] @ x) * C[i] for i in examples) / len(examples)
    second = sum(np.sign(D[i] @ x) * D[i] for i in examples) / len(examples)
    return np.array([first, second, [-1.0, 2 * x[1], 0.0]])


def plane_value(x: np.ndarray) -> float:
    return 0.2 * x[0] - 0.4 * x[1] + 0.6 * x[2] - LEVEL


def paired_values(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """The inequalities, and the plane as two inequalities."""
    return np.append(values(x, examples), [plane_value(x), -plane_value(x)])


def paired_jacobian(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    return np.vstack([jacobian(x, examples), PLANE, -PLANE])


def ball(x: np.ndarray, radius: float) -> np.ndarray:
    norm = np.sqrt(x @ x)
    return x if norm <= radius else x * (radius / norm)


def l1_vertex(direction: np.ndarray, radius: float) -> np.ndarray:
    """The vertex of the l1 ball that minimizes ⟨direction, ·⟩."""
    best, least = np.zeros(DIM), np.inf
    for j in range(DIM):
        for sign in (-1.0, 1.0):
            vertex = np.zeros(DIM)
            vertex[j] = sign * radius
            if direction @ vertex < least:
                best, least = vertex, direction @ vertex
    return best


class LmoOnly(tr.domains.Domain):
    """The l1 ball with linear minimization only: its projection raises an error."""

    radius: float

    def lmo(self, gradient):
        j = jnp.argmax(jnp.abs(gradient))
        return jnp.zeros_like(gradient).at[j].set(-self.radius * jnp.sign(gradient[j]))


def drawn(path, role: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The examples of a role in steps 1, 2, …: of the objective's data and of the constraints'."""
    steps = path.samples[role][1:]
    return [entry[0] for entry in steps], [entry[1] for entry in steps]


def independent(path) -> bool:
    """Whether no two roles share samples: over all steps they coincide about as often as by chance."""
    stacked = {role: [np.stack(entries) for entries in drawn(path, role)] for role in path.samples}
    for one, other in combinations(stacked, 2):
        for left, right in zip(stacked[one], stacked[other], strict=True):
            width = min(left.shape[1], right.shape[1])
            if (left[:, :width] == right[:, :width]).mean() > 0.15:
                return False
    return True


def estimated(problem: tr.Problem, x0: np.ndarray, method: Method) -> Method:
    """The method with the constants that it estimates at x0, using only the operations that the set has."""
    oracle = oracle_for(problem, Parameters(jnp.asarray(x0)), form=method.accepts.form)

    def estimate_constants(key):
        samples = {role: oracle.draw(key, size) for role, size in method.roles(oracle).items()}
        return method.estimate_constants(
            oracle, jnp.asarray(x0), Draw(samples, jnp.float32(0.5), key, jnp.int32(0), jnp.int32(40))
        )

    return quick_jit(estimate_constants)(jax.random.key(0))
