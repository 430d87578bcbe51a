"""The answer of a run: chooses the best candidate, certifies it, and says why the run ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..certificates.certificate import Certificate
from ..certificates.choosing import Candidate, choose_by_samples, choose_candidate
from ..certificates.evaluation import RECORD_PRODUCTS, Evaluation, at_point, evaluation_data
from ..certificates.judging import Options, certify_points, evaluate_exactly, on_data, passed_in_full
from ..certificates.layout import Layout
from ..certificates.programs import programs_for
from ..certificates.restoration import can_be_reduced
from ..certificates.scales import ConstraintScales
from ..methods.base import Info, Method, constants
from ..oracles.build import oracle_for
from ..problems.data import Source
from ..problems.lifting import unlifted, with_best_thresholds
from ..problems.partition import on_host
from .fitting import Fitted
from .options import Stop, missing
from .recording import Recorder, by_lane, by_seed
from .result import History, Result, Status
from .run import Run
from .stepper import StepperState

FRESH_SAMPLES = 8
"""Fresh samples on which the candidates are compared if there are endless data."""


@dataclass(frozen=True)
class Candidates:
    """The points that the answer of one run is chosen from, and what they are judged by.

    Attributes:
        points: by name: 'method' (its theorem's output), 'last', 'average', 'best'.
        samples: for every sample the evaluations of the points, in the same order; one if that is all data.
        exact: whether they were evaluated on all data.
        weights: multipliers that weigh violations against the objective.
        first_objective: the objective at the start.
    """

    points: dict[str, Float[np.ndarray, " n"]]
    samples: list[list[Evaluation]]
    exact: bool
    weights: Float[np.ndarray, " raw"]
    first_objective: float

    def best(self, fitted: Fitted, scales: ConstraintScales, tolerance: float) -> int:
        """The place of the best point."""
        if not self.exact:
            return choose_by_samples(fitted.problem, fitted.original, self.samples, self.weights)
        listed = [Candidate.of(scales, evaluation) for evaluation in self.samples[0]]
        return choose_candidate(listed, self.weights, tolerance, self.first_objective)


@dataclass(frozen=True)
class Chosen:
    """The point that a run answers with, its name, and its certificate."""

    name: str
    x: Float[np.ndarray, " n"]
    certificate: Certificate


def certified(fitted: Fitted, lanes: list[Candidates], options: list[Options]) -> list[Chosen]:
    """The best of the candidates of each lane, certified."""
    scales = ConstraintScales.of(fitted.problem, fitted.original)
    places = [lane.best(fitted, scales, one.tolerance) for lane, one in zip(lanes, options, strict=True)]
    picked = list(zip(lanes, places, strict=True))
    names, points = zip(*(list(lane.points.items())[place] for lane, place in picked), strict=True)
    exact = [lane.samples[0][place] for lane, place in picked] if lanes[0].exact else None
    exact = None if exact is None else jax.tree.map(lambda *found: np.stack(found), *exact)
    start = fitted.parameters.start
    certificates = certify_points(fitted.problem, fitted.original, np.stack(points), start, options, exact=exact)
    return [Chosen(*one) for one in zip(names, points, certificates, strict=True)]


def answers(
    run: Run, recorder: Recorder, stop: Stop, status: Status, notes: list[str], attempt: int = 0
) -> list[Result]:
    """A Result for every lane: the best candidate, certified on all data or on fresh samples.

    If a run is certified several times until it may stop, `attempt` numbers them from 1, and the risks add up to 5%.
    """
    fitted, state = run.fitted, run.carry.run
    output, multipliers = run.output()
    points = {
        "method": run.vectors(output),
        "last": run.vectors(state.state.x),
        "average": run.vectors(state.average),
        "best": recorder.best,
    }
    if np.array_equal(points["method"], points["last"]):
        del points["last"]
    points = {name: _with_best_thresholds(fitted, x, run.seeds[0], attempt) for name, x in points.items()}
    evaluated, exact = evaluate_candidates(fitted, list(points.values()), run.seeds, attempt)
    own: Any = [None] * len(run.seeds) if multipliers is None else multipliers if run.lanes else [multipliers]
    assert recorder.first_objectives is not None
    finite = np.ravel(np.asarray(run.carry.finite))
    confidence = 1.0 - 0.05 / (attempt * (attempt + 1) if attempt else 1)
    lanes, endings, histories = [], [], recorder.histories()
    for lane in range(len(run.seeds)):
        weights = recorder.weights[lane]
        if own[lane] is not None and fitted.original.large_jacobian:  # those of records come from few products
            weights = np.maximum(weights, np.abs(own[lane]))
        names = ["best"] if recorder.unbounded[lane] else list(points)
        places = [list(points).index(name) for name in names]
        candidates = Candidates(
            {name: points[name][lane] for name in names},
            [[at_point(sample, lane, place) for place in places] for sample in evaluated],
            exact,
            weights,
            float(recorder.first_objectives[lane]),
        )
        lanes.append(candidates)
        ending = Ending(
            status if finite[lane] or not run.lanes else "diverged",
            notes,
            steps=run.step,
            seconds=run.seconds,
            calls=run.calls[lane],
            history=History(histories[lane]),
            unbounded=bool(recorder.unbounded[lane]),
            multipliers=own[lane],
        )
        endings.append(ending)
    options = [Options(stop.violation, confidence, seed, attempt=attempt) for seed in run.seeds]
    chosen = certified(fitted, lanes, options)
    asked, *ended = on_host((fitted.method, state.method, state.state))

    def of(lane: int, tree: Any) -> Any:
        return jax.tree.map(lambda a: a[lane], tree) if run.lanes else tree

    return [
        _result(fitted, one, of(lane, asked), of(lane, ended), ending, (stop, seed))
        for lane, (one, ending, seed) in enumerate(zip(chosen, endings, run.seeds, strict=True))
    ]


def _with_best_thresholds(
    fitted: Fitted, points: Float[np.ndarray, "lanes n"], *seeds: int
) -> Float[np.ndarray, "lanes n"]:
    return with_best_thresholds(fitted.problem, fitted.parameters, fitted.original.data, points, *seeds)


def evaluate_candidates(
    fitted: Fitted, points: list[Float[np.ndarray, "lanes n"]], seeds: list[int], attempt: int = 0
) -> tuple[list[Evaluation], bool]:
    """For every sample the evaluation of each lane's points, and whether the only sample is all data.

    Lanes with different seeds are evaluated on different samples: runs that share one share its error.
    """
    problem, original, start = fitted.problem, fitted.original, fitted.parameters.start
    if all(map(passed_in_full, original.sources)):
        return [by_lane(lambda x: evaluate_exactly(problem, original, x, start), points)], True
    program = programs_for(problem, original).evaluate

    def on_fresh_sample(number: int) -> Evaluation:
        def evaluate(lanes: list[int], x: Float[np.ndarray, "points n"]) -> Evaluation:
            oracle, sample = evaluation_data(original, 1 + number, seeds[lanes[0]], attempt)
            return program((oracle.leaves(), sample), x, start, RECORD_PRODUCTS)

        return by_seed(seeds, evaluate, points)

    return [on_fresh_sample(number) for number in range(FRESH_SAMPLES)], False


def stepper_answer(fitted: Fitted, state: StepperState, data: Source | None, stop: Stop) -> Result:
    """The Result of a run that the user stepped: the best of the output, the last iterate and the average."""
    problem = fitted.problem if data is None else on_data(fitted.problem, data)
    if problem.needs_batches:
        raise ValueError(
            "Stepper.answer: data is missing; the problem's data are tightrope.Batches, so pass a Dataset or Sampler"
        )
    fitted = replace(fitted, problem=problem, original=oracle_for(problem, fitted.parameters))
    multipliers = state.method.multipliers(state.state)
    flat = {"method": state.method.output(state.state), "last": state.state.x, "average": state.average}
    points = {name: np.asarray(x)[: fitted.parameters.size] for name, x in flat.items()}
    points = {name: _with_best_thresholds(fitted, x[None])[0] for name, x in points.items()}
    listed = [np.asarray(fitted.parameters.start), *points.values()]
    evaluated, exact = evaluate_candidates(fitted, [x[None] for x in listed], [0])
    samples = [[at_point(sample, 0, place) for place in range(1, len(listed))] for sample in evaluated]
    weights = np.max([np.abs(e.multipliers) for e in samples[0]], axis=0)
    candidates = Candidates(points, samples, exact, weights, float(evaluated[0].objective[0, 0]))
    own = None if multipliers is None else np.asarray(fitted.oracle.rows.to_raw(multipliers))
    ending = Ending("budget", [], steps=int(state.k), multipliers=own)
    (chosen,) = certified(fitted, [candidates], [Options(stop.violation, 0.95, 0)])
    return _result(fitted, chosen, fitted.method, [state.method, state.state], ending, (stop, 0))


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
    fitted: Fitted, chosen: Chosen, asked: Method, ended: list[Any], ending: Ending, judged_by: tuple[Stop, int]
) -> Result:
    """The Result of one run; `asked` is the method as the user gave it, `ended` with its constants, and its last state."""
    (method, state), (stop, seed), x, certificate = ended, judged_by, chosen.x, chosen.certificate
    lacking = ["the objective is unbounded"] if ending.unbounded else missing(stop, certificate)
    found = _found(method.termination(state), certificate, not lacking, ending.unbounded)
    notes = list(ending.notes)
    if found == "infeasible" and _not_least_violated(fitted, x):
        found = None
        notes.append(
            "the method's test says infeasible, but there are points with a far smaller violation: try another x0"
        )
    own, note = ending.multipliers if chosen.name == "method" else None, method.note(state)
    why = explain(ending.status, found, ending.steps, lacking, method)
    return Result(
        x=unlifted(fitted.parameters.unravel(jnp.asarray(x))),
        objective=certificate.objective.value,
        violation=certificate.largest_violation.value,
        stationarity=certificate.stationarity.value,
        multipliers=certificate.multipliers if own is None else _by_constraint(fitted, own),
        success=not lacking,
        status=found if ending.status == "budget" and found is not None else ending.status,
        message="; ".join([why, *notes, *([note] if note else [])]) + ".",
        steps=ending.steps,
        samples=ending.calls["samples"],
        seconds=ending.seconds,
        calls=ending.calls,
        history=ending.history,
        certificate=certificate,
        method=fitted.name,
        output=chosen.name,
        constants=constants(asked, method),
        settings=_settings(method),
        seed=seed,
    )


def _by_constraint(fitted: Fitted, multipliers: Float[np.ndarray, " raw"]) -> dict[str, Any]:
    """The method's own multipliers by name."""
    return Layout.of(fitted.problem, fitted.original).multipliers(multipliers)


def _found(said: Status | None, certificate: Certificate, success: bool, unbounded: bool) -> Status | None:
    """What the method's own test says, unless the certificate of the answer contradicts it; 'unbounded' by the records."""
    if unbounded:
        return "unbounded"
    agrees = {"infeasible": certificate.verdict == "infeasible", "converged": success}
    return said if said is not None and agrees[said] else None


def _not_least_violated(fitted: Fitted, x: Float[np.ndarray, " n"]) -> bool:
    """Whether an independent minimization finds a far smaller violation than that of the answer."""
    problem, oracle, start = fitted.problem, fitted.original, np.asarray(fitted.parameters.start)
    if oracle.large_jacobian or not problem.domain.can_project:
        return False
    if all(map(passed_in_full, oracle.sources)):
        return can_be_reduced(problem, oracle, oracle.everything(), start, x)
    return can_be_reduced(problem, *evaluation_data(oracle, 0), start, x)


def explain(ended: Status, found: str | None, steps: int, lacking: list[str], method: Method) -> str:
    """Why the run ended; `found` is what the method's own test or the history adds to that."""
    hint, smaller = "", "a smaller step_size" if hasattr(method, "step_size") else ""
    if lacking:
        remedies = ", ".join(["more steps", "a larger batch", *([smaller] if smaller else [])])
        hint = f"; not certified: {', '.join(lacking)}; {remedies} or looser tolerances in stop= may help"
    if found == "infeasible":
        hint = "; the problem is locally infeasible: the violation is stationary there and not zero, so nearby the "
        hint += "constraints cannot be met"
    if found == "unbounded":
        hint = "; the objective is unbounded below where the constraints hold: add the missing bound"
    return {
        "converged": f"stopped after {steps:,} steps: violation, stationarity and gap are within the tolerances",
        "budget": f"{steps:,} steps were taken{hint}",
        "unbounded": f"stopped after {steps:,} steps{hint}",
        "interrupted": f"interrupted after {steps:,} steps; the answer is the best so far",
        "data_error": f"the batch of step {steps + 1:,} could not be read; the answer comes from the steps before it",
        "diverged": f"step {steps + 1:,} gave numbers that are not finite; the answer comes from the steps before it: "
        "look for examples and functions that are not finite there" + (f", or try {smaller}" if smaller else ""),
    }[ended]


def _settings(method: Method) -> dict[str, Any]:
    """The hyperparameters that were used: numbers and choices."""
    values = {spec.name: getattr(method, spec.name) for spec in fields(method)}  # pyright: ignore[reportArgumentType]
    numbers = {name: float(value) for name, value in values.items() if eqx.is_inexact_array_like(value)}
    for name, inner in values.items():
        if isinstance(inner, Method):
            numbers |= {f"{name}.{key}": value for key, value in _settings(inner).items()}
    return numbers | {name: value for name, value in values.items() if isinstance(value, str | int)}
