"""The sets of tightrope.domains: projections, linear minimization, normal cones, and errors."""

import contextlib
import functools
from collections.abc import Iterator
from typing import NamedTuple

import cvxpy as cp
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from tightrope import domains
from tightrope.domains import Affine, Box, Domain, L1Ball, L2Ball, NonNegative, Product, Reals, Simplex

# ---- the pytrees, the sets over them, and the same sets in a modeling language -------------------------------------

STRUCTURES = {
    "array": np.zeros(5),
    "dict": {"w": np.zeros((3, 2)), "b": np.zeros(2)},
    "nested": (np.zeros(2), (np.zeros(3), np.zeros(()))),
}
SIZE = {name: sum(leaf.size for leaf in jax.tree.leaves(tree)) for name, tree in STRUCTURES.items()}
PRECISION = {"float32": np.float32, "float64": np.float64}


def numpy_tree_like(structure: str, vector: np.ndarray):
    """A pytree of the named structure with the entries of `vector`."""
    leaves, shape = jax.tree.flatten(STRUCTURES[structure])
    pieces = np.split(np.asarray(vector), np.cumsum([leaf.size for leaf in leaves])[:-1])
    return jax.tree.unflatten(shape, [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)])


def tree_like(structure: str, vector: np.ndarray, dtype=np.float64):
    """The same, of JAX arrays."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), numpy_tree_like(structure, vector))


def vector_of(tree) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0], np.float64)


class Case(NamedTuple):
    """A set over a structure, with its constraints on a cvxpy variable and, where it has one, an interior point."""

    domain: Domain
    constraints: object
    interior: np.ndarray | None
    scale: float


@functools.cache
def make_case(name: str, structure: str) -> Case:
    n = SIZE[structure]
    rng = np.random.default_rng(7)
    match name:
        case "reals":
            return Case(Reals(), lambda x: [], np.ones(n), 1)
        case "nonnegative":
            return Case(NonNegative(), lambda x: [x >= 0], np.ones(n), 1)
        case "box":
            return Case(Box(-0.5, 2), lambda x: [x >= -0.5, x <= 2], np.full(n, 0.1), 2)
        case "box of trees":
            low, high = np.full(n, -0.5), np.full(n, 1.0)
            low[0], high[1], low[2], high[2], high[3] = -np.inf, np.inf, 0.25, 0.25, 0.5
            box = Box(numpy_tree_like(structure, low), numpy_tree_like(structure, high))
            below, above = np.isfinite(low), np.isfinite(high)
            return Case(box, lambda x: [x[below] >= low[below], x[above] <= high[above]], None, 1)
        case "l2 ball":
            return Case(L2Ball(1.5), lambda x: [cp.norm2(x) <= 1.5], np.full(n, 0.1), 1.5)
        case "l2 ball off center":
            center = np.round(rng.normal(size=n), 1).astype(np.float32)
            ball = L2Ball(2.0, numpy_tree_like(structure, center))
            return Case(ball, lambda x: [cp.norm2(x - center) <= 2], center + 0.1, 5)
        case "l1 ball":
            return Case(L1Ball(2.0), lambda x: [cp.norm1(x) <= 2], np.full(n, 0.1), 2)
        case "simplex":
            return Case(Simplex(), lambda x: [x >= 0, cp.sum(x) == 1], None, 1)
        case "large simplex":
            return Case(Simplex(total=30.0), lambda x: [x >= 0, cp.sum(x) == 30], None, 30)
        case "affine":
            matrix = np.round(rng.normal(size=(3, n)), 2)
            matrix[2] = matrix[0] + matrix[1]  # dependent, consistent
            target = np.array([1.0, -0.5, 0.5])
            return Case(Affine(matrix, target), lambda x: [matrix[:2] @ x == target[:2]], None, 2)
        case "product":
            return make_product(structure)
    raise KeyError(name)


def make_product(structure: str) -> Case:
    match structure:
        case "array":
            return Case(Product(L1Ball(1.0)), lambda x: [cp.norm1(x) <= 1], np.full(5, 0.1), 1)
        case "dict":  # leaves in the order of the keys: b, then w
            parts = {"w": L2Ball(1.0), "b": Simplex(2.0)}
            return Case(Product(parts), lambda x: [cp.norm2(x[2:]) <= 1, x[:2] >= 0, cp.sum(x[:2]) == 2], None, 2)
        case _:
            parts = (Reals(), (NonNegative(), Box(-1.0, 1.0)))
            return Case(Product(parts), lambda x: [x[2:5] >= 0, cp.abs(x[5]) <= 1], np.full(6, 0.5), 1)


NAMES = [
    "reals",
    "nonnegative",
    "box",
    "box of trees",
    "l2 ball",
    "l2 ball off center",
    "l1 ball",
    "simplex",
    "large simplex",
    "affine",
    "product",
]
COMPACT = ["box", "l2 ball", "l2 ball off center", "l1 ball", "simplex", "large simplex"]
WITH_INTERIOR = ["nonnegative", "box", "l2 ball", "l2 ball off center", "l1 ball"]

every_set = pytest.mark.parametrize("name", NAMES)
every_structure = pytest.mark.parametrize("structure", STRUCTURES)
every_precision = pytest.mark.parametrize("precision", PRECISION)
structures_and_precisions = pytest.mark.parametrize(
    ("structure", "precision"),
    [("dict", "float32"), ("nested", "float64")],
)


def shape_and_type(array) -> tuple:
    return array.shape, array.dtype


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[float]:
    """A context in which JAX computes in this precision; yields its eps."""
    with jax.enable_x64(precision == "float64"):
        yield float(np.finfo(PRECISION[precision]).eps)


quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""Compiling takes nearly all of the time of these tests."""


