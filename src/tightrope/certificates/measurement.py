"""Measurements for a certificate from fresh samples: means and their standard errors.

Stationarity and complementarity are functions of means. Let v = ∇F + Jᵀλ, c the rows, s = min(c, 0) for inequalities and 0 for
equalities, and r the part of v that X cannot cancel near x: r(v) of `mapping`, for a length t that counts as fixed. The
multipliers minimize D² + Σ (s_i λ_i)², where D² = 2⟨v, r⟩ − ‖r‖² is at least the square of d = ‖r‖. Their optimality condition,
J r + s² λ = 0 where λ is free, gives to first order

    δλ = −H⁻¹ δq,   δq = δJ r + J P δv + 2 s λ δs,   H = J P Jᵀ + diag(s²)         (P: derivative of v ↦ r, symmetric)
    δd = ⟨P r/‖r‖, δv⟩ + ⟨J P r/‖r‖, δλ⟩,     δ(λ_i c_i) = λ_i δc_i + c_i δλ_i

The first term of δd is bounded by ‖δv‖. This also holds at the kink d = 0 (D is 1-Lipschitz in v). There a norm is biased
upward, and the interval must reach down to 0. It does: the minimum of sqrt(D² + Σ (s_i λ_i)²) is below its value at the true
multipliers, so below the length of (δv, λ δs) there, and d is at most D. That length is the half-width of the interval. Among
normal distributions of a given mean square, the one of dimension one deviates most, so Student's quantile is right for it and
conservative for higher dimensions. Where d is larger than that length, δd itself has a smaller standard error, and the
remainder is at most the squared length over d.

If the Jacobian is too large to form, multipliers come from products with it, and δλ is neglected.
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

from ..numerics.kkt import Mapping
from ..numerics.products import Linear
from ..numerics.scaling import positive_or_one, reciprocal_or_zero
from ..oracles.oracle import Oracle, Sample, Term
from ..problems.compiling import Program
from ..problems.data import Dataset, Span
from .evaluation import CERTIFICATE_PRODUCTS, stationarity, stationarity_by_products
from .mapping import gradient_mapping, mapping_length
from .scales import sizes

BATCH_EXAMPLES, MIN_BATCHES = 1024, 16
"""The size of a batch, and the least number of batches."""
PILOT_BATCH, PROXIMAL_BATCH = 2**32 - 1, 2**32 - 2
"""Batch numbers of the pilot sample and of the samples of proximal problems, which no other batch has."""

Response = Callable[[Array, Array, Array], tuple[Array, Array]]
"""First-order changes of the products λ_i c_i and of the stationarity, from those of v, of the rows c and of J r."""


class Plan(NamedTuple):
    """Which sources are passed over in full, and the number of batches drawn from the others."""

    exact: tuple[bool, ...]
    batches: int

    @property
    def examples(self) -> int:
        """The number of examples drawn from a source."""
        return self.batches * BATCH_EXAMPLES

    def is_sampled(self, term: Term) -> bool:
        """Whether a function is estimated from samples."""
        return term.source is not None and not self.exact[term.source]

    def count_estimates(self, oracle: Oracle) -> int:
        """The number of estimates from samples, each with its own interval."""
        if all(self.exact):
            return 0
        entries = sum(term.size for term in oracle.constraints if self.is_sampled(term))
        return self.is_sampled(oracle.objective) + entries + 1 + int(np.sum(~oracle.equality))


class Measurements(NamedTuple):
    """Means and their standard errors, which are 0 for exact values."""

    objective: Any
    objective_error: Any
    raw: Any
    raw_errors: Any
    rows: Any
    multipliers: Any
    stationarity: Any
    residual: Any
    sizes: Any
    gradient_norm: Any
    gradient_error: Any
    """The norm of the standard errors of ∇F + Jᵀλ."""
    shift_error: Any
    """The standard error of the change in stationarity due to the multipliers."""
    distance_error: Any
    """The standard error of the stationarity to first order; valid far from 0."""
    products: Any
    """λ_i |c_i|; negative for λ_i = 0 whose unconstrained value would be negative."""
    product_errors: Any


def measurement_program(oracle: Oracle, exact: tuple[bool, ...]) -> Any:
    """The compiled program from the oracle's numbers, x, x0, a key and the number of batches to `Measurements`."""
    structure = jax.tree.structure(oracle)
    return Program(lambda leaves, *rest: _measure(jax.tree.unflatten(structure, leaves), exact, *rest))


