"""The nuclear norm ball, whose projections have low rank, and leading singular pairs from matrix-vector products alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tightrope.domains._checks import check_positive, check_scalar
from tightrope.domains._levels import project_on_simplex, water_level
from tightrope.domains._spectral import Matrix, check_matrix, cut_singular_values, product
from tightrope.domains._vectors import Scalar, Vector, activity, norm
from tightrope.domains.base import Domain


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
        check_positive("radius", self.radius)

    def project(self, x: Matrix) -> Matrix:
        """U max(Σ - t, 0) Vᵀ, at the t for which its singular values sum to radius; x itself inside."""
        radius = jnp.asarray(self.radius, x.dtype)
        left, values, right = jnp.linalg.svd(x, full_matrices=False)
        on_sphere = product(left * project_on_simplex(values, radius), right)
        return jnp.where(jnp.sum(values) <= radius, x, on_sphere)

    def lmo(self, gradient: Matrix) -> Matrix:
        """-radius·u vᵀ with the leading singular pair of the gradient, by `leading_pair`; zero for a zero gradient.

        <gradient, s> <= -radius·σ_max (1 - 1e-4) is what the default number of iterations is good for; a gradient with no
        more rows or columns than that is minimized to rounding.
        """
        rows, columns = gradient.shape
        left, _, right = leading_pair(
            lambda v: product(gradient, v), lambda u: product(u, gradient), (rows, columns), gradient.dtype
        )
        return -jnp.asarray(self.radius, gradient.dtype) * jnp.outer(left, right)

    def diameter(self, x: Matrix) -> Float[Array, ""]:
        """Twice the radius, the distance of u vᵀ and -u vᵀ."""
        return 2 * jnp.asarray(self.radius, x.dtype)

    def project_normal_cone(self, x: Matrix, v: Matrix) -> Matrix:
        """Nearest to v in {t·(UVᵀ + W) : t >= 0, UᵀW = 0, WV = 0, ‖W‖₂ <= 1} for x = UΣVᵀ on the sphere; zero inside.

        As for the l1 ball, with the diagonal d of UᵀvV on the support and the singular values τ of
        (I - UUᵀ) v (I - VVᵀ) elsewhere: it is t·UVᵀ plus that matrix with its singular values cut at t, and the best t has
        Σ (d - t) + Σ max(τ - t, 0) = 0, or is 0 where that is negative. A singular value of x is zero when it is eps^(2/3)
        of radius / min(rows, columns).
        """
        radius = jnp.asarray(self.radius, x.dtype)
        left, values, right = jnp.linalg.svd(x, full_matrices=False)
        support = values > activity(x) * radius / values.size
        left, right = left * support, right * support[:, None]
        rows = v - product(left, product(left.T, v))
        outside = rows - product(product(rows, right.T), right)
        along = jnp.sum(left * product(v, right.T), axis=0)
        heights = jnp.concatenate([jnp.where(support, along, -jnp.inf), jnp.linalg.svd(outside, compute_uv=False)])
        counted = jnp.concatenate([support, jnp.zeros_like(support)])
        level = jnp.maximum(water_level(heights, counted, 0.0), 0)
        normal = level * product(left, right) + cut_singular_values(outside, level)
        on_sphere = jnp.sum(values) >= (1 - activity(x)) * radius
        return jnp.where(on_sphere, normal, 0)

    def check(self, x: Any) -> None:
        """ValueError if the radius is not one number or `x` not one matrix."""
        check_scalar("radius", self.radius)
        check_matrix("NuclearBall", x)

    def _scale(self, x: Matrix) -> Float[Array, ""]:
        return jnp.asarray(self.radius, x.dtype)


def leading_pair(
    matvec: Callable[[Float[Array, " columns"]], Float[Array, " rows"]],
    rmatvec: Callable[[Float[Array, " rows"]], Float[Array, " columns"]],
    shape: tuple[int, int],
    dtype: Any = jnp.float32,
    iterations: int = 32,
) -> tuple[Vector, Scalar, Vector]:
    """Leading left singular vector, singular value and right singular vector of a matrix G, from products with it.

    Golub-Kahan-Lanczos bidiagonalization with full reorthogonalization: GV = UB, B upper bidiagonal, from a start that is the
    same for every G; the pair comes from the singular value decomposition of the small B. Exact, to rounding, where
    `iterations` reach the smaller side or the rank of G. Zero vectors for G = 0.

    Args:
        matvec: v ↦ Gv. For a gradient in factors, G = LRᵀ, it is `lambda v: L @ (R.T @ v)`: G itself is never needed.
        rmatvec: u ↦ Gᵀu.
        shape: rows and columns of G.
        dtype: type of the vectors.
        iterations: of one product with G and one with Gᵀ each.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains.nuclear_ball import leading_pair
        >>> left, right = jnp.array([[3.0], [4.0]]), jnp.array([[2.0], [0.0], [0.0]])
        >>> _, value, _ = leading_pair(lambda v: left @ (right.T @ v), lambda u: right @ (left.T @ u), (2, 3))
        >>> round(float(value), 4)
        10.0
    """
    rows, columns = shape
    count = min(iterations, rows, columns)
    start, _ = _unit(rmatvec(jax.random.normal(jax.random.key(0), (rows,), dtype)), jnp.zeros((), dtype))

    def extend(j: int, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        left, right, small, largest = carry
        u, diagonal = _unit(orthogonal(matvec(right[j]), left), largest)
        largest = jnp.maximum(largest, diagonal)
        v, above = _unit(orthogonal(rmatvec(u), right), largest)
        small = small.at[j, j].set(diagonal).at[j, j + 1].set(above)
        return left.at[j].set(u), right.at[j + 1].set(v), small, jnp.maximum(largest, above)

    left, right = jnp.zeros((count, rows), dtype), jnp.zeros((count + 1, columns), dtype).at[0].set(start)
    small = jnp.zeros((count, count + 1), dtype)
    left, right, small, _ = jax.lax.fori_loop(0, count, extend, (left, right, small, jnp.zeros((), dtype)))
    outer, values, inner = jnp.linalg.svd(small[:, :count])
    return product(outer[:, 0], left), values[0], product(inner[0], right[:count])


def orthogonal(vector: Vector, basis: Float[Array, "count size"]) -> Vector:
    """The part of a vector orthogonal to the rows of `basis`, which are orthonormal or zero; twice, for rounding."""
    for _ in range(2):
        vector = vector - product(product(basis, vector), basis)
    return vector


def _unit(vector: Vector, largest: Scalar) -> tuple[Vector, Scalar]:
    """Direction and length; both zero where the length is only rounding, 10 eps of the largest so far."""
    length = norm(vector)
    counts = length > 10 * jnp.finfo(vector.dtype).eps * largest
    return jnp.where(counts, vector / jnp.where(counts, length, 1), 0), jnp.where(counts, length, 0)