@functools.cache
def compiled(method: str):
    return quick_jit(lambda domain, *arguments: getattr(domain, method)(*arguments))


def call(domain: Domain, method: str, *arguments):
    """domain.method(*arguments), compiled once for each kind of set and shape."""
    return compiled(method)(domain, *arguments)


# ---- properties of projections, at points from Hypothesis ----------------------------------------------------------

ENTRIES = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5, 0.25, 2.0]), st.floats(-8, 8, width=32))
MAGNITUDES = st.sampled_from([1.0, 1.0, 1e-3, 1e4])


@st.composite
def vectors(draw, size=8):
    return np.float32(draw(MAGNITUDES)) * np.array(draw(st.lists(ENTRIES, min_size=size, max_size=size)), np.float32)


class Facts(NamedTuple):
    """Results of a set for two points z and w and a gradient, computed in one compiled call."""

    z: np.ndarray
    w: np.ndarray
    projected: np.ndarray
    projected_again: np.ndarray
    other: np.ndarray
    inside: np.ndarray
    distance_at_projection: np.ndarray
    distance: np.ndarray


@functools.cache
def compiled_facts():
    @quick_jit
    def facts(domain, z, w, gradient):
        stack = lambda *trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
        take = lambda index, pair: jax.tree.map(lambda leaf: leaf[index], pair)
        projections = jax.vmap(domain.project)(stack(z, w))
        at = take(0, projections)
        gap = jax.tree.map(jnp.subtract, at, z)
        distances = jax.vmap(lambda slope: domain.normal_cone_distance(at, slope))(stack(gap, gradient))
        return at, domain.project(at), take(1, projections), domain.contains(at), distances[0], distances[1]

    return facts


def facts_of(name, structure, precision, z, w, gradient=None) -> Facts:
    n, dtype = SIZE[structure], PRECISION[precision]
    z, w = z[:n], w[:n]
    points = [tree_like(structure, vector[:n], dtype) for vector in (z, w, w if gradient is None else gradient)]
    results = compiled_facts()(make_case(name, structure).domain, *points)
    return Facts(np.float64(z), np.float64(w), *[vector_of(result) for result in results])


def found_by_hypothesis(test):
    return settings(derandomize=True, deadline=None, max_examples=15, database=None)(
        given(z=vectors(), w=vectors(), gradient=vectors())(test)
    )


@pytest.mark.by_default("*-nested-float64", "product-dict-float32")
@structures_and_precisions
@every_set
@found_by_hypothesis
def test_projection_is_idempotent_feasible_nonexpansive_and_variational(name, structure, precision, z, w, gradient):
    case = make_case(name, structure)
    with computing_in(precision) as eps:
        facts = facts_of(name, structure, precision, z, w)
    size = case.scale + np.linalg.norm(facts.z) + np.linalg.norm(facts.w)
    in_set = case.scale + np.linalg.norm(facts.projected)
    assert facts.inside
    assert np.linalg.norm(facts.projected_again - facts.projected) <= 16 * eps * in_set
    moved = np.linalg.norm(facts.projected - facts.other)
    assert moved <= np.linalg.norm(facts.z - facts.w) + 16 * eps * size
    assert (facts.z - facts.projected) @ (facts.other - facts.projected) <= 32 * eps * size**2


