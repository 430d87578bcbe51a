"""Constraints on the rates of groups: the rate itself, and the surrogate that the steps see."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..arguments import check_callable, check_type, numbers
from ..problems.constraints import Constraint, at_least, at_most, between
from ..problems.data import Dataset, Source, batch_shape, check_source
from .group_weights import Groups

TEMPERATURE = 0.3
"""The width of the surrogate's step, in units of the score: a logit, so about the distance between confidence and doubt."""

Score = Callable[[Any, Any], Float[Array, " examples"]]
Bound = float | tuple[float, float]

# ---------------------------------------------------------------------- differences between groups


def demographic_parity(score: Score, group: str, data: Source, bound: float = 0.05) -> Constraint:
    """Selection rates of any two groups differ by at most `bound`.

    Args:
        score: `score(params, batch)`, one number per example; the classifier says yes where it is positive.
        group: the name of the batch's field that `groups` made.
        data: the source of examples, whose batches are dicts.
        bound: the largest difference.

    Example:
        >>> import numpy as np, tightrope as tr
        >>> sex = np.array([0, 0, 1, 1])
        >>> data = tr.Dataset({"x": np.array([-1.0, 2.0, 3.0, 4.0]), "sex": tr.rates.groups(sex)}, batch_size=4)
        >>> score = lambda threshold, batch: batch["x"] - threshold
        >>> problem = tr.Problem(lambda w: w**2, tr.rates.demographic_parity(score, "sex", data, bound=0.1))
        >>> round(
        ...     tr.certify(problem, 0.0).violation["demographic_parity"].value, 6
        ... )  # half of one group, all of the other
        0.4
    """
    return _differences("demographic_parity", score, group, data, bound, ("every",))


def equal_opportunity(score: Score, group: str, data: Source, bound: float = 0.05) -> Constraint:
    """True positive rates of any two groups differ by at most `bound`; arguments as for `demographic_parity`."""
    return _differences("equal_opportunity", score, group, data, bound, ("positives",))


def equalized_odds(score: Score, group: str, data: Source, bound: float = 0.05) -> Constraint:
    """True and false positive rates of any two groups differ by at most `bound`; arguments as for `demographic_parity`."""
    return _differences("equalized_odds", score, group, data, bound, ("positives", "negatives"))


def _differences(name: str, score: Score, group: str, data: Source, bound: Any, members: tuple[str, ...]) -> Constraint:
    """Differences of the rates of all pairs of groups, among these members of each group."""
    count = _check(name, score, group, data, *members)
    _check_shares(name, bound)
    if count < 2:
        raise ValueError(f"{name}: the field {group!r} has one group; expected two or more to compare")
    first, second = np.array(list(itertools.combinations(range(count), 2))).T

    def differences(rates: Array) -> Array:
        return rates[first] - rates[second]

    def values(says: Callable[[Array], Array]) -> Callable[[Any, Any], Array]:
        def of(params: Any, batch: Any) -> Array:
            yes = says(score(params, batch))
            return jnp.concatenate([differences(_mean(yes, getattr(batch[group], m))) for m in members])

        return of

    constraint = between(values(_selected), -np.asarray(bound), bound, data=data, name=name)
    return replace(constraint, surrogate=values(_softly))


# ---------------------------------------------------------------------- rates of each group


def selection_rate(score: Score, group: str, data: Source, bound: Bound) -> Constraint:
    """The selection rate of each group is within `bound`: (low, high), or a number that it is at most.

    Other arguments as for `demographic_parity`.
    """
    return _rates("selection_rate", score, group, data, bound, "every")


def true_positive_rate(score: Score, group: str, data: Source, bound: Bound) -> Constraint:
    """The true positive rate (recall) of each group is within `bound`: (low, high), or a number that it is at least.

    Other arguments as for `demographic_parity`.
    """
    pair = bound if isinstance(bound, tuple | list) else (bound, np.inf)
    return _rates("true_positive_rate", score, group, data, pair, "positives")


def false_positive_rate(score: Score, group: str, data: Source, bound: Bound) -> Constraint:
    """The false positive rate of each group is within `bound`: (low, high), or a number that it is at most.

    Other arguments as for `demographic_parity`.
    """
    return _rates("false_positive_rate", score, group, data, bound, "negatives")


