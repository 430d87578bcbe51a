"""Constraints on expectations: `equals`, `at_most`, `at_least`, `between` and `affine`.

The one place where signs are fixed. A constraint is `low ≤ h(x) ≤ high`, entry by entry; inside, that is `c(x) = 0` with
`c = h − target` and `g(x) ≤ 0` with `g = h − high` or `g = low − h`. Multipliers are those of the Lagrangian
`F + Σ λ c + Σ μ g` with `μ ≥ 0`; `between` reports one signed number, positive at the upper end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.experimental.sparse import BCOO, JAXSparse
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from ..arguments import check_callable, check_type
from .data import Source, check_source


class Auxiliary(NamedTuple):
    """A number that a constraint's function takes as its argument `auxiliary`; `solve` finds it (see `lifting`).

    Attributes:
        values: the function of the user's that gives one value per example.
        estimate: the number, from these values at one point.
        trained: whether methods may change it, as they change x.
    """

    values: Callable[..., Any]
    estimate: Callable[[Float[np.ndarray, " examples"]], float]
    trained: bool


@dataclass(frozen=True, eq=False)
class Constraint:
    """`low ≤ E fn(x) ≤ high`; made by `equals`, `at_most`, `at_least`, `between` and `affine`.

    Attributes:
        kind: 'equals' (of `affine` too), 'at_most', 'at_least' or 'between'.
        fn: `fn(params, batch)` with data, `fn(params)` without.
        low: lower bound, one number or one per entry of `fn`.
        high: upper bound.
        data: the source of its samples; None if the constraint is deterministic.
        name: its name in results.
        matrix: the `A` of `affine` as it was given, else None.
        sample_range: the least and the greatest value of `fn` on a single example, if the user gave them.
        scale: the unit of its tolerance, one number or one per entry of `fn`; None: estimated at the answer.
        surrogate: a smooth function in place of `fn` in the steps of methods and in every derivative, for an `fn` whose own
            derivative says nothing (see `tightrope.rates`); None: `fn` itself.
    """

    kind: str
    fn: Callable[..., Any]
    low: np.ndarray
    high: np.ndarray
    data: Source | None
    name: str
    matrix: Any = None
    sample_range: tuple[np.ndarray, np.ndarray] | None = None
    scale: np.ndarray | None = None
    surrogate: Callable[..., Any] | None = None
    _named_by_user: bool = field(default=False, repr=False)
    _auxiliary: Auxiliary | None = field(default=None, repr=False)
    _denominator: Callable[..., Any] | None = field(default=None, repr=False)


def relation(constraint: Constraint) -> str:
    """The constraint as an inequality or equation; bounds that differ from entry to entry are not spelled out.

    Example:
        >>> relation(between(lambda x: x.mean(), -0.1, 0.1, name="balance"))
        '-0.1 ≤ balance ≤ 0.1'
    """

    def text(bound: np.ndarray) -> str:
        return f"{bound.flat[0]:g}" if np.all(bound == bound.flat[0]) else "its bounds"

    if constraint.kind == "equals":
        return f"{constraint.name} = {text(constraint.high)}"
    below = f"{text(constraint.low)} ≤ " if np.isfinite(constraint.low).any() else ""
    above = f" ≤ {text(constraint.high)}" if np.isfinite(constraint.high).any() else ""
    if below and not above:
        return f"{constraint.name} ≥ {text(constraint.low)}"
    return f"{below}{constraint.name}{above}"


def equals(
    fn: Callable[..., Any],
    target: Any = 0.0,
    *,
    data: Source | None = None,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
    scale: Any = None,
) -> Constraint:
    """The constraint `E fn(x) = target`.

    Args:
        fn: `fn(params, batch) -> scalar or vector`, a MEAN over the batch's examples; `fn(params)` if `data` is None.
            It may take a random key and the model state, as the objective of a `Problem` may.
        target: one number, or one per entry of `fn`.
        data: a `Dataset`, `Sampler`, `Stream` or `Batches`; None makes the constraint deterministic.
        name: its name in results; default: the function's name.
        sample_range: (low, high), bounds of `fn` on every batch of a single example, or one such pair per entry. If the
            constraint has to be judged from samples, its interval is then a bound that holds for any number of samples,
            not an asymptotic one.
        scale: the unit of its tolerance: a violation of 0.001 · scale counts as none at the tolerance 0.001. One positive
            number, or one per entry of `fn`. None: the size of its bounds or the spread of `fn` over single examples,
            whichever is larger; for bounds of 0, also the change of `fn` with x (see docs/certificates.md).

    Example:
        >>> import tightrope as tr
        >>> tr.equals(lambda x: x @ x, 1.0, name="sphere").name
        'sphere'
    """
    target = _bound("equals", "target", target)
    return _constraint("equals", fn, target, target, data, name, (sample_range, scale))


def at_most(
    fn: Callable[..., Any],
    bound: Any = 0.0,
    *,
    data: Source | None = None,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
    scale: Any = None,
) -> Constraint:
    """The constraint `E fn(x) ≤ bound`; arguments as for `equals`.

    Example:
        >>> import tightrope as tr
        >>> tr.at_most(lambda x: x.sum(), 1.0, name="budget").kind
        'at_most'
    """
    return _constraint("at_most", fn, -np.inf, _bound("at_most", "bound", bound), data, name, (sample_range, scale))


def at_least(
    fn: Callable[..., Any],
    bound: Any = 0.0,
    *,
    data: Source | None = None,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
    scale: Any = None,
) -> Constraint:
    """The constraint `E fn(x) ≥ bound`; arguments as for `equals`.

    Example:
        >>> import tightrope as tr
        >>> tr.at_least(lambda x: x.sum(), 1.0, name="coverage").kind
        'at_least'
    """
    return _constraint("at_least", fn, _bound("at_least", "bound", bound), np.inf, data, name, (sample_range, scale))


def between(
    fn: Callable[..., Any],
    low: Any,
    high: Any,
    *,
    data: Source | None = None,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
    scale: Any = None,
) -> Constraint:
    """The constraint `low ≤ E fn(x) ≤ high`, where an end may be infinite; other arguments as for `equals`.

    Example:
        >>> import tightrope as tr
        >>> tr.between(lambda x: x.mean(), -0.1, 0.1, name="balance").kind
        'between'
    """
    low, high = _bound("between", "low", low, infinite=True), _bound("between", "high", high, infinite=True)
    return _constraint("between", fn, low, high, data, name, (sample_range, scale))


def affine(A: Any, b: Any, *, name: str | None = None) -> Constraint:
    """The constraint `A vec(x) = b`, deterministic and linear; `vec` flattens the parameters leaf by leaf.

    Args:
        A: a matrix with one column per parameter: an array, a SciPy or JAX sparse array; or an operator: a Lineax one, or a
            linear function of vec(x), written with JAX. Unless A is an array, methods only form products with A and Aᵀ.
        b: the right-hand side, one number per row of A.
        name: its name in results; default "affine".

    Example:
        >>> import jax.numpy as jnp, numpy as np, tightrope as tr
        >>> tr.affine(np.ones((1, 3)), np.ones(1)).name
        'affine'
        >>> tr.affine(lambda x: jnp.diff(x), np.zeros(2), name="flat").name
        'flat'
    """
    check_type("affine", "name", name, (str, type(None)), "a string")
    right = _bound("affine", "b", b)
    if right.ndim != 1:
        raise ValueError(f"affine: b must be a vector, one number per row of A, got an array of shape {right.shape}")
    times, shape = _linear_map(A)
    if shape is not None and shape[0] != right.size:
        raise ValueError(
            f"affine: A has shape {shape} and b has shape {right.shape}; expected b of shape ({shape[0]},)"
        )

    def product(params: Any) -> Any:
        vector = ravel_pytree(params)[0]
        if shape is not None and vector.size != shape[1]:
            raise ValueError(f"affine: A has {shape[1]} columns but x has {vector.size} entries; they must match")
        value = jnp.atleast_1d(times(vector))
        if value.shape != right.shape:
            raise ValueError(
                f"affine: A maps x, of {vector.size} entries, to an array of shape {value.shape}, "
                f"and b has shape {right.shape}; they must match"
            )
        return value.astype(vector.dtype) if jnp.issubdtype(value.dtype, jnp.floating) else value

    return replace(_constraint("equals", product, right, right, None, name or "affine", (None, None)), matrix=A)


def _constraint(
    kind: str, fn: Any, low: Any, high: Any, data: Source | None, name: str | None, units: tuple[Any, Any]
) -> Constraint:
    """The constraint, once its arguments are checked; `units` are its `sample_range` and its `scale`."""
    sample_range, scale = units
    check_callable(kind, "fn", fn, "a function of the parameters")
    check_source(kind, "data", data)
    check_type(kind, "name", name, (str, type(None)), "a string")
    try:
        low, high = np.broadcast_arrays(low, high)
    except ValueError:
        raise ValueError(
            f"{kind}: low has shape {low.shape} and high {high.shape}; expected shapes that match"
        ) from None
    if (low > high).any():
        raise ValueError(f"{kind}: low must not exceed high, got low={low} and high={high}")
    ends = None if sample_range is None else _sample_range(kind, sample_range, data, low.size)
    unit = None if scale is None else _scale(kind, scale, low.size)
    label = name or getattr(fn, "__name__", kind)
    return Constraint(kind, fn, low, high, data, label, None, ends, unit, _named_by_user=name is not None)


def _scale(owner: str, value: Any, bounds: int) -> np.ndarray:
    """`scale` as an array of positive numbers, or an error."""
    scale = _bound(owner, "scale", value)
    if not (scale > 0).all():
        raise ValueError(f"{owner}: scale must be positive, got {value}")
    if scale.ndim > 1 or (bounds > 1 and scale.size not in (1, bounds)):
        raise ValueError(
            f"{owner}: scale must be a number, or a vector with one number for each entry of fn, got shape {scale.shape}"
            + (f" for {bounds} bounds" if bounds > 1 else "")
        )
    return scale


def _sample_range(owner: str, pair: Any, data: Source | None, bounds: int) -> tuple[np.ndarray, np.ndarray]:
    """The two ends of `sample_range`, or an error."""
    try:
        low, high = pair
    except (TypeError, ValueError):
        raise TypeError(f"{owner}: sample_range must be a pair (low, high), got {pair!r}") from None
    low, high = (_bound(owner, "sample_range", end) for end in (low, high))
    sizes = {size for size in (low.size, high.size, bounds) if size != 1}
    if low.ndim > 1 or high.ndim > 1 or len(sizes) > 1:
        raise ValueError(
            f"{owner}: sample_range must be two numbers, or two vectors with one number for each entry of fn, "
            f"got shapes {low.shape} and {high.shape}" + (f" for {bounds} bounds" if bounds > 1 else "")
        )
    if not (low < high).all():
        raise ValueError(f"{owner}: sample_range must have low < high, got {pair}")
    if data is None:
        raise ValueError(
            f"{owner}: sample_range bounds fn on a single example, but this constraint has no data; "
            "leave it out: without data there is nothing to estimate"
        )
    return low, high


def _bound(owner: str, argument: str, value: Any, infinite: bool = False) -> np.ndarray:
    """`value` as an array of numbers, finite unless `infinite`."""
    try:
        bound = np.asarray(value, float)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{owner}: {argument} must be a number or an array of numbers, got {value!r:.200}") from None
    if np.isnan(bound).any() or (not infinite and np.isinf(bound).any()):
        raise ValueError(f"{owner}: {argument} must be finite, got {value}")
    return bound


def _linear_map(A: Any) -> tuple[Callable[[Any], Any], tuple[int, int] | None]:
    """The map v ↦ Av, computed in v's dtype if A's entries are stored, and A's shape if it is known."""
    if hasattr(A, "mv") and hasattr(A, "in_size"):  # Lineax
        return lambda v: _in_dtype(A, v.dtype).mv(v), (A.out_size(), A.in_size())
    if hasattr(A, "matvec"):
        raise TypeError(
            f"affine: A must be something that JAX can differentiate, got {type(A).__name__}, which computes in NumPy; "
            "pass the matrix itself (an array or a SciPy sparse array), or a linear function written with jax.numpy"
        )
    if callable(A):
        return A, None
    shape, entries, times = _sparse(A) if isinstance(A, JAXSparse) or scipy.sparse.issparse(A) else _dense(A)
    if len(shape) != 2:
        raise ValueError(f"affine: A must be a matrix, got an array of shape {shape}")
    if not np.isfinite(entries).all():
        raise ValueError("affine: A contains NaN or infinity; expected finite numbers")
    return times, (shape[0], shape[1])