def _measure(
    oracle: Oracle,
    exact: tuple[bool, ...],
    x: Float[Array, " n"],
    start: Float[Array, " n"],
    key: Array,
    batches: Array,
) -> Measurements:
    """All measurements at x: exact functions once, the others on fresh batches."""
    oracle, x, start = oracle.hold_state(x, start)
    full, drawn = _restrict(oracle, exact, sampled=False), _restrict(oracle, exact, sampled=True)

    def values(part: Oracle, sample: Sample) -> tuple[Any, Any]:
        value, gradient = part.value_and_grad(x, sample)
        return (value, part.raw(x, sample)), (gradient, () if oracle.large_jacobian else part.jac(x, sample))

    everything = tuple(
        Span(0, s.size) if isinstance(s, Dataset) and e else None for s, e in zip(oracle.sources, exact, strict=True)
    )
    means, (value_error, raw_errors) = _over_batches(drawn, partial(values, drawn), key, batches)
    (value, raw), (gradient, jacobian) = jax.tree.map(jnp.add, values(full, everything), means)
    rows = oracle.rows.of(raw, jnp.zeros(0, x.dtype))
    if oracle.large_jacobian:
        jacobian = _jacobian(full, everything, drawn, x, key, batches)
        multipliers, residual = stationarity_by_products(
            oracle, x, start, gradient, rows, jacobian, CERTIFICATE_PRODUCTS
        )
        push = jacobian.pull(multipliers)
    else:
        multipliers, residual = stationarity(oracle, x, start, gradient, rows, jacobian)
        push = multipliers @ jacobian
    gradient_norm, distance = jnp.linalg.norm(gradient), jnp.linalg.norm(residual)
    mapping = gradient_mapping(oracle, x, mapping_length(x, start, gradient_norm))
    _, derivative = jax.linearize(mapping, -(gradient + push))
    direction = derivative(residual / positive_or_one(distance))
    if isinstance(jacobian, Linear):
        products, response = _fixed_multipliers(rows, multipliers)
    else:
        products, response = sensitivity(oracle, derivative, rows, jacobian, multipliers, residual)

    def changes(sample: Sample) -> tuple[Any, Any]:
        _, pullback = drawn.vjp(x, sample)
        push = drawn.grad(x, sample) + pullback(multipliers)
        product, shift = response(push, *drawn.jvp(x, residual, sample))
        return (push, product, shift, shift + direction @ push), ()

    _, (push_errors, product_errors, shift_error, distance_error) = _over_batches(drawn, changes, key, batches)
    return Measurements(
        objective=value,
        objective_error=value_error,
        raw=raw,
        raw_errors=raw_errors,
        rows=rows,
        multipliers=multipliers,
        stationarity=distance,
        residual=residual,
        sizes=sizes(oracle, x, start, gradient, jacobian, multipliers),
        gradient_norm=gradient_norm,
        gradient_error=jnp.linalg.norm(push_errors),
        shift_error=shift_error,
        distance_error=distance_error,
        products=products,
        product_errors=product_errors,
    )