def _rates(name: str, score: Score, group: str, data: Source, bound: Any, members: str) -> Constraint:
    _check(name, score, group, data, members)
    _check_shares(name, bound)

    def values(says: Callable[[Array], Array]) -> Callable[[Any, Any], Array]:
        return lambda params, batch: _mean(says(score(params, batch)), getattr(batch[group], members))

    low, high = bound if isinstance(bound, tuple | list) else (-np.inf, bound)
    return replace(between(values(_selected), low, high, data=data, name=name), surrogate=values(_softly))


def error_rate(score: Score, group: str, data: Source, bound: float) -> Constraint:
    """The share of each group's examples that are classified wrongly is at most `bound`.

    Other arguments as for `demographic_parity`.
    """
    _check("error_rate", score, group, data, "positives", "negatives")
    _check_shares("error_rate", bound)

    def values(says: Callable[[Array], Array]) -> Callable[[Any, Any], Array]:
        def of(params: Any, batch: Any) -> Array:
            yes, label = says(score(params, batch)), batch[group].label
            return _mean(label + (1.0 - 2.0 * label) * yes, batch[group].every)

        return of

    return replace(at_most(values(_selected), bound, data=data, name="error_rate"), surrogate=values(_softly))


def precision(score: Score, group: str, data: Source, bound: float) -> Constraint:
    """Of the selected examples of each group, at least the share `bound` is positive.

    The constraint is the mean of selected · (label - bound) ≥ 0, which is no ratio; its violation is in these units. Other
    arguments as for `demographic_parity`.
    """
    _check("precision", score, group, data, "positives", "negatives")
    _check_shares("precision", bound)

    def values(says: Callable[[Array], Array]) -> Callable[[Any, Any], Array]:
        def of(params: Any, batch: Any) -> Array:
            return _mean(says(score(params, batch)) * (batch[group].label - bound), batch[group].every)

        return of

    return replace(at_least(values(_selected), 0.0, data=data, name="precision"), surrogate=values(_softly))


def group_loss(loss: Score, group: str, data: Source, bound: float) -> Constraint:
    """The mean loss of each group is at most `bound`. The loss is smooth, so there is no surrogate.

    Args:
        loss: `loss(params, batch)`, one number per example.
        group: the name of the batch's field that `groups` made.
        data: the source of examples, whose batches are dicts.
        bound: the largest mean loss.
    """
    _check("group_loss", loss, group, data, "every")
    return at_most(
        lambda params, batch: _mean(loss(params, batch), batch[group].every), bound, data=data, name="group_loss"
    )


def _mean(values: Float[Array, " examples"], weights: Float[Array, "examples groups"]) -> Float[Array, " groups"]:
    return jnp.mean(values[:, None] * weights, axis=0)


def _selected(score: Array) -> Array:
    return (score > 0).astype(score.dtype)


def _softly(score: Array) -> Array:
    return jax.nn.sigmoid(score / TEMPERATURE)


def _check(owner: str, score: Any, group: Any, data: Any, *members: str) -> int:
    """The number of groups; an error unless the data have them, with examples of these members in each."""
    check_callable(owner, "score", score, "a function (params, batch) that gives one number per example")
    check_type(owner, "group", group, str, "the name of a field of the batch")
    check_source(owner, "data", data)
    shapes = None if data is None else batch_shape(data)
    if not isinstance(shapes, dict) or not isinstance(shapes.get(group), Groups):
        raise ValueError(
            f"{owner}: the batches of data have no field {group!r} made by tightrope.rates.groups; expected "
            f"tightrope.Dataset({{…, {group!r}: tightrope.rates.groups(group, label)}}, batch_size)"
        )
    for name in members:
        if getattr(shapes[group], name) is None:
            raise ValueError(
                f"{owner}: the field {group!r} has no labels; expected tightrope.rates.groups(group, label)"
            )
        if isinstance(data, Dataset) and data.on_host is None:
            found = np.asarray(jnp.any(getattr(data.arrays[group], name) > 0, axis=0))
            if not found.all():
                which = {"every": "", "positives": " with label 1", "negatives": " with label 0"}[name]
                raise ValueError(f"{owner}: group {np.flatnonzero(~found)[0]} of {group!r} has no examples{which}")
    return shapes[group].every.shape[1]


def _check_shares(owner: str, bound: Any) -> None:
    """An error unless the ends are shares, such as 0.05 for 5%; an end may be missing, ±∞."""
    for end in bound if isinstance(bound, tuple | list) else (bound,):
        if not (isinstance(end, float) and math.isinf(end)):
            numbers(owner, "bound", end, low=0.0, high=1.0, closed="[]")