@structures_and_precisions
@every_set
@found_by_hypothesis
def test_normal_cone_distance_is_zero_at_minimizers_and_bounds_every_descent(
    name, structure, precision, z, w, gradient
):
    """Zero for x = P(z), gradient = x - z; at least <-gradient, y - x> / |y - x| for all y in the set."""
    case = make_case(name, structure)
    with computing_in(precision) as eps:
        facts = facts_of(name, structure, precision, z, w, gradient)
    size = case.scale + np.linalg.norm(facts.z)
    assert facts.distance_at_projection <= 32 * eps * size
    slope = np.float64(gradient[: facts.z.size])
    assert facts.distance <= np.linalg.norm(slope) * (1 + 32 * eps)
    toward = facts.other - facts.projected
    if np.linalg.norm(toward) > 0.1 * case.scale:
        descent = -slope @ toward / np.linalg.norm(toward)
        near_the_boundary = 100 * eps ** (2 / 3) * np.linalg.norm(slope)
        assert facts.distance >= descent - near_the_boundary


@structures_and_precisions
@every_set
def test_normal_cone_distance_is_clearly_positive_where_a_point_of_the_set_is_better(name, structure, precision):
    """With gradient = x - y for another y in the set: going there decreases <gradient, ·> at rate |y - x|."""
    with computing_in(precision) as eps:
        rng = np.random.default_rng(1)
        for _ in range(5):
            z, w = (3 * rng.normal(size=8).astype(np.float32) for _ in range(2))
            ends = facts_of(name, structure, precision, z, w)
            facts = facts_of(name, structure, precision, z, w, ends.projected - ends.other)
            rate = np.linalg.norm(ends.projected - ends.other)
            assert rate > 0.05
            assert facts.distance >= rate * (1 - 100 * eps)


# ---- against a convex solver ----------------------------------------------------------------------------------------


def solve(objective, constraints) -> None:
    problem = cp.Problem(objective, constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10)
    assert problem.status == "optimal"


@every_set
def test_projection_agrees_with_a_convex_solver(name):
    case = make_case(name, "dict")
    rng = np.random.default_rng(2)
    with computing_in("float64"):
        for magnitude in (0.1, 1.0, 5.0):
            z = magnitude * rng.normal(size=8)
            x = cp.Variable(8)
            solve(cp.Minimize(cp.sum_squares(x - z)), case.constraints(x))
            ours = vector_of(call(case.domain, "project", tree_like("dict", z)))
            np.testing.assert_allclose(ours, x.value, atol=1e-5)
            assert np.sum((ours - z) ** 2) <= np.sum((x.value - z) ** 2) + 1e-7


@quick_jit
def lmo_facts(domain, gradient, points):
    vertex = domain.lmo(gradient)
    at_zero = domain.lmo(jax.tree.map(jnp.zeros_like, gradient))
    members = jax.vmap(domain.project)(points)
    distance = domain.normal_cone_distance(vertex, gradient)
    return vertex, domain.contains(vertex), domain.contains(at_zero), members, distance


@pytest.mark.by_default("*-float64")
@every_precision
@pytest.mark.parametrize("name", COMPACT)
def test_lmo_is_a_member_not_worse_than_a_convex_solver_and_random_members(name, precision):
    case, dtype = make_case(name, "dict"), PRECISION[precision]
    rng = np.random.default_rng(3)
    slope = rng.normal(size=8).astype(np.float32)
    x = cp.Variable(8)
    solve(cp.Minimize(slope @ x), case.constraints(x))
    with computing_in(precision) as eps:
        points = jax.tree.map(
            lambda leaf: jnp.asarray(3 * rng.normal(size=(200, *leaf.shape)), dtype), STRUCTURES["dict"]
        )
        gradient = tree_like("dict", slope, dtype)
        vertex, inside, zero_inside, members, distance = lmo_facts(case.domain, gradient, points)
        value, distance = slope @ vector_of(vertex), float(distance)
        members = np.concatenate([np.asarray(leaf).reshape(200, -1) for leaf in jax.tree.leaves(members)], axis=1)
    assert inside
    assert zero_inside
    assert distance <= 32 * eps * np.linalg.norm(slope)
    assert value <= slope @ x.value + max(1e-6, 100 * eps * case.scale)
    assert np.all(value <= members @ slope + 100 * eps * case.scale)


@every_precision
@every_structure
@pytest.mark.parametrize("name", COMPACT)
def test_lmo_has_the_types_and_structure_of_the_gradient(name, structure, precision):
    with jax.enable_x64(True):
        gradient = tree_like(structure, np.ones(SIZE[structure]), PRECISION[precision])
        vertex = jax.eval_shape(lambda slope: make_case(name, structure).domain.lmo(slope), gradient)
        assert jax.tree.map(shape_and_type, vertex) == jax.tree.map(shape_and_type, gradient)


