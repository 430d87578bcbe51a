"""Constraints on rates: how often a classifier says yes, or errs, in each group of examples.

A classifier says yes where its score is positive. The rate of a group is a mean over ALL examples: the mean of
weight · [score > 0], where the weight is 1[in the group] / (share of the group), computed once from all data by `groups`. So it
is no ratio of sums over a batch, which would be biased.

A rate is a step function of the parameters, and its derivative is 0 or does not exist. In the steps of a method, and in every
derivative, sigmoid(score / TEMPERATURE) is in the place of [score > 0]. Everything that is reported, the certificate above all,
is the rate itself. The two differ, so an answer that meets a bound on the surrogate may miss that on the rate, or stay further
below it than it has to. `rates.solve` closes this gap. It is not a part of `tightrope.solve`, which is one run of one method on
one problem.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .arguments import check_callable, check_type, numbers
from .certificates.evaluation import evaluation_data
from .certificates.judging import certify, passed_in_full
from .methods.base import Method
from .oracles.build import oracle_for
from .problems.compiling import Program
from .problems.constraints import Constraint, at_least, at_most, between
from .problems.data import Dataset, Source, batch_shape, check_source
from .problems.parameters import Parameters
from .problems.problem import Problem, cached_on_problem, variant
from .runs.fitting import check_problem
from .runs.options import Record, Stop, missing
from .runs.result import Result
from .runs.solving import solve as run_solve

__all__ = [
    "TEMPERATURE",
    "Groups",
    "demographic_parity",
    "equal_opportunity",
    "equalized_odds",
    "error_rate",
    "false_positive_rate",
    "group_loss",
    "groups",
    "precision",
    "selection_rate",
    "solve",
    "true_positive_rate",
]

TEMPERATURE = 0.3
"""The width of the surrogate's step, in units of the score: a logit, so about the distance between confidence and doubt."""

Score = Callable[[Any, Any], Float[Array, " examples"]]
Bound = float | tuple[float, float]


class Groups(NamedTuple):
    """The group and the label of each example, as fields of a batch; made by `groups`.

    Attributes:
        every: one column a group: 1 / share for the examples of the group, else 0.
        positives: the same for the examples of the group with label 1; None without labels.
        negatives: for those with label 0.
        label: 1 or 0.
    """

    every: Any
    positives: Any = None
    negatives: Any = None
    label: Any = None


def groups(group: Any = None, label: Any = None) -> Groups:
    """Groups and labels in the form that rates need; put them into your `Dataset` under a name of your choice.

    Args:
        group: the group of each example: numbers or strings, one column, or several whose combinations are the groups. None:
            all examples are one group.
        label: 1 or True for positive examples, 0, -1 or False for the others; None for rates that need no label.

    Returns:
        A `Groups`, whose columns are the groups in sorted order. Pass data of another set through `groups` too: shares are
        those of the set.

    Example:
        >>> import numpy as np, tightrope as tr
        >>> sex, y = np.array(["f", "m", "f", "f"]), np.array([1, 1, 0, 0])
        >>> tr.rates.groups(sex, y).every.mean(axis=0)
        array([1., 1.], dtype=float32)
    """
    if group is None and label is None:
        raise ValueError("groups: both group and label are missing; expected at least one of them")
    labels = None if label is None else _labels(label)
    index = np.zeros(labels.size, int) if group is None and labels is not None else _index(group)
    if labels is not None and labels.size != index.size:
        raise ValueError(f"groups: group has {index.size} examples and label {labels.size}; they must match")
    member = index[:, None] == np.arange(index.max() + 1)
    if labels is None:
        return Groups(_weights(member))
    positive = labels[:, None] > 0
    return Groups(_weights(member), _weights(member & positive), _weights(member & ~positive), labels)


