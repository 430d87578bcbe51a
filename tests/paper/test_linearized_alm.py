"""The linearized augmented Lagrangian method against a NumPy transcription of Alacaoglu, Wright, Algorithm 1."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from sample_paths import drive, follows, outputs, quick_jit, which

import tightrope as tr
from tightrope.methods import LinearizedALM
from tightrope.methods.base import Draw

STEPS = 30


# ---- the paper, in NumPy ---------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """(2.1), with η, ρ, L_f and k0 free."""

    eta: float
    rho: float
    smoothness: float
    k0: float

    def eta_(self, k: int) -> float:
        return self.eta / ((k + self.k0) ** (1 / 3) * np.log(k + self.k0))

    def alpha_(self, k: int) -> float:
        return min(1.0, 121 * self.smoothness**2 * self.eta_(k) ** 2)


class Transcribed(NamedTuple):
    """Entry k is x_k, λ_k, g_k."""

    x: np.ndarray
    multipliers: np.ndarray
    g: np.ndarray


def algorithm(s: Constants, x0: np.ndarray, lambda0: np.ndarray, xi: list[np.ndarray]) -> Transcribed:
    """Algorithm 1; g_0 is the gradient on ξ_0."""
    x, dual, g = {0: x0}, {0: lambda0}, {0: f_gradient(x0, xi[0])}
    for k in range(len(xi) - 1):
        direction = g[k].copy()
        for row in range(ROWS):
            direction += MATRIX[row] * dual[k][row] + s.rho * MATRIX[row] * (MATRIX[row] @ x[k] - RIGHT[row])
        x[k + 1] = x[k] - s.eta_(k + 1) * direction
        dual[k + 1] = np.array([dual[k][i] + s.rho * (MATRIX[i] @ x[k + 1] - RIGHT[i]) for i in range(ROWS)])
        old = f_gradient(x[k], xi[k + 1])
        g[k + 1] = f_gradient(x[k + 1], xi[k + 1]) + (1 - s.alpha_(k + 1)) * (g[k] - old)
    return Transcribed(*(np.stack([entries[k] for k in range(len(xi))]) for entries in (x, dual, g)))


# ---- a nonlinear objective, and differences that are not independent -----------------------------------------------------

N, DIM, BATCH, ROWS = 50, 6, 3, 5
RNG = np.random.default_rng(12)
A, B, W = RNG.normal(size=(N, DIM)), RNG.normal(size=N), RNG.normal(size=(N, DIM))
MATRIX = np.array([
    [-1.0, 1, 0, 0, 0, 0],
    [0, -1, 1, 0, 0, 0],
    [0, 0, -1, 1, 0, 0],
    [-2, 0, 2, 0, 0, 0],
    [0, 0, 0, 0, 3, 1],
])  # fmt: skip
RIGHT = np.array([0.3, -0.5, 0.2, -0.4, 1.0])
X0 = RNG.normal(size=DIM)


def differences(x):
    """MATRIX @ x."""
    return jnp.concatenate([x[1:4] - x[:3], 2 * (x[2:3] - x[:1]), 3 * x[4:5] + x[5:]])


def f(x, batch):
    return jnp.mean(0.5 * (batch["a"] @ x - batch["b"]) ** 2 + jnp.sin(batch["w"] @ x))


def f_gradient(x: np.ndarray, sample: np.ndarray) -> np.ndarray:
    total = np.zeros(DIM)
    for i in sample:
        total += A[i] * (A[i] @ x - B[i]) + W[i] * np.cos(W[i] @ x)
    return total / len(sample)


FORMS: dict[str, Any] = {"dense": MATRIX, "sparse": scipy.sparse.csr_array(MATRIX), "function": differences}


@functools.cache
def problem(form: str) -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B, "w": W}, batch_size=BATCH)
    return tr.Problem(f, tr.affine(FORMS[form], RIGHT), data=data)


WARM = np.array([0.5, -1.0, 0.25, 0.1, 0.3])
SMALL = Constants(eta=0.3, rho=0.9, smoothness=0.6, k0=2.0)
LATE = Constants(eta=1.05, rho=0.7, smoothness=0.4, k0=7.5)


def method_of(s: Constants) -> LinearizedALM:
    return LinearizedALM(step_size=s.eta, penalty=s.rho, smoothness=s.smoothness, offset=s.k0)


@functools.cache
def run(s: Constants, form: str = "function", seed: int = 1):
    return drive(problem(form), X0, method_of(s), steps=STEPS, seed=seed, multipliers=WARM)


def expected_of(s: Constants, path) -> Transcribed:
    return algorithm(s, X0, WARM, [entry[0] for entry in path.samples["objective"]])


# ---- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [SMALL, LATE], ids=["small", "late"])
def test_iterates_are_those_of_the_paper_on_the_same_samples(s):
    path = run(s)
    expected = expected_of(s, path)
    for actual, field in ((path.x, "x"), (_all(path, "multipliers"), "multipliers"), (_all(path, "gradient"), "g")):
        np.testing.assert_allclose(actual, getattr(expected, field), rtol=1e-9, atol=1e-12, err_msg=field)
    assert s.alpha_(1) == 1.0 > s.alpha_(STEPS)
    assert np.linalg.matrix_rank(MATRIX) < ROWS


def _all(path, field: str) -> np.ndarray:
    return np.stack([getattr(state, field) for state in path.states])


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_a_matrix_gives_the_iterates_of_the_function(form):
    path, function = run(SMALL, form), run(SMALL)
    np.testing.assert_allclose(path.x, function.x, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(_all(path, "multipliers"), _all(function, "multipliers"), rtol=1e-10, atol=1e-13)


def test_every_step_draws_a_fresh_batch_and_counts_what_it_computed():
    path = run(SMALL)
    examples = np.stack([entry[0] for entry in path.samples["objective"]])
    assert examples.shape == (STEPS + 1, BATCH)
    assert len(np.unique(examples, axis=0)) == STEPS + 1
    assert set(path.infos) == {(2, 1, 1, BATCH)}  # A x_k − b serves λ_k and the next step


def test_output_and_multipliers_are_one_pair():
    """The output after K' steps for every K' ≤ K: (x_k, λ_k) with 1 ≤ k ≤ K'."""
    path = run(SMALL)
    expected, found = expected_of(SMALL, path), set()
    for steps, state in enumerate(path.states[1:], start=1):
        k = int(which(np.asarray(path.method.output(state))[None], expected.x)[0])
        assert 1 <= k <= steps
        found.add(k)
        multipliers = path.oracle.rows.to_raw(path.method.multipliers(state))
        np.testing.assert_allclose(multipliers, expected.multipliers[k], rtol=1e-8, atol=1e-12)
    assert len(found) > 2