def test_lmo_of_a_box_is_low_where_the_gradient_is_zero():
    np.testing.assert_array_equal(Box(-1.0, 2.0).lmo(jnp.array([0.0, 3.0, -3.0])), [-1, -1, 2])


def members_that_span(name: str, x: np.ndarray) -> np.ndarray | None:
    """Points y of a polyhedron for which y - x generate its tangent cone at x; None for other sets."""
    unit = np.eye(x.size)
    infinity = np.full(x.size, np.inf)
    match name:
        case "simplex" | "large simplex":
            return make_case(name, "dict").scale * unit
        case "l1 ball":
            return np.concatenate([2 * unit, -2 * unit])
        case "affine":
            _, _, rows = np.linalg.svd(np.asarray(make_case(name, "dict").domain.basis).T)
            return np.concatenate([x + rows[2:], x - rows[2:]])
        case "reals":
            low, high = -infinity, infinity
        case "nonnegative":
            low, high = 0 * x, infinity
        case "box" | "box of trees":
            box = make_case(name, "dict").domain
            low, high = (np.broadcast_to(vector_of(b), x.shape) for b in (box.low, box.high))
        case _:
            return None
    down = np.where(np.isfinite(low), low, x - 1) - x
    up = np.where(np.isfinite(high), high, x + 1) - x
    return x + np.concatenate([np.diag(down), np.diag(up)])


@pytest.mark.by_default("l1 ball", "box", "affine", "simplex")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "product"])
def test_project_normal_cone_agrees_with_a_convex_solver_on_the_definition(name):
    """N = {n : <n, y - x> <= 0 for y that span a polyhedron}; at the sphere T = {d : <d, x - center> <= 0}."""
    case = make_case(name, "dict")
    rng = np.random.default_rng(4)
    with computing_in("float64"):
        for trial in range(4):
            z = (0.3, 1.0, 3.0, 10.0)[trial] * rng.normal(size=8)
            x = vector_of(call(case.domain, "project", tree_like("dict", z)))
            v = rng.normal(size=8) + (x if trial % 2 else 0)
            ours = vector_of(call(case.domain, "project_normal_cone", tree_like("dict", x), tree_like("dict", v)))
            members = members_that_span(name, x)
            variable = cp.Variable(8)
            if members is None:
                center = 0 if case.domain.center is None else vector_of(case.domain.center)
                on_sphere = np.linalg.norm(x - center) > case.domain.radius - 1e-9
                halfspace = [variable @ (x - center) <= 0] if on_sphere else []
                solve(cp.Minimize(cp.sum_squares(variable - v)), halfspace)
                expected = v - variable.value
            else:
                solve(cp.Minimize(cp.sum_squares(variable - v)), [(members - x) @ variable <= 0])
                expected = variable.value
            np.testing.assert_allclose(ours, expected, atol=1e-6)
            distance = call(case.domain, "normal_cone_distance", tree_like("dict", x), tree_like("dict", -v))
            np.testing.assert_allclose(distance, np.linalg.norm(v - expected), atol=1e-6)


@pytest.mark.parametrize("name", WITH_INTERIOR)
def test_inside_a_set_only_the_zero_gradient_is_stationary(name):
    case = make_case(name, "dict")
    x = tree_like("dict", case.interior, np.float32)
    slope = np.random.default_rng(5).normal(size=8)
    distance = call(case.domain, "normal_cone_distance", x, tree_like("dict", slope, np.float32))
    np.testing.assert_allclose(distance, np.linalg.norm(slope), rtol=1e-6)
    assert call(case.domain, "normal_cone_distance", x, tree_like("dict", 0 * slope, np.float32)) == 0


# ---- sets of one's own ----------------------------------------------------------------------------------------------


class ByProjection(Domain):
    """A set that defines only its projection."""

    inner: Domain

    def project(self, x):
        return self.inner.project(x)


class ByMinimization(Domain):
    def lmo(self, gradient):
        return gradient


@quick_jit
def exact_and_default(domain, z, v):
    x = domain.project(z)
    return domain.project_normal_cone(x, v), ByProjection(domain).project_normal_cone(x, v)


@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, "float32") for name in NAMES]
    + [(name, "float64") for name in ("box of trees", "l2 ball off center", "simplex", "affine")],
)
def test_normal_cones_from_the_projection_alone_agree_with_the_exact_ones(name, precision):
    case, dtype = make_case(name, "dict"), PRECISION[precision]
    rng = np.random.default_rng(6)
    with computing_in(precision) as eps:
        for magnitude in (0.3, 3.0):
            z, v = (tree_like("dict", size * rng.normal(size=8), dtype) for size in (magnitude, 1.0))
            exact, default = exact_and_default(case.domain, z, v)
            np.testing.assert_allclose(vector_of(default), vector_of(exact), atol=30 * eps**0.5 * case.scale)


