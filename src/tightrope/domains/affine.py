"""Affine subspaces: the solutions of linear equations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..arguments import leaves_of
from ._checks import check_real, is_concrete
from ._vectors import Point, Vector, flatten
from .base import Domain


class Affine(Domain):
    """The solutions of linear equations in the entries of all leaves together.

    X = {x : A vec(x) = b}, with vec in the order of `jax.flatten_util.ravel_pytree`

    One singular value decomposition at construction, in float64, turns the equations into Qᵀ vec(x) = coordinates
    with Q an orthonormal basis of the rows of A; a projection then costs two products with Q. Q is kept, A is not.

    Args:
        A: a dense m × n matrix. Rows may be linearly dependent if b is consistent.
        b: a vector of m numbers.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import Affine
        >>> Affine(A=[[1.0, 1.0, 1.0, 1.0]], b=[4.0]).project(jnp.array([1.0, 2.0, 3.0, 4.0]))
        Array([-0.5,  0.5,  1.5,  2.5], dtype=float32)
    """

    basis: Float[Array | np.ndarray, "size rank"]
    coordinates: Float[Array | np.ndarray, " rank"]

    def __init__(self, A: Any, b: Any):
        for argument, value in (("A", A), ("b", b)):
            leaves_of("Affine", argument, value)
            if not is_concrete(value):
                raise TypeError(
                    f"Affine: {argument} must be known numbers, got a traced array (make the set outside jit)"
                )
            check_real("Affine", argument, value)
        self.basis, self.coordinates = _factorize(_as_given("A", A), _as_given("b", b))

    def project(self, x: Point) -> Point:
        """X - Q(Qᵀx - coordinates), a step along the rows of A."""
        point, restore = ravel_pytree(x)
        return restore(point - self._combine(self._measure(point) - jnp.asarray(self.coordinates, point.dtype)))

    def diameter(self, x: Point) -> Float[Array, ""]:
        """Infinite, or zero if the equations have one solution."""
        size, rank = self.basis.shape
        return jnp.full((), 0 if rank == size else jnp.inf, flatten(x).dtype)

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """QQᵀv, the component in the span of the rows of A."""
        push, restore = ravel_pytree(v)
        return restore(self._combine(self._measure(push)))

    def check(self, x: Any) -> None:
        """A ValueError unless A has one column for every entry of `x`."""
        size = sum(np.size(leaf) for leaf in jax.tree.leaves(x))
        if size != self.basis.shape[0]:
            raise ValueError(
                f"Affine: A must have a column for each of the {size} entries of x, got {self.basis.shape[0]}"
            )

    # Full precision: the default rounds float32 products to ten bits on some accelerators.
    def _measure(self, vector: Vector) -> Vector:
        return jnp.matmul(vector, jnp.asarray(self.basis, vector.dtype), precision="highest")

    def _combine(self, coordinates: Vector) -> Vector:
        return jnp.matmul(jnp.asarray(self.basis, coordinates.dtype), coordinates, precision="highest")


def _as_given(argument: str, value: Any) -> np.ndarray:
    """An array whose float type tells the precision of the numbers; Python numbers and integers are float64."""
    try:
        array = np.asarray(value)
        return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"Affine: {argument} must be an array of numbers, got {value!r}") from None


def _factorize(matrix: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (Q, coordinates) of the system matrix·x = target; a ValueError if it has no solution."""
    if matrix.ndim != 2 or target.ndim != 1 or matrix.shape[0] != target.shape[0]:
        raise ValueError(
            f"Affine: A must be a matrix and b a vector with one entry for each row of A, "
            f"got shapes {matrix.shape} and {target.shape}"
        )
    if not (np.all(np.isfinite(matrix)) and np.all(np.isfinite(target))):
        raise ValueError("Affine: A and b must be finite, got NaN or infinity")
    # Dependent rows are dependent only to the precision in which they were given.
    precision = 10 * max(matrix.shape) * max(np.finfo(matrix.dtype).eps, np.finfo(target.dtype).eps)
    lengths = np.linalg.norm(matrix.astype(np.float64), axis=1)
    lengths = np.where(lengths > 0, lengths, 1.0)
    rows, levels = matrix / lengths[:, None], target / lengths
    left, values, right = np.linalg.svd(rows.astype(np.float64), full_matrices=False)
    rank = int(np.sum(values > precision * max(values, default=0.0)))
    coordinates = (left[:, :rank].T @ levels) / values[:rank]
    basis = np.ascontiguousarray(right[:rank].T)
    residual = np.abs(rows @ (basis @ coordinates) - levels)
    if np.any(residual > 10 * precision * (np.linalg.norm(coordinates) + np.abs(levels))):
        worst = int(np.argmax(residual))
        raise ValueError(
            f"Affine: A x = b must have a solution, got a system whose nearest x misses entry {worst} of b "
            f"by {residual[worst] * lengths[worst]:.3g}"
        )
    return basis, coordinates
