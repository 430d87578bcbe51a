"""The sets of matrices: nuclear norm ball and spectrahedron, and the Lanczos iterations behind their minimizers."""

import functools
from typing import NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tightrope as tr
from tightrope.domains import Domain, NuclearBall, Spectrahedron
from tightrope.numerics.lanczos import leading_pair, least_eigenvector


class Case(NamedTuple):
    """A set, the shape of its points, its constraints on a cvxpy variable, and the size of its points."""

    domain: Domain
    shape: tuple[int, int]
    constraints: object
    scale: float


CASES = {
    "wide ball": Case(NuclearBall(1.5), (3, 4), lambda x: [cp.normNuc(x) <= 1.5], 1.5),
    "tall ball": Case(NuclearBall(2.0), (4, 2), lambda x: [cp.normNuc(x) <= 2.0], 2.0),
    "spectrahedron": Case(Spectrahedron(2.0), (3, 3), lambda x: [x >> 0, x == x.T, cp.trace(x) == 2.0], 2.0),
}
every_set = pytest.mark.parametrize("name", CASES)
PRECISION = {"float32": np.float32, "float64": np.float64}
every_precision = pytest.mark.parametrize("precision", PRECISION)

quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@functools.cache
def compiled(method: str):
    return quick_jit(lambda domain, *arguments: getattr(domain, method)(*arguments))


def call(domain: Domain, method: str, *arguments):
    return compiled(method)(domain, *arguments)


ENTRIES = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0]), st.floats(-8, 8, width=32))
MAGNITUDES = st.sampled_from([1.0, 1.0, 1e-3, 1e3])


@st.composite
def matrices(draw):
    """Twelve entries, of any or of low rank; each case uses as many as its shape needs."""
    entries = np.array(draw(st.lists(ENTRIES, min_size=12, max_size=12)), np.float32)
    low_rank = np.outer(entries[:4], entries[4:7]).ravel() / 8
    return np.float32(draw(MAGNITUDES)) * np.round(low_rank if draw(st.booleans()) else entries, 6)


def shaped(case: Case, entries: np.ndarray, dtype=np.float64) -> np.ndarray:
    rows, columns = case.shape
    return np.asarray(entries[: rows * columns], dtype).reshape(case.shape)


@quick_jit
def facts(domain, z, w, gradient):
    at, other = domain.project(z), domain.project(w)
    distance = domain.normal_cone_distance
    return at, domain.project(at), other, domain.contains(at), distance(at, at - z), distance(at, gradient)


@every_set
@every_precision
@settings(derandomize=True, deadline=None, max_examples=15, database=None)
@given(z=matrices(), w=matrices(), gradient=matrices())
def test_projection_is_idempotent_nonexpansive_and_variational_and_normal_cones_bound_descent(
    name, precision, z, w, gradient
):
    case, dtype = CASES[name], PRECISION[precision]
    eps = float(np.finfo(dtype).eps)
    with jax.enable_x64(precision == "float64"):
        z, w, slope = (shaped(case, entries, dtype) for entries in (z, w, gradient))
        at, again, other, inside, at_projection, distance = (
            np.float64(fact) for fact in facts(case.domain, z, w, slope)
        )
    size = case.scale + np.linalg.norm(np.float64(z)) + np.linalg.norm(np.float64(w))
    assert inside
    assert np.linalg.norm(again - at) <= 32 * eps * case.scale
    assert np.linalg.norm(at - other) <= np.linalg.norm(np.float64(z) - w) + 64 * eps * size
    assert np.sum((z - at) * (other - at)) <= 64 * eps * size**2
    assert at_projection <= 200 * eps * size
    assert (
        distance <= np.linalg.norm(np.float64(slope)) * (1 + 64 * eps) + 64 * eps**2
    )  # a slope of 0: of rounding only
    if np.linalg.norm(other - at) > 0.1 * case.scale:
        descent = -np.sum(np.float64(slope) * (other - at)) / np.linalg.norm(other - at)
        assert distance >= descent - 200 * eps ** (2 / 3) * np.linalg.norm(slope)


@every_set
def test_projection_agrees_with_a_convex_solver(name):
    case, rng = CASES[name], np.random.default_rng(2)
    with jax.enable_x64(True):
        for magnitude in (0.1, 1.0, 5.0):
            z = magnitude * rng.normal(size=case.shape)
            x = cp.Variable(case.shape)
            problem = cp.Problem(cp.Minimize(cp.sum_squares(x - z)), case.constraints(x))
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
            ours = np.asarray(call(case.domain, "project", z))
            np.testing.assert_allclose(ours, x.value, atol=1e-5)
            assert np.sum((ours - z) ** 2) <= np.sum((x.value - z) ** 2) + 1e-7