def test_the_output_is_uniform_over_the_new_iterates():
    """With a constant gradient x_k identifies k: x_k = x_{k−1} + η_k."""
    steps = 7
    path = np.concatenate([[0.0], np.cumsum([LATE.eta_(k) for k in range(1, steps + 1)])])[:, None]
    slope = tr.Problem(lambda x: -jnp.sum(x))
    points = outputs(slope, np.zeros(1), method_of(LATE), steps=steps, seeds=4000)
    counts = np.bincount(which(points, path), minlength=steps + 1)
    assert follows(counts, np.array([0, *[1 / steps] * steps])), counts


def compiled(form: str, method: LinearizedALM) -> str:
    """The compiled program of `estimate_constants`, `init` and one step."""
    oracle = run(SMALL, form).oracle

    def program(x, examples):
        draw = Draw({"objective": (examples,)}, jnp.float32(0.5), jax.random.key(0), jnp.int32(0), jnp.int32(9))
        filled = method.estimate_constants(oracle, x, draw)
        state = filled.init(oracle, x, draw, jnp.int32(9))
        return filled, filled.step(oracle, state, draw._replace(k=jnp.int32(1)))[0]

    return quick_jit(program).lower(X0, np.arange(BATCH)).compile().as_text()


def test_the_matrix_of_a_function_is_never_formed():
    """Neither A nor Aᵀ is in the program that estimates the constants and takes a step; given a dense A, it is."""
    shapes = (f"[{ROWS},{DIM}]", f"[{DIM},{ROWS}]")
    function = compiled("function", LinearizedALM())
    assert f"f64[{DIM}]" in function
    assert not any(shape in function for shape in shapes)
    assert any(shape in compiled("dense", method_of(SMALL)) for shape in shapes)