def test_default_normal_cone_of_a_zero_vector_is_zero():
    x = jnp.array([0.6, 0.8])
    np.testing.assert_array_equal(ByProjection(L2Ball(1.0)).project_normal_cone(x, 0 * x), [0, 0])


def test_a_set_without_a_projection_or_an_lmo_says_so():
    x = jnp.ones(3)
    by_projection, by_minimization = ByProjection(Reals()), ByMinimization()
    assert by_projection.can_project
    assert not by_projection.can_minimize
    assert by_minimization.can_minimize
    assert not by_minimization.can_project
    with pytest.raises(TypeError, match="ByProjection has no linear minimization oracle"):
        by_projection.lmo(x)
    with pytest.raises(TypeError, match="ByMinimization has no projection"):
        by_minimization.project(x)
    assert by_projection.diameter(x) == jnp.inf
    by_projection.check(x)


def test_unbounded_sets_cannot_minimize():
    assert not any(domain.can_minimize for domain in (Reals(), NonNegative(), Affine(np.ones((1, 2)), np.ones(1))))
    assert not Box(0.0, jnp.inf).can_minimize
    assert Box(0.0, 1.0).can_minimize
    assert Product((Simplex(), Box(0, 1))).can_minimize
    assert not Product((Simplex(), Reals())).can_minimize
    assert not Product((Reals(), ByMinimization())).can_project
    with pytest.raises(TypeError, match="Reals has no linear minimization"):
        Reals().lmo(jnp.ones(2))


@pytest.mark.parametrize("bounds", [(0.0, jnp.inf), (np.array([-np.inf, 0]), 1.0)])
def test_lmo_of_a_box_with_infinite_bounds_is_refused_even_under_jit(bounds):
    box = Box(*bounds)
    with pytest.raises(ValueError, match="needs finite bounds"):
        box.lmo(jnp.ones(2))
    with pytest.raises(ValueError, match="needs finite bounds"):
        jax.jit(lambda x: box.lmo(x))(jnp.ones(2))


# ---- types, structure, scale, transformations -----------------------------------------------------------------------


@every_precision
@every_structure
@every_set
def test_types_and_structure_are_those_of_x(name, structure, precision):
    """Also where JAX could compute in float64 and the numbers of the set are float64."""
    domain = make_case(name, structure).domain
    with jax.enable_x64(True):
        x = tree_like(structure, np.linspace(-1, 2, SIZE[structure]), PRECISION[precision])
        wide = jax.tree.map(lambda number: jnp.asarray(number, jnp.float64), domain)
        for version in (domain, wide):
            shapes = jax.eval_shape(lambda x, d=version: (d.project(x), d.project_normal_cone(x, x)), x)
            assert jax.tree.map(shape_and_type, shapes) == jax.tree.map(shape_and_type, (x, x))
            scalars = jax.eval_shape(lambda x, d=version: (d.diameter(x), d.normal_cone_distance(x, x)), x)
            assert [shape_and_type(scalar) for scalar in scalars] == 2 * [((), PRECISION[precision])]
            inside = jax.eval_shape(version.contains, x)
            assert shape_and_type(inside) == ((), bool)


def test_leaves_of_different_precision_keep_it():
    with jax.enable_x64(True):
        x = {"a": jnp.ones(2, jnp.float32), "b": 2 * jnp.ones(3, jnp.float64)}
        for domain in (L2Ball(1.0), L1Ball(1.0), Simplex(), Box(0, 0.5), Affine(np.ones((1, 5)), [1.0])):
            projected = call(domain, "project", x)
            assert (projected["a"].dtype, projected["b"].dtype) == (jnp.float32, jnp.float64)
            assert call(domain, "contains", projected)


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (L2Ball, [0.5, 1.0, 9.0]),
        (L1Ball, [0.5, 1.0, 9.0]),
        (Simplex, [0.5, 1.0, 9.0]),
        (lambda high: Box(-1.0, high), [0.5, 1.0, 9.0]),
        (lambda radius: Product((L2Ball(radius), Reals())), [0.5, 1.0, 9.0]),
    ],
)
def test_numbers_of_a_set_can_be_vmapped_from_outside_and_made_inside(make, values):
    x = (jnp.array([1.0, -2.0, 3.0]), jnp.array([0.5]))
    each = [call(make(value), "project", x) for value in values]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    project_all = eqx.filter_vmap(lambda domain: domain.project(x), in_axes=eqx.if_array(0))
    outside = eqx.filter_jit(project_all)(make(jnp.array(values)))
    inside = jax.jit(jax.vmap(lambda value: make(value).project(x)))(jnp.array(values))
    for got in (outside, inside):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, expected)


