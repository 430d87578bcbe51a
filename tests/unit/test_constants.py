"""The constants that methods estimate at the start."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.domains import Box, L2Ball
from tightrope.methods.base import Draw
from tightrope.methods.shared.constants import local_constants, local_smoothness
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


# ---- smoothness --------------------------------------------------------------------------------------------------------


def anywhere(x):
    return x


smoothness = jax.jit(local_smoothness, static_argnums=(0, 1))


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("top", [1e-4, 1e5])
def test_the_smoothness_of_a_quadratic_is_near_its_largest_eigenvalue_and_never_above(n, top):
    rng = np.random.default_rng(n)
    rotation = np.linalg.qr(rng.normal(size=(n, n)))[0]
    matrix = jnp.asarray(top * rotation @ np.diag(np.linspace(1.0, 0.1, n)) @ rotation.T)
    gradient = lambda x: matrix @ x
    for _ in range(5):
        x = jnp.asarray(rng.normal(size=n))
        found = float(smoothness(gradient, anywhere, x, gradient(x), 0.1))
        assert 0.7 * top <= found <= top * (1 + 1e-9)


def test_negative_curvature_counts_by_its_size():
    gradient = lambda x: jnp.array([1.0, -8.0]) * x
    x = jnp.array([1.0, 0.5])
    found = float(smoothness(gradient, anywhere, x, gradient(x), 0.1))
    assert 0.9 * 8.0 <= found <= 8.0 * (1 + 1e-9)


def test_a_linear_function_has_smoothness_zero():
    gradient = lambda x: jnp.array([1.0, -2.0, 3.0]) + 0.0 * x
    x = jnp.ones(3)
    assert float(smoothness(gradient, anywhere, x, gradient(x), 0.1)) == 0.0
    assert float(smoothness(gradient, anywhere, x, jnp.zeros(3), 0.1)) == 0.0


def test_a_stationary_start_does_not_hide_curvature():
    gradient = lambda x: 3.0 * x
    np.testing.assert_allclose(smoothness(gradient, anywhere, jnp.zeros(4), jnp.zeros(4), 0.1), 3.0, rtol=1e-9)


def test_a_kink_within_reach_is_detected():
    gradient = lambda x: jnp.sign(x)
    found = float(smoothness(gradient, anywhere, jnp.array([0.01, 1.0]), jnp.array([-1.0, 0.0]), 0.1))
    np.testing.assert_allclose(found, 2.0 / 0.1, rtol=1e-9)


@pytest.mark.parametrize("start", [[1.0, -1.0], [1.0, 0.0]], ids=["corner", "side"])
def test_probes_stay_in_the_set(start):
    box, matrix = Box(-1.0, 1.0), jnp.array([[2.0, 1.0], [1.0, 3.0]])
    top = float(np.linalg.eigvalsh(matrix)[-1])

    def gradient(y):
        inside = jnp.all(jnp.abs(y) <= 1.0)
        return jnp.where(inside, matrix @ y, jnp.nan)

    for direction in ([1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]):
        found = float(smoothness(gradient, box.project, jnp.array(start), jnp.array(direction), 0.1))
        assert 0.5 <= found <= top * (1 + 1e-9)


def test_the_quotient_uses_the_distance_after_projection():
    gradient = lambda x: 4.0 * x
    found = smoothness(gradient, Box(-1.0, 1.0).project, jnp.array([0.95]), jnp.array([1.0]), 0.1)
    np.testing.assert_allclose(found, 4.0, rtol=1e-9)


def test_the_largest_quotient_counts_and_not_the_last():
    shear = lambda x: jnp.array([0.0, 10.0 * x[0]])
    found = smoothness(shear, anywhere, jnp.zeros(2), jnp.array([1.0, 0.0]), 0.1)
    np.testing.assert_allclose(found, 10.0, rtol=1e-9)


def test_points_with_a_gradient_that_is_not_finite_are_ignored():
    half_line = lambda x: jnp.where(x[0] > 1.0, jnp.nan, 5.0 * x)
    x = jnp.array([0.99, 0.0])
    np.testing.assert_allclose(smoothness(half_line, anywhere, x, jnp.array([1.0, 0.0]), 0.1), 5.0, rtol=1e-9)
    nowhere = lambda x: x * jnp.nan
    assert float(smoothness(nowhere, anywhere, x, jnp.array([1.0, 0.0]), 0.1)) == 0.0
    overflow = lambda x: jnp.where(x[0] > 1.0, jnp.inf, 2.0 * x)
    np.testing.assert_allclose(smoothness(overflow, anywhere, x, jnp.array([1.0, 0.0]), 0.1), 2.0, rtol=1e-9)


# ---- all constants ------------------------------------------------------------------------------------------------------

N, DIM = 30, 4
RNG = np.random.default_rng(1)
A, Y = RNG.normal(size=(N, DIM)), RNG.normal(size=N)


@functools.cache
def problems() -> dict[str, tuple[tr.Problem, np.ndarray]]:
    data = tr.Dataset({"a": A, "y": Y}, batch_size=5)
    least_squares = lambda x, batch: jnp.mean((batch["a"] @ x - batch["y"]) ** 2)
    circle = tr.equals(lambda x: x @ x, 1.0, name="circle")
    return {
        "no constraints": (tr.Problem(least_squares, data=data), np.ones(DIM)),
        "circle": (tr.Problem(least_squares, circle, data=data), np.ones(DIM)),
        "circle, from its center": (tr.Problem(least_squares, circle, data=data), np.zeros(DIM)),
        "linear": (tr.Problem(lambda x: jnp.sum(x), tr.affine(np.ones((1, 2)), [1.0])), np.zeros(2)),
        "stationary start": (tr.Problem(lambda x: x @ x, circle), np.zeros(3)),
        "small ball": (tr.Problem(lambda x: x @ x, circle, domain=L2Ball(1e-3)), np.zeros(3)),
        "corner": (tr.Problem(lambda x: jnp.sum(jnp.abs(x)), circle, domain=Box(0.0, 1.0)), np.zeros(3)),
    }


def constants_of(problem: tr.Problem, x0: np.ndarray):
    oracle = oracle_for(problem, Parameters(jnp.asarray(x0)))
    return jax.jit(lambda x: local_constants(oracle, x, jax.random.key(0)))(jnp.asarray(x0))


@pytest.mark.parametrize("name", ["no constraints", "circle", "circle, from its center", "linear", "stationary start",
                                  "small ball", "corner"])  # fmt: skip
def test_constants_are_finite_and_positive(name):
    problem, x0 = problems()[name]
    found = constants_of(problem, x0)
    for field in ("length", "travel", "gradient_norm", "step_smoothness"):
        assert np.isfinite(getattr(found, field)), field
        assert getattr(found, field) > 0, field
    for field in ("smoothness", "jacobian_norm", "normal_curvature", "penalty_smoothness", "path_penalty_smoothness"):
        assert np.isfinite(getattr(found, field)), field
        assert getattr(found, field) >= 0, field
    assert (found.penalty_smoothness > 0) == bool(problem.constraints)


def test_constants_of_a_known_problem():
    """F = ‖x‖² (gradient 2‖x‖, smoothness 2) with Σx = 1 (Jacobian √3; ½c² has smoothness 3), ‖x‖ = 5."""
    problem = tr.Problem(lambda x: x @ x, tr.affine(np.ones((1, 3)), [1.0]))
    found = constants_of(problem, np.array([0.0, 3.0, 4.0]))
    expected = {"length": 5.0, "gradient_norm": 10.0, "smoothness": 2.0, "jacobian_norm": np.sqrt(3),
                "normal_curvature": 3.0, "penalty_smoothness": 3.0, "path_penalty_smoothness": 3.0}  # fmt: skip
    for field, value in expected.items():
        np.testing.assert_allclose(getattr(found, field), value, rtol=1e-6, err_msg=field)


@pytest.mark.parametrize("x0", [[0.0, 0.0], [0.5, 0.0], [1.0, 0.0], [2.0, 0.0]])
def test_the_path_penalty_smoothness_covers_the_feasible_set_from_inside_and_outside(x0):
    """½c² has the curvature ‖J‖² = 4 on the circle, less inside: 1 at the second start."""
    found = constants_of(tr.Problem(lambda x: x @ x, tr.equals(lambda x: x @ x, 1.0)), np.array(x0))
    assert found.path_penalty_smoothness >= 4.0 * (1 - 1e-6)
    assert found.path_penalty_smoothness >= found.penalty_smoothness


def test_noise_in_the_rows_counts_if_the_jacobian_varies():
    source = lambda noise: tr.Sampler(lambda key, n: noise * jax.random.normal(key, (n,)), batch_size=1)
    circle = lambda noise: tr.equals(lambda x, batch: x @ x + jnp.mean(batch), 1.0, data=source(noise))
    quiet, loud = (
        constants_of(tr.Problem(lambda x: x @ x, circle(noise)), np.array([2.0, 0.0])) for noise in (0.0, 1.0)
    )
    assert quiet.constraint_noise == 0.0
    assert loud.path_penalty_smoothness >= loud.penalty_smoothness + loud.constraint_noise * loud.jacobian_smoothness


def test_the_balanced_penalty_misses_the_feasible_set_by_at_most_the_travel():
    """F = a·x and x₁ = x₂ = 0 scaled by s: the minimizer of f + ½ρ‖c‖² is x = −a/(ρs²)."""
    a, s = jnp.array([3.0, 4.0]), 7.0
    problem = tr.Problem(lambda x: a @ x, tr.affine(s * np.eye(2), [0.0, 0.0]))
    found = constants_of(problem, np.array([2.0, 0.0]))
    np.testing.assert_allclose(found.normal_curvature, s**2, rtol=1e-6)
    assert np.linalg.norm(a / (found.balanced_penalty * s**2)) <= found.travel * (1 + 1e-6)


def test_a_feasible_start_does_not_hide_the_penalty():
    """The gradient of ½c² vanishes there, but the rows' gradients show the curvature."""
    problem = tr.Problem(lambda x: x @ x, tr.affine(np.array([[1.0, -1.0]]), [0.0]))
    np.testing.assert_allclose(constants_of(problem, np.ones(2)).penalty_smoothness, 2.0, rtol=1e-6)


