"""Certificates: their numbers are right, their intervals hold, and their verdicts follow from the intervals."""

from __future__ import annotations

from functools import cache

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr
from conftest import fair_problem, loss, parity, points
from tightrope.certificates import judging
from tightrope.certificates.intervals import student_width
from tightrope.certificates.mapping import gradient_mapping, mapping_length
from tightrope.certificates.measurement import sensitivity
from tightrope.certificates.proximal import RELATIVE_ERROR
from tightrope.numerics.kkt import kkt_multipliers
from tightrope.numerics.simplex_quadratic import simplex_quadratic
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters


def test_finite_data_gives_exact_numbers_of_the_whole_data():
    problem, w = fair_problem(), jnp.array([0.5, -0.2, 0.1, 1.0])
    certificate = tr.certify(problem, w)
    arrays = {name: np.asarray(a, np.float32) for name, a in points().items()}
    assert certificate.objective.kind == "exact"
    assert certificate.objective.value == pytest.approx(float(loss(w, arrays)), rel=1e-5)
    outside = max(abs(float(parity(w, arrays))) - 0.05, 0.0)
    assert certificate.violation["parity"].value == pytest.approx(outside, abs=1e-6)
    assert certificate.samples == 400


def test_other_data_can_replace_the_problems_own():
    other = tr.Dataset(points(seed=9), batch_size=8)
    arrays = {name: np.asarray(a, np.float32) for name, a in points(seed=9).items()}
    w = jnp.array([0.5, -0.2, 0.1, 1.0])
    assert tr.certify(fair_problem(), w, data=other).objective.value == pytest.approx(float(loss(w, arrays)), rel=1e-5)


NOISE = tr.Sampler(lambda key, n: jax.random.normal(key, (n, 2)), batch_size=16)


def noisy_distance(x, batch):
    return 0.5 * jnp.mean(jnp.sum((x - 1.0 - batch) ** 2, axis=1))


def noisy_sum(x, batch):
    return jnp.mean(jnp.sum(x + batch, axis=1))


@cache
def noisy_problem():
    return tr.Problem(noisy_distance, tr.at_most(noisy_sum, 1.0, data=NOISE, name="sum"), data=NOISE)


def test_fresh_samples_give_intervals_that_jointly_contain_the_truth():
    """At x = (½, ½): F = ¼ + 1, the constraint holds with equality, the multiplier is ½ and x is stationary."""
    problem, x, held = noisy_problem(), jnp.array([0.5, 0.5]), []
    for seed in range(60):
        c = tr.certify(problem, x, seed=seed, confidence=0.9, samples=16_384)
        covered = c.objective.low <= 1.25 <= c.objective.high
        held.append(covered and c.violation["sum"].low == 0.0 and c.stationarity.low <= 1e-6)
        assert c.objective.kind == "asymptotic"
        assert c.multipliers["sum"] == pytest.approx(0.5, abs=0.05)
    assert np.mean(held) >= 0.9


def test_the_seed_determines_the_samples():
    problem, x = noisy_problem(), jnp.zeros(2)
    first, again, other = (tr.certify(problem, x, seed=s).objective.value for s in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("x", "verdict"), [((0.0, 0.0), "feasible"), ((1.0, 1.0), "infeasible"), ((0.5, 0.5), "undecided")]
)
def test_the_verdict_follows_from_the_intervals(x, verdict):
    certificate = tr.certify(noisy_problem(), jnp.array(x), tolerance=1e-4)
    assert certificate.verdict == verdict
    e = certificate.violation["sum"]
    assert {"feasible": e.high <= 1e-4, "infeasible": e.low > 1e-4, "undecided": e.low <= 1e-4 < e.high}[verdict]


def test_data_too_large_for_a_full_pass_is_sampled(monkeypatch):
    monkeypatch.setattr(judging, "MAX_FULL_PASS", 100)
    source = tr.Dataset(points(), batch_size=16)
    problem = tr.Problem(loss, data=source)
    w = jnp.array([0.5, -0.2, 0.1, 1.0])
    estimate = tr.certify(problem, w).objective
    assert estimate.kind == "asymptotic"
    exact = float(loss(w, {name: np.asarray(a, np.float32) for name, a in points().items()}))
    assert estimate.low <= exact <= estimate.high


