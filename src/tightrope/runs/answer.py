"""The answer of a run: chooses the best candidate, certifies it, and says why the run ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..certificates.certificate import Certificate
from ..certificates.evaluation import Evaluation, choose_candidate, largest_violation
from ..certificates.judging import Options, by_constraint, certify_point, evaluate_exactly, on_data, passed_in_full
from ..methods.base import Info, Method, constants
from ..oracles.build import oracle_for
from ..oracles.oracle import Oracle
from ..problems.data import Source
from ..problems.problem import Problem
from .fitting import Fitted
from .loop import one_lane, one_method
from .options import Record, Stop
from .recording import Recorder, by_lane
from .result import History, Result, Status
from .run import Run
from .stepper import StepperState


@dataclass(frozen=True)
class Candidates:
    """The points that the answer of one run is chosen from, and what they are judged by.

    Attributes:
        points: by name: 'method' (its theorem's output), 'best', 'last', 'average'.
        evaluations: of the points, in the same order.
        exact: whether they were evaluated on all data.
        weights: multipliers that weigh violations against the objective.
        tolerances: the violation and the stationarity that count as none.
        first_objective: the objective at the start.
    """

    points: dict[str, Float[np.ndarray, " n"]]
    evaluations: list[Evaluation]
    exact: bool
    weights: Float[np.ndarray, " raw"]
    tolerances: tuple[float, float]
    first_objective: float

    def certified(self, problem: Problem, oracle: Oracle, seed: int) -> tuple[str, np.ndarray, Certificate]:
        """The name of the best point, the point, and its certificate."""
        chosen = choose_candidate(self.evaluations, self.weights, self.tolerances[0], self.first_objective)
        name, x = list(self.points.items())[chosen]
        exact = self.evaluations[chosen] if self.exact else None
        options = Options(self.tolerances[0], 0.95, seed)
        return name, x, certify_point(problem, oracle, jnp.asarray(x), options, exact=exact)


def answers(run: Run, recorder: Recorder, status: Status, notes: list[str]) -> list[Result]:
    """A Result for every lane: the best candidate, certified on all data or on fresh samples."""
    fitted, state = run.fitted, run.carry.run
    output, multipliers = run.output()
    points = {
        "method": run.vectors(output),
        "best": recorder.best,
        "last": run.vectors(state.state.x),
        "average": run.vectors(state.average),
    }
    exact = all(map(passed_in_full, fitted.original.sources))
    # A sample of the data cannot tell points apart that are nearly optimal.
    evaluate = partial(evaluate_exactly, fitted.problem, fitted.original) if exact else recorder.evaluate
    evaluated = by_lane(evaluate, list(points.values()))
    own: Any = [None] * len(run.seeds) if multipliers is None else multipliers if run.lanes else [multipliers]
    results = []
    for lane, seed in enumerate(run.seeds):
        weights = recorder.weights[lane]
        if own[lane] is not None and fitted.original.large_jacobian:  # those of records come from few products
            weights = np.maximum(weights, np.abs(own[lane]))
        candidates = Candidates(
            {name: point[lane] for name, point in points.items()},
            evaluated[lane],
            exact,
            weights,
            recorder.tolerances(lane),
            recorder.scales[lane][2],
        )
        finite = bool(np.reshape(run.carry.finite, -1)[lane if run.lanes else 0])
        ending = Ending(
            status if finite or not run.lanes else "diverged",
            notes,
            steps=run.step,
            seconds=run.seconds,
            calls=run.calls[lane],
            history=recorder.history(lane),
            unbounded=recorder.falls_without_bound(lane),
            multipliers=own[lane],
        )
        of_lane, number = (one_lane(state, lane), lane) if run.lanes else (state, None)
        results.append(_result(fitted, candidates, of_lane, ending, seed, number))
    return results


def stepper_answer(fitted: Fitted, state: StepperState, data: Source | None, stop: Stop) -> Result:
    """The Result of a run that the user stepped: the best of the output, the last iterate and the average."""
    problem = fitted.problem if data is None else on_data(fitted.problem, data)
    if problem.needs_batches:
        raise ValueError(
            "Stepper.answer: data is missing; the problem's data are tightrope.Batches, so pass a Dataset or Sampler"
        )
    original = oracle_for(problem, fitted.parameters)
    fitted = replace(fitted, problem=problem, original=original)
    multipliers = state.method.multipliers(state.state)
    flat = {"method": state.method.output(state.state), "last": state.state.x, "average": state.average}
    points = {name: np.asarray(x)[: fitted.parameters.size] for name, x in flat.items()}
    exact = all(map(passed_in_full, original.sources))
    evaluate = partial(evaluate_exactly, problem, original) if exact else Recorder(fitted, Record(1), stop, 1).evaluate
    first, *evaluations = evaluate(np.stack([np.asarray(fitted.parameters.start), *points.values()]))
    tolerances = stop.tolerances(largest_violation(first.violations), float(first.gradient_norm))
    weights = np.max([np.abs(e.multipliers) for e in evaluations], axis=0)
    candidates = Candidates(points, evaluations, exact, weights, tolerances, float(first.objective))
    own = None if multipliers is None else np.asarray(fitted.oracle.rows.to_raw(multipliers))
    ending = Ending("budget", [], steps=int(state.k), multipliers=own)
    return _result(fitted, candidates, state, ending, seed=0)


@dataclass(frozen=True)
class Ending:
    """How a run ended, and what it cost."""

    status: Status
    notes: list[str]
    steps: int
    seconds: float = math.nan
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Info._fields, 0))
    history: History = field(default_factory=lambda: History({}))
    unbounded: bool = False
    multipliers: np.ndarray | None = None


def _result(
    fitted: Fitted, candidates: Candidates, state: StepperState, ending: Ending, seed: int, lane: int | None = None
) -> Result:
    problem, original, method = fitted.problem, fitted.original, state.method
    output, x, certificate = candidates.certified(problem, original, seed)
    found: Status | None = method.termination(state.state)
    if found == "infeasible" and certificate.verdict != "infeasible":
        found = None
    if ending.unbounded:
        found = "unbounded"
    own = ending.multipliers if output == "method" else None
    success = certificate.verdict == "feasible" and certificate.stationary_within <= candidates.tolerances[1]
    note, asked = method.note(state.state), fitted.method if lane is None else one_method(fitted.method, lane)
    why = explain(ending.status, found, ending.steps, success, method)
    return Result(
        x=fitted.parameters.unravel(jnp.asarray(x)),
        objective=certificate.objective.value,
        violation=certificate.largest_violation.value,
        stationarity=certificate.stationarity.value,
        multipliers=certificate.multipliers if own is None else by_constraint(problem, original, own),
        success=success,
        status=found if ending.status == "budget" and found is not None else ending.status,
        message="; ".join([why, *ending.notes, *([note] if note else [])]) + ".",
        steps=ending.steps,
        samples=ending.calls["samples"],
        seconds=ending.seconds,
        calls=ending.calls,
        history=ending.history,
        certificate=certificate,
        method=fitted.name,
        output=output,
        constants=constants(asked, method),
        settings=_settings(method),
        seed=seed,
    )


def explain(ended: Status, found: str | None, steps: int, success: bool, method: Method) -> str:
    """Why the run ended; `found` is what the method's own test or the history adds to that."""
    hint = "" if success else "; not certified yet: more steps, a larger batch or looser tolerances in stop= may help"
    if found == "infeasible":
        hint = "; the problem is locally infeasible: the violation is stationary there and not zero, so nearby the "
        hint += "constraints cannot be met"
    if found == "unbounded":
        hint = "; the objective is unbounded below where the constraints hold: add the missing bound"
    smaller = ": try a smaller step_size" if hasattr(method, "step_size") else ""
    return {
        "converged": f"stopped after {steps:,} steps: violation and stationarity are within the tolerances",
        "budget": f"{steps:,} steps were taken{hint}",
        "interrupted": f"interrupted after {steps:,} steps; the answer is the best so far",
        "diverged": f"step {steps + 1:,} gave numbers that are not finite; the answer comes from the steps before it"
        + smaller,
    }[ended]


def _settings(method: Method) -> dict[str, Any]:
    """The hyperparameters that were used: numbers and choices."""
    values = {spec.name: getattr(method, spec.name) for spec in fields(method)}  # pyright: ignore[reportArgumentType]
    numbers = {name: float(value) for name, value in values.items() if eqx.is_array(value)}
    for name, inner in values.items():
        if isinstance(inner, Method):
            numbers |= {f"{name}.{key}": value for key, value in _settings(inner).items()}
    return numbers | {name: value for name, value in values.items() if isinstance(value, str | int)}
