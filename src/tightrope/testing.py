"""The contract of a method, as checks that any method can be put through: `check_method(MyMethod)`.

Each check is a function of a method class that raises an AssertionError with the reason. They run the method, called with no
arguments, on small problems of every kind that it says it accepts.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import domains
from .certificates.evaluation import raw_violations
from .methods.base import Accepts, Info, Method, as_arrays, constants
from .methods.selection import refusal
from .oracles.build import oracle_for
from .oracles.oracle import Oracle
from .problems.constraints import affine, at_most, between, equals
from .problems.data import Dataset
from .problems.parameters import Parameters
from .problems.problem import Problem, cached_on_problem
from .runs.checkpoint import Checkpoint
from .runs.fitting import fit
from .runs.loop import Carry, LoopShape, run_steps
from .runs.result import Result
from .runs.run import start_run
from .runs.solving import solve
from .runs.stepper import StepperState, start
from .runs.sweeping import sweep

ROWS, COLUMNS, BATCH = 400, 4, 8
STEPS = 300


class OnlyMinimized(domains.Domain):
    """The unit simplex, known only through its linear minimization oracle."""

    def lmo(self, gradient: Array) -> Array:
        """The corner with the least entry of the gradient."""
        return jax.nn.one_hot(jnp.argmin(gradient), gradient.size, dtype=gradient.dtype)

    def contains(self, x: Array, tolerance: Float[Array, ""] | float | None = None) -> Array:
        """Whether x is in the simplex."""
        slack = 1e-4 if tolerance is None else tolerance
        return jnp.all(x >= -slack) & (jnp.abs(jnp.sum(x) - 1.0) <= slack)


def _rows() -> dict[str, np.ndarray]:
    """Two classes, and a group that leans to one of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, COLUMNS))
    y = np.sign(x @ rng.normal(size=COLUMNS) + 0.5 * rng.normal(size=ROWS))
    s = (x[:, 0] + 0.5 * rng.normal(size=ROWS) > 0).astype(float)
    return {"x": x, "y": y, "s": s - s.mean()}


def _loss(w: Array, batch: dict[str, Array]) -> Array:
    return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))


def _parity(w: Array, batch: dict[str, Array]) -> Array:
    return jnp.mean(batch["s"] * (batch["x"] @ w))


def _square(w: Array) -> Array:
    return w @ w


KINDS: dict[str, Callable[[Dataset], tuple[Any, domains.Domain | None]]] = {
    "no constraints": lambda data: ((), None),
    "deterministic equality": lambda data: (equals(_square, 0.8), None),
    "deterministic inequalities": lambda data: (
        (at_most(_square, 0.2), between(lambda w: w[:3], -0.2, 0.3, name="each")),
        domains.Box(-1.0, 1.0),
    ),
    "free affine equality": lambda data: (affine(np.ones((1, COLUMNS)), [0.0]), None),
    "affine equality": lambda data: (affine(np.ones((1, COLUMNS)), [0.0]), domains.L2Ball(2.0)),
    "stochastic inequality": lambda data: (at_most(_parity, 0.1, data=data), domains.L1Ball(3.0)),
    "stochastic equality": lambda data: (equals(_parity, 0.1, data=data), None),
    "a set without projection": lambda data: (at_most(_square, 0.28), OnlyMinimized()),
}
"""Kinds of problems: constraints and domain, given the data."""

