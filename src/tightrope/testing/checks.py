"""The checks of the contract.

Each check takes a method class and raises an AssertionError with the reason if the method breaks the contract. The checks run
the method, constructed without arguments, on small problems of every kind that it accepts.
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

from ..certificates.evaluation import raw_violations
from ..methods.base import Accepts, Info, Method, as_arrays, constants
from ..oracles.build import oracle_for
from ..oracles.oracle import Oracle
from ..problems.compiling import Program
from ..problems.parameters import Parameters
from ..problems.problem import Problem, cached_on_problem
from ..runs.checkpoint import Checkpoint
from ..runs.fitting import fit
from ..runs.result import Result
from ..runs.run import start_run
from ..runs.solving import solve
from ..runs.stepper import start
from ..runs.sweeping import sweep
from .examples import FLOAT32, KINDS, START, accepted, example, loss, main_kind, new_example, points

STEPS = 300
OPTIONS: dict[str, Any] = {"steps": STEPS, "record": STEPS // 10}


class Counted(NamedTuple):
    """A problem, and a count of the traces of its objective."""

    problem: Problem
    traces: Counter[str]


@cache
def _example(kind: str) -> Counted:
    """The problem of this kind that all checks share, with its compiled programs."""
    traces = Counter[str]()

    def counted_loss(w: Array, batch: dict[str, Array]) -> Array:
        traces["loss"] += 1
        return loss(w, batch)

    return Counted(new_example(kind, counted_loss), traces)


class Measured(NamedTuple):
    """A run and its measurements at four points: the start, the last iterate, the average and the output.

    Attributes:
        constants: the hyperparameters that the method estimated.
        points: the four points, as rows.
        objective: the objective at each point.
        violation: the largest violation at each point.
        finite: whether all numbers of the run stayed finite.
    """

    constants: dict[str, float]
    points: Float[np.ndarray, "points n"]
    objective: Float[np.ndarray, " points"]
    violation: Float[np.ndarray, " points"]
    finite: bool


def _oracle(problem: Problem, method: type[Method]) -> Oracle:
    """The oracle of the problem in the form that the method accepts."""
    return oracle_for(problem, Parameters(FLOAT32), method.accepts.form)


def run_once(problem: Problem, x0: Any, method: type[Method], steps: int = STEPS) -> Measured:
    """Run a method constructed without arguments, in the programs of `solve`, and measure it."""
    fitted = fit("run_once", problem, x0, method, steps)
    run = start_run(fitted, fitted.parameters.start, [0], steps)
    while run.step < steps and not run.diverged:
        run.advance(1)
    n, last, (output, _) = fitted.parameters.size, run.carry.run, run.output()
    points = jnp.stack([x[:n] for x in (fitted.parameters.start, last.state.x, last.average, output)])

    def measure(points: Array) -> tuple[Array, Array]:
        native = fitted.original

        def at(x: Array) -> tuple[Array, Array]:
            violations = raw_violations(native, native.c(x, native.everything()))
            return native.f(x, native.everything()), jnp.max(violations, initial=0.0)

        return jax.lax.map(at, points)

    key = ("run_once", fitted.parameters.key)
    objective, violation = jax.device_get(cached_on_problem(problem, key, lambda: Program(measure, "little"))(points))
    return Measured(constants(method(), last.method), np.asarray(points), objective, violation, not run.diverged)


def check_declares(method: type[Method]) -> None:
    """The method declares the texts in the table of methods, the problems it accepts, and the samples it needs."""
    assert isinstance(method.accepts, Accepts), "accepts must be an Accepts"
    for name in ("reference", "guarantee", "cost", "__doc__"):
        assert str(getattr(method, name) or "").strip(), f"{name} must not be empty"
    assert accepted(method), "it accepts none of the kinds of problems"
    oracle = _oracle(example(main_kind(method)), method)
    assert method().roles(oracle), "roles must name at least one sample"


def check_refuses(method: type[Method]) -> None:
    """`solve` refuses the kinds of problems that the method does not accept, and names methods that do."""
    for kind in set(KINDS) - set(accepted(method)):
        try:
            solve(example(kind), FLOAT32, method(), steps=1)
        except ValueError as error:
            reason = str(error)
        else:
            reason = "nothing was raised"
        assert "cannot take this problem" in reason, f"{kind}: {reason}"


def check_runs(method: type[Method], kinds: Iterable[str] | None = None) -> None:
    """Without arguments the method runs: estimated constants are finite, iterates stay in the set, and a point improves.

    Args:
        method: the method.
        kinds: kinds of problems to run; None: all that it accepts.
    """
    for kind in accepted(method) if kinds is None else kinds:
        problem = _example(kind).problem
        run = run_once(problem, FLOAT32, method)
        assert run.finite, f"{kind}: it diverged"
        assert run.points.dtype == np.float32, f"{kind}: float32 became {run.points.dtype}"
        assert all(np.isfinite(value) and value >= 0 for value in run.constants.values()), f"{kind}: {run.constants}"
        inside = [bool(problem.domain.contains(jnp.asarray(x))) for x in run.points]
        assert all(inside), f"{kind}: outside the set (start, last, average, output: {inside})"
        better = [min(values[1:]) < values[0] for values in (run.objective, run.objective + run.violation)]
        assert any(better), f"{kind}: no improvement: objective {run.objective}, violation {run.violation}"


@cache
def _solved(method: type[Method]) -> Result:
    """A first run of `solve` on the method's main kind of problem."""
    return solve(_example(main_kind(method)).problem, FLOAT32, method(), **OPTIONS)


