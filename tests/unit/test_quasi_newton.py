"""The damped L-BFGS matrix against dense BFGS matrices built pair by pair in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tightrope.methods.adaptive_penalty.quasi_newton import InverseHessian, LBFGSMemory

SIZE, ROOM, START = 6, 4, 2.0
DAMPINGS = [1e-8, 1e-2, 1.0, 1e3, 1e8]

add, build = jax.jit(LBFGSMemory.add), jax.jit(LBFGSMemory.inverse)
inner, times = jax.jit(lambda m, a: m.inner(a, a @ a.T)), jax.jit(lambda m, *a: m.times(*a))

Kept = list[tuple[np.ndarray, np.ndarray]]


# ---- by hand -----------------------------------------------------------------------------------------------------------


def learned(pairs: Kept, room: int = ROOM) -> tuple[Kept, float]:
    """The last pairs, steps at length one, changes lifted to a cosine of 0.1; and δ."""
    kept, delta = [], START
    for step, change in pairs:
        with np.errstate(over="ignore"):
            length, size = np.sqrt(step @ step), np.sqrt(change @ change)
        if not np.isfinite(length + size) or length == 0:
            continue
        if size == 0:
            delta /= 2
            continue
        unit = step / length
        y = (change + max(0.1 * size - unit @ change, 0.0) * unit) / length
        kept, delta = [*kept, (unit, y)], (y @ y) / (unit @ y)
    return kept[-room:], delta


def bfgs(kept: Kept, delta: float, damping: float, n: int = SIZE) -> np.ndarray:
    """M itself: updates of the matrix, not of its inverse, oldest pair first."""
    M = (delta + damping) * np.eye(n)
    for s, y in kept:
        w, Ms = y + damping * s, M @ s
        M = M - np.outer(Ms, Ms) / (s @ Ms) + np.outer(w, w) / (s @ w)
    return M


def dense(m: InverseHessian) -> np.ndarray:
    """M⁻¹ as the library represents it."""
    vectors = np.roll(np.asarray(m.vectors, float), -int(m.oldest), axis=1).reshape(len(m.core), -1)
    return float(m.scale) * np.eye(vectors.shape[1]) + vectors.T @ np.asarray(m.core, float) @ vectors


def collected(pairs: Kept, dtype: str = "float64", room: int = ROOM) -> LBFGSMemory:
    """The library's memory; to be called in its precision."""
    found = LBFGSMemory.empty(room, jnp.zeros(len(pairs[0][0]) if pairs else SIZE, dtype), jnp.asarray(START, dtype))
    for step, change in pairs:
        found = add(found, jnp.asarray(step, dtype), jnp.asarray(change, dtype))
    return found


def random_pairs(rng: np.random.Generator, count: int, kind: str = "any") -> Kept:
    """Changes that a positive definite matrix makes, or any."""
    root = rng.normal(size=(SIZE, SIZE))
    steps = [10 ** rng.uniform(-3, 2) * rng.normal(size=SIZE) for _ in range(count)]
    return [(s, root @ (root.T @ s) if kind == "convex" else np.linalg.norm(s) * rng.normal(size=SIZE)) for s in steps]


def close(found: np.ndarray, expected: np.ndarray, rtol: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * np.max(np.abs(expected)))


# ---- tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.by_default("0-convex", "*-any")
@pytest.mark.parametrize("kind", ["convex", "any"])
@pytest.mark.parametrize("count", [0, 1, ROOM - 1, ROOM, ROOM + 1, 2 * ROOM + 3])
def test_the_compact_inverse_is_that_of_the_bfgs_matrix_of_the_last_pairs(count, kind):
    rng = np.random.default_rng(count)
    for _ in range(5):
        pairs = random_pairs(rng, count, kind)
        kept, delta = learned(pairs)
        with jax.enable_x64(True):
            found = collected(pairs)
            np.testing.assert_allclose(found.curvature, delta, rtol=1e-12)
            for damping in DAMPINGS:
                expected = np.linalg.inv(bfgs(kept, delta, damping))
                close(dense(build(found, jnp.asarray(damping))), expected, 1e-9)


def test_in_single_precision_it_is_as_good_as_rounding_allows():
    rng = np.random.default_rng(1)
    for _ in range(10):
        pairs = random_pairs(rng, 7, "convex")
        kept, delta = learned(pairs)
        for damping in DAMPINGS:
            m = build(collected(pairs, "float32"), jnp.float32(damping))
            assert m.core.dtype == m.vectors.dtype == m.scale.dtype == jnp.float32
            close(dense(m), np.linalg.inv(bfgs(kept, delta, damping)), 1e-4)