def _labels(label: Any) -> Float[np.ndarray, " examples"]:
    labels = np.asarray(label)
    if labels.ndim != 1 or labels.dtype.kind not in "biuf" or not np.isin(labels, (-1, 0, 1)).all():
        raise ValueError("groups: label must be a vector of 1 (positive) and 0 or -1 (negative)")
    return (labels > 0).astype(np.float32)


def _index(group: Any) -> np.ndarray:
    """The number of each example's group, in sorted order."""
    columns = np.asarray(group)
    if columns.ndim not in (1, 2) or not columns.size:
        raise ValueError(
            f"groups: group must have one entry per example, or one row of entries, got an array of shape {columns.shape}"
        )
    columns = columns.reshape(len(columns), -1)
    parts = [np.unique(c.astype(str) if c.dtype == object else c, return_inverse=True)[1] for c in columns.T]
    return np.unique(np.stack(parts, axis=1), axis=0, return_inverse=True)[1].ravel()


def _weights(member: np.ndarray) -> Float[np.ndarray, "examples groups"]:
    share = member.mean(axis=0)
    return (member / np.where(share > 0, share, 1.0)).astype(np.float32)


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

    def values(says: Callable[[Array], Array]) -> Callable[[Any, Any], Array]:
        return lambda params, batch: _mean(says(score(params, batch)), getattr(batch[group], members))

    _check_shares(name, bound)
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


# ---------------------------------------------------------------------- from surrogates to rates


def solve(
    problem: Problem,
    x0: PyTree[Any],
    method: Method | type[Method] | str | None = None,
    *,
    steps: int,
    corrections: int = 3,
    seed: int = 0,
    record: int | Record | None = None,
    stop: Stop | None = None,
    progress: bool | None = None,
) -> Result:
    """`tightrope.solve` for rates: solve for the surrogates, shift them so that they are equal to the rates there, and again.

    A bound on the surrogate is not the bound on the rate. Where a solve ends, the two differ by some gap; the next one starts
    from there, with bounds on the surrogate that are moved by this gap. After one or two corrections the answer is at the bound
    of the rate itself. Every solve is one of a smooth problem, and nothing is compiled again: bounds are arguments of programs.

    Args:
        problem: a problem with constraints of this module.
        x0: the start.
        method: as for `tightrope.solve`.
        steps: the most steps of each solve.
        corrections: the most solves after the first. None follow one whose rates make it a success, or where surrogates, as
            they are shifted, are equal to rates within the tolerance of the certificate.
        seed: the random seed of every solve.
        record: as for `tightrope.solve`.
        stop: as for `tightrope.solve`.
        progress: as for `tightrope.solve`.

    Returns:
        The result of one of the solves: of those whose rates meet the bounds, the one with the least objective; otherwise the
        least violated one. Its certificate, and all that comes from it, is of the rates. Its steps, its time and its history
        are of this one solve, on surrogates.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, tightrope as tr
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.integers(0, 2, 400)
        >>> x = rng.normal(size=(400, 3)) + sex[:, None] * [0.8, 0.0, 0.0]
        >>> y = x.sum(axis=1) + rng.normal(size=400) > 0
        >>> data = tr.Dataset({"x": x, "y": 2.0 * y - 1, "sex": tr.rates.groups(sex, y)}, batch_size=64)
        >>> score = lambda w, batch: batch["x"] @ w
        >>> loss = lambda w, batch: jnp.mean(jax.nn.softplus(-batch["y"] * score(w, batch)))
        >>> problem = tr.Problem(loss, tr.rates.demographic_parity(score, "sex", data, bound=0.1), data=data)
        >>> result = tr.rates.solve(problem, jnp.zeros(3), steps=200)
        >>> selected = x @ np.asarray(result.x) > 0
        >>> bool(abs(selected[sex == 1].mean() - selected[sex == 0].mean()) < 0.101)
        True
    """
    check_problem("solve", problem)
    shifts: dict[str, Any] = {c.name: 0.0 for c in problem.constraints if _has_surrogate(c)}
    options = {"steps": steps, "seed": seed, "record": record, "stop": stop, "progress": progress}
    before, results, warm = {}, [], None
    while True:
        warm = run_solve(_on_surrogates(problem, shifts), x0, method, warm_start=warm, **options)
        results.append(_judged(problem, warm, stop or Stop()) if shifts else warm)
        if not shifts or results[-1].success or len(results) > corrections:
            break
        gaps, certificate = _gaps(problem, warm.x), results[-1].certificate
        errors = {name: np.abs(gaps[name] - shifts[name]) for name in shifts}
        if all((errors[name] <= certificate.tolerance * certificate.scale[name]).all() for name in shifts):
            break
        moved = {name: _next_shift(shifts[name], gaps[name], *before.get(name, (0.0, 0.0))) for name in shifts}
        before, shifts = {name: (shifts[name], gaps[name]) for name in shifts}, moved
    return min(results, key=_rank)