def check_solves(method: type[Method]) -> None:
    """`solve` returns a valid Result and does not trace again for a new seed, hyperparameter, horizon, record or start."""
    (problem, traces), result = _example(main_kind(method)), _solved(method)
    assert result.status in ("budget", "converged"), result.message
    assert set(result.multipliers) == {c.name for c in problem.constraints}
    assert bool(problem.domain.contains(jnp.asarray(result.x)))
    given, changed = (method(**_numbers(method, result.settings, factor)) for factor in (1.0, 0.99))
    solve(problem, FLOAT32, given, **OPTIONS)
    before = traces["loss"]
    solve(problem, FLOAT32, given, **OPTIONS)
    checked = traces["loss"] - before  # the check of the user's functions traces them
    before = traces["loss"]
    solve(problem, FLOAT32[::-1], changed, seed=5, steps=STEPS + 33, record=50)
    again = "another seed, hyperparameter, horizon, record or start traced the functions again"
    assert traces["loss"] - before == checked, again


def _numbers(method: type[Method], settings: dict[str, Any], factor: float) -> dict[str, Any]:
    """The numbers among a result's settings, times a factor if that is still in their range."""
    found = {}
    for name, value in settings.items():
        if isinstance(value, float) and "." not in name:  # without those of an inner method
            try:
                method(**{name: factor * value})
                found[name] = factor * value
            except ValueError:
                found[name] = value
    return found


def check_resumes(method: type[Method]) -> None:
    """A run that is interrupted and resumed is bit-identical to an uninterrupted one."""
    problem, uninterrupted = _example(main_kind(method)).problem, _solved(method)

    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] >= STEPS // 2:
            raise ZeroDivisionError

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(folder, every=0.0)
        with suppress(ZeroDivisionError):
            solve(problem, FLOAT32, method(), checkpoint=checkpoint, callback=interrupt, **OPTIONS)
        resumed = solve(problem, FLOAT32, method(), checkpoint=checkpoint, **OPTIONS)
    assert np.array_equal(uninterrupted.x, resumed.x), "the resumed run has another answer"
    assert uninterrupted.calls == resumed.calls, "the resumed run counted other calls"
    assert np.array_equal(uninterrupted.history["objective"], resumed.history["objective"])


def check_lanes(method: type[Method]) -> None:
    """A lane of a sweep equals the single run of its seed, up to rounding, and another seed gives another run."""
    problem = _example(main_kind(method)).problem
    lanes = sweep(problem, FLOAT32, method(), steps=60, seeds=[3, 8], record=20).results
    single = solve(problem, FLOAT32, method(), steps=60, seed=8, record=20)
    for column in ("objective", "violation", "samples"):
        np.testing.assert_allclose(lanes[1].history[column], single.history[column], rtol=2e-3, atol=1e-3)
    assert lanes[1].calls == single.calls
    assert not np.allclose(lanes[0].history["objective"][1:], lanes[1].history["objective"][1:], rtol=1e-6)