def test_stationarity_with_a_set_is_the_distance_to_its_normal_cone():
    """Min Σx on the unit ball at −(1, …)/√n: stationary; the same point rotated is not."""
    problem = tr.Problem(jnp.sum, domain=tr.domains.L2Ball(1.0))
    minimizer = -jnp.ones(4) / 2.0
    assert tr.certify(problem, minimizer).stationarity.value < 1e-5
    turned = jnp.array([-1.0, 0.0, 0.0, 0.0])
    assert tr.certify(problem, turned).stationarity.value == pytest.approx(np.sqrt(3.0), rel=0.01)  # the ball is curved
    assert tr.certify(problem, jnp.zeros(4)).stationarity.value == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("distance", [1e-9, 1e-5, 1e-3, 0.1])
@pytest.mark.parametrize("unit", [1.0, 1e6])
def test_a_point_just_inside_a_bound_is_stationary_and_one_farther_inside_is_not(distance, unit):
    """Min −3x₀ + (x₁ − ½)², x ∈ [0, 1]²: at (1 − s, ½) the stationarity is min(3, s/t) with t = 0.01 ‖x‖/3, and the gap 3s."""
    with jax.enable_x64(True):
        problem = tr.Problem(lambda x: -3.0 * x[0] / unit + (x[1] / unit - 0.5) ** 2, domain=tr.domains.Box(0.0, unit))
        x = jnp.array([1.0 - distance, 0.5])
        certificate = tr.certify(problem, unit * x)
    expected = min(1.0, distance / (0.01 * np.linalg.norm(x)))
    assert certificate.relative_stationarity == pytest.approx(expected, rel=1e-3)
    assert certificate.gap == pytest.approx(3.0 * distance, rel=0.15)


def test_stationarity_uses_constraints_and_set_together():
    """Min −x₀ − 2x₁, x ∈ [0, 1]², x₀ + x₁ ≤ 1: x = (0, 1), μ = 1 … 2, the box cancels the rest."""
    problem = tr.Problem(
        lambda x: -x[0] - 2.0 * x[1], tr.at_most(jnp.sum, 1.0, name="sum"), domain=tr.domains.Box(0.0, 1.0)
    )
    certificate = tr.certify(problem, jnp.array([0.0, 1.0]))
    assert certificate.stationarity.value < 1e-4
    assert 1.0 - 1e-3 <= certificate.multipliers["sum"] <= 2.0 + 1e-3
    assert tr.certify(problem, jnp.array([1.0, 0.0])).stationarity.value > 0.3


def test_an_inactive_constraint_gets_no_multiplier():
    problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1e3, name="far"))
    certificate = tr.certify(problem, jnp.zeros(2))
    assert certificate.multipliers["far"] == pytest.approx(0.0, abs=1e-4)
    assert certificate.stationarity.value == pytest.approx(np.sqrt(8.0), rel=1e-4)
    assert certificate.complementarity.value < 1e-2


# ---- each quantity on its own sources --------------------------------------------------------------------------------


def two_sources():
    """A sampled objective, a constraint on a small Dataset, one without data, and a sampled one."""
    finite = tr.Dataset({"v": np.arange(10.0, dtype=np.float32)}, batch_size=4)
    return tr.Problem(
        noisy_distance,
        [
            tr.at_most(lambda x, b: jnp.mean(b["v"]) * x[0], 4.0, data=finite, name="finite"),
            tr.equals(lambda x: x[0] - x[1], 0.25, name="fixed"),
            tr.at_most(noisy_sum, 1.5, data=NOISE, name="noisy"),
        ],
        data=NOISE,
    )


def test_deterministic_quantities_are_exact_beside_sampled_ones():
    c = tr.certify(two_sources(), jnp.array([1.0, 0.5]))
    assert {name: e.kind for name, e in c.violation.items()} == {
        "finite": "exact",
        "fixed": "exact",
        "noisy": "asymptotic",
    }
    assert c.violation["finite"] == tr.Estimate(0.5, 0.5, 0.5, "exact")
    assert c.violation["fixed"] == tr.Estimate(0.25, 0.25, 0.25, "exact")
    assert c.objective.kind == c.stationarity.kind == c.complementarity.kind == "asymptotic"
    assert c.samples == 10 + 65_536


