"""Momentum, variance reduction and truncation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tightrope.methods.shared.momentum import first_order_svrg, polyak_momentum, recursive_momentum, spider
from tightrope.numerics.scaling import truncate


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


# ---- truncation --------------------------------------------------------------------------------------------------------


def test_truncation_leaves_the_ball_untouched():
    for v in ([0.3, -0.4], [3.0, 4.0], [0.0, 0.0]):
        np.testing.assert_array_equal(truncate(jnp.array(v), jnp.asarray(5.0)), v)


@pytest.mark.parametrize("radius", [1e-6, 1.0, 4.999])
def test_truncation_scales_a_vector_outside_the_ball_to_the_sphere(radius):
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
def test_recursive_momentum_keeps_a_share_of_the_old_error_on_average(weight):
    """E v⁺ − ∇F(x⁺) = (1 − α)(v − ∇F(x))."""
    updates = [recursive_momentum(ESTIMATE, h @ NEW + b, h @ OLD + b, weight) for h, b in zip(H, B, strict=True)]
    mean_h, mean_b = H.mean(0), B.mean(0)
    error = np.mean(updates, axis=0) - (mean_h @ NEW + mean_b)
    np.testing.assert_allclose(error, (1 - weight) * (ESTIMATE - (mean_h @ OLD + mean_b)), rtol=1e-9, atol=1e-12)


def test_recursive_momentum_with_weight_one_is_the_new_gradient():
    np.testing.assert_allclose(recursive_momentum(ESTIMATE, NEW, OLD, 1.0), NEW, rtol=1e-12)


def test_polyak_momentum_is_an_exponential_moving_average():
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
    """Example j: a linear function and half its square, so that the curvature differs between examples."""
    return np.append(B[j] @ x, 0.5 * (B[j] @ x) ** 2)


def slope_of(j: int, x: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.append(B[j] @ step, (B[j] @ x) * (B[j] @ step))


def from_anchor(sample: list[int], anchor: np.ndarray, x: np.ndarray) -> np.ndarray:
    step = x - anchor
    mean = lambda fn, examples: np.mean([fn(j) for j in examples], axis=0)
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
    """The mean over all samples of one example is the true value."""
    mean = np.mean([from_anchor([j], OLD, NEW) for j in range(N)], axis=0)
    np.testing.assert_allclose(mean, truth(NEW), rtol=1e-12)


def test_the_noise_of_first_order_svrg_shrinks_quadratically_and_that_of_svrg_linearly():
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