def check_precisions(method: type[Method]) -> None:
    """Float64 stays float64, and differs from float32 only by rounding."""
    kind, steps = main_kind(method), 40
    single = run_once(_example(kind).problem, FLOAT32, method, steps)
    with jax.enable_x64(True):
        double = run_once(new_example(kind), START, method, steps)
    assert double.points.dtype == np.float64
    np.testing.assert_allclose(single.points, double.points, rtol=2e-2, atol=2e-2)
    assert not np.array_equal(single.points[1], double.points[1].astype(np.float32))


def check_pytrees(method: type[Method]) -> None:
    """A run on a pytree of parameters equals the run on the flat vector."""
    kind, steps = main_kind(method), 40
    if kind == "a set without projection":
        kind = "deterministic inequalities"  # that set contains vectors only
    original = example(kind)

    def flat(w: dict[str, Array]) -> Array:
        return jnp.concatenate([w["a"].ravel(), w["b"]])

    def on_tree(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda w, *batch: fn(flat(w), *batch)

    constraints = [replace(c, fn=on_tree(c.fn)) for c in original.constraints]
    tree = Problem(on_tree(loss), constraints, domain=original.domain, data=original.data)
    one = run_once(_example(kind).problem, FLOAT32, method, steps)
    two = run_once(tree, {"a": FLOAT32[:3].reshape(1, 3), "b": FLOAT32[3:]}, method, steps)
    np.testing.assert_allclose(one.points, two.points, rtol=1e-3, atol=1e-3)


def check_counts(method: type[Method]) -> None:
    """The counts in Info equal the actual numbers of values and derivatives computed."""
    calls = Counter[str]()
    original = example(main_kind(method))
    counted = [replace(c, fn=counting(c.fn, "constraint", calls)) for c in original.constraints]
    problem = Problem(counting(loss, "objective", calls), counted, domain=original.domain, data=original.data)
    run = start_run(fit("check_counts", problem, FLOAT32, method(), STEPS), jnp.asarray(FLOAT32), [0], STEPS)
    jax.effects_barrier()
    calls.clear()
    while run.step < STEPS:
        run.advance(1)
    jax.effects_barrier()
    reported = run.calls[0]
    actual = {
        "objective_gradients": calls["objective derivative"],
        "constraint_values": calls["constraint value"],
        "constraint_jacobians": calls["constraint derivative"],
    }
    compared = {name: reported[name] for name in actual}
    assert compared == actual, f"Info reports {compared}, actual counts are {actual}"
    assert set(reported) == set(Info._fields)
    assert calls["objective value"] == calls["objective derivative"], (
        "the objective was evaluated without its derivative"
    )


def counting(fn: Callable[..., Any], name: str, calls: Counter[str]) -> Callable[..., Any]:
    """`fn` with a count of its evaluations and linearizations (a vjp, jvp or Jacobian is one) at run time."""

    def count(event: str) -> None:
        jax.debug.callback(lambda: calls.update([f"{name} {event}"]))

    @jax.custom_jvp
    def counted(*args: Any) -> Any:
        count("value")
        return fn(*args)

    @counted.defjvp
    def linearized(primals: Any, tangents: Any) -> Any:
        count("value")
        count("derivative")
        return jax.jvp(fn, primals, tangents)

    return counted


def check_state(method: type[Method]) -> None:
    """The size of the state depends on x and the constraints only, not on the data or the number of steps."""

    def size(examples: int, steps: int) -> int:
        oracle = _oracle(new_example(main_kind(method), arrays=points(examples)), method)
        given, x = as_arrays(method(), jnp.float32), jnp.asarray(FLOAT32)
        state = jax.eval_shape(lambda: start(oracle, given, x, jax.random.key(0), jnp.int32(steps)).state)
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
    """Run every check of the contract on a method class; an AssertionError gives the reason if one fails.

    Example:
        >>> import tightrope as tr
        >>> from tightrope.testing import check_declares
        >>> check_declares(tr.methods.TruncatedMomentum)
    """
    for check in CHECKS:
        check(method)
