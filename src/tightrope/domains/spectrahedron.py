"""The spectrahedron: positive semidefinite matrices of one trace."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tightrope.domains._checks import check_positive, check_scalar
from tightrope.domains._levels import project_on_simplex, water_level
from tightrope.domains._spectral import Matrix, check_matrix, cut_eigenvalues, product
from tightrope.domains._vectors import Vector, activity, norm
from tightrope.domains.base import Domain
from tightrope.domains.nuclear_ball import orthogonal


class Spectrahedron(Domain):
    """Symmetric positive semidefinite matrices of a given trace.

    X = {x : x = xᵀ, x ⪰ 0, trace x = total}, for x one square array

    A projection takes a full eigenvalue decomposition, `lmo` only products of the gradient with vectors.

    Args:
        total: a positive number.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import Spectrahedron
        >>> Spectrahedron().project(jnp.array([[1.0, 0.0], [0.0, 0.5]])).round(4)
        Array([[0.75, 0.  ],
               [0.  , 0.25]], dtype=float32)
    """

    total: Float[Array, ""] | float = 1.0

    def __check_init__(self):
        check_positive("total", self.total)

    def project(self, x: Matrix) -> Matrix:
        """V max(Λ - t, 0) Vᵀ of the symmetric part of x, at the t for which its eigenvalues sum to total."""
        values, vectors = jnp.linalg.eigh(_symmetric(x))
        return _symmetric(product(vectors * project_on_simplex(values, self._total(x)), vectors.T))

    def lmo(self, gradient: Matrix) -> Matrix:
        """total·v vᵀ with the least eigenvector of the gradient's symmetric part, by `least_eigenvector`.

        <gradient, s> <= total·(λ_min + 1e-4 (λ_max - λ_min)) is what the default number of iterations is good for; a
        gradient of no more rows than that is minimized to rounding.
        """
        half = _symmetric(gradient)
        vector = least_eigenvector(lambda v: product(half, v), half.shape[0], half.dtype)
        return self._total(gradient) * jnp.outer(vector, vector)

    def diameter(self, x: Matrix) -> Float[Array, ""]:
        """√2·total, the distance of two orthogonal directions; zero where there is only one."""
        return self._total(x) * (np.sqrt(2).item() if x.shape[0] > 1 else 0.0)

    def project_normal_cone(self, x: Matrix, v: Matrix) -> Matrix:
        """Nearest to v in {t·I - M + A : M ⪰ 0, MV = 0, A antisymmetric}, for V the support of x's eigenvectors.

        As for the simplex, with the diagonal d of VᵀvV on the support and the eigenvalues τ of v between the other
        eigenvectors: it is t on the support and v with its eigenvalues cut at t elsewhere, nothing between the two, and the
        best t has Σ (d - t) + Σ max(τ - t, 0) = 0. An eigenvalue of x is zero when it is eps^(2/3) of total / n.
        """
        half = _symmetric(v)
        values, vectors = jnp.linalg.eigh(_symmetric(x))
        support = values > activity(x) * self._total(x) / values.size
        inside = product(vectors * support, vectors.T)
        outside = jnp.eye(values.size, dtype=x.dtype) - inside
        rest = _symmetric(product(outside, half, outside))
        below = 1 + 2 * norm(
            jax.lax.stop_gradient(rest).ravel()
        )  # moves the support's zeros under all other eigenvalues
        heights = jnp.linalg.eigvalsh(rest - below * inside)
        other = jnp.arange(values.size) >= jnp.sum(support)
        along = jnp.where(support, jnp.sum(vectors * product(half, vectors), axis=0), -jnp.inf)
        counted = jnp.concatenate([support, jnp.zeros_like(support)])
        level = water_level(jnp.concatenate([along, jnp.where(other, heights, -jnp.inf)]), counted, 0.0)
        return level * inside + product(outside, cut_eigenvalues(rest, level), outside) + (v - half)

    def check(self, x: Any) -> None:
        """ValueError if total is not one number or `x` not one square matrix."""
        check_scalar("total", self.total)
        check_matrix("Spectrahedron", x)
        (leaf,) = jax.tree.leaves(x)
        if np.shape(leaf)[0] != np.shape(leaf)[1]:
            raise ValueError(f"Spectrahedron is a set of square matrices; got x of shape {np.shape(leaf)}")

    def _scale(self, x: Matrix) -> Float[Array, ""]:
        return self._total(x)

    def _total(self, x: Matrix) -> Float[Array, ""]:
        return jnp.asarray(self.total, x.dtype)


def least_eigenvector(
    matvec: Callable[[Vector], Vector], size: int, dtype: Any = jnp.float32, iterations: int = 32
) -> Vector:
    """A unit eigenvector of a symmetric matrix G with the least eigenvalue, from products with it.

    Lanczos tridiagonalization with full reorthogonalization from a start that is the same for every G; the vector comes from
    the eigenvectors of the small matrix. Exact, to rounding, where `iterations` reach the size of G. Any unit vector for G = 0.

    Args:
        matvec: v ↦ Gv.
        size: rows of G.
        dtype: type of the vectors.
        iterations: of one product each.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains.spectrahedron import least_eigenvector
        >>> jnp.abs(least_eigenvector(lambda v: jnp.array([1.0, -2.0, 3.0]) * v, 3)).round(4)
        Array([0., 1., 0.], dtype=float32)
    """
    count = min(iterations, size)
    start = jax.random.normal(jax.random.key(0), (size,), dtype)
    basis = jnp.zeros((count + 1, size), dtype).at[0].set(start / norm(start))

    def extend(j: int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        basis, diagonal, beside = carry
        image = matvec(basis[j])
        rest = orthogonal(image, basis)
        length, size = norm(rest), norm(image)
        goes_on = length > 10 * jnp.finfo(dtype).eps * jnp.maximum(size, jnp.max(jnp.abs(diagonal)))
        following = jnp.where(goes_on, rest / jnp.where(goes_on, length, 1), 0)
        return (
            basis.at[j + 1].set(following),
            diagonal.at[j].set(product(basis[j], image)),
            beside.at[j].set(jnp.where(goes_on, length, 0)),
        )

    start_values = jnp.zeros(count, dtype), jnp.zeros(count, dtype)
    basis, diagonal, beside = jax.lax.fori_loop(0, count, extend, (basis, *start_values))
    used = jnp.any(basis[:count] != 0, axis=1)
    above = diagonal[0] + jnp.where(
        diagonal[0] == 0, 1, jnp.abs(diagonal[0])
    )  # than the least: an unused row is not it
    small = jnp.diag(jnp.where(used, diagonal, above)) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    _, vectors = jnp.linalg.eigh(small)
    vector = product(vectors[:, 0], basis[:count])
    return vector / norm(vector)


def _symmetric(matrix: Matrix) -> Matrix:
    return 0.5 * (matrix + matrix.T)