def _jacobian(
    full: Oracle, everything: Sample, drawn: Oracle, x: Float[Array, " n"], key: Array, batches: Array
) -> Linear:
    """Products with the Jacobian of the exact and of the sampled functions, on the same batches every time."""

    def mean(fn: Callable[[Sample], Array]) -> Array:
        return _over_batches(drawn, lambda sample: (fn(sample), ()), key, batches)[0][0]

    return Linear(
        lambda d: full.jvp(x, d, everything)[1] + mean(lambda sample: drawn.jvp(x, d, sample)[1]),
        lambda y: full.vjp(x, everything)[1](y) + mean(lambda sample: drawn.vjp(x, sample)[1](y)),
    )


def _fixed_multipliers(
    rows: Float[Array, " rows"], multipliers: Float[Array, " rows"]
) -> tuple[Float[Array, " rows"], Response]:
    """`sensitivity` if the Jacobian is too large for it: as if the multipliers were known."""
    zero = jnp.zeros((), rows.dtype)
    return jnp.abs(rows) * multipliers, lambda push, row_change, turn: (multipliers * row_change, zero)


def sensitivity(
    oracle: Oracle,
    derivative: Mapping,
    rows: Float[Array, " rows"],
    jacobian: Float[Array, "rows n"],
    multipliers: Float[Array, " rows"],
    residual: Float[Array, " n"],
) -> tuple[Float[Array, " rows"], Response]:
    """Return the products λ_i |c_i|, and their and the stationarity's first-order response to changes of v, c and J r.

    See the top of this file; `derivative` is P. Rows are divided by the norms of their gradients, as in `kkt_multipliers`. A
    row whose multiplier is 0 responds alone: sampling may have moved it there.
    """
    if rows.size == 0:
        return rows, lambda push, row_change, turn: (rows, jnp.zeros((), residual.dtype))
    equality = jnp.asarray(oracle.equality)
    norms = jnp.linalg.norm(jacobian, axis=1)
    scale = reciprocal_or_zero(norms)
    unit, y = jacobian * scale[:, None], multipliers * norms
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    free = equality | (multipliers > 0)

    turned = jax.vmap(derivative)(unit)
    curvature = unit @ turned.T + jnp.diag(slack**2 + rows.size * jnp.finfo(rows.dtype).eps)
    coupled = (free[:, None] & free[None, :]) | jnp.eye(rows.size, dtype=bool)
    inverse = jnp.linalg.inv(jnp.where(coupled, 0.5 * (curvature + curvature.T), 0.0))
    slope = unit @ residual + slack**2 * y
    size = jnp.linalg.norm(residual)
    tilt = jnp.where(free, turned @ residual / positive_or_one(size), 0.0)

    def response(push: Array, row_change: Array, turn: Array) -> tuple[Array, Array]:
        below = jnp.where(rows < 0, row_change, 0.0)
        change_of_y = -inverse @ (scale * turn + unit @ derivative(push) + 2.0 * slack * y * scale * below)
        return multipliers * row_change + rows * scale * change_of_y, tilt @ change_of_y

    unconstrained = jnp.where(free, y, y - inverse @ slope)
    return jnp.abs(rows) * scale * unconstrained, response


def _restrict(oracle: Oracle, exact: tuple[bool, ...], sampled: bool) -> Oracle:
    """The oracle of the sampled, or of the exact, functions alone; zero takes the place of the others."""

    def part(term: Term) -> Term:
        if Plan(exact, 0).is_sampled(term) == sampled:
            return term
        return Term(term.name, lambda params: jnp.zeros(term.shape, oracle.parameters.dtype), None, term.shape)

    return replace(oracle, objective=part(oracle.objective), constraints=tuple(map(part, oracle.constraints)))


def _over_batches(
    oracle: Oracle, fn: Callable[[Sample], tuple[Any, Any]], key: Array, batches: Array
) -> tuple[Any, Any]:
    """Return the means over fresh batches of both parts of fn's output, and standard errors of the first.

    By Welford's algorithm, with one batch in memory at a time.
    """

    def at(number: Any) -> tuple[Any, Any]:
        return fn(oracle.draw(jax.random.fold_in(key, number), BATCH_EXAMPLES))

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
