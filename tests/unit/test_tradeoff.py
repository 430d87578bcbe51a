"""The trade-off curve: its values and slopes, one compilation for all bounds, bounds that cannot be met."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from tightrope.problems.problem import with_bounds
from tightrope.runs import tradeoffs

A = np.array([1.0, -2.0, 2.0], np.float32)
"""‖A‖ = 3, so the least ½‖x‖² with a'x = t is t²/18, and its derivative t/9."""
X0 = jnp.full(3, 0.5)


def half_square(x):
    return 0.5 * x @ x


def along(x):
    return A @ x


def ball(x):
    return x @ x


@pytest.fixture(scope="module")
def problem():
    return tr.Problem(half_square, [tr.at_least(along, 3.0), tr.at_most(ball, 4.0)])


@pytest.fixture(scope="module")
def curve(problem):
    return tr.tradeoff(problem, X0, "along", [1.0, 3.0, 7.0, 5.0], steps=300)


def test_values_multipliers_and_slopes_are_those_of_the_closed_form(curve):
    t = np.array([1.0, 3.0, 5.0])
    possible = [0, 1, 3]
    np.testing.assert_allclose(curve.objective[possible], t**2 / 18, rtol=1e-4)
    np.testing.assert_allclose(curve.multiplier[possible], t / 9, rtol=1e-3)
    np.testing.assert_allclose(curve.slope[possible], t / 9, rtol=1e-3)
    assert curve.violation[possible].max() < 1e-4


EVEN = tr.Dataset(np.linspace(0.0, 1.0, 1000, dtype=np.float32), batch_size=100)


def above(x, batch):
    return batch - x


@pytest.mark.by_default("probability")
@pytest.mark.parametrize(
    ("limit", "solution"),
    [
        (tr.cvar_at_most(above, 0.9, 0.2, data=EVEN, name="limit"), 0.95),
        (tr.chance_at_most(above, 0.2, data=EVEN, name="limit", smoothing=0.1), 1.05),
    ],
    ids=["tail", "probability"],
)
def test_bounds_of_tails_and_probabilities_are_those_of_each_point_and_not_of_the_first(limit, solution):
    """The tail of u − x for uniform u has the mean 0.95 − x, and u > x has the probability 1 − x, 1.05 − x if smoothed."""
    problem = tr.Problem(lambda x: x**2, limit)
    curve = tr.tradeoff(problem, jnp.array(1.5), "limit", [0.2, 0.5], steps=200)
    np.testing.assert_allclose(
        [float(result.x) for result in curve.results], [solution - 0.2, solution - 0.5], atol=0.01
    )


def test_a_bound_that_cannot_be_met_is_a_point_and_the_next_run_does_not_start_from_it(curve):
    """In the ball of radius 2, a'x is at most 6."""
    assert [result.status == "infeasible" for result in curve.results] == [False, False, True, False]
    assert curve.feasible.tolist() == [True, True, False, True]
    assert np.isnan(curve.slope[2])
    assert curve.results[3].success


@pytest.mark.parametrize(
    ("make", "bounds", "slope"),
    [
        (lambda: tr.equals(along, 3.0, name="c"), [-3.0, 3.0], lambda t: t / 9),
        (lambda: tr.between(along, -3.0, 3.0, name="c"), [1.0, 2.0], lambda t: -(6.0 - t) / 9),
        (lambda: tr.between(along, -3.0, 3.0, name="c"), [(-1.0, 2.0), (-9.0, 4.0)], lambda p: -(6.0 - p[:, 1]) / 9),
    ],
    ids=["equals", "between", "pairs"],
)
def test_slopes_have_the_sign_of_the_derivative_for_the_other_kinds(make, bounds, slope):
    """Where the constraint is an interval the objective is ½‖x − y‖² with a'y = 6, so its upper end is active."""
    constraint = make()
    center = jnp.asarray(6.0 * A / 9.0) if constraint.kind == "between" else jnp.zeros(3)
    one = tr.Problem(lambda x: half_square(x - center), constraint)
    found = tr.tradeoff(one, X0, constraint, bounds, steps=300)
    assert found.feasible.all()
    np.testing.assert_allclose(found.slope, slope(np.array(bounds)), rtol=2e-3)


def test_slopes_are_finite_differences_of_the_curve(problem):
    bounds = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = tr.tradeoff(problem, X0, "along", bounds, steps=300)
    differences = (found.objective[2:] - found.objective[:-2]) / (bounds[2:] - bounds[:-2])
    np.testing.assert_allclose(found.slope[1:-1], differences, rtol=1e-3)