def test_the_newest_step_is_mapped_to_its_change():
    """M s = y + σs, the secant equation; it holds for the newest pair only."""
    rng = np.random.default_rng(2)
    pairs = random_pairs(rng, 9, "convex")
    with jax.enable_x64(True):
        for damping in DAMPINGS:
            M = np.linalg.inv(dense(build(collected(pairs), jnp.asarray(damping))))
            (older, _), (s, y) = learned(pairs)[0][-2:]
            close(M @ s, y + damping * s, 1e-9)
            if damping < 1:
                other = learned(pairs)[0][-2][1] + damping * older
                assert np.max(np.abs(M @ older - other)) > 1e-3 * np.max(np.abs(other))


def test_along_eigenvectors_it_is_the_hessian_and_the_damping():
    """As many pairs as dimensions, each along an eigenvector: M = H + σI, whatever σ."""
    rng = np.random.default_rng(3)
    axes = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0]
    hessian = axes @ np.diag(10 ** rng.uniform(-2, 2, size=SIZE)) @ axes.T
    pairs = [(axis, hessian @ axis) for axis in 3.0 * axes.T]
    with jax.enable_x64(True):
        for damping in DAMPINGS:
            m = build(collected(pairs, room=SIZE), jnp.asarray(damping))
            close(dense(m), np.linalg.inv(hessian + damping * np.eye(SIZE)), 1e-9)


def test_large_damping_leaves_a_multiple_of_the_identity():
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        for kind in ("convex", "any"):
            pairs = collected(random_pairs(rng, 6, kind))
            damping = 1e10 * float(pairs.curvature)
            m = build(pairs, jnp.asarray(damping))
            close(dense(m), np.eye(SIZE) / (float(pairs.curvature) + damping), 1e-8)


def test_products_are_those_with_the_dense_inverse():
    rng = np.random.default_rng(5)
    vectors, weights = rng.normal(size=(3, SIZE)), rng.normal(size=3)
    with jax.enable_x64(True):
        for count in (0, 2, 7):
            pairs = random_pairs(rng, count)
            m = build(collected(pairs), jnp.asarray(0.3))
            inverse = np.linalg.inv(bfgs(*learned(pairs), 0.3))
            products, with_pairs = inner(m, jnp.asarray(vectors))
            close(np.asarray(products), vectors @ inverse @ vectors.T, 1e-9)
            close(
                np.asarray(times(m, jnp.asarray(weights), jnp.asarray(vectors), with_pairs)),
                inverse @ (weights @ vectors),
                1e-9,
            )


def odd_pair(kind: str, step: np.ndarray, change: np.ndarray, last: tuple[np.ndarray, np.ndarray]) -> tuple:
    """A pair of this kind made of a step and a change."""
    with np.errstate(over="ignore"):
        return {
            "any": (step, change),
            "again": last,
            "opposite": (step, -step),
            "across": (step, change - step * (step @ change) / max(step @ step, 1e-300)),
            "still": (0 * step, change),
            "flat": (step, 0 * change),
            "not finite": (step, np.where(np.arange(SIZE) == 2, np.nan, change)),
            "overflow": (step, 1e200 * change),
        }[kind]


@seed(0)
@settings(max_examples=150, deadline=None, database=None)
@given(
    kinds=st.lists(
        st.sampled_from(["any", "any", "again", "opposite", "across", "still", "flat", "not finite", "overflow"]),
        max_size=2 * ROOM + 2,
    ),
    random=st.integers(0, 2**32 - 1),
    damping=st.floats(-6.0, 6.0),
)
def test_it_is_positive_definite_whatever_the_pairs(kinds, random, damping):
    """Negative curvature, pairs that repeat or contradict each other, no step, no change, numbers that are not finite.

    This holds in exact arithmetic, and in double precision where the condition number is below 1e12.
    """
    pairs = random_pairs(np.random.default_rng(random), len(kinds) + 1)
    for i, kind in enumerate(kinds, 1):
        pairs[i] = odd_pair(kind, *pairs[i], pairs[i - 1])
    kept, delta = learned(pairs)
    damping = delta * 10.0**damping
    with jax.enable_x64(True):
        found = collected(pairs)
        inverse = dense(build(found, jnp.asarray(damping)))
    np.testing.assert_allclose(found.curvature, delta, rtol=1e-9)
    assert int(found.oldest) == len(learned(pairs, room=len(pairs))[0]) % ROOM
    values, expected = np.linalg.eigvalsh(inverse), np.linalg.eigvalsh(bfgs(kept, delta, damping))
    assert values[0] > -1e-12 * values[-1]
    if expected[-1] < 1e12 * expected[0]:
        assert values[0] > 0