def test_a_new_radius_does_not_compile_again():
    traces = []

    @jax.jit
    def project(domain, x):
        traces.append(1)
        return domain.project(x)

    for radius in (1.0, 2.0, 3.0):
        project(L2Ball(radius), jnp.ones(3))
    assert len(traces) == 1


def test_fields_stay_as_given():
    ball, box = L2Ball(10), Box(0, 1.5)
    assert (type(ball.radius), ball.center, type(box.low), type(box.high)) == (int, None, int, float)


def test_points_inside_are_returned_bit_for_bit():
    x = jnp.array([0.1, -0.2, 0.3])
    for domain in (L2Ball(1.0, center=0.1), L1Ball(1.0), Box(-1, 1), Reals()):
        np.testing.assert_array_equal(call(domain, "project", x), x)


@pytest.mark.parametrize("offset", [1e4, 1e6, 1e8])
def test_simplex_and_l1_projections_do_not_cancel_at_large_entries(offset):
    x = np.float32(offset) + np.array([8, 0, 0, -16], np.float32)
    exact = np.float64(x)
    shifted = np.sort(exact - exact.max())[::-1]
    level = max((shifted[: k + 1].sum() - 1) / (k + 1) for k in range(4))
    expected = np.maximum(exact - exact.max() - level, 0)
    np.testing.assert_allclose(call(Simplex(), "project", x), expected, atol=1e-6)
    np.testing.assert_allclose(call(L1Ball(1.0), "project", -x), -expected, atol=1e-6)


def test_l2_ball_survives_norms_whose_squares_overflow_or_vanish():
    far = jnp.array([3e25, 4e25])
    np.testing.assert_allclose(L2Ball(5.0).project(far), [3, 4], rtol=1e-6)
    np.testing.assert_array_equal(L2Ball(1e30).project(far), far)
    np.testing.assert_allclose(L2Ball(1e-25).lmo(1e-24 * jnp.array([3.0, 4.0])), [-6e-26, -8e-26], rtol=1e-5)
    assert not L2Ball(5.0).contains(far)


def test_projections_are_differentiable_at_the_center_of_a_ball():
    assert np.all(np.isfinite(jax.jit(lambda x: jax.jvp(L2Ball(1.0).project, (x,), (x + 1,))[1])(jnp.zeros(3))))


def test_an_entry_of_a_long_simplex_is_not_taken_for_zero():
    """All entries are 1e-5, less than eps^(2/3) of the total in float32; but no entry is at zero."""
    n = 100_000
    x = jnp.full(n, 1 / n)
    slope = jnp.zeros(n).at[0].set(1.0)
    for domain in (Simplex(), L1Ball(1.0)):
        distance = call(domain, "normal_cone_distance", x, -slope)
        np.testing.assert_allclose(distance, np.sqrt(1 - 1 / n), rtol=1e-4)


@pytest.mark.parametrize(
    ("domain", "x", "gradient"),
    [
        (L2Ball(1.0), [0.6, 0.8], [-0.6, -0.8]),
        (L1Ball(1.0), [0.25, -0.75], [-1.0, 1.0]),
        (Box(-1.0, 1.0), [1.0, -1.0], [-3.0, 2.0]),
    ],
)
def test_a_point_just_inside_by_rounding_counts_as_on_the_boundary_and_one_well_inside_does_not(domain, x, gradient):
    x, gradient = np.array(x, np.float32), np.array(gradient, np.float32)
    assert call(domain, "normal_cone_distance", np.float32(1 - 1e-6) * x, gradient) < 1e-6
    np.testing.assert_allclose(
        call(domain, "normal_cone_distance", np.float32(0.99) * x, gradient), np.linalg.norm(gradient), rtol=1e-6
    )


def test_a_box_with_a_distant_bound_does_not_take_ordinary_points_for_its_boundary():
    assert Box(0.0, 1e6).normal_cone_distance(jnp.array([1.0]), jnp.array([2.0])) == 2


@pytest.mark.parametrize("rounding", [0, 1e-6, -1e-6])
def test_normal_cone_of_a_pinned_entry_is_the_whole_line(rounding):
    v = jnp.array([5.0, -5.0])
    np.testing.assert_array_equal(Box(1.0, 1.0).project_normal_cone(jnp.ones(2) + rounding, v), v)