def test_an_exact_objective_is_exact_where_only_a_constraint_is_sampled():
    problem = tr.Problem(lambda x: jnp.sum(x**2), tr.equals(noisy_sum, 1.0, data=NOISE, name="sum"))
    c = tr.certify(problem, jnp.array([0.5, 0.25]))
    assert c.objective == tr.Estimate(0.3125, 0.3125, 0.3125, "exact")
    assert c.complementarity == tr.Estimate(0.0, 0.0, 0.0, "exact")  # there is no inequality
    assert c.violation["sum"].low <= 0.25 <= c.violation["sum"].high


def test_samples_without_variance_are_still_asymptotic():
    rare = tr.Sampler(lambda key, n: (jax.random.uniform(key, (n,)) < 1e-9) * 1.0, batch_size=4)
    problem = tr.Problem(lambda x: jnp.sum(x**2), tr.at_most(lambda x, b: jnp.mean(b), 0.0, data=rare, name="rare"))
    assert tr.certify(problem, jnp.zeros(1)).violation["rare"].kind == "asymptotic"


def test_the_risk_is_divided_over_all_estimates():
    """Four here: the objective, the sum, the stationarity and one product λg. Exact numbers do not count."""
    widths = []
    for confidence in (0.95, 0.6):
        e = tr.certify(noisy_problem(), jnp.zeros(2), confidence=confidence).objective
        widths.append(e.high - e.low)
    assert widths[0] / widths[1] == pytest.approx(student_width(0.05 / 4, 64) / student_width(0.4 / 4, 64), rel=1e-3)


# ---- bounds ----------------------------------------------------------------------------------------------------------

COINS = tr.Sampler(lambda key, n: (jax.random.uniform(key, (n, 3)) < jnp.array([0.01, 0.1, 0.5])) * 1.0, batch_size=16)


def coins(x, batch):
    return jnp.mean(batch, axis=0) * x[0]


@cache
def coin_problem(low, high):
    constraint = tr.equals(coins, np.array([0.02, 0.1, 0.45]), data=COINS, name="coins", sample_range=(low, high))
    return tr.Problem(lambda x: jnp.sum(x**2), [constraint, tr.at_most(noisy_sum, 3.0, data=NOISE, name="sum")])


def test_a_sample_range_turns_the_interval_of_its_constraint_into_a_bound():
    c = tr.certify(coin_problem(0.0, 1.0), jnp.array([1.0, 0.5]))
    assert (c.violation["coins"].kind, c.violation["sum"].kind) == ("bound", "asymptotic")
    assert c.violation["coins"].low <= 0.05 <= c.violation["coins"].high  # the third entry is violated most
    wider = tr.certify(coin_problem((-1.0, -2.0, -3.0), 5.0), jnp.array([1.0, 0.5])).violation["coins"]
    assert wider.kind == "bound"
    assert wider.low < c.violation["coins"].low
    assert wider.high > c.violation["coins"].high


def test_values_outside_their_sample_range_are_an_error_that_names_the_constraint_and_the_value():
    with pytest.raises(ValueError, match=r"'coins' is 1 on a single example.*sample_range"):
        tr.certify(coin_problem(0.0, (1.0, 1.0, 0.9)), jnp.array([1.0, 0.5]))
    with pytest.raises(ValueError, match=r"'coins' is 2 on a single example"):
        tr.certify(coin_problem(0.0, 1.0), jnp.array([2.0, 0.5]))


def test_a_range_for_another_number_of_entries_is_an_error():
    problem = tr.Problem(jnp.sum, tr.at_most(coins, 1.0, data=COINS, sample_range=(np.zeros(2), np.ones(2))))
    with pytest.raises(ValueError, match=r"'coins' returns 3 numbers but its sample_range has \[2, 2\]"):
        tr.certify(problem, jnp.ones(2))


def test_a_function_that_is_no_mean_over_examples_gets_no_bound():
    def ratio(x, batch):
        return jnp.sum(batch[:, 2]) / jnp.maximum(jnp.sum(batch[:, 1]), 1.0) * x[0]

    problem = tr.Problem(jnp.sum, tr.at_most(ratio, 10.0, data=COINS, sample_range=(0.0, 1.0)))
    with pytest.raises(ValueError, match="'ratio' is not a mean over the examples"):
        tr.certify(problem, jnp.ones(2))


