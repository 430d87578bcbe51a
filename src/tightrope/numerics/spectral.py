"""Matrices: products in full precision, and cutting a spectrum at a level."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .scaling import positive_or_one

Matrix = Float[Array, "rows columns"]
Scalar = Float[Array, ""]


def product(*factors: Array) -> Array:
    """The product of matrices in full precision: the default rounds float32 to ten bits on some accelerators."""
    result = factors[0]
    for factor in factors[1:]:
        result = jnp.matmul(result, factor, precision="highest")
    return result


@jax.custom_jvp
def cut_singular_values(matrix: Matrix, level: Scalar) -> Matrix:
    """U min(Σ, level) Vᵀ, for level ≥ 0: the nearest matrix of spectral norm at most `level`."""
    left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
    return product(left * jnp.minimum(values, level), right)


@cut_singular_values.defjvp
def _(primals: tuple[Matrix, Scalar], tangents: tuple[Matrix, Scalar]) -> tuple[Matrix, Matrix]:
    """The derivative of f(Σ) by divided differences, which are finite where singular values coincide or vanish."""
    (matrix, level), (change, rise) = primals, tangents
    left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
    cut = jnp.minimum(values, level)
    ratio = jnp.where(values > 0, cut / positive_or_one(values), 1)
    inner = product(left.T, change, right.T)
    even, odd = 0.5 * (inner + inner.T), 0.5 * (inner - inner.T)
    total = values[:, None] + values
    across = jnp.where(total > 0, (cut[:, None] + cut) / positive_or_one(total), 1)
    core = _divided_differences(values, cut, level) * even + across * odd + jnp.diag((values > level) * rise)
    beside = product(change, right.T) - product(left, inner)
    below = product(left.T, change) - product(inner, right)
    tangent = product(left, core, right) + product(beside * ratio, right) + product(left * ratio, below)
    return product(left * cut, right), tangent


@jax.custom_jvp
def cut_eigenvalues(matrix: Matrix, level: Scalar) -> Matrix:
    """V min(Λ, level) Vᵀ of a symmetric matrix."""
    values, vectors = jnp.linalg.eigh(matrix)
    return product(vectors * jnp.minimum(values, level), vectors.T)


@cut_eigenvalues.defjvp
def _(primals: tuple[Matrix, Scalar], tangents: tuple[Matrix, Scalar]) -> tuple[Matrix, Matrix]:
    (matrix, level), (change, rise) = primals, tangents
    values, vectors = jnp.linalg.eigh(matrix)
    cut = jnp.minimum(values, level)
    inner = product(vectors.T, change, vectors)
    core = _divided_differences(values, cut, level) * inner + jnp.diag((values > level) * rise)
    return product(vectors * cut, vectors.T), product(vectors, core, vectors.T)


def _divided_differences(values: Array, cut: Array, level: Scalar) -> Matrix:
    """(cut_i − cut_j) / (values_i − values_j), or the slope of the cut where the two coincide."""
    gap = values[:, None] - values
    slope = (values <= level).astype(values.dtype)
    return jnp.where(gap != 0, (cut[:, None] - cut) / jnp.where(gap != 0, gap, 1), slope[:, None])
