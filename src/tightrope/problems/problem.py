"""What is solved: an objective, constraints, a simple set, and where their samples come from.

The one place where signs are fixed. A constraint is `low ≤ h(x) ≤ high`, entry by entry; inside, that is `c(x) = 0` with
`c = h − target` and `g(x) ≤ 0` with `g = h − high` or `g = low − h`. Multipliers are those of the Lagrangian
`F + Σ λ c + Σ μ g` with `μ ≥ 0`; `between` reports one signed number, positive at the upper end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.experimental.sparse import BCOO, JAXSparse
from jax.flatten_util import ravel_pytree

from ..domains import Domain, Reals
from .data import Batches, Source, check_source


@dataclass(frozen=True, eq=False)
class Constraint:
    """`low ≤ E fn(x) ≤ high`; made by `equals`, `at_most`, `at_least`, `between` and `affine`.

    Attributes:
        kind: which of these made it.
        fn: `fn(params, batch)` with data, `fn(params)` without.
        low: lower bound, a number or one for each entry of what `fn` returns.
        high: upper bound.
        data: where its samples come from; None: deterministic.
        name: how results call it.
        matrix: the `A` of `affine` as it was given, else None.
        sample_range: the least and the greatest value of `fn` on a single row of data, where the user gave them.
    """

    kind: str
    fn: Callable[..., Any]
    low: np.ndarray
    high: np.ndarray
    data: Source | None
    name: str
    named_by_user: bool
    matrix: Any = None
    sample_range: tuple[np.ndarray, np.ndarray] | None = None


def equals(
    fn: Callable[..., Any],
    target: Any = 0.0,
    *,
    data: Source | None = None,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
) -> Constraint:
    """`E fn(x) = target`.

    Args:
        fn: `fn(params, batch) -> scalar or vector`, a mean over the batch's rows; `fn(params)` where `data` is None.
        target: a number, or one for each entry.
        data: a `Dataset` or `Sampler`; None makes the constraint deterministic.
        name: how results call it; default: the function's name.
        sample_range: (low, high), between which `fn` lies on every batch of a single row, or one such pair for each entry.
            Where samples must be drawn to judge the constraint, its interval is then a bound that holds for any number of
            them, not an asymptotic one.

    Example:
        >>> import tightrope as tr
        >>> tr.equals(lambda x: x @ x, 1.0, name="sphere").name
        'sphere'
    """
    bound = _bound("equals", "target", target)
    return _constraint("equals", fn, bound, bound, data, name, sample_range)


def at_most(
    fn: Callable[..., Any],
    bound: Any = 0.0,
    *,
    data: Source | None = None,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
) -> Constraint:
    """`E fn(x) ≤ bound`; arguments as in `equals`.

    Example:
        >>> import tightrope as tr
        >>> tr.at_most(lambda x: x.sum(), 1.0, name="budget").kind
        'at_most'
    """
    high = _bound("at_most", "bound", bound)
    return _constraint("at_most", fn, np.full_like(high, -np.inf), high, data, name, sample_range)


def at_least(
    fn: Callable[..., Any],
    bound: Any = 0.0,
    *,
    data: Source | None = None,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
) -> Constraint:
    """`E fn(x) ≥ bound`; arguments as in `equals`.

    Example:
        >>> import tightrope as tr
        >>> tr.at_least(lambda x: x.sum(), 1.0, name="coverage").kind
        'at_least'
    """
    low = _bound("at_least", "bound", bound)
    return _constraint("at_least", fn, low, np.full_like(low, np.inf), data, name, sample_range)


def between(
    fn: Callable[..., Any],
    low: Any,
    high: Any,
    *,
    data: Source | None = None,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
) -> Constraint:
    """`low ≤ E fn(x) ≤ high`; arguments as in `equals`.

    Example:
        >>> import tightrope as tr
        >>> tr.between(lambda x: x.mean(), -0.1, 0.1, name="balance").kind
        'between'
    """
    lower, upper = _bound("between", "low", low, infinite=True), _bound("between", "high", high, infinite=True)
    try:
        lower, upper = np.broadcast_arrays(lower, upper)
    except ValueError:
        raise ValueError(
            f"between: low has shape {lower.shape} and high {upper.shape}; expected shapes that match"
        ) from None
    if (lower > upper).any():
        raise ValueError(f"between: low must not exceed high, got low={low} and high={high}")
    return _constraint("between", fn, lower, upper, data, name, sample_range)


def affine(A: Any, b: Any, *, name: str | None = None) -> Constraint:
    """`A vec(x) = b`, deterministic and linear; `vec` flattens the parameters leaf by leaf.

    Args:
        A: a matrix with one column a parameter: an array, a SciPy or JAX sparse array; or an operator: a Lineax one, or a
            linear function of vec(x), written with JAX. Of all but an array a method only ever forms products with A and Aᵀ.
        b: right-hand side, one number a row of A.
        name: how results call it; default "affine".

    Example:
        >>> import jax.numpy as jnp, numpy as np, tightrope as tr
        >>> tr.affine(np.ones((1, 3)), np.ones(1)).name
        'affine'
        >>> tr.affine(lambda x: jnp.diff(x), np.zeros(2), name="flat").name
        'flat'
    """
    right = _bound("affine", "b", b)
    if right.ndim != 1:
        raise ValueError(f"affine: b must be a vector, one number a row of A, got an array of shape {right.shape}")
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

    return replace(_constraint("equals", product, right, right, None, name or "affine"), matrix=A)


def _linear_map(A: Any) -> tuple[Callable[[Any], Any], tuple[int, int] | None]:
    """The map v ↦ Av, computed in v's dtype where A's numbers can be seen, and A's shape where it is known."""
    if hasattr(A, "mv") and hasattr(A, "in_size"):  # Lineax
        return lambda v: _in_dtype(A, v.dtype).mv(v), (A.out_size(), A.in_size())
    if hasattr(A, "matvec"):
        raise TypeError(
            f"affine: A must be something that JAX can differentiate, got {type(A).__name__}, which computes in NumPy; "
            "pass the matrix itself (an array or a SciPy sparse array), or a linear function written with jax.numpy"
        )
    if callable(A):
        return A, None
    shape, numbers, times = _sparse(A) if isinstance(A, JAXSparse) or scipy.sparse.issparse(A) else _dense(A)
    if len(shape) != 2:
        raise ValueError(f"affine: A must be a matrix, got an array of shape {shape}")
    if not np.isfinite(numbers).all():
        raise ValueError("affine: A contains NaN or infinity; expected finite numbers")
    return times, (shape[0], shape[1])


