"""The spectrahedron: positive semidefinite matrices with a given trace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..arguments import numbers
from ..numerics.lanczos import least_eigenvector
from ..numerics.scaling import norm
from ..numerics.spectral import Matrix, cut_eigenvalues, product
from ._checks import check_matrix, check_scalar
from ._levels import project_on_simplex, water_level
from ._vectors import boundary_tolerance
from .base import Domain


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
        numbers("Spectrahedron", "total", self.total, low=0.0)

    def project(self, x: Matrix) -> Matrix:
        """V max(Λ - t, 0) Vᵀ of the symmetric part of x, with the t that makes the sum of its eigenvalues the total."""
        values, vectors = jnp.linalg.eigh(_symmetric(x))
        return _symmetric(product(vectors * project_on_simplex(values, self._total(x)), vectors.T))

    def lmo(self, gradient: Matrix) -> Matrix:
        """total·v vᵀ with the eigenvector v of the least eigenvalue of the gradient's symmetric part.

        The default number of iterations of `least_eigenvector` gives <gradient, s> <= total·(λ_min + 1e-4 (λ_max - λ_min));
        a gradient with no more rows than iterations is minimized to rounding.
        """
        half = _symmetric(gradient)
        vector = least_eigenvector(lambda v: product(half, v), half.shape[0], half.dtype)
        return self._total(gradient) * jnp.outer(vector, vector)

    def diameter(self, x: Matrix) -> Float[Array, ""]:
        """√2·total, the distance between two orthogonal directions; zero if there is only one."""
        return self._total(x) * (np.sqrt(2).item() if x.shape[0] > 1 else 0.0)

    def project_normal_cone(self, x: Matrix, v: Matrix) -> Matrix:
        """The projection of v onto {t·I - M + A : M ⪰ 0, MV = 0, A antisymmetric}, for V the support of x's eigenvectors.

        As for the simplex, with the diagonal d of VᵀvV on the support and the eigenvalues τ of v between the other
        eigenvectors: it is t on the support and v with its eigenvalues cut at t elsewhere, nothing between the two, and the
        best t has Σ (d - t) + Σ max(τ - t, 0) = 0. An eigenvalue of x is zero when it is eps^(2/3) of total / n.
        """
        half = _symmetric(v)
        values, vectors = jnp.linalg.eigh(_symmetric(x))
        support = values > boundary_tolerance(x) * self._total(x) / values.size
        inside = product(vectors * support, vectors.T)
        outside = jnp.eye(values.size, dtype=x.dtype) - inside
        rest = _symmetric(product(outside, half, outside))
        # moves the zeros of the support below all other eigenvalues
        below = 1 + 2 * norm(jax.lax.stop_gradient(rest).ravel())
        heights = jnp.linalg.eigvalsh(rest - below * inside)
        other = jnp.arange(values.size) >= jnp.sum(support)
        along = jnp.where(support, jnp.sum(vectors * product(half, vectors), axis=0), -jnp.inf)
        counted = jnp.concatenate([support, jnp.zeros_like(support)])
        level = water_level(jnp.concatenate([along, jnp.where(other, heights, -jnp.inf)]), counted, 0.0)
        return level * inside + product(outside, cut_eigenvalues(rest, level), outside) + (v - half)

    def check(self, x: Any) -> None:
        """A ValueError unless total is one number and `x` one square matrix."""
        check_scalar("Spectrahedron", "total", self.total)
        check_matrix("Spectrahedron", x)
        (leaf,) = jax.tree.leaves(x)
        if np.shape(leaf)[0] != np.shape(leaf)[1]:
            raise ValueError(f"Spectrahedron: x must be a square matrix, got shape {np.shape(leaf)}")

    def _scale(self, x: Matrix) -> Float[Array, ""]:
        return self._total(x)

    def _total(self, x: Matrix) -> Float[Array, ""]:
        return jnp.asarray(self.total, x.dtype)


def _symmetric(matrix: Matrix) -> Matrix:
    return 0.5 * (matrix + matrix.T)