def test_a_run_whose_answer_is_outside_the_range_warns_and_returns_its_answer():
    with pytest.warns(UserWarning, match=r"'coins' is .* on a single example.*asymptotic instead"):
        result = tr.solve(coin_problem(0.0, 0.5), jnp.ones(2), "GradientDescentAscent", steps=10)
    assert result.certificate.violation["coins"].kind == "asymptotic"


WRONG_RANGES = {
    "no pair": (0.0, TypeError, "pair"),
    "three numbers": ((0.0, 1.0, 2.0), TypeError, "pair"),
    "words": (("low", "high"), TypeError, "low"),
    "infinite": ((0.0, np.inf), ValueError, "finite"),
    "upside down": ((1.0, 0.0), ValueError, "low < high"),
    "empty": ((1.0, 1.0), ValueError, "low < high"),
    "shapes": ((np.zeros(2), np.ones(3)), ValueError, "one number for each entry"),
}


@pytest.mark.parametrize("make", [tr.equals, tr.at_most, tr.at_least, lambda fn, **o: tr.between(fn, 0.0, 1.0, **o)])
@pytest.mark.parametrize("wrong", WRONG_RANGES)
def test_a_wrong_sample_range_is_refused_at_once(make, wrong):
    value, error, word = WRONG_RANGES[wrong]
    with pytest.raises(error, match=f"sample_range.*{word}"):
        make(coins, data=COINS, sample_range=value)


def test_a_sample_range_without_data_is_refused():
    with pytest.raises(ValueError, match=r"at_most: sample_range.*no data"):
        tr.at_most(jnp.sum, 1.0, sample_range=(0.0, 1.0))


def test_bounds_jointly_contain_the_truth_and_are_at_most_three_times_as_wide_as_the_central_limit():
    """Risk 0.5, shared by the three coins, the sum, stationarity and complementarity: 40 repeats would show misses."""
    problem, x, held, widths = coin_problem(0.0, 1.0), jnp.array([1.0, 0.5]), [], []
    for seed in range(40):
        e = tr.certify(problem, x, seed=seed, samples=16_384).violation["coins"]
        held.append(e.low <= 0.05 <= e.high)
        widths.append(e.high - e.low)
    assert np.mean(held) >= 0.95
    assert np.median(widths) <= 3 * 2 * 1.96 * 0.5 / np.sqrt(16_384)


# ---- stationarity ----------------------------------------------------------------------------------------------------


@cache
def bowl(noisy):
    """Min E ½‖x − 1 − ξ‖² with E⟨1 + ξ, x⟩ ≤ 1, in ten dimensions; with samples, or with its expectations."""
    source = tr.Sampler(lambda key, n: 0.5 * jax.random.normal(key, (n, 10)), batch_size=16) if noisy else None

    def distance(x, batch=None):
        if batch is None:
            return 0.5 * jnp.sum((x - 1.0) ** 2) + 1.25
        return 0.5 * jnp.mean(jnp.sum((x - 1.0 - batch) ** 2, axis=1))

    def budget(x, batch=None):
        return jnp.sum(x) if batch is None else jnp.mean((1.0 + batch) @ x)

    return tr.Problem(distance, tr.at_most(budget, 1.0, data=source, name="budget"), data=source)


@pytest.mark.parametrize(
    "x", [jnp.full(10, 0.1), jnp.full(10, 0.02), jnp.arange(10.0) / 20.0], ids=["solution", "inside", "outside"]
)
def test_intervals_of_stationarity_and_complementarity_contain_the_truth(x):
    problem, truth, found = bowl(True), tr.certify(bowl(False), x), []
    for seed in range(40):
        c = tr.certify(problem, x, seed=seed, samples=16_384, confidence=0.8)
        found.append((c.stationarity, c.complementarity))
    exact = truth.stationarity.value, truth.complementarity.value
    held = [all(e.low - 1e-6 <= t <= e.high + 1e-6 for e, t in zip(pair, exact, strict=True)) for pair in found]
    assert np.mean(held) >= 0.8
    if exact[0] > 0.1:  # then the width of each interval matches the spread over samples
        for column in zip(*found, strict=True):
            spread = np.std([e.value for e in column], ddof=1)
            errors = np.mean([(e.high - e.low) / 2 for e in column]) / student_width(0.2 / 4, 16)
            assert 0.6 < errors / spread < 1.7