def orthonormal(rng, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(rows, rows)))[0][:, :columns]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_normal_cone_of_the_nuclear_ball_agrees_with_its_definition(rank):
    """The nearest point to v of {t (UVᵀ + W)}, with W between the complements of U and V, by a convex solver."""
    rng, radius = np.random.default_rng(rank), 1.5
    left, right = orthonormal(rng, 3, 3), orthonormal(rng, 4, 4)
    values = rng.dirichlet(np.ones(rank)) * radius
    x = (left[:, :rank] * values) @ right[:, :rank].T
    for shift in (0.0, 1.0, -2.0):  # v towards the cone, across it, and away from it
        v = rng.normal(size=(3, 4)) + shift * left[:, :rank] @ right[:, :rank].T
        t, w = cp.Variable(nonneg=True), cp.Variable((max(3 - rank, 1), 4 - rank))
        bound = [cp.sigma_max(w) <= t] if rank < 3 else [w == 0]
        outside = left[:, rank:] @ w @ right[:, rank:].T if rank < 3 else 0
        normal = t * (left[:, :rank] @ right[:, :rank].T) + outside
        problem = cp.Problem(cp.Minimize(cp.sum_squares(normal - v)), bound)
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        with jax.enable_x64(True):
            ours = np.asarray(call(NuclearBall(radius), "project_normal_cone", x, v))
        np.testing.assert_allclose(ours, normal.value, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_normal_cone_of_the_spectrahedron_agrees_with_its_definition(rank):
    """The nearest point to v of {tI − M + A}: M ⪰ 0 and zero on the support of x, A antisymmetric."""
    rng, total = np.random.default_rng(rank), 2.0
    vectors = orthonormal(rng, 3, 3)
    x = (vectors[:, :rank] * (rng.dirichlet(np.ones(rank)) * total)) @ vectors[:, :rank].T
    for shift in (0.0, 2.0, -2.0):
        v = rng.normal(size=(3, 3)) + shift * np.eye(3)
        t, m, a = cp.Variable(), cp.Variable((3, 3), PSD=True), cp.Variable((3, 3))
        normal = t * np.eye(3) - m + a
        constraints = [m @ vectors[:, :rank] == 0, a == -a.T]
        problem = cp.Problem(cp.Minimize(cp.sum_squares(normal - v)), constraints)
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
        with jax.enable_x64(True):
            ours = np.asarray(call(Spectrahedron(total), "project_normal_cone", x, v))
        np.testing.assert_allclose(ours, normal.value, atol=1e-4)


@every_set
def test_normal_cone_has_the_derivative_of_finite_differences_also_where_singular_values_vanish(name):
    case, rng = CASES[name], np.random.default_rng(5)
    with jax.enable_x64(True):
        x = call(case.domain, "lmo", rng.normal(size=case.shape))  # rank one: the other singular values coincide
        noise, change = (rng.normal(size=case.shape) for _ in range(2))
        # nothing cut; most of the rest of v cut; no rest at all but for what `change` brings
        for push in (3 * x + noise, 0.1 * x + 3 * noise, 3 * x + 0 * noise):
            normal = quick_jit(lambda v: case.domain.project_normal_cone(x, v))
            _, ours = quick_jit(lambda p: jax.jvp(lambda v: case.domain.project_normal_cone(x, v), (p,), (change,)))(
                push
            )
            assert np.all(np.isfinite(ours))
            differences = (normal(push + 1e-6 * change) - normal(push - 1e-6 * change)) / 2e-6
            np.testing.assert_allclose(ours, differences, atol=1e-5)


# ---- linear minimization --------------------------------------------------------------------------------------------


def with_values(rng, rows: int, columns: int, values: np.ndarray) -> np.ndarray:
    return (orthonormal(rng, rows, len(values)) * values) @ orthonormal(rng, columns, len(values)).T


@functools.cache
def gradients() -> dict[str, np.ndarray]:
    rng, shape = np.random.default_rng(0), (80, 120)
    column = np.zeros(shape)
    column[:, 7] = rng.normal(size=80)
    entry = np.zeros(shape)
    entry[3, 5] = -2.0
    return {
        "random": rng.normal(size=shape),
        "clustered": with_values(rng, *shape, np.linspace(1, 0.99, 80)),
        "clustered at the top": with_values(rng, *shape, np.r_[np.linspace(1, 0.999, 20), np.full(60, 0.5)]),
        "decaying": with_values(rng, *shape, 0.9 ** np.arange(80)),
        "all equal": np.eye(*shape),
        "rank one": np.outer(rng.normal(size=80), rng.normal(size=120)),
        "one column": column,
        "one entry": entry,
        "sparse": rng.normal(size=shape) * (rng.random(shape) < 0.02),
        "tiny": 1e-25 * rng.normal(size=shape),
        "huge": 1e25 * rng.normal(size=shape),
    }


@pytest.mark.parametrize("kind", sorted(gradients()))
def test_minimizer_over_the_nuclear_ball_is_within_1e_4_of_a_full_decomposition(kind):
    gradient, radius = gradients()[kind].astype(np.float32), 3.0
    vertex = np.float64(call(NuclearBall(radius), "lmo", gradient))
    values = np.linalg.svd(vertex, compute_uv=False)
    np.testing.assert_allclose(values[0], radius, rtol=1e-5)
    assert values[1] <= 1e-5 * radius
    largest = np.linalg.svd(np.float64(gradient), compute_uv=False)[0]
    assert np.sum(gradient * vertex) <= -radius * largest * (1 - 1e-4)


@pytest.mark.parametrize("kind", sorted(set(gradients()) - {"tiny"}))
def test_minimizer_over_the_spectrahedron_is_within_1e_4_of_a_full_decomposition(kind):
    gradient, total = gradients()[kind][:, :80].astype(np.float32), 3.0
    vertex = np.float64(call(Spectrahedron(total), "lmo", gradient))
    np.testing.assert_allclose(np.linalg.eigvalsh(vertex)[-1], total, rtol=1e-5)
    np.testing.assert_allclose(np.trace(vertex), total, rtol=1e-5)
    values = np.linalg.eigvalsh(np.float64(gradient + gradient.T) / 2)
    assert np.sum(gradient * vertex) <= total * (
        values[0] + 1e-4 * (values[-1] - values[0]) + 1e-6 * np.max(np.abs(values))
    )


@every_set
@every_precision
def test_minimizer_of_a_small_gradient_is_exact_a_member_and_stationary(name, precision):
    case, dtype = CASES[name], PRECISION[precision]
    with jax.enable_x64(precision == "float64"):
        gradient = np.random.default_rng(3).normal(size=case.shape).astype(dtype)
        vertex = call(case.domain, "lmo", gradient)
        assert (vertex.shape, vertex.dtype) == (gradient.shape, dtype)
        assert call(case.domain, "contains", vertex)
        eps = float(np.finfo(dtype).eps)
        assert call(case.domain, "normal_cone_distance", vertex, gradient) <= 200 * eps * np.linalg.norm(gradient)
        assert call(case.domain, "contains", call(case.domain, "lmo", np.zeros(case.shape, dtype)))


@pytest.mark.parametrize("shift", [0.0, 1.0, -1.0])
def test_least_eigenvector_of_a_multiple_of_the_identity_is_a_unit_vector(shift):
    vector = least_eigenvector(lambda v: shift * v, 50)
    np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-5)