def _dense(A: Any) -> tuple[tuple[int, ...], np.ndarray, Callable[[Any], Any]]:
    """A's shape, its entries, and v ↦ Av."""
    try:
        array = np.asarray(A, float)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"affine: A must be an array of numbers, a SciPy or JAX sparse array, a Lineax operator or a linear function, "
            f"got {type(A).__name__}"
        ) from None
    # The default precision rounds float32 products to ten bits on some accelerators.
    return array.shape, array, lambda v: jnp.matmul(jnp.asarray(array, v.dtype), v, precision="highest")


def _sparse(A: Any) -> tuple[tuple[int, ...], np.ndarray, Callable[[Any], Any]]:
    """A's shape, its stored entries, and v ↦ Av; SciPy's entries keep their precision until v's dtype is known."""
    if isinstance(A, JAXSparse):
        return A.shape, np.asarray(A.data), lambda v: _in_dtype(A, v.dtype) @ v
    parts, shape = scipy.sparse.coo_array(A), tuple(A.shape)
    parts.sum_duplicates()
    entries, places = np.asarray(parts.data, float), np.stack(parts.coords, axis=1).astype(np.int32)
    return shape, entries, lambda v: BCOO((jnp.asarray(entries, v.dtype), jnp.asarray(places)), shape=shape) @ v


def _in_dtype(tree: Any, dtype: Any) -> Any:
    """The same pytree with its floats in this dtype."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)