def test_the_stationarity_of_a_solution_may_be_zero_and_is_positive_elsewhere():
    """The norm of noise is never zero, but the lower end must be."""
    found = [tr.certify(bowl(True), jnp.full(10, 0.1), seed=seed, samples=16_384).stationarity for seed in range(20)]
    assert sum(e.low > 0 for e in found) <= 2
    assert min(e.value for e in found) > 1e-4
    assert tr.certify(bowl(True), jnp.full(10, 0.02)).stationarity.low > 0.1


@pytest.mark.by_default("on a sphere")
@pytest.mark.parametrize("domain", [None, tr.domains.L2Ball(1.0)], ids=["everywhere", "on a sphere"])
def test_sensitivities_of_stationarity_and_products_agree_with_small_changes(domain):
    """Random gradients, rows and Jacobians of an equation and two inequalities, one of them slack, changed a little."""
    with jax.enable_x64(True):
        rng, x = np.random.default_rng(0), jnp.array([0.6, 0.8, 0.0, 0.0, 0.0])
        problem = tr.Problem(
            jnp.sum, [tr.equals(lambda x: x[0], name="a"), tr.at_most(lambda x: x[:2], name="b")], domain=domain
        )
        oracle, shifts = oracle_for(problem, Parameters(x)), []
        for _ in range(5):
            gradient, jacobian = rng.normal(size=5), rng.normal(size=(3, 5))
            jacobian[1:] *= -np.sign(jacobian[1:] @ gradient)[:, None]  # both inequalities are pushed against
            rows = np.array([0.0, -0.7, -0.2])
            mapping = gradient_mapping(oracle, x, mapping_length(x, x, np.linalg.norm(gradient)))
            multipliers, residual = kkt_multipliers(gradient, jacobian, rows, oracle.equality, mapping)
            _, derivative = jax.linearize(mapping, -(gradient + multipliers @ jacobian))
            products, moved = sensitivity(oracle, derivative, rows, jacobian, multipliers, residual)
            free = oracle.equality | (multipliers > 0)
            assert np.allclose(products[free], (multipliers * np.abs(rows))[free], atol=1e-9)
            dg, dj, dc = (1e-5 * rng.normal(size=shape) for shape in ((5,), (3, 5), (3,)))
            dv = dg + multipliers @ dj
            change_of_products, shift = moved(dv, dc, dj @ residual)
            new, left = kkt_multipliers(gradient + dg, jacobian + dj, rows + dc, oracle.equality, mapping)
            changed = jnp.linalg.norm(left) - jnp.linalg.norm(residual)
            assert np.allclose(shift + residual @ derivative(dv) / jnp.linalg.norm(residual), changed, atol=2e-8)
            expected = new * (rows + dc) - multipliers * rows
            assert np.allclose(change_of_products[free], expected[free], atol=2e-7, rtol=1e-3)
            shifts.append(abs(float(shift)))
        assert max(shifts) > 1e-6


# ---- more samples ------------------------------------------------------------------------------------------------------