def test_least_eigenvector_where_all_eigenvalues_are_positive_and_few_differ():
    values = np.repeat(np.array([5.0, 2.0, 9.0], np.float32), 20)
    vector = np.asarray(least_eigenvector(lambda v: values * v, 60))
    np.testing.assert_allclose(np.sum(values * vector**2), 2, rtol=1e-4)


def test_leading_pair_of_a_gradient_in_factors_uses_products_with_the_factors_alone():
    rng = np.random.default_rng(4)
    left, right = (rng.normal(size=(n, 3)).astype(np.float32) for n in (90, 70))
    seen = []

    def times(v):
        seen.append(v.shape)
        return left @ (right.T @ v)

    def transposed_times(u):
        seen.append(u.shape)
        return right @ (left.T @ u)

    u, value, v = leading_pair(times, transposed_times, (90, 70))
    outer, values, inner = np.linalg.svd(left @ right.T)
    np.testing.assert_allclose(value, values[0], rtol=1e-5)
    np.testing.assert_allclose(np.abs(u @ outer[:, 0]), 1, atol=1e-5)
    np.testing.assert_allclose(np.abs(v @ inner[0]), 1, atol=1e-5)
    assert set(seen) == {(90,), (70,)}


def test_the_minimizer_compiles_no_decomposition_larger_than_the_iterations():
    gradient = jnp.zeros((300, 200))
    for lmo, small in ((NuclearBall(1.0).lmo, 32), (lambda g: Spectrahedron().lmo(g[:200]), 32)):
        text = str(jax.make_jaxpr(lmo)(gradient))
        lines = [line for line in text.splitlines() if " svd[" in line or " eigh[" in line]
        assert len(lines) == 1
        assert f"f32[{small},{small}]" in lines[0]


# ---- sizes and errors -----------------------------------------------------------------------------------------------