START = np.array([0.4, 0.3, 0.2, 0.1])
"""Inside every domain above."""
FLOAT32 = START.astype(np.float32)
OPTIONS: dict[str, Any] = {"steps": STEPS, "record": STEPS // 10}


@cache
def example(kind: str) -> Problem:
    """A small logistic regression of this kind."""
    data = Dataset(_rows(), batch_size=BATCH)
    constraints, domain = KINDS[kind](data)
    return Problem(_loss, constraints, domain=domain, data=data)


def accepted(method: type[Method]) -> list[str]:
    """The kinds of problems that a method takes."""
    return [kind for kind in KINDS if refusal(example(kind), method) is None]


def main_kind(method: type[Method]) -> str:
    """The kind that most checks use: the last one that the method takes, with one constraint or none."""
    return accepted(method)[-1]


class Ran(NamedTuple):
    """A run without `solve`: constants, iterates' ends, and the objective and largest violation at the points."""

    constants: dict[str, float]
    points: Float[np.ndarray, "points n"]
    objective: Float[np.ndarray, " points"]
    violation: Float[np.ndarray, " points"]
    finite: bool


def _fitted(problem: Problem, method: type[Method], x0: Any) -> tuple[Oracle, Oracle]:
    """The oracles of the problem in its native form and in the method's."""
    parameters = Parameters(x0)
    return oracle_for(problem, parameters), oracle_for(problem, parameters, method.accepts.form)


def _run_whole(oracle: Oracle, run: StepperState, steps: Array) -> Carry:
    """All steps, as the compiled loop takes them."""
    shape = LoopShape(jax.tree.structure(oracle), lanes=False, records=1)
    numbers = jnp.stack([steps, steps + 1])
    return run_steps(shape, oracle.leaves(), Carry(run, jnp.bool_(True), {}), numbers)[0]


def run_once(problem: Problem, x0: Any, method: type[Method], steps: int = STEPS) -> Ran:
    """The start, the last iterate, the average and the output of a run with no arguments, in one program."""
    native, fitted = _fitted(problem, method, x0)
    n = native.parameters.size

    def measure(x: Array) -> tuple[Array, Array]:
        everything = native.everything()
        violations = raw_violations(native, native.c(x, everything))
        return native.f(x, everything), jnp.max(violations, initial=0.0)

    def whole(asked: Method, x: Array, key: Array, steps: Array) -> Any:
        last, finite, _ = _run_whole(fitted, start(fitted, asked, x, key, steps), steps)
        points = jnp.stack([x[:n], last.state.x[:n], last.average[:n], last.method.output(last.state)[:n]])
        return last.method, points, jax.lax.map(measure, points), finite

    program = cached_on_problem(problem, ("run_once", method, native.parameters.key), lambda: jax.jit(whole))
    given = as_arrays(method(), native.parameters.dtype)
    filled, points, (objective, violation), ok = jax.device_get(
        program(given, native.parameters.start, jax.random.key(0), np.int32(steps))
    )
    return Ran(constants(method(), filled), points, objective, violation, bool(ok))


# ---------------------------------------------------------------------- the checks


def check_declares(method: type[Method]) -> None:
    """It says what the table of methods prints, what it takes, and what samples it needs."""
    assert isinstance(method.accepts, Accepts), "accepts must be an Accepts"
    for name in ("reference", "guarantee", "cost", "__doc__"):
        assert str(getattr(method, name) or "").strip(), f"{name} must say something"
    assert accepted(method), "it takes none of the kinds of problems"
    _, fitted = _fitted(example(main_kind(method)), method, FLOAT32)
    assert method().roles(fitted), "roles must name at least one sample"


def check_refuses(method: type[Method]) -> None:
    """`solve` refuses the kinds of problems that it does not take, and says what would work."""
    for kind in set(KINDS) - set(accepted(method)):
        try:
            solve(example(kind), FLOAT32, method(), steps=1)
        except ValueError as error:
            reason = str(error)
        else:
            reason = "nothing was raised"
        assert "cannot take this problem" in reason, f"{kind}: {reason}"


def check_runs(method: type[Method], kinds: Iterable[str] | None = None) -> None:
    """With no arguments, on these kinds (None: every one that it takes): constants are sound, the answer in the set, better."""
    for kind in accepted(method) if kinds is None else kinds:
        ran = run_once(example(kind), FLOAT32, method)
        assert ran.finite, f"{kind}: it diverged"
        assert ran.points.dtype == np.float32, f"{kind}: float32 became {ran.points.dtype}"
        assert all(np.isfinite(value) and value >= 0 for value in ran.constants.values()), f"{kind}: {ran.constants}"
        inside = [bool(example(kind).domain.contains(jnp.asarray(x))) for x in ran.points]
        assert all(inside), f"{kind}: outside the set (start, last, average, output: {inside})"
        better = [min(values[1:]) < values[0] for values in (ran.objective, ran.objective + ran.violation)]
        assert any(better), f"{kind}: objective {ran.objective}, violation {ran.violation}"


class Watched(NamedTuple):
    """A problem of the method's main kind, a count of the traces of its objective, and a first result."""

    problem: Problem
    traces: Counter[str]
    result: Result


@cache
def _watched(method: type[Method]) -> Watched:
    traces = Counter[str]()

    def loss(w: Array, batch: dict[str, Array]) -> Array:
        traces["loss"] += 1
        return _loss(w, batch)

    data = Dataset(_rows(), batch_size=BATCH)
    constraints, domain = KINDS[main_kind(method)](data)
    problem = Problem(loss, constraints, domain=domain, data=data)
    return Watched(problem, traces, solve(problem, FLOAT32, method(), **OPTIONS))


def check_solves(method: type[Method]) -> None:
    """Through `solve`: a Result, and no new trace for a new seed, number, horizon, cadence or start."""
    problem, traces, result = _watched(method)
    assert result.status in ("budget", "converged"), result.message
    assert set(result.multipliers) == {c.name for c in problem.constraints}
    assert bool(problem.domain.contains(jnp.asarray(result.x)))
    given, changed = (method(**_numbers(method, result.settings, factor)) for factor in (1.0, 0.99))
    solve(problem, FLOAT32, given, **OPTIONS)
    before = traces["loss"]
    solve(problem, FLOAT32, given, **OPTIONS)
    checked = traces["loss"] - before  # the check of the user's functions traces them
    for option, value in (("seed", 5), ("steps", STEPS + 33), ("record", 50)):
        before = traces["loss"]
        changed_options: dict[str, Any] = OPTIONS | {option: value}
        solve(problem, FLOAT32[::-1], changed, **changed_options)
        assert traces["loss"] - before == checked, f"another {option} was traced again"


def _numbers(method: type[Method], settings: dict[str, Any], factor: float) -> dict[str, Any]:
    """The numbers among a result's settings as arguments; those at the edge of their range are kept."""
    found = {}
    for name, value in settings.items():
        if isinstance(value, float) and "." not in name:  # not those of a method inside
            try:
                method(**{name: factor * value})
                found[name] = factor * value
            except ValueError:
                found[name] = value
    return found


def check_resumes(method: type[Method]) -> None:
    """A run that is killed and taken up again is bit-identical to one that never was."""
    problem, _, whole = _watched(method)

    def die(row: dict[str, Any]) -> None:
        if row["step"] >= STEPS // 2:
            raise ZeroDivisionError

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(folder, every=0.0)
        with suppress(ZeroDivisionError):
            solve(problem, FLOAT32, method(), checkpoint=checkpoint, callback=die, **OPTIONS)
        resumed = solve(problem, FLOAT32, method(), checkpoint=checkpoint, **OPTIONS)
    assert np.array_equal(whole.x, resumed.x), "the resumed run ended elsewhere"
    assert whole.calls == resumed.calls, "the resumed run counted other calls"
    assert np.array_equal(whole.history["objective"], resumed.history["objective"])


def check_lanes(method: type[Method]) -> None:
    """A lane of a sweep equals the single run of its seed, to rounding, and another seed gives another run."""
    problem = _watched(method).problem
    lanes = sweep(problem, FLOAT32, method(), steps=60, seeds=[3, 8], record=20).results
    single = solve(problem, FLOAT32, method(), steps=60, seed=8, record=20)
    for column in ("objective", "violation", "samples"):
        np.testing.assert_allclose(lanes[1].history[column], single.history[column], rtol=2e-3, atol=1e-3)
    assert lanes[1].calls == single.calls
    assert not np.allclose(lanes[0].history["objective"][1:], lanes[1].history["objective"][1:], rtol=1e-6)


def check_precisions(method: type[Method]) -> None:
    """Float64 stays float64, and differs from float32 by float32's rounding."""
    kind, steps = main_kind(method), 40
    single = run_once(example(kind), FLOAT32, method, steps)
    with jax.enable_x64(True):
        data = Dataset(_rows(), batch_size=BATCH)
        constraints, domain = KINDS[kind](data)
        double = run_once(Problem(_loss, constraints, domain=domain, data=data), START, method, steps)
    assert double.points.dtype == np.float64
    np.testing.assert_allclose(single.points, double.points, rtol=2e-2, atol=2e-2)
    assert not np.array_equal(single.points[1], double.points[1].astype(np.float32))


def check_pytrees(method: type[Method]) -> None:
    """A pytree of parameters runs like the flat vector it stands for."""
    kind, steps = main_kind(method), 40
    if kind == "a set without projection":
        kind = "deterministic inequalities"  # that set is one of vectors
    original = example(kind)

    def flat(w: dict[str, Array]) -> Array:
        return jnp.concatenate([w["a"].ravel(), w["b"]])

    def on_tree(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda w, *batch: fn(flat(w), *batch)

    constraints = [replace(c, fn=on_tree(c.fn)) for c in original.constraints]
    tree = Problem(on_tree(_loss), constraints, domain=original.domain, data=original.data)
    one = run_once(original, FLOAT32, method, steps)
    two = run_once(tree, {"a": FLOAT32[:3].reshape(1, 3), "b": FLOAT32[3:]}, method, steps)
    np.testing.assert_allclose(one.points, two.points, rtol=1e-3, atol=1e-3)


def check_counts(method: type[Method]) -> None:
    """What Info counts are the calls that were made: values and derivatives, counted where they happen."""
    calls = Counter[str]()
    original = example(main_kind(method))
    counted = [replace(c, fn=counting(c.fn, "constraint", calls)) for c in original.constraints]
    problem = Problem(counting(_loss, "objective", calls), counted, domain=original.domain, data=original.data)
    run = start_run(fit("check_counts", problem, FLOAT32, method(), STEPS), jnp.asarray(FLOAT32), [0], STEPS)
    jax.effects_barrier()
    calls.clear()
    while run.step < STEPS:
        run.advance(1)
    jax.effects_barrier()
    found = run.calls[0]
    made = {
        "objective_gradients": calls["objective derivative"],
        "constraint_values": calls["constraint value"],
        "constraint_jacobians": calls["constraint derivative"],
    }
    told = {name: found[name] for name in made}
    assert told == made, f"Info says {told}, made were {made}"
    assert set(found) == set(Info._fields)
    assert calls["objective value"] == calls["objective derivative"], "the objective's value alone was computed"


def counting(fn: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    """The function fn, which counts its evaluations and linearizations (a vjp, jvp or Jacobian is one) as they happen."""

    def tell(event: str) -> None:
        jax.debug.callback(lambda: calls.update([f"{name} {event}"]))

    @jax.custom_jvp
    def counted(*args: Any) -> Any:
        tell("value")
        return fn(*args)

    @counted.defjvp
    def linearized(primals: Any, tangents: Any) -> Any:
        tell("value")
        tell("derivative")
        return jax.jvp(fn, primals, tangents)

    return counted


def check_state(method: type[Method]) -> None:
    """The state grows with x and the constraints alone: neither steps nor rows of data enter its size."""

    def size(rows: int, steps: int) -> int:
        data = Dataset({name: np.resize(a, (rows, *a.shape[1:])) for name, a in _rows().items()}, batch_size=BATCH)
        constraints, domain = KINDS[main_kind(method)](data)
        _, fitted = _fitted(Problem(_loss, constraints, domain=domain, data=data), method, FLOAT32)
        given, x = as_arrays(method(), jnp.float32), jnp.asarray(FLOAT32)
        state = jax.eval_shape(lambda: start(fitted, given, x, jax.random.key(0), jnp.int32(steps)).state)
        assert hasattr(state, "x"), "the State must have a field x, the current iterate"
        return sum(leaf.size for leaf in jax.tree.leaves(state))

    assert size(400, 10) == size(4000, 100_000), "the state grew with the data or the steps"


CHECKS = (
    check_declares,
    check_refuses,
    check_runs,
    check_solves,
    check_resumes,
    check_lanes,
    check_precisions,
    check_pytrees,
    check_counts,
    check_state,
)


def check_method(method: type[Method]) -> None:
    """Put a method class through every check of the contract; an AssertionError says what does not hold.

    Example:
        >>> import tightrope as tr
        >>> from tightrope.testing import check_declares
        >>> check_declares(tr.methods.TruncatedMomentum)
    """
    for check in CHECKS:
        check(method)