def test_in_single_precision_pairs_that_are_all_noise_make_it_indefinite_by_no_more_than_rounding():
    """Ten pairs with random changes: the condition goes up to 1e12, and the least eigenvalues are lost."""
    rng = np.random.default_rng(10)
    least = []
    for _ in range(30):
        pairs = collected([(rng.normal(size=3), rng.normal(size=3)) for _ in range(15)], "float32", room=10)
        values = np.linalg.eigvalsh(dense(build(pairs, jnp.float32(1e-3))))
        least.append(values[0] / values[-1])
    assert min(least) > -10 * np.finfo("float32").eps


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pairs_that_say_nothing_are_left_out(dtype):
    rng = np.random.default_rng(6)
    step, change = rng.normal(size=SIZE), rng.normal(size=SIZE)
    largest = np.full(SIZE, np.finfo(dtype).max)
    bad = [(0 * step, change), (0 * step, 0 * change), (step, largest), (largest, change)]
    for number in (np.nan, np.inf, -np.inf):
        broken = np.where(np.arange(SIZE) == 3, number, step)
        bad += [(broken, change), (step, broken), (broken, broken)]
    with jax.enable_x64(dtype == "float64"):
        before = collected(random_pairs(rng, 3), dtype)
        for pair in bad:
            after = add(before, *(jnp.asarray(part, dtype) for part in pair))
            for a, b in zip(after, before, strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_step_without_a_change_halves_the_curvature_and_nothing_else():
    rng = np.random.default_rng(7)
    before = collected(random_pairs(rng, 3), "float32")
    after = add(before, jnp.asarray(rng.normal(size=SIZE), jnp.float32), jnp.zeros(SIZE, jnp.float32))
    assert float(after.curvature) == 0.5 * float(before.curvature)
    for name in ("vectors", "products", "oldest"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))


def test_lengths_of_steps_do_not_matter():
    rng = np.random.default_rng(8)
    pairs = random_pairs(rng, 5)
    longer = [(10.0**k * s, 10.0**k * y) for k, (s, y) in enumerate(pairs)]
    with jax.enable_x64(True):
        for a, b in zip(collected(pairs), collected(longer), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_negative_curvature_is_lifted_to_a_small_positive_one():
    """The change along the step becomes 0.1 of its size; what is across the step stays."""
    step, change = np.eye(SIZE)[0], np.array([-3.0, 4.0, 0, 0, 0, 0])
    with jax.enable_x64(True):
        pairs = collected([(2 * step, 2 * change)])
    np.testing.assert_allclose(pairs.vectors[0, 0], step)
    np.testing.assert_allclose(pairs.vectors[1, 0], [0.5, 4.0, 0, 0, 0, 0])
    np.testing.assert_allclose(pairs.curvature, 16.25 / 0.5)


def test_pairs_cut_down_to_a_face_count_where_enough_of_them_is_left():
    """Entries are set to zero on a face of a set: a pair counts if the cosine of what is left is above 0.05."""
    rng = np.random.default_rng(9)
    unit = np.eye(SIZE)
    kept, delta = learned(random_pairs(rng, 2, "convex"))
    for cosine, counts in [(0.04, False), (0.06, True)]:
        both = [kept[0], (unit[0], cosine * unit[0] + np.sqrt(1 - cosine**2) * unit[1]), kept[1]]
        with jax.enable_x64(True):
            steps, changes = (jnp.asarray(np.stack([*part, np.zeros(SIZE)])) for part in zip(*both, strict=True))
            room = LBFGSMemory.empty(ROOM, steps[0], jnp.asarray(delta))._replace(oldest=jnp.int32(3))
            m = build(room.with_vectors(jnp.stack([steps, changes])), jnp.asarray(0.0))
            none = build(room.with_vectors(jnp.stack([0 * steps, changes])), jnp.asarray(0.5))
        close(dense(m), np.linalg.inv(bfgs(both if counts else kept, delta, 0.0)), 1e-9)
        close(dense(none), np.eye(SIZE) / (delta + 0.5), 1e-15)
