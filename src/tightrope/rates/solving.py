"""`rates.solve`: solves on shifted surrogates, until the rates themselves meet their bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ..certificates.certificate import Certificate
from ..certificates.evaluation import evaluation_data
from ..certificates.judging import Options, certify, certify_points, evaluate_exactly, passed_in_full
from ..certificates.scales import pilot_spread
from ..methods.base import Method
from ..oracles.build import oracle_for
from ..problems.compiling import Program
from ..problems.constraints import Constraint
from ..problems.parameters import Parameters
from ..problems.problem import Problem, cached_on_problem, variant
from ..runs.fitting import check_problem
from ..runs.options import Record, Stop, missing
from ..runs.result import Result
from ..runs.solving import solve as run_solve


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
        if not shifts:
            return warm
        rates = _rates_at(problem, warm.x)
        results.append(_judged(problem, warm, rates, stop or Stop()))
        if results[-1].success or len(results) > corrections:
            break
        gaps, certificate = rates.gaps, results[-1].certificate
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


def _judged(problem: Problem, result: Result, rates: _Rates, stop: Stop) -> Result:
    """The result of a solve on surrogates, with a certificate of the rates."""
    certificate = _certified(problem, result, rates, stop.violation)
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


def _certified(problem: Problem, result: Result, rates: _Rates, tolerance: float) -> Certificate:
    """The certificate of the rates.

    On data that are passed over in full, a rate is the surrogate plus the gap, with the derivative of the surrogate: so the
    programs of the solve evaluate it too.
    """
    if not all(map(passed_in_full, problem.sources)) or any(c._auxiliary is not None for c in problem.constraints):
        return certify(problem, result.x, tolerance=tolerance, seed=result.seed)
    smooth, parameters = _on_surrogates(problem, dict.fromkeys(rates.gaps, 0.0)), Parameters(result.x)
    oracle, start = oracle_for(smooth, parameters), parameters.start
    points, shift = np.asarray(start)[None], np.zeros((1, 1 + oracle.rows.raw_size), parameters.dtype)
    places = {name: np.arange(1, shift.size)[part] for name, part in oracle.slices().items()}
    for name, gap in rates.gaps.items():
        shift[0, places[name]] = gap
    exact = evaluate_exactly(smooth, oracle, points, start, shift)
    spread = np.array(exact.sizes.spread)
    for name, own in rates.spread.items():
        spread[0, places[name]] = own
    exact = exact._replace(sizes=exact.sizes._replace(spread=spread))
    return certify_points(smooth, oracle, points, start, [Options(tolerance, 0.95, result.seed)], exact=exact)[0]


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


class _Rates(NamedTuple):
    """The rates at a point, by the names of their constraints.

    Attributes:
        gaps: the rates minus their surrogates.
        spread: the standard deviations of the rates over single examples.
    """

    gaps: dict[str, np.ndarray]
    spread: dict[str, np.ndarray]


def _rates_at(problem: Problem, x: PyTree[Any]) -> _Rates:
    """The rates of the problem at x."""
    problem = variant(problem, list(filter(_has_surrogate, problem.constraints)), problem.data, ("rates",))
    parameters = Parameters(x)
    oracle = oracle_for(problem, parameters)
    in_full = all(map(passed_in_full, oracle.sources))
    oracle, sample = (oracle, oracle.everything()) if in_full else evaluation_data(oracle)
    smooth = replace(oracle, constraints=oracle_for(problem, parameters, training=True).constraints)
    structures = [jax.tree.structure(each) for each in (oracle, smooth)]

    def gaps_and_spread(leaves: list[Array], x: Array, sample: Any) -> tuple[Array, Array]:
        rates, surrogates = (jax.tree.unflatten(structure, leaves) for structure in structures)
        return rates.raw(x, sample) - surrogates.raw(x, sample), pilot_spread(rates, x)

    program = cached_on_problem(problem, ("rates", parameters.key), lambda: Program(gaps_and_spread, "little"))
    gaps, spread = jax.device_get(program(oracle.leaves(), parameters.start, sample))
    parts = oracle.slices().items()
    return _Rates({name: gaps[part].astype(float) for name, part in parts}, {n: spread[1:][part] for n, part in parts})