@pytest.mark.by_default("feasible")
@pytest.mark.parametrize("total", [0.99, 1.01], ids=["feasible", "infeasible"])
def test_about_the_predicted_number_of_samples_decides(total, request):
    """The sum is 0.01 off its bound, and known to ±0.014: ten times the predicted number decides, a hundredth does not."""
    problem, x = noisy_problem(), jnp.array([total, 0.0])
    first = tr.certify(problem, x, tolerance=1e-4, seed=3)
    assert first.verdict == "undecided"
    assert 30_000 < first.more_samples < 3_000_000
    more = tr.certify(problem, x, tolerance=1e-4, samples=65_536 + 10 * first.more_samples, seed=1)
    assert more.verdict == request.node.callspec.id
    assert more.more_samples is None
    assert tr.certify(problem, x, tolerance=1e-4, samples=first.more_samples // 100, seed=1).verdict == "undecided"
    assert "more samples would decide" in str(first)
    assert "more samples" not in str(more)


def test_another_number_of_samples_compiles_nothing_and_intervals_shrink_with_its_root():
    problem, x = noisy_problem(), jnp.zeros(2)
    few, many = (tr.certify(problem, x, samples=n) for n in (16_384, 262_144))
    programs = [program for key, program in problem._cache.items() if key[0] == "certify"]
    assert [len(program._ready) for program in programs] == [1]
    assert (few.samples, many.samples) == (16_384, 262_144)
    widths = [c.objective.high - c.objective.low for c in (few, many)]
    assert 3.0 < widths[0] / widths[1] < 6.0  # 4, and Student's t of 16 batches


# ---- arguments and multipliers -----------------------------------------------------------------------------------------

WRONG_ARGUMENTS = {
    "problem": ({"problem": "p"}, TypeError, "problem must be a tightrope.Problem, got str"),
    "integers": ({"x": [1, 2]}, TypeError, r"x\[0\] has dtype int"),
    "no parameters": ({"x": ()}, ValueError, "x has no parameters"),
    "NaN": ({"x": jnp.array([1.0, np.nan])}, ValueError, "x contains NaN"),
    "arrays for data": ({"data": np.zeros((4, 2))}, TypeError, "data must be a tightrope.Dataset"),
    "batches for data": ({"data": tr.Batches(like=np.zeros((4, 2)))}, ValueError, "data is missing.*Batches"),
    "negative seed": ({"seed": -1}, ValueError, r"seed must be between 0 and 2\*\*32 - 1, got -1"),
    "seed that is no integer": ({"seed": 1.5}, TypeError, "seed must be an integer, got 1.5"),
    "seed too large": ({"seed": 2**32}, ValueError, "seed must be between"),
    "negative tolerance": ({"tolerance": -1.0}, ValueError, "tolerance must be ≥ 0 and finite, got -1.0"),
    "tolerance that is no number": ({"tolerance": "0"}, TypeError, "tolerance must be a number, got '0'"),
    "confidence of 1": ({"confidence": 1.0}, ValueError, "confidence must be > 0 and < 1, got 1.0"),
    "no samples": ({"samples": 0}, ValueError, "samples must be a positive integer"),
    "samples that are no integer": ({"samples": 1e5}, TypeError, "samples must be a positive integer"),
    "samples that are a flag": ({"samples": True}, TypeError, "samples must be a positive integer"),
}


@pytest.mark.parametrize("wrong", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused_by_name(wrong):
    change, error, words = WRONG_ARGUMENTS[wrong]
    arguments = {"problem": noisy_problem(), "x": jnp.zeros(2)} | change
    with pytest.raises(error, match=f"certify: {words}"):
        tr.certify(**arguments)


def test_multipliers_have_the_shapes_that_the_constraint_functions_return():
    problem = tr.Problem(
        lambda x: jnp.sum((x - 1.0) ** 2),
        [
            tr.at_most(lambda x: x[0], 0.5, name="scalar"),
            tr.at_least(lambda x: -x[1:2], -0.5, name="vector of one"),
            tr.equals(lambda x: x[2:], 0.5, name="vector"),
        ],
    )
    x, expected = jnp.full(4, 0.5), {"scalar": 1.0, "vector of one": np.ones(1), "vector": np.ones(2)}
    for found in (tr.certify(problem, x).multipliers, tr.solve(problem, x, "TruncatedMomentum", steps=2).multipliers):
        assert isinstance(found["scalar"], float)
        assert {name: np.shape(m) for name, m in found.items()} == {name: np.shape(m) for name, m in expected.items()}
        for name, multipliers in expected.items():
            np.testing.assert_allclose(found[name], multipliers, atol=1e-3)


# ---- near-stationarity -------------------------------------------------------------------------------------------------


def with_kinks(case):
    problem, x0, solution = case
    constraints, domain, data = problem.constraints, problem.domain, problem.data
    return tr.Problem(problem.objective, constraints, domain=domain, data=data, smooth=False), x0, solution


def proximal_distance(name, x, weight):
    """‖x̂ − x‖ by cvxpy, from the formulas of the zoo."""
    y = cp.Variable(len(x))
    if name == "weighted_medians":
        a, b = np.array([-2.0, -1.0, 0.0, 1.0, 7.0]), np.array([1.0, 2.0, 3.0, 4.0, 10.0])
        value, constraint = cp.sum(cp.abs(y[0] - a) + 2 * cp.abs(y[1] - b)) / 5, cp.sum(y) <= 2.5
    elif name == "l1_budget":
        value, constraint = 0.5 * cp.sum_squares(y - np.array([2.0, -1.0, 0.25])), cp.norm1(y) <= 2
    else:
        value = 0.5 * cp.sum_squares(y - np.array([2.0, 1.0, 0.3, -0.1])) + 0.5 * cp.norm1(y)
        constraint = cp.sum(y) == 1.5
    cp.Problem(cp.Minimize(value + 0.5 * weight * cp.sum_squares(y - x)), [constraint]).solve(solver=cp.CLARABEL)
    return np.linalg.norm(y.value - x)


@pytest.mark.by_default("l1_budget")
@pytest.mark.parametrize("name", ["weighted_medians", "l1_budget", "sparse_mean"])
def test_near_stationarity_is_the_distance_to_the_proximal_solution_and_zero_at_solutions(name):
    problem, x0, solution = with_kinks(getattr(tr.zoo, name)())
    nudge = np.linspace(-0.05, 0.05, x0.size)
    for x in (solution.x, x0, solution.x + nudge, solution.x - 2.0 + 10 * nudge):
        c = tr.certify(problem, x)
        near, truth = c.near_stationarity, proximal_distance(name, np.asarray(x, float), c.proximal_weight)
        assert near.low <= truth + 1e-6
        assert truth <= near.high
        exactly = name == "weighted_medians"
        assert near.kind == ("bound" if exactly else "asymptotic")
        assert near.value == pytest.approx(truth, rel=2 * RELATIVE_ERROR, abs=1e-5 if exactly else 0.01)
        assert near.high - near.low < 0.01 * np.linalg.norm(x) + 0.02
    assert "near-stationarity" in str(c)


def test_near_stationarity_with_a_set_and_many_kinks():
    """Least absolute deviations in twenty dimensions with an l1 budget, in a ball that binds."""
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(60, 20)).astype(np.float32), rng.normal(size=60).astype(np.float32) * 3
    data = tr.Dataset({"a": A, "b": b}, batch_size=8)
    problem = tr.Problem(
        lambda x, batch: jnp.mean(jnp.abs(batch["a"] @ x - batch["b"])),
        tr.at_most(lambda x: jnp.sum(jnp.abs(x)), 2.0, name="l1"),
        domain=tr.domains.L2Ball(0.6),
        data=data,
        smooth=False,
    )
    for x in (np.zeros(20), 0.1 * np.ones(20)):
        c, y = tr.certify(problem, jnp.asarray(x, jnp.float32)), cp.Variable(20)
        value = cp.sum(cp.abs(A @ y - b)) / 60 + 0.5 * c.proximal_weight * cp.sum_squares(y - x)
        cp.Problem(cp.Minimize(value), [cp.norm1(y) <= 2.0, cp.norm2(y) <= 0.6]).solve(solver=cp.CLARABEL)
        truth = np.linalg.norm(y.value - x)
        assert c.near_stationarity.value == pytest.approx(truth, rel=5e-3)
        assert c.near_stationarity.low <= truth <= c.near_stationarity.high


def test_weak_convexity_is_estimated_and_enters_the_weight():
    """F = |x₀² + x₁ − 1| + ½|x₁| has modulus 2, and so has g = 1 − x₀² − ½x₁ ≤ 0: (1, 0) solves the problem."""
    problem = tr.Problem(
        lambda x: jnp.abs(x[0] ** 2 + x[1] - 1.0) + 0.5 * jnp.abs(x[1]),
        tr.at_most(lambda x: 1.0 - x[0] ** 2 - 0.5 * x[1], 0.0, name="outside"),
        smooth=False,
    )
    at_solution, away = (tr.certify(problem, jnp.array(x)) for x in ([1.0, 0.0], [1.2, 0.5]))
    assert at_solution.near_stationarity.value < 1e-5
    assert at_solution.proximal_weight > 3.0
    assert at_solution.stationarity.value > 0.1  # the gradient of |·| at its kink carries no information
    grid = np.stack(np.meshgrid(np.linspace(0.5, 1.5, 2001), np.linspace(-0.5, 1.0, 3001)))
    square = (grid[0] - 1.2) ** 2 + (grid[1] - 0.5) ** 2
    value = np.abs(grid[0] ** 2 + grid[1] - 1.0) + 0.5 * np.abs(grid[1]) + 0.5 * away.proximal_weight * square
    inside = 1.0 - grid[0] ** 2 - 0.5 * grid[1] + 2.0 * square <= 0  # its proximal weight is estimated as 4, or nearly
    best = np.argmin(np.where(inside, value, np.inf))
    assert away.near_stationarity.value == pytest.approx(np.sqrt(square.flat[best]), abs=5e-3)


def test_near_stationarity_with_multipliers_far_larger_than_gradients():
    """A narrow wedge: the multipliers at its tip add up to 20. From (−½, 0) the proximal solution is the tip."""
    wedge = tr.at_most(lambda x: jnp.array([0.05 * x[0] + x[1], 0.05 * x[0] - x[1]]), 0.0, name="wedge")
    problem = tr.Problem(lambda x: -x[0], wedge, smooth=False)
    assert tr.certify(problem, jnp.array([-0.5, 0.0])).near_stationarity.value == pytest.approx(0.5, rel=2e-3)
    assert tr.certify(problem, jnp.zeros(2)).near_stationarity.value < 1e-3


def test_where_the_proximal_problem_has_no_feasible_point_the_distance_is_infinite():
    problem = tr.Problem(
        lambda x: jnp.abs(x[0]), tr.at_most(lambda x: 1.0 + jnp.abs(x[0]), 0.0, name="never"), smooth=False
    )
    near = tr.certify(problem, jnp.array([0.5])).near_stationarity
    assert (near.value, near.low, near.high) == (np.inf, 0.0, np.inf)


def test_smooth_problems_and_sets_that_cannot_project_have_no_near_stationarity():
    assert tr.certify(noisy_problem(), jnp.zeros(2)).near_stationarity is None
    problem = tr.Problem(lambda x: jnp.sum(jnp.abs(x)), smooth=False, domain=OnlyMinimizes())
    assert tr.certify(problem, jnp.zeros(2)).near_stationarity is None
    with pytest.raises(TypeError, match="Problem: smooth"):
        tr.Problem(jnp.sum, smooth=1)


def test_numbers_that_are_not_finite_are_reported():
    problem = tr.Problem(lambda x: jnp.log(x[0]), tr.at_most(lambda x: jnp.sqrt(x[0]), 1.0, name="root"), smooth=False)
    c = tr.certify(problem, jnp.array([-1.0]))
    assert (c.verdict, c.more_samples, c.near_stationarity) == ("undecided", None, None)
    assert np.isnan(c.objective.value)
    inside = tr.certify(problem, jnp.array([0.25])).near_stationarity  # some points on the way have no finite values
    assert 0.0 < inside.low <= inside.high < np.inf


class OnlyMinimizes(tr.domains.Domain):
    def lmo(self, gradient):
        return -jnp.sign(gradient)


def test_a_certificate_is_saved_and_loaded_with_all_its_parts(tmp_path):
    problem, x0, _ = with_kinks(tr.zoo.weighted_medians())
    result = tr.solve(problem, x0, steps=20)
    result.save(tmp_path / "r.npz")
    again = tr.load(tmp_path / "r.npz")
    assert again.certificate == result.certificate
    assert "near-stationarity" in str(again)


def test_the_quadratic_program_of_the_cuts_is_solved():
    rng = np.random.default_rng(0)
    for _ in range(10):
        slopes, heights = rng.normal(size=(12, 3)), rng.normal(size=12)
        second = np.arange(12) >= 7
        w = simplex_quadratic(slopes @ slopes.T, heights, second)
        assert np.allclose([w[second].sum(), w[~second].sum()], 1.0)
        assert (w >= 0).all()
        slope = slopes @ slopes.T @ w - heights  # the least of each group, wherever there is weight
        for group in (second, ~second):
            assert (w[group] * (slope[group] - slope[group].min())).max() < 1e-6
