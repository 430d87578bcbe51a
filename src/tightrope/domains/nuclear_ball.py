"""The nuclear norm ball, whose projections have low rank."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..arguments import numbers
from ..numerics.lanczos import leading_pair
from ..numerics.spectral import Matrix, cut_singular_values, product
from ._checks import check_matrix, check_scalar
from ._levels import project_on_simplex, water_level
from ._vectors import boundary_tolerance
from .base import Domain


class NuclearBall(Domain):
    """Matrices whose singular values sum to at most a radius.

    X = {x : Σ_i σ_i(x) <= radius}, for x one array of two dimensions

    A projection takes a full singular value decomposition, `lmo` only products of the gradient with vectors.

    Args:
        radius: a positive number.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import NuclearBall
        >>> NuclearBall(2.0).project(jnp.array([[3.0, 0.0], [0.0, 2.0]])).round(4)
        Array([[1.5, 0. ],
               [0. , 0.5]], dtype=float32)
    """

    radius: Float[Array, ""] | float

    def __check_init__(self):
        numbers("NuclearBall", "radius", self.radius, low=0.0)

    def project(self, x: Matrix) -> Matrix:
        """U max(Σ - t, 0) Vᵀ, with the t that makes the sum of its singular values the radius; x itself inside."""
        radius = jnp.asarray(self.radius, x.dtype)
        left, values, right = jnp.linalg.svd(x, full_matrices=False)
        on_sphere = product(left * project_on_simplex(values, radius), right)
        return jnp.where(jnp.sum(values) <= radius, x, on_sphere)

    def lmo(self, gradient: Matrix) -> Matrix:
        """-radius·u vᵀ with the leading singular pair of the gradient, by `leading_pair`; zero for a zero gradient.

        The default number of iterations gives <gradient, s> <= -radius·σ_max (1 - 1e-4); a gradient with no more rows or
        columns than iterations is minimized to rounding.
        """
        rows, columns = gradient.shape
        left, _, right = leading_pair(
            lambda v: product(gradient, v), lambda u: product(u, gradient), (rows, columns), gradient.dtype
        )
        return -jnp.asarray(self.radius, gradient.dtype) * jnp.outer(left, right)

    def diameter(self, x: Matrix) -> Float[Array, ""]:
        """Twice the radius, the distance between radius·u vᵀ and -radius·u vᵀ."""
        return 2 * jnp.asarray(self.radius, x.dtype)

    def project_normal_cone(self, x: Matrix, v: Matrix) -> Matrix:
        """The projection of v onto {t·(UVᵀ + W) : t >= 0, UᵀW = 0, WV = 0, ‖W‖₂ <= 1} for x = UΣVᵀ on the sphere; 0 inside.

        As for the l1 ball, with the diagonal d of UᵀvV on the support and the singular values τ of
        (I - UUᵀ) v (I - VVᵀ) elsewhere: it is t·UVᵀ plus that matrix with its singular values cut at t, and the best t has
        Σ (d - t) + Σ max(τ - t, 0) = 0, or is 0 where that is negative. A singular value of x is zero when it is eps^(2/3)
        of radius / min(rows, columns).
        """
        radius = jnp.asarray(self.radius, x.dtype)
        left, values, right = jnp.linalg.svd(x, full_matrices=False)
        support = values > boundary_tolerance(x) * radius / values.size
        left, right = left * support, right * support[:, None]
        rows = v - product(left, product(left.T, v))
        outside = rows - product(product(rows, right.T), right)
        along = jnp.sum(left * product(v, right.T), axis=0)
        heights = jnp.concatenate([jnp.where(support, along, -jnp.inf), jnp.linalg.svd(outside, compute_uv=False)])
        counted = jnp.concatenate([support, jnp.zeros_like(support)])
        level = jnp.maximum(water_level(heights, counted, 0.0), 0)
        normal = level * product(left, right) + cut_singular_values(outside, level)
        on_sphere = jnp.sum(values) >= (1 - boundary_tolerance(x)) * radius
        return jnp.where(on_sphere, normal, 0)

    def check(self, x: Any) -> None:
        """A ValueError unless the radius is one number and `x` one matrix."""
        check_scalar("NuclearBall", "radius", self.radius)
        check_matrix("NuclearBall", x)

    def _scale(self, x: Matrix) -> Float[Array, ""]:
        return jnp.asarray(self.radius, x.dtype)
