"""Judging an answer: objective, violation and stationarity at a point, each with its interval, and a verdict.

Each quantity is judged by its own sources. What has no data is exact, and so is what comes from a `Dataset` of at most
`FULL_PASS` rows, which is passed over in full. All else is estimated from fresh samples, in independent batches of
`BATCH_ROWS` rows: the intervals are those of the central limit theorem for batch means (Student's t), labelled asymptotic.
A constraint with a `sample_range` gets a bound that holds for any number of rows instead: its function is evaluated row by
row, on batches of one. The risk of a miss is divided evenly over all numbers that are estimated, so that all intervals
hold jointly.

Stationarity and complementarity are functions of means: with v = ∇F + Jᵀλ, c the rows, s = min(c, 0) for inequalities and 0
for equalities, the multipliers minimise d² + Σ (s_i λ_i)² where d = ‖r‖ and r is what the normal cone of X leaves of v. Their
optimality, J r + s² λ = 0 where λ is free to move, gives to first order

    δλ = −H⁻¹ δq,   δq = δJ r + J P δv + 2 s λ δs,   H = J P Jᵀ + diag(s²)         (P: derivative of what the cone leaves)
    δd = ⟨r/‖r‖, δv⟩ + ⟨J r/‖r‖, δλ⟩,     δ(λ_i c_i) = λ_i δc_i + c_i δλ_i

The first term of δd is bounded by ‖δv‖, which also holds at a kink (d is 1-Lipschitz in v), where d = 0: a norm is biased
upwards there, and the interval must reach down to 0. It does: sqrt(d² + Σ (s_i λ_i)²), taken at the least, is below its value
at the true multipliers, so below the length of (δv, λ δs) there. That length is the reach; the normal distribution of a given
mean square that strays the most has one dimension, so Student's quantile is right for it and cautious for more. Where d is
larger than that length, δd itself has a smaller standard error, and what is left out is at most the length squared over d.

Where the Jacobian is too large to be formed, multipliers come from products with it, and δλ is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from .data import Dataset, Source, Span, positive_int
from .evaluation import CERTIFICATE_PRODUCTS, Evaluation, largest, stationarity, stationarity_by_products
from .intervals import bounded_mean, outside, place_bet, rows_to_decide, student_width
from .matrix_free import Linear
from .near_stationarity import near_stationarity
from .oracle import Oracle, Sample, Term
from .parameters import Parameters
from .problem import Problem
from .programs import made_once, programs_for
from .reformulate import bounds, oracle_for
from .validate import check_functions, number

FULL_PASS = 2**20
"""Data with at most this many rows is passed over in full."""
BATCH_ROWS, LEAST_BATCHES = 1024, 16
SAMPLES = 64 * BATCH_ROWS
"""Rows drawn from each source that is sampled, where nothing else is asked for."""
PILOT, NEAR = 2**32 - 1, 2**32 - 2
"""Numbers of the batch that bets are placed on and of the samples of proximal problems: no other batch has them."""
ROUNDING = 16.0
"""In units of eps: what summing a batch may do to a mean."""

Kind = Literal["exact", "bound", "asymptotic"]
Verdict = Literal["feasible", "infeasible", "undecided"]


class Estimate(NamedTuple):
    """A number and an interval for it.

    Attributes:
        value: the estimate.
        low: lower end of the interval.
        high: upper end.
        kind: 'exact', 'bound' (holds for any sample size) or 'asymptotic' (central limit theorem).

    Example:
        >>> import tightrope as tr
        >>> print(tr.Estimate(0.5, 0.4, 0.6, "asymptotic"))
        0.5  [0.4, 0.6] asymptotic
    """

    value: float
    low: float
    high: float
    kind: Kind

    def __str__(self) -> str:
        interval = "" if self.kind == "exact" else f"  [{self.low:.4g}, {self.high:.4g}] {self.kind}"
        return f"{self.value:.4g}{interval}"


class Certificate(NamedTuple):
    """What is known about a point; the intervals hold jointly at the confidence asked for.

    Attributes:
        objective: E objective(x).
        violation: for each constraint by name, how far it is outside its bounds.
        stationarity: distance of ∇F + Jᵀλ to −N_X(x), with least-squares multipliers, λ ≥ 0 for inequalities.
        complementarity: the largest |λ_i g_i| over the inequalities.
        multipliers: the multipliers of `stationarity`, by name.
        verdict: 'feasible', 'infeasible' or 'undecided' at `tolerance`.
        tolerance: the violation that counts as none.
        confidence: the probability with which all intervals hold.
        samples: rows used.
        more_samples: about how many more rows of each source that is sampled would decide; None where no more are needed.
        near_stationarity: the distance of x to the solution of the proximal problem at x, for problems that are not smooth;
            None for others, for sets that cannot project, for Jacobians too large to be formed, and where a number at x is
            not finite.
        proximal_weight: the weight ρ̂ of that problem's proximal term.
    """

    objective: Estimate
    violation: dict[str, Estimate]
    stationarity: Estimate
    complementarity: Estimate
    multipliers: dict[str, Any]
    verdict: Verdict
    tolerance: float
    confidence: float
    samples: int
    more_samples: int | None = None
    near_stationarity: Estimate | None = None
    proximal_weight: float | None = None

    @property
    def stationary_within(self) -> float:
        """What the distance from stationarity is at most: for problems with kinks, of a point near by (paper 4)."""
        if self.near_stationarity is None or self.proximal_weight is None:
            return self.stationarity.high
        return self.near_stationarity.high * self.proximal_weight

    @property
    def largest_violation(self) -> Estimate:
        """The violation of the constraint that is violated most; zero where there is none."""
        return max(self.violation.values(), key=lambda e: e.value, default=Estimate(0.0, 0.0, 0.0, "exact"))

    @property
    def decision(self) -> str:
        """The verdict for people, with what would decide it."""
        more = "" if self.more_samples is None else f"; about {_rounded(self.more_samples)} more samples would decide"
        return f"{self.verdict} at tolerance {self.tolerance:.3g}{more}"

    def __str__(self) -> str:
        rows = {"objective": str(self.objective)}
        rows |= {f"violation of {name}": str(estimate) for name, estimate in self.violation.items()}
        rows |= {"stationarity": str(self.stationarity), "complementarity": str(self.complementarity)}
        if self.near_stationarity is not None:
            rows["near-stationarity"] = f"{self.near_stationarity}  (proximal weight {self.proximal_weight:.3g})"
        width = max(map(len, rows))
        return "\n".join([self.decision, *(f"  {label.ljust(width)}  {value}" for label, value in rows.items())])


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
    """Judge a point: is it feasible, is it stationary, what is its objective, and how sure is that?

    Args:
        problem: what it claims to solve.
        x: the point, a pytree of parameters.
        data: judge it on these samples in place of the problem's own (a test set, say).
        tolerance: the largest violation that counts as feasible.
        confidence: the probability with which all intervals hold together.
        seed: seed of the fresh samples; change it to judge again on others.
        samples: how many rows to draw from each source that cannot be passed over in full, in batches of 1,024 and
            at least 16 of them; None: 65,536.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(jnp.sum, 1.0, name="total"))
        >>> certificate = tr.certify(problem, jnp.array([0.5, 0.5]))
        >>> certificate.verdict, round(certificate.multipliers["total"], 3)
        ('feasible', -1.0)
    """
    tolerance = number("certify", "tolerance", tolerance, low=0.0, strict=False)
    confidence = number("certify", "confidence", confidence, low=0.0, high=1.0)
    rows = SAMPLES if samples is None else positive_int("certify", "samples", samples)
    if data is not None:
        problem = _on_data(problem, data)
    parameters = Parameters(x)
    sizes = check_functions(problem, parameters)
    oracle = oracle_for(problem, parameters, sizes)
    return certify_point(problem, oracle, parameters.start, tolerance, confidence, seed, rows, strict=True)


def _on_data(problem: Problem, data: Source) -> Problem:
    moved = [c if c.data is None else replace(c, data=data) for c in problem.constraints]
    own = None if problem.data is None else data
    return Problem(problem.objective, moved, domain=problem.domain, data=own, smooth=problem.smooth)


def certify_point(
    problem: Problem,
    oracle: Oracle,
    x: Float[Array, " n"],
    tolerance: float,
    confidence: float,
    seed: int,
    samples: int = SAMPLES,
    strict: bool = False,
    exact: Evaluation | None = None,
) -> Certificate:
    """`certify` for a flat point of an oracle in native form.

    `exact` is the point's evaluation on all data, where that is known and all data can be passed over. Values that leave their
    `sample_range` are an error if `strict`; else, at the end of a run whose answer must not be lost, they are a warning, and
    intervals of constraints are asymptotic.
    """
    fresh = jax.random.fold_in(jax.random.key(seed), np.uint32(2**32 - 1))  # a stream that no step of a run uses
    plan = Plan(tuple(map(passed_in_full, oracle.sources)), max(-(-samples // BATCH_ROWS), LEAST_BATCHES))
    near = None
    if not problem.smooth and problem.domain.can_project and not oracle.large_jacobian:
        near = near_stationarity(problem, oracle, x, jax.random.fold_in(fresh, np.uint32(NEAR)))
    risk = (1.0 - confidence) / max(plan.numbers(oracle) + (near is not None and near.sampled), 1)
    if all(plan.exact):
        found = _found_exactly(problem, exact or evaluate_exactly(problem, oracle, np.asarray(x)[None])[0])
    else:
        found = _found_by_sampling(problem, oracle, x, plan, fresh, risk, strict)
    violation = {
        c.name: _estimate(kind, *(largest(end[entries]) for end in found.violations))
        for c, kind, entries in zip(problem.constraints, found.kinds, oracle.slices().values(), strict=True)
    }
    verdict = _verdict(violation, tolerance)
    more = rows_to_decide(found.excess, found.reach, tolerance, plan.rows) if verdict == "undecided" else None
    return Certificate(
        objective=found.objective,
        violation=violation,
        stationarity=found.stationarity,
        complementarity=found.complementarity,
        multipliers=by_constraint(problem, oracle, found.multipliers),
        verdict=verdict,
        tolerance=tolerance,
        confidence=confidence,
        samples=sum(s.size if isinstance(s, Dataset) and passed_in_full(s) else plan.rows for s in oracle.sources),
        more_samples=more,
        near_stationarity=None if near is None else _estimate(near.kind, *near.interval(risk)),
        proximal_weight=None if near is None else near.weight,
    )


class Found(NamedTuple):
    """All numbers of a certificate; those of the constraints have one entry for each raw value."""

    objective: Estimate
    violations: tuple[np.ndarray, np.ndarray, np.ndarray]
    """Values, lower and upper ends."""
    kinds: list[Kind]
    """One for each constraint."""
    excess: np.ndarray
    reach: np.ndarray
    """How far each raw value is beyond its bounds, negative within, and the half-width of its interval."""
    stationarity: Estimate
    complementarity: Estimate
    multipliers: np.ndarray


class Plan(NamedTuple):
    """Which sources are passed over in full, and how many batches are drawn from the others."""

    exact: tuple[bool, ...]
    batches: int

    @property
    def rows(self) -> int:
        """Rows drawn from a source."""
        return self.batches * BATCH_ROWS

    def samples(self, term: Term) -> bool:
        """Whether a function is estimated from samples."""
        return term.source is not None and not self.exact[term.source]

    def numbers(self, oracle: Oracle) -> int:
        """How many numbers are estimated from samples, each with an interval of its own."""
        if all(self.exact):
            return 0
        entries = sum(term.size for term in oracle.constraints if self.samples(term))
        return self.samples(oracle.objective) + entries + 1 + int(np.sum(~oracle.equality))


def passed_in_full(source: Source) -> bool:
    """Whether a source is finite and of modest size."""
    return isinstance(source, Dataset) and source.size <= FULL_PASS


def _estimate(kind: Kind, value: Any, low: Any, high: Any) -> Estimate:
    return Estimate(float(value), float(low), float(high), kind)


def _exactly(value: Any) -> Estimate:
    return _estimate("exact", value, value, value)


def evaluate_exactly(problem: Problem, oracle: Oracle, points: Float[np.ndarray, "points n"]) -> list[Evaluation]:
    """Each point on all data; by the program that evaluates records, so that nothing new is compiled."""
    program = programs_for(problem, oracle).evaluate
    return program(oracle.leaves(), points, oracle.everything(), CERTIFICATE_PRODUCTS)


def _found_exactly(problem: Problem, e: Evaluation) -> Found:
    """All numbers from all data."""
    return Found(
        _exactly(e.objective),
        (e.violations,) * 3,
        ["exact"] * len(problem.constraints),
        e.violations,
        np.zeros_like(e.violations),
        _exactly(e.stationarity),
        _exactly(e.complementarity),
        e.multipliers,
    )


def _found_by_sampling(
    problem: Problem, oracle: Oracle, x: Float[Array, " n"], plan: Plan, fresh: Array, risk: float, strict: bool
) -> Found:
    """All numbers, some of them from samples."""
    program = made_once(problem, ("certify", oracle.parameters.key, plan.exact), lambda: _program(oracle, plan.exact))
    m = Measured(*jax.device_get(program(oracle.leaves(), x, fresh, np.int32(plan.batches))))
    width, eps = student_width(risk, plan.batches), float(jnp.finfo(x.dtype).eps)

    def around(value: Any, error: Any) -> tuple[Any, Any, Any]:
        """A value and the ends of its asymptotic interval."""
        reach = width * np.asarray(error, float) + ROUNDING * eps * np.abs(value)
        return np.asarray(value, float), value - reach, value + reach

    kinds: list[Kind] = ["asymptotic" if plan.samples(term) else "exact" for term in oracle.constraints]
    slices, sizes = oracle.slices().values(), [term.size for term in oracle.constraints]
    sampled = np.repeat([kind != "exact" for kind in kinds], sizes)
    middle, low, high = (np.where(sampled, end, m.raw).astype(float) for end in around(m.raw, m.raw_errors))
    try:
        entries, ends = _bounded(problem, oracle, x, plan, fresh, risk, m.raw)
    except ValueError as error:
        if strict:
            raise
        warnings.warn(f"{error}; intervals of constraints are asymptotic instead", UserWarning, stacklevel=2)
    else:
        middle[entries], low[entries], high[entries] = ends
        kinds = ["bound" if entries[part].any() else kind for kind, part in zip(kinds, slices, strict=True)]

    within = bounds(problem.constraints, sizes)
    least, greatest = (np.asarray(end, x.dtype).astype(float) for end in within)
    nearest, farthest = outside(low, high, least, greatest)
    objective = _estimate("asymptotic", *around(m.objective, m.objective_error))
    return Found(
        objective if plan.samples(oracle.objective) else _exactly(m.objective),
        (outside(middle, middle, least, greatest)[0], nearest, farthest),
        kinds,
        np.maximum(least - middle, middle - greatest),
        (high - low) / 2.0,
        _stationarity(oracle, m, width, eps),
        _complementarity(oracle, m, around(m.products, m.product_errors)),
        np.asarray(oracle.rows.to_raw(jnp.asarray(m.multipliers))),
    )


def _stationarity(oracle: Oracle, m: Measured, width: float, eps: float) -> Estimate:
    """The distance, and an interval that holds at 0 too; see the top of this file."""
    errors = m.raw_errors[np.array(oracle.rows.index, int)]
    active = ~oracle.equality & (m.rows <= width * errors)
    length = width * np.hypot(m.gradient_error, np.linalg.norm((m.multipliers * errors)[active]))
    near_zero = length + width * m.shift_error
    far_from_it = width * m.distance_error + length**2 / max(m.stationarity, np.finfo(float).tiny)
    reach = min(near_zero, far_from_it) + ROUNDING * eps * m.gradient_norm
    return _estimate("asymptotic", m.stationarity, max(m.stationarity - reach, 0.0), m.stationarity + reach)


def _complementarity(oracle: Oracle, m: Measured, ends: tuple[Any, Any, Any]) -> Estimate:
    if oracle.equality.all():
        return _exactly(0.0)
    return _estimate("asymptotic", *(largest(end[~oracle.equality]) for end in ends))


class Measured(NamedTuple):
    """What the compiled program returns: means, and standard errors of what is estimated from samples, else 0."""

    objective: Any
    objective_error: Any
    raw: Any
    raw_errors: Any
    rows: Any
    multipliers: Any
    stationarity: Any
    gradient_norm: Any
    gradient_error: Any
    """The length of the standard errors of ∇F + Jᵀλ."""
    shift_error: Any
    """Standard error of what moving multipliers do to the stationarity."""
    distance_error: Any
    """Standard error of the stationarity to first order, which is that only where it is far from 0."""
    products: Any
    """λ_i |c_i|, negative where λ_i = 0 would have to rise from below zero."""
    product_errors: Any


def _program(oracle: Oracle, exact: tuple[bool, ...]) -> Any:
    structure = jax.tree.structure(oracle)
    return jax.jit(lambda leaves, *rest: _measure(jax.tree.unflatten(structure, leaves), exact, *rest))


def _measure(oracle: Oracle, exact: tuple[bool, ...], x: Float[Array, " n"], key: Array, batches: Array) -> Measured:
    """All measurements at x: exact functions once, the others on fresh batches."""
    full, drawn = _only(oracle, exact, sampled=False), _only(oracle, exact, sampled=True)

    def look(side: Oracle, sample: Sample) -> tuple[Any, Any]:
        value, gradient = side.value_and_grad(x, sample)
        return (value, side.raw(x, sample)), (gradient, () if oracle.large_jacobian else side.jac(x, sample))

    everything = tuple(
        Span(0, s.size) if isinstance(s, Dataset) and e else None for s, e in zip(oracle.sources, exact, strict=True)
    )
    means, (value_error, raw_errors) = _over_batches(drawn, partial(look, drawn), key, batches)
    (value, raw), (gradient, jacobian) = jax.tree.map(jnp.add, look(full, everything), means)
    rows = oracle.rows.of(raw, jnp.zeros(0, x.dtype))
    if oracle.large_jacobian:
        whole = _jacobian(full, everything, drawn, x, key, batches)
        multipliers, residual = stationarity_by_products(oracle, x, gradient, rows, whole, CERTIFICATE_PRODUCTS)
        products, moved = _no_response(rows, multipliers)
    else:
        multipliers, residual = stationarity(oracle, x, gradient, rows, jacobian)
        products, moved = _response(oracle, x, gradient, rows, jacobian, multipliers, residual)

    def shifts(sample: Sample) -> tuple[Any, Any]:
        _, pullback = drawn.vjp(x, sample)
        push = drawn.grad(x, sample) + pullback(multipliers)
        product, shift = moved(push, *drawn.jvp(x, residual, sample))
        return (push, product, shift, shift + direction @ push), ()

    distance = jnp.linalg.norm(residual)
    direction = residual / jnp.where(distance > 0, distance, 1.0)
    _, (push_errors, product_errors, shift_error, distance_error) = _over_batches(drawn, shifts, key, batches)
    return Measured(
        value,
        value_error,
        raw,
        raw_errors,
        rows,
        multipliers,
        distance,
        jnp.linalg.norm(gradient),
        jnp.linalg.norm(push_errors),
        shift_error,
        distance_error,
        products,
        product_errors,
    )


def _jacobian(
    full: Oracle, everything: Sample, drawn: Oracle, x: Float[Array, " n"], key: Array, batches: Array
) -> Linear:
    """Products with the Jacobian of exact functions and of those that are sampled, on the same batches every time."""

    def mean(fn: Callable[[Sample], Array]) -> Array:
        return _over_batches(drawn, lambda sample: (fn(sample), ()), key, batches)[0][0]

    return Linear(
        lambda d: full.jvp(x, d, everything)[1] + mean(lambda sample: drawn.jvp(x, d, sample)[1]),
        lambda y: full.vjp(x, everything)[1](y) + mean(lambda sample: drawn.vjp(x, sample)[1](y)),
    )


def _no_response(
    rows: Float[Array, " rows"], multipliers: Float[Array, " rows"]
) -> tuple[Float[Array, " rows"], Callable[[Array, Array, Array], tuple[Array, Array]]]:
    """`_response` where the Jacobian is too large for it: as if the multipliers were known."""
    none = jnp.zeros((), rows.dtype)
    return jnp.abs(rows) * multipliers, lambda push, row_values, turned: (multipliers * row_values, none)


def _response(
    oracle: Oracle,
    x: Float[Array, " n"],
    gradient: Float[Array, " n"],
    rows: Float[Array, " rows"],
    jacobian: Float[Array, "rows n"],
    multipliers: Float[Array, " rows"],
    residual: Float[Array, " n"],
) -> tuple[Float[Array, " rows"], Callable[[Array, Array, Array], tuple[Array, Array]]]:
    """The products λ_i |c_i|, and how they and the stationarity move with v = ∇F + Jᵀλ, the rows c and J r: to first order.

    See the top of this file. Rows are divided by the length of their gradients, as in `kkt_multipliers`. A row whose
    multiplier is 0 is let move alone: it may be one that samples pushed there.
    """
    if rows.size == 0:
        return rows, lambda push, row_values, turned: (rows, jnp.zeros((), x.dtype))
    equality = jnp.asarray(oracle.equality)
    norms = jnp.linalg.norm(jacobian, axis=1)
    scale = jnp.where(norms > 0, 1.0 / jnp.where(norms > 0, norms, 1.0), 0.0)
    unit, y = jacobian * scale[:, None], multipliers * norms
    slack = jnp.where(equality, 0.0, jnp.minimum(rows, 0.0) * scale)
    free = equality | (multipliers > 0)

    def remains(push: Array) -> Array:
        return push - oracle.project_normal_cone(x, push)

    _, change = jax.linearize(remains, -(gradient + multipliers @ jacobian))
    curvature = unit @ jax.vmap(change)(unit).T + jnp.diag(slack**2 + rows.size * jnp.finfo(x.dtype).eps)
    together = (free[:, None] & free[None, :]) | jnp.eye(rows.size, dtype=bool)
    inverse = jnp.linalg.inv(jnp.where(together, 0.5 * (curvature + curvature.T), 0.0))
    slope = unit @ residual + slack**2 * y
    size = jnp.linalg.norm(residual)
    tilt = jnp.where(free, unit @ residual / jnp.where(size > 0, size, 1.0), 0.0)

    def moved(push: Array, row_values: Array, turned: Array) -> tuple[Array, Array]:
        below = jnp.where(rows < 0, row_values, 0.0)
        change_of_y = -inverse @ (scale * turned + unit @ change(push) + 2.0 * slack * y * scale * below)
        return multipliers * row_values + rows * scale * change_of_y, tilt @ change_of_y

    reached = jnp.where(free, y, y - inverse @ slope)
    return jnp.abs(rows) * scale * reached, moved


def _only(oracle: Oracle, exact: tuple[bool, ...], sampled: bool) -> Oracle:
    """The oracle with zero in place of every function that is, or is not, estimated from samples."""

    def part(term: Term, shape: tuple[int, ...]) -> Term:
        if Plan(exact, 0).samples(term) == sampled:
            return term
        return Term(term.name, lambda params: jnp.zeros(shape, oracle.parameters.dtype), None, term.size)

    constraints = tuple(part(term, (term.size,)) for term in oracle.constraints)
    return replace(oracle, objective=part(oracle.objective, ()), constraints=constraints)


def _over_batches(
    oracle: Oracle, fn: Callable[[Sample], tuple[Any, Any]], key: Array, batches: Array
) -> tuple[Any, Any]:
    """Means of the two parts of what fn returns, over fresh batches, and standard errors of the first.

    By Welford's rule: one batch in memory at a time.
    """

    def at(number: Any) -> tuple[Any, Any]:
        return fn(oracle.draw(jax.random.fold_in(key, number), BATCH_ROWS))

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


def _bounded(
    problem: Problem, oracle: Oracle, x: Float[Array, " n"], plan: Plan, fresh: Array, risk: float, raw: np.ndarray
) -> tuple[Bool[np.ndarray, " raw"], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Which raw values have a `sample_range` and are sampled, their means and the ends of their intervals.

    From their functions on single rows, summed in double precision. `raw` are the means over batches.
    """
    terms = [
        term
        for term, c in zip(oracle.constraints, problem.constraints, strict=True)
        if c.sample_range is not None and plan.samples(term)
    ]
    entries = np.zeros(raw.size, bool)
    for term in terms:
        entries[oracle.slices()[term.name]] = True
    if not terms:
        return entries, (raw[entries], raw[entries], raw[entries])
    ranges = {c.name: c.sample_range for c in problem.constraints if c.sample_range is not None}
    low, high = _range_of(terms, ranges, float(jnp.finfo(x.dtype).eps))
    names = [term.name for term in terms for _ in range(term.size)]
    program = made_once(problem, ("rows", oracle.parameters.key, plan.exact), lambda: _row_program(oracle, terms))
    leaves = oracle.leaves()

    def values(batch: int) -> Float[np.ndarray, "rows entries"]:
        found = np.asarray(program(leaves, x, jax.random.fold_in(fresh, np.uint32(batch))), float)
        wrong = ~((found >= low) & (found <= high))
        if wrong.any():
            row, entry = np.argwhere(wrong)[0]
            given = ", ".join(str(end) for end in ranges[names[entry]])
            raise ValueError(
                f"the constraint {names[entry]!r} is {found[row, entry]:g} on a single row of data, outside its "
                f"sample_range ({given})"
            )
        return found

    bet = place_bet(values(PILOT), low, high, plan.rows, risk)
    total, spread = np.zeros(low.size), np.zeros(low.size)
    for batch in range(plan.batches):
        found = values(batch)
        total += found.sum(axis=0)
        spread += ((found - bet.centre) ** 2).sum(axis=0)
    mean, spread = total / plan.rows, spread / plan.rows
    for entry in np.flatnonzero(np.abs(mean - raw[entries]) > 1e-3 * (high - low)):
        raise ValueError(
            f"the constraint {names[entry]!r} is not a mean over the rows of its batch, as sample_range needs: "
            f"{mean[entry]:g} on single rows, {raw[entries][entry]:g} on batches of {BATCH_ROWS}"
        )
    return entries, (mean, *bounded_mean(mean, spread, plan.rows, bet, low, high, risk))