@pytest.mark.parametrize(
    ("domain", "expected"),
    [
        (Reals(), np.inf),
        (NonNegative(), np.inf),
        (Box(-1, 2), 3 * np.sqrt(8)),
        (Box(0, np.inf), np.inf),
        (Box({"w": 0.0, "b": 0.0}, {"w": 2.0, "b": 0.0}), 2 * np.sqrt(6)),
        (L2Ball(3.0, 1.0), 6),
        (L1Ball(3.0), 6),
        (Simplex(3.0), 3 * np.sqrt(2)),
        (Affine(np.ones((1, 8)), np.ones(1)), np.inf),
        (Affine(np.eye(8), np.ones(8)), 0),
        (Product({"w": L2Ball(1.5), "b": L1Ball(2.0)}), 5),
        (Product({"w": L2Ball(1.5), "b": Reals()}), np.inf),
    ],
)
def test_diameter_is_the_largest_distance_between_two_points(domain, expected):
    np.testing.assert_allclose(domain.diameter(tree_like("dict", np.zeros(8), np.float32)), expected, rtol=1e-6)


def test_diameter_of_a_simplex_of_one_point_is_zero():
    assert Simplex().diameter(jnp.zeros(1)) == 0


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (NonNegative(), [0.0, 1.0], [1.0, -1e-4]),
        (Box(-1, 1), [1.0, -1.0], [0.0, 1.0001]),
        (Box(-1, 1), [1.0, -1.0], [0.0, np.inf]),
        (Reals(), [1e30, 0.0], [np.nan, 0.0]),
        (L2Ball(5.0), [3.0, 4.0], [3.0, 4.0001]),
        (L1Ball(1.0), [0.3, -0.7], [0.3, -0.7001]),
        (Simplex(), [0.3, 0.7], [0.3, 0.6999]),
        (Simplex(), [1.0, 0.0], [1.0001, -0.0001]),
        (Affine([[1.0, 2.0]], [3.0]), [1.0, 1.0], [1.0, 1.0001]),
        (Product((L2Ball(1.0), Simplex())), [1.0, 1.0], [1.0, 0.9999]),
        (Product((L2Ball(1.0), Simplex())), [1.0, 1.0], [1.0001, 1.0]),
    ],
)
def test_contains_distinguishes_members_from_points_nearby(domain, inside, outside):
    shape = tuple if isinstance(domain, Product) else jnp.array
    make = lambda values: shape([jnp.array([v]) for v in values]) if shape is tuple else jnp.array(values)
    assert call(domain, "contains", make(inside))
    assert not call(domain, "contains", make(outside))
    if np.all(np.isfinite(outside)):
        assert call(domain, "contains", make(outside), 1e-3)


# ---- errors ---------------------------------------------------------------------------------------------------------

