"""Limited-memory BFGS with damping, in compact form.

With pairs (s_i, y_i) of a step and the change of the gradient along it, M is the BFGS matrix of the pairs (s_i, y_i + σs_i)
from (δ + σ)I: about B + σI, where B is the BFGS matrix of the pairs themselves. As σ grows M becomes a multiple of the
identity; as σ falls it becomes a quasi-Newton matrix. Its inverse has the compact form (Byrd, Nocedal and Schnabel 1994,
Theorem 2.2)

    M⁻¹ = γI + WᵀKW          γ = 1/(δ + σ)          W = [S; Y + σS], rows s_i and y_i + σs_i

    K = [ A   Bᵀ ]          A = R⁻ᵀ(D + γ(Y + σS)(Y + σS)ᵀ)R⁻¹          B = −γR⁻¹
        [ B   0  ]          R the upper triangle of S(Y + σS)ᵀ, oldest pair first, D its diagonal

With the vectors [S; Y] in place of W, the core is A + σ(B + Bᵀ) in place of A. So a method needs only inner products with
these vectors. Those of the vectors with each other are kept, and another σ needs no new vector.

A pair with little or negative curvature is changed to y_i + t s_i, with t ≥ 0 such that the cosine of s_i and y_i is at least
`MIN_COSINE`: M stays positive definite without a line search. Powell's damping serves the same end with Bs_i in place of
s_i; Li and Fukushima add a multiple of s_i.

References:
    R. H. Byrd, J. Nocedal and R. B. Schnabel. Representations of quasi-Newton matrices and their use in limited memory
    methods. Mathematical Programming 63, 1994.
    M. J. D. Powell. A fast algorithm for nonlinearly constrained optimization calculations. Numerical Analysis, Dundee
    1977, Springer 1978.
    D.-H. Li and M. Fukushima. A modified BFGS method and its global convergence in nonconvex minimization. Journal of
    Computational and Applied Mathematics 129, 2001.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...numerics.products import inner_products
from ...numerics.scaling import positive_or_one
from .constants import MIN_COSINE, MIN_USED_COSINE, STRAIGHT_FACTOR


class LBFGSMemory(NamedTuple):
    """The last pairs of a step and the change of the gradient along it, both divided by the length of the step."""

    vectors: Float[Array, "two pairs n"]
    """The steps s_i, then the changes y_i."""
    products: Float[Array, "two pairs two pairs"]
    """Inner products of the vectors, oldest pair first."""
    curvature: Float[Array, ""]
    """δ: the curvature in directions of which no pair says anything."""
    oldest: Int[Array, ""]
    """Place of the oldest pair, which the next one takes."""

    @classmethod
    def empty(cls, size: int, x: Float[Array, " n"], curvature: Float[Array, ""]) -> LBFGSMemory:
        """Return a memory with places for `size` pairs."""
        vectors, products = jnp.zeros((2, size, x.size), x.dtype), jnp.zeros((2, size, 2, size), x.dtype)
        return cls(vectors, products, curvature, jnp.int32(0))

    def with_vectors(self, vectors: Float[Array, "two pairs n"]) -> LBFGSMemory:
        """Return the memory with these vectors in the places of its own."""
        ordered = jnp.roll(vectors, -self.oldest, axis=1)
        return self._replace(vectors=vectors, products=jnp.einsum("aik,bjk->aibj", ordered, ordered))

    def add(
        self, step: Float[Array, " n"], change: Float[Array, " n"], progress: Bool[Array, ""] | bool = True
    ) -> LBFGSMemory:
        """Return the memory with this pair in the place of the oldest; a zero step, or numbers not finite, are left out.

        Where the gradient does not change along a step, there is less curvature than δ, which is halved; but only if the step
        made `progress`. If it was rejected, something other than the gradient is curved.
        """
        both = jnp.stack([step, change])
        (step_sq, along), (_, change_norm) = inner_products(both, both)
        length, change_norm = jnp.sqrt(step_sq), jnp.sqrt(change_norm)
        lift = jnp.maximum(MIN_COSINE * change_norm - along / positive_or_one(length), 0.0)
        slope = (along / positive_or_one(length) + lift) / positive_or_one(length)
        lifted_sq = change_norm**2 + lift * (2.0 * along / positive_or_one(length) + lift)
        curvature = lifted_sq / positive_or_one(step_sq) / positive_or_one(slope)
        valid = jnp.isfinite(curvature) & (length > 0) & (change_norm > 0) & (slope > 0)
        straight = progress & (length > 0) & (change_norm == 0)
        pair = jnp.stack([step, change + lift * step / positive_or_one(length)])[:, None] / positive_or_one(length)
        vectors, products = self._put(jnp.where(valid, pair, self._oldest_pair()))
        return LBFGSMemory(
            vectors,
            jnp.where(valid, products, self.products),
            jnp.where(valid, curvature, jnp.where(straight, STRAIGHT_FACTOR, 1.0) * self.curvature),
            jnp.where(valid, (self.oldest + 1) % self.vectors.shape[1], self.oldest),
        )

    def _oldest_pair(self) -> Float[Array, "two one n"]:
        return jax.lax.dynamic_slice_in_dim(self.vectors, self.oldest, 1, axis=1)

    def _put(
        self, pair: Float[Array, "two one n"]
    ) -> tuple[Float[Array, "two pairs n"], Float[Array, "two pairs two pairs"]]:
        """Return the vectors with this pair in the place of the oldest, and their inner products.

        All products are with the old vectors and come before the pair is put, so that no transposed copy is made for them.
        """
        both = pair[:, 0]
        with_old = inner_products(both, self.vectors.reshape(-1, both.shape[1])).reshape(2, 2, -1)
        newest = jnp.roll(with_old, -(self.oldest + 1), axis=2).at[:, :, -1].set(inner_products(both, both))
        newest, vectors = jax.lax.optimization_barrier((newest, self.vectors))
        products = jnp.pad(self.products[:, 1:, :, 1:], ((0, 0), (0, 1), (0, 0), (0, 1)))
        products = products.at[:, -1].set(newest).at[:, :, :, -1].set(jnp.moveaxis(newest, 0, -1))
        return jax.lax.dynamic_update_slice_in_dim(vectors, pair, self.oldest, axis=1), products

    def inverse(self, damping: Float[Array, ""]) -> InverseHessian:
        """Return M⁻¹ for this σ; pairs with a cosine of at most `MIN_USED_COSINE` are left out."""
        (steps, both), (turned, changes) = jnp.moveaxis(self.products, 2, 1)
        both, changes = both + damping * steps, changes + damping * (both + turned + damping * steps)
        scale = 1.0 / (self.curvature + damping)
        slopes = jnp.diag(both)
        used = slopes > MIN_USED_COSINE * jnp.sqrt(jnp.diag(steps) * jnp.diag(changes))
        both_used = used[:, None] & used[None, :]
        triangle = jnp.triu(jnp.where(both_used, both, 0.0)) + jnp.diag(jnp.where(used, 0.0, 1.0))
        inverse = jax.scipy.linalg.solve_triangular(triangle, jnp.eye(len(slopes), dtype=slopes.dtype))
        inverse = jnp.where(both_used, inverse, 0.0)
        side = -scale * inverse
        corner = inverse.T @ (jnp.diag(slopes) + scale * changes) @ inverse + damping * (side + side.T)
        core = jnp.block([[corner, side.T], [side, jnp.zeros_like(corner)]])
        return InverseHessian(scale, self.vectors, core, self.oldest)


class InverseHessian(NamedTuple):
    """M⁻¹ = scale · I + vectorsᵀ · core · vectors; `core` is for vectors in order of age, the oldest pair is at `oldest`."""

    scale: Float[Array, ""]
    vectors: Float[Array, "two pairs n"]
    core: Float[Array, "two_pairs two_pairs"]
    oldest: Int[Array, ""]

    def inner(
        self, vectors: Float[Array, "k n"], plain: Float[Array, "k k"]
    ) -> tuple[Float[Array, "k k"], Float[Array, "k two_pairs"]]:
        """Return uᵀM⁻¹w for all u, w of these vectors, given `plain`, all uᵀw; and what `times` needs."""
        k = len(vectors)
        products = inner_products(vectors, self.vectors.reshape(len(self.core), -1)).reshape(k, 2, -1)
        products = jnp.roll(products, -self.oldest, axis=2).reshape(k, -1)
        return self.scale * plain + products @ self.core @ products.T, products

    def times(
        self, weights: Float[Array, " k"], vectors: Float[Array, "k n"], products: Float[Array, "k two_pairs"]
    ) -> Float[Array, " n"]:
        """Return M⁻¹ times the weighted sum of the vectors, with their `products` from `inner`."""
        weights_of_pairs = jnp.roll((weights @ products @ self.core).reshape(2, -1), self.oldest, axis=1).reshape(-1)
        return (self.scale * weights) @ vectors + weights_of_pairs @ self.vectors.reshape(len(self.core), -1)

    def apply(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return M⁻¹ times a vector."""
        _, products = self.inner(vector[None], jnp.zeros((1, 1), vector.dtype))
        return self.times(jnp.ones(1, vector.dtype), vector[None], products)