@pytest.mark.full
def test_slopes_are_finite_differences_of_a_curve_that_has_no_closed_form():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype("float32")
    y = np.sign(x @ A + rng.normal(size=400)).astype("float32")
    data = tr.Dataset({"x": x, "y": y}, batch_size=40)
    loss = lambda w, batch: jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))
    margin = lambda w, batch: jnp.mean(jnp.abs(batch["x"] @ w) ** 1.5)
    constrained = tr.Problem(loss, tr.at_most(margin, 1.0, data=data, name="margin"), data=data)
    bounds = np.linspace(0.6, 1.4, 5)
    found = tr.tradeoff(constrained, jnp.full(3, 0.1), "margin", bounds, steps=600)
    assert found.feasible.all()
    differences = (found.objective[2:] - found.objective[:-2]) / (bounds[2:] - bounds[:-2])
    np.testing.assert_allclose(found.slope[1:-1], differences, rtol=0.03)
    assert (np.diff(found.slope) > 0).all()  # the problem is convex, and so is the curve


def test_further_bounds_trace_and_compile_nothing(problem, curve):
    names = []

    def note(event, seconds, **about):
        if event.endswith("backend_compile_duration"):
            names.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(note)
    again = tr.tradeoff(problem, X0, "along", [0.5, 2.0, 4.0], steps=300)
    jax.monitoring.unregister_event_duration_listener(note)
    assert names == []
    assert max(result.compile_seconds for result in again.results) < 0.01
    assert problem.constraints[0].low == 3.0


def test_problems_share_programs_only_if_their_rows_are_alike(problem):
    one = with_bounds(problem, "along", 2.0, np.inf)
    assert with_bounds(problem, "along", 3.0, np.inf)._cache is one._cache
    assert with_bounds(problem, "along", 2.0, 2.0)._cache is not one._cache
    assert with_bounds(problem, "along", -np.inf, 2.0)._cache is not one._cache


def solved_from(monkeypatch, problem, **changes):
    """What each run of a curve starts from, where its results are changed so."""
    starts = []

    def solve(*args, warm_start, **options):
        starts.append(warm_start is not None)
        result = tr.solve(*args, warm_start=warm_start, **options)
        for name, value in changes.items():
            setattr(result, name, value)
        return result

    monkeypatch.setattr(tradeoffs, "solve", solve)
    return starts, tr.tradeoff(problem, X0, "along", [1.0, 2.0, 3.0], steps=300)


def test_a_run_starts_from_the_answer_before_if_that_was_a_success(problem, monkeypatch):
    assert solved_from(monkeypatch, problem)[0] == [False, True, True]
    assert solved_from(monkeypatch, problem, success=False)[0] == [False, False, False]


def test_an_interrupted_run_ends_the_curve(problem, monkeypatch):
    _, found = solved_from(monkeypatch, problem, status="interrupted")
    assert found.bounds.tolist() == [1.0]
    assert len(found.results) == len(found.objective) == 1


def test_the_table_and_the_frame_have_a_row_for_each_bound(curve):
    frame = curve.to_pandas()
    assert frame["bound"].tolist() == [1.0, 3.0, 7.0, 5.0]
    assert frame["status"][2] == "infeasible"
    assert len(str(curve).splitlines()) == 2 + 4
    assert repr(curve) == str(curve)


def test_a_vector_has_one_bound_and_the_slope_of_all_its_entries():
    one = tr.Problem(lambda x: half_square(x - 3.0), tr.at_most(lambda x: x, np.ones(3), name="cap"))
    found = tr.tradeoff(one, X0, "cap", [1.0, 2.0], steps=300)
    np.testing.assert_allclose(found.multiplier, [[2.0] * 3, [1.0] * 3], rtol=1e-3)
    np.testing.assert_allclose(found.slope, [-6.0, -3.0], rtol=1e-3)
    assert [name for name in found.to_pandas() if "multiplier" in name] == [f"multiplier {i}" for i in range(3)]


@pytest.mark.parametrize(
    ("constraint", "bounds", "error", "said"),
    [
        ("alon", [1.0], ValueError, "got 'alon'; did you mean 'along'.*it has along, ball"),
        (3, [1.0], TypeError, "constraint must be a constraint of the problem or its name"),
        (tr.equals(along, 1.0), [1.0], ValueError, "must be one of the problem's"),
        ("along", [], ValueError, "bounds must be a sequence of numbers"),
        ("along", 1.0, ValueError, "bounds must be a sequence of numbers"),
        ("along", ["a"], TypeError, "bounds must be a sequence of numbers"),
        ("along", [np.inf], ValueError, "bounds must be finite"),
        ("along", [(1.0, 2.0)], ValueError, "bounds must be a sequence of numbers, got"),
    ],
)
def test_bad_arguments_are_refused(problem, constraint, bounds, error, said):
    with pytest.raises(error, match=f"tradeoff: .*{said}"):
        tr.tradeoff(problem, X0, constraint, bounds, steps=10)


def test_an_interval_needs_ends_in_order():
    one = tr.Problem(half_square, tr.between(along, -1.0, 1.0))
    for bounds in ([-1.0], [(2.0, 1.0)]):
        with pytest.raises(ValueError, match="tradeoff: bounds must be numbers b for ±b, or pairs"):
            tr.tradeoff(one, X0, "along", bounds, steps=10)