def _dense(A: Any) -> tuple[tuple[int, ...], np.ndarray, Callable[[Any], Any]]:
    """A's shape, its numbers, and v ↦ Av."""
    try:
        array = np.asarray(A, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"affine: A must be an array of numbers, a SciPy or JAX sparse array, a Lineax operator or a linear function, "
            f"got {type(A).__name__}"
        ) from None
    # Full precision by name: the default rounds float32 products to ten bits on some accelerators.
    return array.shape, array, lambda v: jnp.matmul(jnp.asarray(array, v.dtype), v, precision="highest")


def _sparse(A: Any) -> tuple[tuple[int, ...], np.ndarray, Callable[[Any], Any]]:
    """A's shape, the numbers it stores, and v ↦ Av; SciPy's numbers keep their precision until v's dtype is known."""
    if isinstance(A, JAXSparse):
        return A.shape, np.asarray(A.data), lambda v: _in_dtype(A, v.dtype) @ v
    parts, shape = scipy.sparse.coo_array(A), tuple(A.shape)
    parts.sum_duplicates()
    numbers, places = np.asarray(parts.data, float), np.stack(parts.coords, axis=1).astype(np.int32)
    return shape, numbers, lambda v: BCOO((jnp.asarray(numbers, v.dtype), jnp.asarray(places)), shape=shape) @ v