def test_the_length_is_at_most_the_diameter_and_otherwise_at_least_one():
    assert float(constants_of(*problems()["small ball"]).length) == 2e-3
    assert float(constants_of(*problems()["stationary start"]).length) == 1.0


def test_a_constant_objective_gets_finite_constants():
    problem = tr.Problem(lambda x: 0.0 * jnp.sum(x), tr.equals(lambda x: x @ x, 1.0))
    oracle = oracle_for(problem, Parameters(jnp.ones(2)), form="slacks")
    draw = Draw({"objective": ()}, jnp.float64(0), jax.random.key(0), jnp.int32(0), jnp.int32(10))
    filled = tr.methods.TruncatedMomentum().estimate_constants(oracle, jnp.ones(2), draw)
    assert np.isfinite([float(filled.step_size), float(filled.penalty), float(filled.gradient_radius)]).all()
    assert filled.penalty > 0


def test_the_tangential_part_of_a_gradient_is_never_longer_than_the_gradient():
    """In single precision, where conjugate gradients that go on after they have converged can run away."""
    with jax.enable_x64(False):
        problem, x0, _ = tr.zoo.noisy_sphere()
        parameters = Parameters(x0, owner="test")
        oracle = oracle_for(problem, parameters, "slacks")
        constants = jax.jit(jax.vmap(lambda key: local_constants(oracle, parameters.start, key)))
        found = constants(jax.random.split(jax.random.key(0), 400))
    assert np.all(found.tangential_norm <= 1.001 * found.gradient_norm)
