"""`affine` with every kind of A: the same products, the same run, and errors that name the argument."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse
import scipy.sparse.linalg
from jax.experimental import sparse
from jax.flatten_util import ravel_pytree

import tightrope as tr

A = np.array([[1.0, 0.0, -0.3, 0.0], [0.0, 0.1, 0.0, 0.7]])  # 0.3, 0.1 and 0.7 are no float32 numbers
B = np.array([0.5, -1.0])


class Operator(eqx.Module):
    """The part of a Lineax operator that `affine` uses: a pytree with `mv`, `in_size` and `out_size`."""

    matrix: jax.Array | np.ndarray

    def mv(self, vector):
        return self.matrix @ vector

    def in_size(self):
        return self.matrix.shape[1]

    def out_size(self):
        return self.matrix.shape[0]


def scipy_with_repeats(matrix):
    """A sparse matrix with two entries per position, which add up."""
    rows, columns = np.nonzero(matrix)
    values = matrix[rows, columns]
    repeated = np.concatenate([0.25 * values, 0.75 * values])
    return scipy.sparse.coo_matrix((repeated, (np.tile(rows, 2), np.tile(columns, 2))), matrix.shape)


KINDS = {
    "array": lambda matrix: matrix,
    "lists": lambda matrix: matrix.tolist(),
    "jax array": jnp.asarray,
    "scipy csr": scipy.sparse.csr_array,
    "scipy csc matrix": scipy.sparse.csc_matrix,
    "scipy dia": scipy.sparse.dia_array,
    "scipy with repeated entries": scipy_with_repeats,
    "jax bcoo": lambda matrix: sparse.BCOO.from_scipy_sparse(scipy.sparse.csr_array(matrix)),
    "jax bcsr": lambda matrix: sparse.BCSR.from_scipy_sparse(scipy.sparse.csr_array(matrix)),
    "operator": Operator,
    "operator of a jax array": lambda matrix: Operator(jnp.asarray(matrix)),
    "function": lambda matrix: lambda v: jnp.stack([v[0] - 0.3 * v[2], 0.1 * v[1] + 0.7 * v[3]]),
    "function with an array": lambda matrix: lambda v: jnp.asarray(matrix) @ v,
}


def product_and_transposed(constraint, v, y):
    value, pullback = jax.vjp(constraint.fn, v)
    return value, pullback(y)[0]


@pytest.mark.parametrize("x64", [False, True], ids=["x32", "x64"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_products_are_those_of_the_matrix(kind, x64):
    with jax.enable_x64(x64):
        constraint = tr.affine(KINDS[kind](A), B)
        for dtype in (jnp.float32, jnp.float64) if x64 else (jnp.float32,):
            v, y = jnp.asarray([1.0, -2.0, 3.0, 0.5], dtype), jnp.asarray([2.0, -1.0], dtype)
            value, transposed = product_and_transposed(constraint, v, y)
            assert (value.dtype, transposed.dtype) == (dtype, dtype)
            accuracy = 4 * float(jnp.finfo(dtype).eps)
            np.testing.assert_allclose(value, A @ np.asarray(v), rtol=accuracy)
            np.testing.assert_allclose(transposed, np.asarray(y) @ A, rtol=accuracy)


@pytest.mark.parametrize("kind", ["array", "scipy csr", "scipy csc matrix", "function"])
def test_a_constraint_made_before_enabling_double_precision_has_it(kind):
    constraint = tr.affine(KINDS[kind](A), B)
    with jax.enable_x64(True):
        v = np.array([1.0, -2.0, 3.0, 0.5])
        np.testing.assert_allclose(constraint.fn(jnp.asarray(v)), A @ v, rtol=1e-15)


@pytest.mark.parametrize("kind", ["array", "scipy csr", "jax bcoo", "operator"])
def test_nothing_is_computed_in_a_wider_dtype_than_the_parameters(kind):
    with jax.enable_x64(True):
        program = jax.make_jaxpr(tr.affine(KINDS[kind](A), B).fn)(jnp.zeros(4, jnp.float32))
        computed = [v.aval for equation in program.eqns for v in equation.outvars if equation.primitive.name != "jit"]
        assert computed
        assert not [aval for aval in computed if aval.dtype == jnp.float64]


@pytest.mark.parametrize("kind", ["scipy csr", "jax bcoo", "array"])
def test_a_matrix_of_integers_is_converted_to_floats(kind):
    whole = np.array([[1, 0, 2], [0, -1, 0]])
    constraint = tr.affine(KINDS[kind](whole), np.zeros(2))
    value, transposed = product_and_transposed(constraint, jnp.asarray([0.5, 2.0, 1.0]), jnp.asarray([1.0, 3.0]))
    np.testing.assert_array_equal(value, [2.5, -2.0])
    np.testing.assert_array_equal(transposed, [1.0, -3.0, 2.0])


@pytest.mark.parametrize("kind", ["scipy csr", "jax bcoo", "jax bcsr", "operator", "function with an array"])
def test_products_in_lanes(kind):
    constraint, points = tr.affine(KINDS[kind](A), B), np.arange(12.0, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(jax.vmap(constraint.fn)(points), points @ A.T, rtol=1e-6)


def test_parameters_are_flattened_leaf_by_leaf():
    tree = {"a": jnp.asarray([[1.0, -2.0]]), "b": jnp.asarray([3.0, 0.5])}
    for kind in ("scipy csr", "operator", "function"):
        np.testing.assert_allclose(tr.affine(KINDS[kind](A), B).fn(tree), A @ ravel_pytree(tree)[0], rtol=1e-6)


# ---------------------------------------------------------------------- a run


def test_solve_with_every_kind_at_once():
    """The point nearest to 1 with Ax = B, given seven times: x = 1 − Aᵀλ with AAᵀλ = A1 − B."""
    kinds = ["array", "scipy csr", "jax bcoo", "jax bcsr", "operator", "function", "function with an array"]
    planes = [tr.affine(KINDS[kind](A), B, name=kind) for kind in kinds]
    method = tr.methods.GradientDescentAscent(
        step_size=0.5, dual_step_size=0.3 / len(kinds), decay=0.0, primal=optax.identity()
    )
    result = tr.solve(tr.Problem(lambda x: 0.5 * jnp.sum((x - 1.0) ** 2), planes), jnp.zeros(4), method, steps=100)
    multipliers = np.linalg.solve(A @ A.T, A.sum(axis=1) - B)
    assert result.x.dtype == jnp.float32
    np.testing.assert_allclose(result.x, 1.0 - A.T @ multipliers, atol=1e-5)
    for kind in kinds:
        assert result.history[kind][-1] < 1e-5


# ---------------------------------------------------------------------- errors


def solved(a, b):
    return tr.solve(tr.Problem(lambda x: x @ x, tr.affine(a, b)), jnp.zeros(4), "GradientDescentAscent", steps=1)


SPARSE_NAN = scipy.sparse.csr_array(np.array([[1.0, np.nan, 0.0, 0.0]]))
ERRORS = {
    "A of one axis": (lambda: tr.affine(np.ones(4), B), ValueError, ["affine: A", "matrix", "(4,)"]),
    "a sparse A of one axis": (
        lambda: tr.affine(scipy.sparse.coo_array(np.ones(4)), B),
        ValueError,
        ["affine: A", "matrix", "(4,)"],
    ),
    "A that is no array": (lambda: tr.affine("eye", B), TypeError, ["affine: A", "sparse", "function", "str"]),
    "A ragged": (lambda: tr.affine([[1.0, 2.0], [1.0]], B), TypeError, ["affine: A", "array of numbers", "list"]),
    "NaN in A": (lambda: tr.affine([[1.0, np.nan]], [1.0]), ValueError, ["affine: A", "NaN"]),
    "NaN in a SciPy A": (lambda: tr.affine(SPARSE_NAN, [1.0]), ValueError, ["affine: A", "NaN"]),
    "infinity in a JAX A": (
        lambda: tr.affine(KINDS["jax bcoo"](np.array([[np.inf, 0.0]])), [1.0]),
        ValueError,
        ["affine: A", "infinity"],
    ),
    "a LinearOperator": (
        lambda: tr.affine(scipy.sparse.linalg.aslinearoperator(A), B),
        TypeError,
        ["affine: A", "NumPy", "matrix itself", "jax.numpy"],
    ),
    "b of two axes": (lambda: tr.affine(A, np.ones((2, 1))), ValueError, ["affine: b", "vector", "(2, 1)"]),
    "b a number": (lambda: tr.affine(A, 1.0), ValueError, ["affine: b", "vector", "()"]),
    "NaN in b": (lambda: tr.affine(A, [np.nan, 1.0]), ValueError, ["affine: b", "finite"]),
    "b too long for a sparse A": (
        lambda: tr.affine(scipy.sparse.csr_array(A), np.ones(3)),
        ValueError,
        ["affine: A", "(2, 4)", "(3,)", "(2,)"],
    ),
    "b too long for an operator": (lambda: tr.affine(Operator(A), np.ones(3)), ValueError, ["affine: A", "(3,)"]),
    "too few columns": (
        lambda: solved(scipy.sparse.csr_array(A[:, :3]), B),
        ValueError,
        ["affine: A", "3 columns", "4 entries"],
    ),
    "an operator with too few columns": (
        lambda: solved(Operator(A[:, :3]), B),
        ValueError,
        ["affine: A", "3 columns", "4 entries"],
    ),
    "a function of the wrong size": (lambda: solved(lambda v: v[:3], B), ValueError, ["affine: A", "(3,)", "(2,)"]),
    "a function of the wrong size for one number": (
        lambda: solved(lambda v: v[:3], B[:1]),
        ValueError,
        ["affine: A", "(3,)", "(1,)"],
    ),
    "a function that returns a matrix": (
        lambda: solved(lambda v: v[:2, None], B),
        ValueError,
        ["affine: A", "(2, 1)", "(2,)"],
    ),
    "a function that returns integers": (
        lambda: solved(lambda v: jnp.zeros(2, int), B),
        TypeError,
        ["'affine'", "floats", "int32"],
    ),
}


@pytest.mark.parametrize("case", list(ERRORS))
def test_errors_name_the_argument(case):
    wrong, kind, words = ERRORS[case]
    with pytest.raises(kind) as caught:
        wrong()
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_a_function_that_fails_is_named_by_its_constraint():
    with pytest.raises(TypeError) as caught:
        solved(lambda v: jnp.ones((2, 3)) @ v, B)
    assert any("the constraint 'affine'" in note for note in caught.value.__notes__)


def test_a_function_may_return_one_number_where_b_has_one():
    assert tr.affine(jnp.sum, [1.0]).fn(jnp.ones(3)).shape == (1,)