def _in_dtype(tree: Any, dtype: Any) -> Any:
    """The same with its floats in this dtype."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


def _constraint(
    kind: str,
    fn: Any,
    low: np.ndarray,
    high: np.ndarray,
    data: Source | None,
    name: str | None,
    sample_range: tuple[Any, Any] | None = None,
) -> Constraint:
    if not callable(fn):
        raise TypeError(f"{kind}: fn must be a function of the parameters, got {type(fn).__name__}")
    check_source(kind, "data", data)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{kind}: name must be a string, got {type(name).__name__}")
    values = None if sample_range is None else _range(kind, sample_range, data, low.size)
    label = name or getattr(fn, "__name__", kind)
    return Constraint(kind, fn, low, high, data, label, name is not None, sample_range=values)


def _range(owner: str, pair: Any, data: Source | None, bounds: int) -> tuple[np.ndarray, np.ndarray]:
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
            f"{owner}: sample_range says what fn returns on a single row of data, and this constraint has no data; "
            "leave it out: without data there is nothing to estimate"
        )
    return low, high


def _bound(owner: str, argument: str, value: Any, infinite: bool = False) -> np.ndarray:
    try:
        bound = np.asarray(value, float)
    except (TypeError, ValueError):
        raise TypeError(f"{owner}: {argument} must be a number or an array of numbers, got {value!r}") from None
    if np.isnan(bound).any() or (not infinite and np.isinf(bound).any()):
        raise ValueError(f"{owner}: {argument} must be finite, got {value}")
    return bound


RESERVED = ("step", "samples", "epochs", "seconds", "objective", "violation", "stationarity")
"""Columns of a history that no constraint may be called."""


def _unique_names(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """Names given twice by the user are an error; functions that share a name are numbered."""
    seen: dict[str, int] = {name: 1 for name in RESERVED}
    unique = []
    for constraint in constraints:
        count = seen[constraint.name] = seen.get(constraint.name, 0) + 1
        if count > 1 and constraint.named_by_user:
            what = "is a column of every history" if constraint.name in RESERVED else "is the name of two constraints"
            raise ValueError(f"Problem: {constraint.name!r} {what}; give the constraint another name")
        unique.append(constraint if count == 1 else replace(constraint, name=f"{constraint.name}-{count}"))
    return tuple(unique)


class Problem:
    """Minimize `E objective(x)` subject to constraints and `x ∈ domain`.

    Args:
        objective: `objective(params, batch) -> scalar`, a MEAN over the batch's rows; `objective(params)` where `data` is
            None, and then it is deterministic.
        constraints: what `equals`, `at_most`, `at_least`, `between`, `affine` return; one, or a sequence.
        domain: a set of `tightrope.domains` that x must stay in; None: everywhere.
        data: where the objective's samples come from.
        smooth: False says that the objective or a constraint has kinks. Certificates then judge near-stationarity too, and
            the choice of a method avoids those that rely on curvature.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), [tr.equals(jnp.sum, 1.0)])
        >>> problem
        Problem(objective '<lambda>', constraints: sum (equals), domain Reals)
    """

    def __init__(
        self,
        objective: Callable[..., Any],
        constraints: Constraint | Sequence[Constraint] = (),
        *,
        domain: Domain | None = None,
        data: Source | None = None,
        smooth: bool = True,
    ):
        if not callable(objective):
            raise TypeError(f"Problem: objective must be a function of the parameters, got {type(objective).__name__}")
        constraints = (constraints,) if isinstance(constraints, Constraint) else tuple(constraints)
        for constraint in constraints:
            if not isinstance(constraint, Constraint):
                raise TypeError(
                    f"Problem: constraints must come from tightrope.equals, at_most, at_least, between or affine, "
                    f"got {type(constraint).__name__}"
                )
        if domain is not None and not isinstance(domain, Domain):
            raise TypeError(f"Problem: domain must be one of tightrope.domains, got {type(domain).__name__}")
        if not isinstance(smooth, bool):
            raise TypeError(f"Problem: smooth must be True or False, got {smooth!r}")
        check_source("Problem", "data", data)
        self.objective = objective
        self.constraints = _unique_names(constraints)
        self.domain: Domain = Reals() if domain is None else domain
        self.data = data
        self.smooth = smooth
        self.programs: dict[Any, Any] = {}  # what is compiled or checked once lives here, and dies with the problem

    @property
    def sources(self) -> tuple[Source, ...]:
        """The distinct sources of samples, the objective's first."""
        every = [self.data, *(constraint.data for constraint in self.constraints)]
        return tuple({id(source): source for source in every if source is not None}.values())

    @property
    def needs_batches(self) -> bool:
        """Whether a source is `Batches`: such a problem is for a `Stepper`, since there is nothing to draw from."""
        return any(isinstance(source, Batches) for source in self.sources)

    def __repr__(self) -> str:
        constraints = ", ".join(f"{c.name} ({c.kind})" for c in self.constraints) or "none"
        name = getattr(self.objective, "__name__", "objective")
        return f"Problem(objective {name!r}, constraints: {constraints}, domain {type(self.domain).__name__})"


def cached_on_problem(problem: Problem, key: Any, make: Callable[[], Any]) -> Any:
    """What `make` returns, kept on the problem."""
    if key not in problem.programs:
        problem.programs[key] = make()
    return problem.programs[key]
