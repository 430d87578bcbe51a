"""The numbers of a certificate that come from fresh samples: means, and their standard errors.

Stationarity and complementarity are functions of means: with v = ∇F + Jᵀλ, c the rows, s = min(c, 0) for inequalities and 0
for equalities, the multipliers minimize d² + Σ (s_i λ_i)² where d = ‖r‖ and r is what the normal cone of X leaves of v. Their
optimality, J r + s² λ = 0 where λ is free to move, gives to first order

    δλ = −H⁻¹ δq,   δq = δJ r + J P δv + 2 s λ δs,   H = J P Jᵀ + diag(s²)         (P: derivative of what the cone leaves)
    δd = ⟨r/‖r‖, δv⟩ + ⟨J r/‖r‖, δλ⟩,     δ(λ_i c_i) = λ_i δc_i + c_i δλ_i

The first term of δd is bounded by ‖δv‖, which also holds at a kink (d is 1-Lipschitz in v), where d = 0: a norm is biased
upwards there, and the interval must reach down to 0. It does: sqrt(d² + Σ (s_i λ_i)²), taken at the least, is below its value
at the true multipliers, so below the length of (δv, λ δs) there. That length is the reach; the normal distribution of a given
mean square that strays the most has one dimension, so Student's quantile is right for it and cautious for more. Where d is
larger than that length, δd itself has a smaller standard error, and what is left out is at most the length squared over d.

Where the Jacobian is too large to be formed, multipliers come from products with it, and δλ is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..numerics.products import Linear
from ..oracles.oracle import Oracle, Sample, Term
from ..problems.data import Dataset, Span
from .evaluation import CERTIFICATE_PRODUCTS, stationarity, stationarity_by_products

BATCH_ROWS, LEAST_BATCHES = 1024, 16
PILOT, NEAR = 2**32 - 1, 2**32 - 2
"""Numbers of the batch that bets are placed on and of the samples of proximal problems: no other batch has them."""


class Plan(NamedTuple):
    """Which sources are passed over in full, and how many batches are drawn from the others."""

    exact: tuple[bool, ...]
    batches: int

    @property
    def rows(self) -> int:
        """Rows drawn from a source."""
        return self.batches * BATCH_ROWS

    def samples(self, term: Term) -> bool:
        """Whether a function is estimated from samples."""
        return term.source is not None and not self.exact[term.source]

    def numbers(self, oracle: Oracle) -> int:
        """How many numbers are estimated from samples, each with an interval of its own."""
        if all(self.exact):
            return 0
        entries = sum(term.size for term in oracle.constraints if self.samples(term))
        return self.samples(oracle.objective) + entries + 1 + int(np.sum(~oracle.equality))


class Measured(NamedTuple):
    """What the compiled program returns: means, and standard errors of what is estimated from samples, else 0."""

    objective: Any
    objective_error: Any
    raw: Any
    raw_errors: Any
    rows: Any
    multipliers: Any
    stationarity: Any
    gradient_norm: Any
    gradient_error: Any
    """The length of the standard errors of ∇F + Jᵀλ."""
    shift_error: Any
    """Standard error of what moving multipliers do to the stationarity."""
    distance_error: Any
    """Standard error of the stationarity to first order, which is that only where it is far from 0."""
    products: Any
    """λ_i |c_i|, negative where λ_i = 0 would have to rise from below zero."""
    product_errors: Any


def measuring(oracle: Oracle, exact: tuple[bool, ...]) -> Any:
    """The compiled program: numbers of the oracle, x, a key and the number of batches to `Measured`."""
    structure = jax.tree.structure(oracle)
    return jax.jit(lambda leaves, *rest: _measure(jax.tree.unflatten(structure, leaves), exact, *rest))


def _measure(oracle: Oracle, exact: tuple[bool, ...], x: Float[Array, " n"], key: Array, batches: Array) -> Measured:
    """All measurements at x: exact functions once, the others on fresh batches."""
    full, drawn = _only(oracle, exact, sampled=False), _only(oracle, exact, sampled=True)

    def look(side: Oracle, sample: Sample) -> tuple[Any, Any]:
        value, gradient = side.value_and_grad(x, sample)
        return (value, side.raw(x, sample)), (gradient, () if oracle.large_jacobian else side.jac(x, sample))

    everything = tuple(
        Span(0, s.size) if isinstance(s, Dataset) and e else None for s, e in zip(oracle.sources, exact, strict=True)
    )
    means, (value_error, raw_errors) = _over_batches(drawn, partial(look, drawn), key, batches)
    (value, raw), (gradient, jacobian) = jax.tree.map(jnp.add, look(full, everything), means)
    rows = oracle.rows.of(raw, jnp.zeros(0, x.dtype))
    if oracle.large_jacobian:
        whole = _jacobian(full, everything, drawn, x, key, batches)
        multipliers, residual = stationarity_by_products(oracle, x, gradient, rows, whole, CERTIFICATE_PRODUCTS)
        products, moved = _no_response(rows, multipliers)
    else:
        multipliers, residual = stationarity(oracle, x, gradient, rows, jacobian)
        products, moved = _response(oracle, x, gradient, rows, jacobian, multipliers, residual)

    def shifts(sample: Sample) -> tuple[Any, Any]:
        _, pullback = drawn.vjp(x, sample)
        push = drawn.grad(x, sample) + pullback(multipliers)
        product, shift = moved(push, *drawn.jvp(x, residual, sample))
        return (push, product, shift, shift + direction @ push), ()

    distance = jnp.linalg.norm(residual)
    direction = residual / jnp.where(distance > 0, distance, 1.0)
    _, (push_errors, product_errors, shift_error, distance_error) = _over_batches(drawn, shifts, key, batches)
    return Measured(
        value,
        value_error,
        raw,
        raw_errors,
        rows,
        multipliers,
        distance,
        jnp.linalg.norm(gradient),
        jnp.linalg.norm(push_errors),
        shift_error,
        distance_error,
        products,
        product_errors,
    )


def _jacobian(
    full: Oracle, everything: Sample, drawn: Oracle, x: Float[Array, " n"], key: Array, batches: Array
) -> Linear:
    """Products with the Jacobian of exact functions and of those that are sampled, on the same batches every time."""

    def mean(fn: Callable[[Sample], Array]) -> Array:
        return _over_batches(drawn, lambda sample: (fn(sample), ()), key, batches)[0][0]

    return Linear(
        lambda d: full.jvp(x, d, everything)[1] + mean(lambda sample: drawn.jvp(x, d, sample)[1]),
        lambda y: full.vjp(x, everything)[1](y) + mean(lambda sample: drawn.vjp(x, sample)[1](y)),
    )


def _no_response(
    rows: Float[Array, " rows"], multipliers: Float[Array, " rows"]
) -> tuple[Float[Array, " rows"], Callable[[Array, Array, Array], tuple[Array, Array]]]:
    """`_response` where the Jacobian is too large for it: as if the multipliers were known."""
    none = jnp.zeros((), rows.dtype)
    return jnp.abs(rows) * multipliers, lambda push, row_values, turned: (multipliers * row_values, none)


def _response(
    oracle: Oracle,
    x: Float[Array, " n"],
    gradient: Float[Array, " n"],
    rows: Float[Array, " rows"],
    jacobian: Float[Array, "rows n"],
    multipliers: Float[Array, " rows"],
    residual: Float[Array, " n"],
) -> tuple[Float[Array, " rows"], Callable[[Array, Array, Array], tuple[Array, Array]]]:
    """The products λ_i |c_i|, and how they and the stationarity move with v = ∇F + Jᵀλ, the rows c and J r: to first order.

    See the top of this file. Rows are divided by the length of their gradients, as in `kkt_multipliers`. A row whose
    multiplier is 0 is let move alone: it may be one that samples pushed there.
    """
    if rows.size == 0:
        return rows, lambda push, row_values, turned: (rows, jnp.zeros((), x.dtype))
    equality = jnp.asarray(oracle.equality)
    norms = jnp.linalg.norm(jacobian, axis=1)
    scale = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    unit, y = jacobian * scale[:, None], multipliers * norms
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    free = equality | (multipliers > 0)

    def remains(push: Array) -> Array:
        return push - oracle.project_normal_cone(x, push)

    _, change = jax.linearize(remains, -(gradient + multipliers @ jacobian))
    curvature = unit @ jax.vmap(change)(unit).T + jnp.diag(slack**2 + rows.size * jnp.finfo(x.dtype).eps)
    together = (free[:, None] & free[None, :]) | jnp.eye(rows.size, dtype=bool)
    inverse = jnp.linalg.inv(jnp.where(together, 0.5 * (curvature + curvature.T), 0.0))
    slope = unit @ residual + slack**2 * y
    size = jnp.linalg.norm(residual)
    tilt = jnp.where(free, unit @ residual / jnp.where(size > 0, size, 1.0), 0.0)

    def moved(push: Array, row_values: Array, turned: Array) -> tuple[Array, Array]:
        below = jnp.where(rows < 0, row_values, 0.0)
        change_of_y = -inverse @ (scale * turned + unit @ change(push) + 2.0 * slack * y * scale * below)
        return multipliers * row_values + rows * scale * change_of_y, tilt @ change_of_y

    reached = jnp.where(free, y, y - inverse @ slope)
    return jnp.abs(rows) * scale * reached, moved


def _only(oracle: Oracle, exact: tuple[bool, ...], sampled: bool) -> Oracle:
    """The oracle with zero in place of every function that is, or is not, estimated from samples."""

    def part(term: Term) -> Term:
        if Plan(exact, 0).samples(term) == sampled:
            return term
        return Term(term.name, lambda params: jnp.zeros(term.shape, oracle.parameters.dtype), None, term.shape)

    return replace(oracle, objective=part(oracle.objective), constraints=tuple(map(part, oracle.constraints)))


def _over_batches(
    oracle: Oracle, fn: Callable[[Sample], tuple[Any, Any]], key: Array, batches: Array
) -> tuple[Any, Any]:
    """Means of the two parts of what fn returns, over fresh batches, and standard errors of the first.

    By Welford's rule: one batch in memory at a time.
    """

    def at(number: Any) -> tuple[Any, Any]:
        return fn(oracle.draw(jax.random.fold_in(key, number), BATCH_ROWS))

    def add(number: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        mean, square = carry
        before = number.astype(jnp.float32)
        delta = jax.tree.map(jnp.subtract, at(number), mean)
        mean = jax.tree.map(lambda m, d: m + d / (before + 1.0), mean, delta)
        square = jax.tree.map(lambda s, d: s + d**2 * (before / (before + 1.0)), square, delta[0])
        return mean, square

    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(at, 0))
    mean, square = jax.lax.fori_loop(0, batches, add, (zero, zero[0]))
    return mean, jax.tree.map(lambda s: jnp.sqrt(s / batches / (batches - 1)), square)
