"""Judging a point: objective, violation and stationarity, each with its interval, and a verdict.

Each quantity is judged on its own sources. Deterministic functions are exact, and so are functions on a `Dataset` of at most
`MAX_FULL_PASS` examples, which is passed over in full. All others are estimated from fresh samples, in independent batches of
`BATCH_EXAMPLES` examples: their intervals come from the central limit theorem for batch means (Student's t) and are labeled
asymptotic. A constraint with a `sample_range` gets a bound that holds for any number of examples instead: its function is
evaluated on single examples, in batches of one. The risk of a miss is divided evenly over all estimates, so that all
intervals hold jointly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..arguments import check_type, number, positive_int, seed_number
from ..oracles.build import oracle_for
from ..oracles.oracle import Oracle
from ..problems.data import Dataset, Source, Window, check_source
from ..problems.lifting import lift
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from .certificate import Certificate, Estimate, Verdict
from .denominators import warn_of_denominators
from .estimates import Estimates, as_estimate, from_all_data, from_samples
from .evaluation import CERTIFICATE_PRODUCTS, Evaluation, at_point, evaluation_data, largest_violation
from .gap import Curvature
from .intervals import examples_to_decide
from .layout import Layout
from .measurement import BATCH_EXAMPLES, MIN_BATCHES, PROXIMAL_BATCH, Plan
from .programs import programs_for
from .proximal import ProximalSteps, near_stationarity
from .scales import objective_scale

MAX_FULL_PASS = 2**20
"""Data of at most this many examples is passed over in full."""
DEFAULT_SAMPLES = 64 * BATCH_EXAMPLES
"""The number of examples drawn from each sampled source by default."""


class Options(NamedTuple):
    """The options of `certify`; `attempt` numbers the certificates of one run, each with fresh samples."""

    tolerance: float
    confidence: float
    seed: int
    samples: int = DEFAULT_SAMPLES
    attempt: int = 0


def certify(
    problem: Problem,
    x: PyTree[Any],
    *,
    data: Source | None = None,
    tolerance: float = 1e-3,
    confidence: float = 0.95,
    seed: int = 0,
    samples: int | None = None,
) -> Certificate:
    """Judge a point: estimate its objective, violations and stationarity, with intervals, and decide whether it is feasible.

    Args:
        problem: the problem.
        x: the point, a pytree of parameters.
        data: a source that replaces the problem's own data (a test set, say).
        tolerance: the largest violation that counts as feasible, relative to the constraint's scale (see `Certificate`).
        confidence: the probability with which all intervals hold together.
        seed: random seed of the fresh samples.
        samples: the number of examples drawn from each source that cannot be passed over in full, rounded up to batches of
            1,024 and at least 16 of them; None: 65,536.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(jnp.sum, 1.0, name="total"))
        >>> certificate = tr.certify(problem, jnp.array([0.5, 0.5]))
        >>> certificate.verdict, round(certificate.multipliers["total"], 3)
        ('feasible', -1.0)
    """
    check_type("certify", "problem", problem, Problem, "a tightrope.Problem")
    check_source("certify", "data", data)
    options = Options(
        number("certify", "tolerance", tolerance, low=0.0, closed="["),
        number("certify", "confidence", confidence, low=0.0, high=1.0),
        seed_number("certify", "seed", seed),
        DEFAULT_SAMPLES if samples is None else positive_int("certify", "samples", samples),
    )
    if data is not None:
        problem = on_data(problem, data)
    if problem.needs_batches:
        raise ValueError(
            "certify: data is missing; the problem's data are tightrope.Batches, so pass a Dataset or Sampler"
        )
    problem, parameters = lift(problem, Parameters(x, owner="certify", argument="x"), "certify")
    oracle = oracle_for(problem, parameters)
    points = np.asarray(parameters.start)[None]
    return certify_points(problem, oracle, points, parameters.start, [options], strict=True)[0]


def on_data(problem: Problem, data: Source) -> Problem:
    """The problem with this source in place of its own."""
    constraints = [c if c.data is None else replace(c, data=data) for c in problem.constraints]
    own = None if problem.data is None else data
    return Problem(problem.objective, constraints, domain=problem.domain, data=own, smooth=problem.smooth)


def certify_points(
    problem: Problem,
    oracle: Oracle,
    points: Float[np.ndarray, "points n"],
    start: Float[Array, " n"],
    options: list[Options],
    *,
    strict: bool = False,
    exact: Evaluation | None = None,
) -> list[Certificate]:
    """`certify` for flat points of an oracle in native form, each with its options; `start` is x0, or x if there is none.

    `exact` is the points' evaluation on all data, if it is known and all data can be passed over in full. A value outside
    its `sample_range` is an error if `strict`. Otherwise (at the end of a run, whose answer must not be lost) it is a warning,
    and the intervals of the constraints are asymptotic.
    """
    if exact is None and all(map(passed_in_full, oracle.sources)):
        exact = evaluate_exactly(problem, oracle, points, start)
    judged = [
        _judge(
            problem, oracle, (jnp.asarray(x), start), options[i], None if exact is None else at_point(exact, i), strict
        )
        for i, x in enumerate(points)
    ]
    curvature = _curvatures(problem, oracle, points, start, [one.estimates for one in judged])
    warn_of_denominators(problem, oracle, points)
    layout, examples = Layout.of(problem, oracle), _examples(oracle, judged[0].plan)
    certificates = [_certificate(layout, one, at_point(curvature, i), examples) for i, one in enumerate(judged)]
    return [_as_streamed(oracle, certificate) for certificate in certificates]


class _Judged(NamedTuple):
    """The estimates at a point, and the options and the plan that they were made with.

    Attributes:
        options: the options of `certify`.
        plan: what is drawn.
        risk: the risk that one interval misses.
        near: the near-stationarity; None for smooth problems.
        estimates: the estimates.
    """

    options: Options
    plan: Plan
    risk: float
    near: ProximalSteps | None
    estimates: Estimates


def _judge(
    problem: Problem,
    oracle: Oracle,
    points: tuple[Float[Array, " n"], Float[Array, " n"]],
    options: Options,
    exact: Evaluation | None,
    strict: bool,
) -> _Judged:
    """Estimate everything but the gap at the first of `points` (the second is x0); `exact` is its evaluation on all data."""
    batches = max(-(-options.samples // BATCH_EXAMPLES), MIN_BATCHES)
    plan, near = Plan(tuple(map(passed_in_full, oracle.sources)), batches), None
    if not problem.smooth and problem.domain.can_project and not oracle.large_jacobian:
        key = jax.random.fold_in(_key(options), np.uint32(PROXIMAL_BATCH))
        near = near_stationarity(problem, oracle, points[0], key)
    risk = (1.0 - options.confidence) / max(plan.count_estimates(oracle) + (near is not None and near.sampled), 1)
    if exact is not None:
        return _Judged(options, plan, risk, near, from_all_data(problem, exact))
    estimates = from_samples(problem, oracle, points, plan, (_key(options), risk), strict)
    return _Judged(options, plan, risk, near, estimates)


def _examples(oracle: Oracle, plan: Plan) -> int:
    """The number of examples of a certificate, over all sources."""
    return sum(s.size if isinstance(s, Dataset) and passed_in_full(s) else plan.examples for s in oracle.sources)


def _certificate(layout: Layout, judged: _Judged, curvature: Curvature, examples: int) -> Certificate:
    options, plan, risk, near, estimates = judged
    scales = layout.scale.at(estimates.sizes)
    relative = _by_name(layout, estimates, scales)
    verdict = _verdict(relative, options.tolerance)
    more = None
    if verdict == "undecided":
        more = examples_to_decide(estimates.excess / scales, estimates.reach / scales, options.tolerance, plan.examples)
    return Certificate(
        objective=estimates.objective,
        violation=_by_name(layout, estimates, np.ones_like(scales)),
        stationarity=estimates.stationarity,
        complementarity=estimates.complementarity,
        multipliers=layout.multipliers(estimates.multipliers),
        verdict=verdict,
        tolerance=options.tolerance,
        confidence=options.confidence,
        samples=examples,
        more_samples=more,
        near_stationarity=None if near is None else as_estimate(near.kind, *near.interval(risk)),
        proximal_weight=None if near is None else near.weight,
        scale=layout.by_constraint(scales),
        relative_violation=relative,
        gap=estimates.products + float(curvature.decrease),
        objective_scale=float(objective_scale(estimates.objective.value, estimates.sizes)),
        gradient_scale=max(float(estimates.sizes.gradient), float(curvature.gradient_change)) or 1.0,
    )


def _as_streamed(oracle: Oracle, certificate: Certificate) -> Certificate:
    """The certificate with the right label on what rests on examples of a stream."""
    streamed = {
        term.name
        for term in (oracle.objective, *oracle.constraints)
        if term.source is not None and isinstance(oracle.sources[term.source], Window)
    }
    if not streamed:
        return certificate

    def label(estimate: Any) -> Any:
        return None if estimate is None else estimate._replace(kind="as streamed")

    def by_name(estimates: dict[str, Estimate]) -> dict[str, Estimate]:
        return {name: label(estimate) if name in streamed else estimate for name, estimate in estimates.items()}

    return certificate._replace(
        objective=label(certificate.objective) if "objective" in streamed else certificate.objective,
        violation=by_name(certificate.violation),
        relative_violation=by_name(certificate.relative_violation),
        stationarity=label(certificate.stationarity),
        complementarity=label(certificate.complementarity),
        near_stationarity=label(certificate.near_stationarity),
    )


def _key(options: Options) -> Array:
    """The key of random numbers that no step of a run uses."""
    return jax.random.fold_in(jax.random.key(options.seed), np.uint32(2**32 - 1 - options.attempt))


def _by_name(layout: Layout, estimates: Estimates, scales: Float[np.ndarray, " raw"]) -> dict[str, Estimate]:
    """The largest violation of each constraint, in units of `scales`."""
    return {
        name: as_estimate(kind, *(largest_violation(end[part] / scales[part]) for end in estimates.violations))
        for (name, part), kind in zip(layout.slices.items(), estimates.kinds, strict=True)
    }


def _curvatures(
    problem: Problem,
    oracle: Oracle,
    points: Float[np.ndarray, "points n"],
    start: Float[Array, " n"],
    estimates: list[Estimates],
) -> Curvature:
    """The predicted decrease at each point: its residual is known, its curvature is measured on the sample of records."""
    sampled, sample = evaluation_data(oracle)
    known = zip(*((e.residual, e.gradient_norm, e.multipliers) for e in estimates), strict=True)
    program = programs_for(problem, oracle).curvatures
    return program((sampled.leaves(), sample), start, points, *map(np.stack, known))


def passed_in_full(source: Source) -> bool:
    """Whether a source is finite and small enough to be passed over in full."""
    return isinstance(source, Dataset) and source.size <= MAX_FULL_PASS


def evaluate_exactly(
    problem: Problem,
    oracle: Oracle,
    points: Float[np.ndarray, "points n"],
    start: Float[Array, " n"],
    shifts: Float[np.ndarray, "points 1+raw"] | None = None,
) -> Evaluation:
    """Evaluate each point on all data, with the program that evaluates records, so that nothing new is compiled.

    `shifts` are added to the objective and the raw values of each point; None: nothing.
    """
    program = programs_for(problem, oracle).evaluate
    return program((oracle.leaves(), oracle.everything()), points, start, CERTIFICATE_PRODUCTS, shifts)


def _verdict(violation: dict[str, Estimate], tolerance: float) -> Verdict:
    if all(estimate.high <= tolerance for estimate in violation.values()):
        return "feasible"
    return "infeasible" if any(estimate.low > tolerance for estimate in violation.values()) else "undecided"
