"""Momentum, truncation and the constants that are estimated at the start."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.domains import Box, L2Ball
from tightrope.methods.base import Draw
from tightrope.methods.shared.constants import local_smoothness, scales
from tightrope.methods.shared.momentum import first_order_svrg, polyak_momentum, recursive_momentum, spider
from tightrope.numerics.scaling import truncate
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters
from tightrope.runs.loop import draw_of


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


# ---- truncation --------------------------------------------------------------------------------------------------------


def test_truncation_leaves_the_ball_untouched():
    for v in ([0.3, -0.4], [3.0, 4.0], [0.0, 0.0]):
        np.testing.assert_array_equal(truncate(jnp.array(v), jnp.asarray(5.0)), v)


@pytest.mark.parametrize("radius", [1e-6, 1.0, 4.999])
def test_truncation_puts_what_is_outside_on_the_sphere_in_the_same_direction(radius):
    v = np.array([3.0, -4.0])
    got = np.asarray(truncate(jnp.asarray(v), jnp.asarray(radius)))
    np.testing.assert_allclose(got, v / 5.0 * radius, rtol=1e-14)


def test_truncation_is_the_nearest_point_of_the_ball():
    rng = np.random.default_rng(0)
    v = 3.0 * rng.normal(size=5)
    got = np.asarray(truncate(jnp.asarray(v), jnp.asarray(1.5)))
    others = rng.normal(size=(500, 5))
    others *= 1.5 * rng.random((500, 1)) / np.linalg.norm(others, axis=1, keepdims=True)
    assert np.linalg.norm(got - v) <= np.linalg.norm(others - v, axis=1).min()


def test_truncation_to_radius_zero_is_zero_and_zero_stays_zero():
    np.testing.assert_array_equal(truncate(jnp.array([1.0, 2.0]), jnp.asarray(0.0)), 0.0)
    np.testing.assert_array_equal(truncate(jnp.zeros(2), jnp.asarray(0.0)), 0.0)


def test_truncation_of_a_vector_whose_square_overflows_stays_in_the_ball():
    got = np.asarray(truncate(jnp.array([3e20, 4e20], jnp.float32), jnp.float32(1.0)))
    assert np.isfinite(got).all()
    assert np.linalg.norm(got) <= 1.0


# ---- momentum ----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(1)
N, DIM = 30, 4
ROOTS = RNG.normal(size=(N, DIM, DIM))
H, B = ROOTS @ ROOTS.transpose(0, 2, 1), RNG.normal(size=(N, DIM))
OLD, NEW, ESTIMATE = RNG.normal(size=(3, DIM))


def test_recursive_momentum_follows_a_linear_gradient_exactly_on_one_sample():
    for weight in (0.0, 0.3, 1.0):
        got = recursive_momentum(H[0] @ OLD + B[0], H[0] @ NEW + B[0], H[0] @ OLD + B[0], weight)
        np.testing.assert_allclose(got, H[0] @ NEW + B[0], rtol=1e-12)


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_the_mean_of_recursive_momentum_is_the_gradient_plus_the_remembered_part_of_the_error(weight):
    """E v⁺ − ∇F(x⁺) = (1 − α)(v − ∇F(x))."""
    updates = [recursive_momentum(ESTIMATE, h @ NEW + b, h @ OLD + b, weight) for h, b in zip(H, B, strict=True)]
    mean_h, mean_b = H.mean(0), B.mean(0)
    error = np.mean(updates, axis=0) - (mean_h @ NEW + mean_b)
    np.testing.assert_allclose(error, (1 - weight) * (ESTIMATE - (mean_h @ OLD + mean_b)), rtol=1e-9, atol=1e-12)


def test_recursive_momentum_with_full_weight_forgets():
    np.testing.assert_allclose(recursive_momentum(ESTIMATE, NEW, OLD, 1.0), NEW, rtol=1e-12)


def test_polyak_momentum_is_the_weighted_mean_and_repeats_to_an_exponential_average():
    np.testing.assert_allclose(polyak_momentum(ESTIMATE, NEW, 0.25), 0.75 * ESTIMATE + 0.25 * NEW, rtol=1e-12)
    np.testing.assert_allclose(polyak_momentum(ESTIMATE, NEW, 1.0), NEW, rtol=1e-12)
    np.testing.assert_allclose(polyak_momentum(ESTIMATE, NEW, 0.0), ESTIMATE, rtol=1e-12)
    estimate = ESTIMATE
    for b in B:
        estimate = polyak_momentum(estimate, b, 0.2)
    powers = 0.8 ** np.arange(N)[::-1]
    np.testing.assert_allclose(estimate, 0.8**N * ESTIMATE + 0.2 * powers @ B, rtol=1e-9)


# ---- values from an anchor -------------------------------------------------------------------------------------------


def curved(j: int, x: np.ndarray) -> np.ndarray:
    """Row j of the data: a linear map and half its square, so that the curvature differs from row to row."""
    return np.append(B[j] @ x, 0.5 * (B[j] @ x) ** 2)


def slope_of(j: int, x: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.append(B[j] @ step, (B[j] @ x) * (B[j] @ step))


def from_anchor(sample: list[int], anchor: np.ndarray, x: np.ndarray) -> np.ndarray:
    step = x - anchor
    mean = lambda fn, rows: np.mean([fn(j) for j in rows], axis=0)
    return np.asarray(
        first_order_svrg(
            mean(lambda j: curved(j, anchor), range(N)),
            mean(lambda j: slope_of(j, anchor, step), range(N)),
            mean(lambda j: curved(j, x), sample),
            mean(lambda j: curved(j, anchor), sample),
            mean(lambda j: slope_of(j, anchor, step), sample),
        )
    )


def truth(x: np.ndarray) -> np.ndarray:
    return np.mean([curved(j, x) for j in range(N)], axis=0)


def test_first_order_svrg_is_exact_for_linear_functions_and_at_the_anchor_on_any_sample():
    for sample in ([0], [3, 7, 7], list(range(N))):
        np.testing.assert_allclose(from_anchor(sample, OLD, NEW)[0], truth(NEW)[0], rtol=1e-12)
        np.testing.assert_allclose(from_anchor(sample, OLD, OLD), truth(OLD), rtol=1e-12)


def test_first_order_svrg_is_unbiased():
    """The mean over all samples of one row is the truth."""
    mean = np.mean([from_anchor([j], OLD, NEW) for j in range(N)], axis=0)
    np.testing.assert_allclose(mean, truth(NEW), rtol=1e-12)


def test_the_noise_of_first_order_svrg_is_of_second_order_where_that_of_svrg_is_of_first():
    direction = NEW - OLD
    errors = []
    for t in (1e-2, 1e-3):
        x = OLD + t * direction
        corrected = [from_anchor([j], OLD, x) - truth(x) for j in range(N)]
        plain = [np.asarray(spider(truth(OLD), curved(j, x), curved(j, OLD))) - truth(x) for j in range(N)]
        errors.append([np.abs(np.array(e)[:, 1]).max() for e in (corrected, plain)])
    second, first = np.array(errors[0]) / np.array(errors[1])
    np.testing.assert_allclose(second, 100.0, rtol=1e-3)
    np.testing.assert_allclose(first, 10.0, rtol=0.2)


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


def test_a_kink_within_reach_is_seen():
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


def test_the_quotient_is_over_the_distance_that_the_set_allows():
    gradient = lambda x: 4.0 * x
    found = smoothness(gradient, Box(-1.0, 1.0).project, jnp.array([0.95]), jnp.array([1.0]), 0.1)
    np.testing.assert_allclose(found, 4.0, rtol=1e-9)


def test_the_largest_quotient_counts_not_the_last():
    shear = lambda x: jnp.array([0.0, 10.0 * x[0]])
    found = smoothness(shear, anywhere, jnp.zeros(2), jnp.array([1.0, 0.0]), 0.1)
    np.testing.assert_allclose(found, 10.0, rtol=1e-9)


def test_points_where_the_gradient_is_not_finite_are_passed_over():
    half_line = lambda x: jnp.where(x[0] > 1.0, jnp.nan, 5.0 * x)
    x = jnp.array([0.99, 0.0])
    np.testing.assert_allclose(smoothness(half_line, anywhere, x, jnp.array([1.0, 0.0]), 0.1), 5.0, rtol=1e-9)
    nowhere = lambda x: x * jnp.nan
    assert float(smoothness(nowhere, anywhere, x, jnp.array([1.0, 0.0]), 0.1)) == 0.0
    overflow = lambda x: jnp.where(x[0] > 1.0, jnp.inf, 2.0 * x)
    np.testing.assert_allclose(smoothness(overflow, anywhere, x, jnp.array([1.0, 0.0]), 0.1), 2.0, rtol=1e-9)


# ---- scales ------------------------------------------------------------------------------------------------------------

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


def scales_of(problem: tr.Problem, x0: np.ndarray):
    oracle = oracle_for(problem, Parameters(jnp.asarray(x0)))
    sample, _ = draw_of(oracle, {"only": None}, jax.random.key(0), jnp.int32(0))
    return jax.jit(lambda x: scales(oracle, x, sample["only"], jax.random.key(0)))(jnp.asarray(x0))


@pytest.mark.parametrize("name", ["no constraints", "circle", "circle, from its center", "linear", "stationary start",
                                  "small ball", "corner"])  # fmt: skip
def test_scales_are_finite_and_positive(name):
    problem, x0 = problems()[name]
    found = scales_of(problem, x0)
    for field in ("length", "gradient", "smoothness"):
        assert np.isfinite(getattr(found, field)), field
        assert getattr(found, field) > 0, field
    for field in ("constraint_gradient", "normal_curvature", "penalty_smoothness", "penalty_on_the_way"):
        assert np.isfinite(getattr(found, field)), field
        assert getattr(found, field) >= 0, field
    assert (found.penalty_smoothness > 0) == bool(problem.constraints)


def test_scales_of_a_known_problem():
    """F = ‖x‖² (gradient 2‖x‖, smoothness 2) with Σx = 1 (Jacobian √3; ½c² has smoothness 3), ‖x‖ = 5."""
    problem = tr.Problem(lambda x: x @ x, tr.affine(np.ones((1, 3)), [1.0]))
    found = scales_of(problem, np.array([0.0, 3.0, 4.0]))
    expected = {"length": 5.0, "gradient": 10.0, "smoothness": 2.0, "constraint_gradient": np.sqrt(3),
                "normal_curvature": 3.0, "penalty_smoothness": 3.0, "penalty_on_the_way": 3.0}  # fmt: skip
    for field, value in expected.items():
        np.testing.assert_allclose(getattr(found, field), value, rtol=1e-6, err_msg=field)


@pytest.mark.parametrize("x0", [[0.0, 0.0], [0.5, 0.0], [1.0, 0.0], [2.0, 0.0]])
def test_the_penalty_on_the_way_covers_the_feasible_set_from_inside_and_outside(x0):
    """½c² has the curvature ‖J‖² = 4 on the circle, less in it: 1 at the second start."""
    found = scales_of(tr.Problem(lambda x: x @ x, tr.equals(lambda x: x @ x, 1.0)), np.array(x0))
    assert found.penalty_on_the_way >= 4.0 * (1 - 1e-6)
    assert found.penalty_on_the_way >= found.penalty_smoothness


def test_noise_in_the_rows_shortens_steps_where_the_jacobian_bends():
    source = lambda noise: tr.Sampler(lambda key, rows: noise * jax.random.normal(key, (rows,)), batch_size=1)
    circle = lambda noise: tr.equals(lambda x, batch: x @ x + jnp.mean(batch), 1.0, data=source(noise))
    quiet, loud = (scales_of(tr.Problem(lambda x: x @ x, circle(noise)), np.array([2.0, 0.0])) for noise in (0.0, 1.0))
    assert quiet.constraint_noise == 0.0
    assert loud.penalty_on_the_way >= loud.penalty_smoothness + loud.constraint_noise * loud.jacobian_smoothness


def test_the_balanced_penalty_misses_the_feasible_set_by_the_length_at_most():
    """F = a·x and x₁ = x₂ = 0 scaled by s: the minimizer of f + ½ρ‖c‖² is x = −a/(ρs²)."""
    a, s = jnp.array([3.0, 4.0]), 7.0
    problem = tr.Problem(lambda x: a @ x, tr.affine(s * np.eye(2), [0.0, 0.0]))
    found = scales_of(problem, np.array([2.0, 0.0]))
    np.testing.assert_allclose(found.normal_curvature, s**2, rtol=1e-6)
    assert np.linalg.norm(a / (found.balanced_penalty * s**2)) <= found.length * (1 + 1e-6)


def test_a_feasible_start_does_not_hide_the_penalty():
    """The gradient of ½c² vanishes there; the rows still say where it grows."""
    problem = tr.Problem(lambda x: x @ x, tr.affine(np.array([[1.0, -1.0]]), [0.0]))
    np.testing.assert_allclose(scales_of(problem, np.ones(2)).penalty_smoothness, 2.0, rtol=1e-6)


def test_the_length_is_no_more_than_the_diameter_and_no_less_than_one_elsewhere():
    assert float(scales_of(*problems()["small ball"]).length) == 2e-3
    assert float(scales_of(*problems()["stationary start"]).length) == 1.0


def test_a_problem_of_mere_feasibility_gets_finite_constants():
    problem = tr.Problem(lambda x: 0.0 * jnp.sum(x), tr.equals(lambda x: x @ x, 1.0))
    oracle = oracle_for(problem, Parameters(jnp.ones(2)), form="slacks")
    draw = Draw({"objective": ()}, jnp.float64(0), jax.random.key(0), jnp.int32(0), jnp.int32(10))
    filled = tr.methods.TruncatedMomentum().estimate_constants(oracle, jnp.ones(2), draw)
    assert np.isfinite([float(filled.step_size), float(filled.penalty), float(filled.radius)]).all()
    assert filled.penalty > 0
