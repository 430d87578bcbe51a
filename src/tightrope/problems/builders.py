"""Constraints on ratios, tails and probabilities: `ratio_at_least`, `ratio_at_most`, `cvar_at_most` and `chance_at_most`.

    E a / E b ≥ c,  E b > 0     ⇔   E[a − c b] ≥ 0                                                       exactly
    CVaR_α(L) ≤ c               ⇔   t + E max(L − t, 0) / (1 − α) ≤ c for some t                         exactly
    P(m > 0) ≤ p                ⇐   E s(1 + m / w) ≤ p,   s(z) = z² (3 − 2z) for z in [0, 1], else 0 or 1

The second line is due to Rockafellar and Uryasev; the t with the least left side is the α-quantile of L. It is a variable
that `solve` adds to x (see `lifting`). In the third line s(1 + m / w) ≥ 1 where m > 0, so a point that satisfies the smooth
constraint satisfies the other one, with about w / 2 to spare in the margin. The indicator itself is what certificates evaluate.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..arguments import check_callable, number, numbers
from .constraints import Auxiliary, Constraint, at_least, at_most
from .data import Source
from .tracing import arguments_of

SMOOTHING = 0.05
"""The width of the smoothed indicator, relative to the root mean square of the margins at x0."""


def ratio_at_least(
    numerator: Callable[..., Any],
    denominator: Callable[..., Any],
    bound: Any,
    *,
    data: Source,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
    scale: Any = None,
) -> Constraint:
    """The constraint `E numerator(x) / E denominator(x) ≥ bound`, such as one on precision, recall or an F-measure.

    It is `E[numerator − bound · denominator] ≥ 0`, the same wherever the mean of the denominator is positive; a warning says
    if it is not at an answer. Violations, `sample_range` and `scale` are those of this difference: divided by the mean
    of the denominator, a violation is what the ratio lacks.

    Args:
        numerator: `numerator(params, batch) -> scalar or vector`, a MEAN over the batch's examples.
        denominator: a function like it, with positive means.
        bound: one number, or one per entry.
        data: the source of the examples of both functions.
        name: its name in results; default: the names of the two functions.
        sample_range: as for `equals`, of `numerator − bound · denominator`.
        scale: as for `equals`.

    Example:
        >>> import jax, jax.numpy as jnp, tightrope as tr
        >>> def found(w, batch):
        ...     return jnp.mean(batch["y"] * jax.nn.sigmoid(batch["x"] @ w))
        >>> def flagged(w, batch):
        ...     return jnp.mean(jax.nn.sigmoid(batch["x"] @ w))
        >>> data = tr.Dataset({"x": jnp.ones((10, 2)), "y": jnp.ones(10)}, batch_size=5)
        >>> tr.ratio_at_least(found, flagged, 0.8, data=data).name
        'found / flagged'
    """
    return _ratio("ratio_at_least", at_least, numerator, denominator, bound, data, name, (sample_range, scale))


def ratio_at_most(
    numerator: Callable[..., Any],
    denominator: Callable[..., Any],
    bound: Any,
    *,
    data: Source,
    name: str | None = None,
    sample_range: tuple[Any, Any] | None = None,
    scale: Any = None,
) -> Constraint:
    """The constraint `E numerator(x) / E denominator(x) ≤ bound`; arguments as for `ratio_at_least`.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> data = tr.Dataset(jnp.ones((10, 2)), batch_size=5)
        >>> cost, output = lambda x, batch: jnp.mean(batch @ x), lambda x, batch: jnp.mean(x**2)
        >>> tr.ratio_at_most(cost, output, 3.0, data=data, name="unit cost").kind
        'at_most'
    """
    return _ratio("ratio_at_most", at_most, numerator, denominator, bound, data, name, (sample_range, scale))


def cvar_at_most(
    loss: Callable[..., Any], level: float, bound: float, *, data: Source, name: str | None = None, scale: Any = None
) -> Constraint:
    """The constraint that the conditional value at risk of a loss, the mean of its worst part, is at most `bound`.

    For `level=0.95` that is the mean of the worst 5% of all examples. `solve` adds a variable to x for the quantile where they
    begin, and takes it out of the answer; certificates use the best one there is at the point that they judge.

    Args:
        loss: `loss(params, batch) -> vector`, ONE VALUE PER EXAMPLE of the batch.
        level: the share of examples that is left out, between 0 and 1.
        bound: the bound, in the units of the loss.
        data: the source of the examples.
        name: its name in results; default: the name of the function.
        scale: as for `equals`.

    Example:
        >>> import jax.numpy as jnp, numpy as np, tightrope as tr
        >>> returns = np.random.default_rng(0).normal([0.3, 0.1], [1.0, 0.2], size=(2000, 2))
        >>> data = tr.Dataset(returns, batch_size=200)
        >>> risk = tr.cvar_at_most(lambda x, batch: -batch @ x, 0.9, 0.5, data=data, name="risk")
        >>> gain = lambda x, batch: -jnp.mean(batch @ x)
        >>> result = tr.solve(
        ...     tr.Problem(gain, risk, domain=tr.domains.Simplex(), data=data), jnp.ones(2) / 2, steps=1000
        ... )
        >>> losses = np.sort(-returns @ np.asarray(result.x))
        >>> bool(losses[-200:].mean() <= 0.505)
        True
    """
    check_callable("cvar_at_most", "loss", loss, "a function of the parameters and a batch")
    level = number("cvar_at_most", "level", level, low=0.0, high=1.0)
    bound = number("cvar_at_most", "bound", bound)
    _check_data("cvar_at_most", data)

    def lifted(losses: Float[Array, " examples"], auxiliary: Float[Array, ""]) -> Float[Array, ""]:
        return auxiliary + jnp.mean(jnp.maximum(losses - auxiliary, 0.0)) / (1.0 - level)

    made = at_most(_combined(lifted, loss), bound, data=data, name=name or _name_of(loss), scale=scale)
    return replace(
        made, _auxiliary=Auxiliary(loss, lambda losses: quantile(losses, level), True), _named_by_user=bool(name)
    )


def chance_at_most(
    margin: Callable[..., Any],
    probability: float,
    *,
    data: Source,
    smoothing: float | None = None,
    name: str | None = None,
    scale: Any = None,
) -> Constraint:
    """The constraint `P(margin(x) > 0) ≤ probability`.

    Methods see a smooth bound of the probability. Records and certificates evaluate the probability itself, the share of
    examples with a positive margin; where it is judged from samples, its interval holds for any number of them. An answer has
    about half of `smoothing` to spare in the margin, so a smaller one comes nearer to the optimum, and is noisier.

    Args:
        margin: `margin(params, batch) -> vector`, ONE VALUE PER EXAMPLE of the batch, positive where the event happens.
        probability: the bound, between 0 and 1.
        data: the source of the examples.
        smoothing: the width over which the indicator of the event is smoothed, in the units of the margin; None: a twentieth of
            the root mean square of the margins at x0, rounded to a power of two.
        name: its name in results; default: the name of the function.
        scale: as for `equals`.

    Example:
        >>> import jax.numpy as jnp, numpy as np, tightrope as tr
        >>> demand = np.random.default_rng(0).exponential(size=(2000, 1))
        >>> data = tr.Dataset(demand, batch_size=200)
        >>> short = tr.chance_at_most(lambda stock, batch: batch[:, 0] - stock, 0.1, data=data, name="short")
        >>> result = tr.solve(tr.Problem(lambda stock: stock, short), jnp.array(1.0), steps=1000)
        >>> bool(np.mean(demand > result.x) <= 0.101)
        True
    """
    owner = "chance_at_most"
    check_callable(owner, "margin", margin, "a function of the parameters and a batch")
    probability = number(owner, "probability", probability, low=0.0, high=1.0)
    _check_data(owner, data)

    def smooth(margins: Float[Array, " examples"], auxiliary: float) -> Float[Array, ""]:
        z = jnp.clip(1.0 + margins / auxiliary, 0.0, 1.0)
        return jnp.mean(z**2 * (3.0 - 2.0 * z))

    def happens(margins: Float[Array, " examples"]) -> Float[Array, ""]:
        return jnp.mean((margins > 0.0).astype(margins.dtype))

    width = None if smoothing is None else number(owner, "smoothing", smoothing, low=0.0)
    made = at_most(
        _combined(happens, margin),
        probability,
        data=data,
        name=name or _name_of(margin),
        sample_range=(0, 1),
        scale=scale,
    )
    return replace(
        made,
        surrogate=_combined(smooth, margin),
        _auxiliary=Auxiliary(margin, _width if width is None else lambda margins: width, False),
        _named_by_user=bool(name),
    )


def quantile(losses: Float[np.ndarray, " examples"], level: float) -> float:
    """The t that minimizes `t + mean(max(losses − t, 0)) / (1 − level)`; the middle if there is an interval of them."""
    above = losses.size * (1.0 - level)
    whole = round(above) if math.isclose(above, round(above), rel_tol=1e-9) else math.floor(above)
    place = losses.size - 1 - whole  # the smallest t with at most `whole` losses above it
    if place < 0:
        return float(np.min(losses))
    ends = np.partition(losses, [place, min(place + 1, losses.size - 1)])[place : place + 2]
    return float(np.mean(ends) if math.isclose(above, whole, rel_tol=1e-9) else ends[0])


def _width(margins: Float[np.ndarray, " examples"]) -> float:
    """The default of `smoothing`; a power of two, so that a small change of x0 compiles nothing."""
    size = float(np.sqrt(np.mean(np.square(margins, dtype=float))))
    if size == 0.0:
        raise ValueError(
            "chance_at_most: margins have no size to go by at x0 (all are 0, or there are no examples yet); "
            "pass smoothing=, a small change of the margin"
        )
    return 2.0 ** round(math.log2(SMOOTHING * size))


def _ratio(
    owner: str,
    kind: Callable[..., Constraint],
    numerator: Any,
    denominator: Any,
    bound: Any,
    data: Any,
    name: str | None,
    units: tuple[Any, Any],
) -> Constraint:
    for argument, fn in (("numerator", numerator), ("denominator", denominator)):
        check_callable(owner, argument, fn, "a function of the parameters and a batch")
    numbers(owner, "bound", np.asarray(bound))
    _check_data(owner, data)
    label = name or f"{_name_of(numerator)} / {_name_of(denominator)}"
    difference = _combined(lambda a, b: a - jnp.asarray(bound, a.dtype) * b, numerator, denominator)
    made = kind(difference, 0.0, data=data, name=label, sample_range=units[0], scale=units[1])
    entries = _combined(lambda a, b: jnp.broadcast_to(b, jnp.shape(a - jnp.asarray(bound) * b)), numerator, denominator)
    return replace(made, _denominator=entries, _named_by_user=bool(name))


def _check_data(owner: str, data: Any) -> None:
    if data is None:
        raise ValueError(f"{owner}: data is missing; expected the source of the examples, such as a tightrope.Dataset")


def _name_of(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _combined(combine: Callable[..., Any], *functions: Callable[..., Any]) -> Callable[..., Any]:
    """The function `combine` of the values of some functions of the user's, with the arguments that these take.

    `auxiliary` goes to `combine`, a random key and the model state to the functions that have such an argument.
    """

    def value(fn: Callable[..., Any], params: Any, batch: Any, given: dict[str, Any]) -> Any:
        found = fn(params, batch, **{name: each for name, each in given.items() if name in arguments_of(fn)})
        return jnp.asarray(found[0] if isinstance(found, tuple) else found)

    def combined(params: Any, batch: Any, *, auxiliary: Any = None, **given: Any) -> Any:
        rest = {} if auxiliary is None else {"auxiliary": auxiliary}
        return combine(*(value(fn, params, batch, given) for fn in functions), **rest)

    taken = {name: p for fn in functions for name, p in list(arguments_of(fn).items())[2:] if name in ("key", "state")}
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("params", "batch")]
    more = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in taken.values()]
    combined.__signature__ = inspect.Signature([*first, *more])  # pyright: ignore[reportFunctionMemberAccess]
    return combined