MATRIX = np.array([[1.0, 1.0], [2.0, 2.0]])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        *[
            (functools.partial(make, value), error, f"{make.__name__}: {name} must be .*{came}")
            for make, name in ((L2Ball, "radius"), (L1Ball, "radius"), (Simplex, "total"))
            for value, error, came in (
                (0.0, ValueError, "got 0.0"),
                (-1, ValueError, "got -1"),
                (np.nan, ValueError, "got nan"),
                (np.inf, ValueError, "got inf"),
                (jnp.array([1.0, -2.0]), ValueError, r"got \[ 1. -2.\]"),
                ("1", TypeError, r"got '1' \(str\)"),
                (None, TypeError, "got None"),
                (True, TypeError, r"got True \(bool\)"),
            )
        ],
        (lambda: L2Ball(np.array([True])), TypeError, "L2Ball: radius must be a number"),
        (lambda: L2Ball(1j), TypeError, "L2Ball: radius must be a number"),
        (lambda: L2Ball(1.0, center=np.array([0, np.nan])), ValueError, "L2Ball: center must be finite"),
        (lambda: L2Ball(1.0, center="here"), TypeError, r"L2Ball: center must hold real numbers, got 'here' \(str\)"),
        (lambda: Box(1.0, 0.0), ValueError, "low must be at most high, got low=1.0 and high=0.0"),
        (lambda: Box(np.array([0, 2.0]), 1.0), ValueError, "Box: low must be at most high"),
        (lambda: Box({"a": 0, "b": 2.0}, 1.0), ValueError, "low must be at most high, got low=2.0"),
        (lambda: Box(1.0, {"a": 0, "b": 2.0}), ValueError, "low must be at most high, got low=1.0 and high=0"),
        (lambda: Box(np.nan, 0.0), ValueError, "low must have no NaN"),
        (lambda: Box(0.0, {"a": np.array([1, np.nan])}), ValueError, "high must have no NaN"),
        (lambda: Box(np.inf, np.inf), ValueError, "low must have no NaN and no inf"),
        (lambda: Box(-np.inf, -np.inf), ValueError, "high must have no NaN and no -inf"),
        (lambda: Box("0", 1.0), TypeError, "Box: low must hold real numbers, got '0'"),
        (lambda: Box(0.0, None), TypeError, "high must be a number"),
        (
            lambda: Box({"a": 0.0}, {"b": 1.0}),
            ValueError,
            "Box: low and high must be numbers or pytrees of one structure",
        ),
        (lambda: Box(np.zeros(2), np.ones(3)), ValueError, r"shapes that broadcast, got \(2,\) and \(3,\)"),
        (
            lambda: Affine(MATRIX, np.ones(3)),
            ValueError,
            r"one entry for each row of A, got shapes \(2, 2\) and \(3,\)",
        ),
        (lambda: Affine(np.ones(2), np.ones(2)), ValueError, "Affine: A must be a matrix"),
        (lambda: Affine(MATRIX, np.array([1.0, 3.0])), ValueError, "A x = b must have a solution"),
        (lambda: Affine(np.zeros((1, 2)), np.ones(1)), ValueError, "A x = b must have a solution"),
        (lambda: Affine(np.array([[1.0, np.nan]]), np.ones(1)), ValueError, "Affine: A and b must be finite"),
        (lambda: Affine([["a"]], [1.0]), TypeError, "A must hold real numbers"),
        (lambda: jax.jit(lambda A: Affine(A, [1.0]).basis)(np.ones((1, 2))), TypeError, "A must be known numbers"),
        (lambda: Product({"w": 1.0}), TypeError, "parts must be a pytree whose leaves are domains, got 1.0"),
        (lambda: Product(None), TypeError, "parts must be a pytree whose leaves are domains, got None"),
    ],
)
def test_bad_arguments_are_refused_with_their_name_and_what_came(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (Box({"w": 0.0}, 1.0), "Box: low must be a number or a pytree like x"),
        (Box(0.0, {"w": np.ones(3), "b": 1.0}), r"high must broadcast to the shape of x\['w'\], \(3, 2\), .*\(3,\)"),
        (Box(np.zeros((1, 3, 2)), 1.0), "low must broadcast to the shape of"),
        (L2Ball(1.0, (0.0, 0.0)), "center must be a number or a pytree like x"),
        (L2Ball(np.ones(2)), r"L2Ball: radius must be one number, got an array of shape \(2,\)"),
        (L1Ball(np.ones(2)), "radius must be one number"),
        (Simplex(np.ones(2)), "total must be one number"),
        (Affine(MATRIX, np.array([1.0, 2.0])), "a column for each of the 8 entries of x, got 2"),
        (Product({"w": Reals()}), "parts must be a prefix of x"),
        (Product((Reals(), Reals())), "parts must be a prefix of x"),
        (Product({"w": L1Ball(np.ones(2)), "b": Reals()}), r"parts\['w'\]: L1Ball: radius must be one number"),
    ],
)
def test_check_refuses_a_set_that_does_not_match_x(domain, message):
    with pytest.raises(ValueError, match=message):
        domain.check(tree_like("dict", np.zeros(8), np.float32))


def test_check_refuses_a_simplex_without_entries():
    with pytest.raises(ValueError, match="at least one entry"):
        Simplex().check(())


@every_structure
@every_set
def test_check_accepts_a_set_that_matches_x(name, structure):
    make_case(name, structure).domain.check(tree_like(structure, np.zeros(SIZE[structure]), np.float32))


def test_affine_accepts_rows_that_are_dependent_to_their_precision():
    row = np.random.default_rng(8).normal(size=(1, 6)).astype(np.float32)
    matrix = np.concatenate([row, np.float32(0.1) * row, 1e6 * row, 0 * row]).astype(np.float32)
    point = np.ones(6, np.float32)
    domain = Affine(matrix, matrix @ point)
    assert domain.basis.shape == (6, 1)
    assert domain.contains(jnp.asarray(point), 1e-5)


def test_affine_keeps_rows_of_very_different_length():
    domain = Affine([[1e12, 0.0, 0.0], [0.0, 1e-3, 0.0]], [2e12, 3e-3])
    np.testing.assert_allclose(domain.project(jnp.array([0.0, 0.0, 5.0])), [2, 3, 5], rtol=1e-6)


def test_every_set_is_public():
    assert set(domains.__all__) >= {"Domain", "Reals", "NonNegative", "Box", "L2Ball", "L1Ball", "Simplex", "Affine"}
    assert all(isinstance(getattr(domains, name), type) for name in domains.__all__)
