"""Lanczos iterations: extreme singular pairs and eigenvectors from matrix-vector products alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .scaling import norm
from .spectral import product

Vector = Float[Array, " size"]
Scalar = Float[Array, ""]


def leading_pair(
    matvec: Callable[[Float[Array, " columns"]], Float[Array, " rows"]],
    rmatvec: Callable[[Float[Array, " rows"]], Float[Array, " columns"]],
    shape: tuple[int, int],
    dtype: Any = jnp.float32,
    iterations: int = 32,
) -> tuple[Vector, Scalar, Vector]:
    """Return the leading left singular vector, singular value and right singular vector of a matrix G, from its products.

    Golub-Kahan-Lanczos bidiagonalization with full reorthogonalization: GV = UB with B upper bidiagonal, from a start that is
    the same for every G. The pair comes from the singular value decomposition of the small B. It is exact, to rounding, where
    `iterations` reaches the smaller side or the rank of G. The vectors are zero for G = 0.

    Args:
        matvec: v ↦ Gv. For a gradient in factors, G = LRᵀ, pass `lambda v: L @ (R.T @ v)`: G itself is never needed.
        rmatvec: u ↦ Gᵀu.
        shape: rows and columns of G.
        dtype: type of the vectors.
        iterations: number of iterations, each with one product with G and one with Gᵀ.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.numerics.lanczos import leading_pair
        >>> left, right = jnp.array([[3.0], [4.0]]), jnp.array([[2.0], [0.0], [0.0]])
        >>> _, value, _ = leading_pair(lambda v: left @ (right.T @ v), lambda u: right @ (left.T @ u), (2, 3))
        >>> round(float(value), 4)
        10.0
    """
    rows, columns = shape
    count = min(iterations, rows, columns)
    start, _ = _normalize(rmatvec(jax.random.normal(jax.random.key(0), (rows,), dtype)), jnp.zeros((), dtype))

    def extend(j: int, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        left, right, small, largest = carry
        u, diagonal = _normalize(_orthogonalize(matvec(right[j]), left), largest)
        largest = jnp.maximum(largest, diagonal)
        v, above = _normalize(_orthogonalize(rmatvec(u), right), largest)
        small = small.at[j, j].set(diagonal).at[j, j + 1].set(above)
        return left.at[j].set(u), right.at[j + 1].set(v), small, jnp.maximum(largest, above)

    left, right = jnp.zeros((count, rows), dtype), jnp.zeros((count + 1, columns), dtype).at[0].set(start)
    small = jnp.zeros((count, count + 1), dtype)
    left, right, small, _ = jax.lax.fori_loop(0, count, extend, (left, right, small, jnp.zeros((), dtype)))
    outer, values, inner = jnp.linalg.svd(small[:, :count])
    return product(outer[:, 0], left), values[0], product(inner[0], right[:count])


def least_eigenvector(
    matvec: Callable[[Vector], Vector], size: int, dtype: Any = jnp.float32, iterations: int = 32
) -> Vector:
    """Return a unit eigenvector of the least eigenvalue of a symmetric matrix G, from its products.

    Lanczos tridiagonalization with full reorthogonalization, from a start that is the same for every G. The vector comes from
    the eigenvectors of the small tridiagonal matrix. It is exact, to rounding, where `iterations` reaches the size of G. For
    G = 0 it is any unit vector.

    Args:
        matvec: v ↦ Gv.
        size: rows of G.
        dtype: type of the vectors.
        iterations: number of iterations, each with one product.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.numerics.lanczos import least_eigenvector
        >>> jnp.abs(least_eigenvector(lambda v: jnp.array([1.0, -2.0, 3.0]) * v, 3)).round(4)
        Array([0., 1., 0.], dtype=float32)
    """
    count = min(iterations, size)
    start = jax.random.normal(jax.random.key(0), (size,), dtype)
    basis = jnp.zeros((count + 1, size), dtype).at[0].set(start / norm(start))

    def extend(j: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        basis, diagonal, beside = carry
        image = matvec(basis[j])
        following, length = _normalize(
            _orthogonalize(image, basis), jnp.maximum(norm(image), jnp.max(jnp.abs(diagonal)))
        )
        return (
            basis.at[j + 1].set(following),
            diagonal.at[j].set(product(basis[j], image)),
            beside.at[j].set(length),
        )

    zeros = jnp.zeros(count, dtype), jnp.zeros(count, dtype)
    basis, diagonal, beside = jax.lax.fori_loop(0, count, extend, (basis, *zeros))
    used = jnp.any(basis[:count] != 0, axis=1)
    above_least = diagonal[0] + jnp.where(
        diagonal[0] == 0, 1, jnp.abs(diagonal[0])
    )  # so that no unused row is the least
    small = jnp.diag(jnp.where(used, diagonal, above_least)) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    _, vectors = jnp.linalg.eigh(small)
    vector = product(vectors[:, 0], basis[:count])
    return vector / norm(vector)


def _orthogonalize(vector: Vector, basis: Float[Array, "count size"]) -> Vector:
    """The part of a vector orthogonal to the rows of `basis`, which are orthonormal or zero; done twice against rounding."""
    for _ in range(2):
        vector = vector - product(product(basis, vector), basis)
    return vector


def _normalize(vector: Vector, largest: Scalar) -> tuple[Vector, Scalar]:
    """Direction and length; both zero where the length is only rounding, 10 eps of the largest so far."""
    length = norm(vector)
    counts = length > 10 * jnp.finfo(vector.dtype).eps * largest
    return jnp.where(counts, vector / jnp.where(counts, length, 1), 0), jnp.where(counts, length, 0)