def _range_of(
    terms: list[Term], ranges: dict[str, tuple[np.ndarray, np.ndarray]], eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """The ranges of all entries of some functions, widened by what rounding may do to a value."""
    ends = []
    for term in terms:
        low, high = ranges[term.name]
        if not {low.size, high.size} <= {1, term.size}:
            raise ValueError(
                f"sample_range of the constraint {term.name!r} has {max(low.size, high.size)} entries, but its function "
                f"returns {term.size}"
            )
        rounding = 4.0 * eps * np.maximum(np.abs(low), np.abs(high))
        ends.append([np.broadcast_to(low - rounding, term.size), np.broadcast_to(high + rounding, term.size)])
    low, high = np.concatenate(ends, axis=1)
    return low, high


def _row_program(oracle: Oracle, terms: list[Term]) -> Any:
    """The values of some functions on each row of a fresh batch."""
    structure = jax.tree.structure(oracle)

    def values(leaves: list[Array], x: Float[Array, " n"], key: Array) -> Float[Array, "rows entries"]:
        whole = jax.tree.unflatten(structure, leaves)
        params, sample = whole.parameters.unravel(x), whole.draw(key, BATCH_ROWS)

        def rows_of(term: Term, number: int) -> Float[Array, "rows size"]:
            source, arrays = whole.sources[number], whole.data[number]

            def at(row: PyTree[Array]) -> Float[Array, " size"]:
                one = jax.tree.map(lambda a: a[None], row)
                return jnp.ravel(term.fn(params, source.batch(arrays, one)))

            return jax.vmap(at)(sample[number])

        return jnp.concatenate([rows_of(term, term.source) for term in terms if term.source is not None], axis=1)

    return jax.jit(values)


def by_constraint(problem: Problem, oracle: Oracle, multipliers: Float[np.ndarray, " raw"]) -> dict[str, Any]:
    """Raw multipliers by name: a number where the constraint is one number; `at_least` counts them for low − h ≤ 0."""
    named = {}
    for c, entries in zip(problem.constraints, oracle.slices().values(), strict=True):
        values = multipliers[entries] * (-1.0 if c.kind == "at_least" else 1.0)
        named[c.name] = float(values[0]) if values.size == 1 else values
    return named


def _verdict(violation: dict[str, Estimate], tolerance: float) -> Verdict:
    if all(estimate.high <= tolerance for estimate in violation.values()):
        return "feasible"
    return "infeasible" if any(estimate.low > tolerance for estimate in violation.values()) else "undecided"


def _rounded(rows: int) -> str:
    """A number of rows to two digits: 3,200,000, or 3.2e+09."""
    return f"{int(float(f'{rows:.2g}')):,}" if rows < 10**9 else f"{rows:.2g}"