def test_diameters():
    assert NuclearBall(1.5).diameter(jnp.zeros((3, 4))) == 3
    np.testing.assert_allclose(Spectrahedron(2.0).diameter(jnp.zeros((3, 3))), 2 * np.sqrt(2), rtol=1e-6)
    assert Spectrahedron().diameter(jnp.zeros((1, 1))) == 0


def test_points_inside_the_nuclear_ball_are_returned_bit_for_bit():
    x = jnp.array([[0.1, -0.2, 0.3], [0.4, 0.0, 0.1]])
    np.testing.assert_array_equal(call(NuclearBall(2.0), "project", x), x)
    assert call(NuclearBall(2.0), "normal_cone_distance", x, 0 * x) == 0


@pytest.mark.parametrize(
    "x", [np.zeros(4), np.zeros((2, 2, 2)), np.zeros((0, 2)), {"a": np.zeros((2, 2)), "b": 1.0}, ()]
)
@pytest.mark.parametrize("domain", [NuclearBall(1.0), Spectrahedron()])
def test_only_one_matrix_is_accepted(domain, x):
    with pytest.raises(ValueError, match=f"{type(domain).__name__}: x must be one array of two dimensions"):
        domain.check(x)


def test_other_mismatches_are_refused():
    with pytest.raises(ValueError, match=r"Spectrahedron: x must be a square matrix, got shape \(2, 3\)"):
        Spectrahedron().check(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="radius must be one number"):
        NuclearBall(np.ones(2)).check(np.zeros((2, 2)))
    for make in (NuclearBall, Spectrahedron):
        with pytest.raises(ValueError, match=f"{make.__name__}: .* must be > 0 and finite"):
            make(0.0)
    NuclearBall(1.0).check({"w": np.zeros((2, 3))})
    Spectrahedron().check([np.zeros((2, 2))])


# ---- sets that have only a minimizer --------------------------------------------------------------------------------


class OnlyCorners(Domain):
    """The unit simplex, by its minimizer alone."""

    def lmo(self, gradient):
        return jax.nn.one_hot(jnp.argmin(gradient), gradient.size, dtype=gradient.dtype)


@pytest.mark.parametrize(
    ("x", "inside"),
    [
        ([0.2, 0.3, 0.5], True),
        ([1.0, 0.0, 0.0], True),
        ([0.2, 0.3, 0.51], False),
        ([0.0, 0.0, 0.0], False),
        ([1.1, -0.1, 0.0], False),
    ],
)
def test_contains_without_a_projection_refuses_what_a_hyperplane_separates(x, inside):
    assert call(OnlyCorners(), "contains", jnp.array(x)) == inside
    assert call(OnlyCorners(), "contains", jnp.array(x), 1.0)


def test_normal_cone_distance_without_a_projection_is_the_rate_toward_the_best_point():
    """Zero exactly at minimizers, a lower bound of the distance elsewhere."""
    rng, exact = np.random.default_rng(6), tr.domains.Simplex()
    for _ in range(10):
        gradient = jnp.asarray(rng.normal(size=4), jnp.float32)
        x = exact.project(jnp.asarray(rng.normal(size=4), jnp.float32))
        best = exact.lmo(gradient)
        rate = gradient @ (x - best) / jnp.linalg.norm(x - best)
        ours = call(OnlyCorners(), "normal_cone_distance", x, gradient)
        np.testing.assert_allclose(ours, rate, rtol=1e-4)
        assert 0 < ours <= call(exact, "normal_cone_distance", x, gradient) * (1 + 1e-5)
        assert call(OnlyCorners(), "normal_cone_distance", best, gradient) == 0


def test_a_set_that_has_only_a_minimizer_is_solved_over_and_certified():
    problem = tr.Problem(
        lambda x: jnp.sum((x - jnp.array([0.8, 0.2, 0.0])) ** 2),
        tr.at_most(lambda x: x[0], 0.5, name="first"),
        domain=OnlyCorners(),
    )
    result = tr.solve(problem, jnp.ones(3) / 3, tr.methods.ConservativeFrankWolfe(), steps=2000, record=1000)
    assert result.status == "budget"
    assert result.violation <= 1e-3
    solution = jnp.array([0.5, 0.35, 0.15])
    assert np.isfinite(result.stationarity)
    at_solution = tr.certify(problem, solution)
    assert at_solution.stationarity.value < 1e-3
    np.testing.assert_allclose(at_solution.multipliers["first"], 0.9, atol=1e-2)
    with pytest.raises(ValueError, match="x0 lies outside the domain OnlyCorners"):
        tr.solve(problem, jnp.zeros(3), tr.methods.ConservativeFrankWolfe(), steps=1)