def _has_surrogate(constraint: Constraint) -> bool:
    """Whether it is on a surrogate that is known; one with an auxiliary number waits for the point where it is known."""
    return constraint.surrogate is not None and constraint._auxiliary is None


def _on_surrogates(problem: Problem, shifts: dict[str, Any]) -> Problem:
    """The problem with bounds on surrogates plus shifts, by the names of the constraints."""

    def smooth(c: Constraint) -> Constraint:
        if not _has_surrogate(c):
            return c
        return replace(c, fn=c.surrogate, surrogate=None, low=c.low - shifts[c.name], high=c.high - shifts[c.name])

    return variant(problem, list(map(smooth, problem.constraints)), problem.data, ("surrogates",))


def _judged(problem: Problem, result: Result, stop: Stop) -> Result:
    """The result of a solve on surrogates, with a certificate of the rates."""
    certificate = certify(problem, result.x, tolerance=stop.violation, seed=result.seed)
    lacking = missing(stop, certificate)
    return replace(
        result,
        objective=certificate.objective.value,
        violation=certificate.largest_violation.value,
        stationarity=certificate.stationarity.value,
        multipliers=certificate.multipliers,
        success=not lacking,
        message="".join([result.message, *(f" For the rates, {each}." for each in lacking)]),
        certificate=certificate,
    )


def _next_shift(shift: Any, gap: np.ndarray, shift_before: Any, gap_before: Any) -> np.ndarray:
    """A shift that is nearer to the gap it leads to: the gap that the last one led to, or by a secant if that went too far.

    Rates of few examples jump, and shifts to the last gap alone would go back and forth.
    """
    error, error_before = gap - shift, gap_before - shift_before
    overshot = error * error_before < 0
    slope = np.where(overshot, error - error_before, 1.0)
    return np.where(overshot, shift - error * (shift - shift_before) / slope, gap)


def _rank(result: Result) -> tuple[bool, float]:
    feasible = result.certificate.verdict == "feasible"
    violations = result.certificate.relative_violation.values()
    return not feasible, result.objective if feasible else max(e.value for e in violations)


def _gaps(problem: Problem, x: PyTree[Any]) -> dict[str, np.ndarray]:
    """The rates of each constraint minus their surrogates, at x."""
    parameters = Parameters(x)
    oracle = oracle_for(problem, parameters)
    in_full = all(map(passed_in_full, oracle.sources))
    oracle, sample = (oracle, oracle.everything()) if in_full else evaluation_data(oracle)
    smooth = replace(oracle, constraints=oracle_for(problem, parameters, training=True).constraints)
    structures = [jax.tree.structure(each) for each in (oracle, smooth)]

    def difference(leaves: list[Array], x: Array, sample: Any) -> Array:
        rates, soft = (jax.tree.unflatten(structure, leaves).raw(x, sample) for structure in structures)
        return rates - soft

    program = cached_on_problem(problem, ("gaps", parameters.key), lambda: Program(difference, "little"))
    found = np.asarray(program(oracle.leaves(), parameters.start, sample), float)
    return {name: found[part] for name, part in oracle.slices().items()}
