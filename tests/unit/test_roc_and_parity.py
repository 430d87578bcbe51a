"""Paper 4's problems against NumPy, and near-stationarity against another solver."""

from __future__ import annotations

from functools import cache

import cvxpy as cp
import generated_files as generated
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated_files import needs_real_files

import tightrope as tr
from tightrope.experiments.base import available
from tightrope.experiments.demographic_parity import config as parity_config
from tightrope.experiments.demographic_parity import problem as parity
from tightrope.experiments.roc_fairness import config, problem
from tightrope.experiments.roc_fairness.near import NearStationarity

LEVELS = np.linspace(-3.0, 3.0, 25)
LAMBDA, KAPPA = 0.2, 0.02


@cache
def small() -> problem.Split:
    """Four features, labels that depend mostly on one of them, groups that differ in two."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4))
    y = np.sign(x[:, 0] + 0.7 * rng.normal(size=40))
    shift = np.array([0.8, 0.5, 0.0, 0.0])
    groups = rng.normal(size=(7, 4)) + shift, rng.normal(size=(9, 4)) - shift
    return problem.Split(*(part.astype(np.float32) for part in (x, y, *groups)))


def points(count: int = 5, scale: float = 0.7) -> np.ndarray:
    return scale * np.random.default_rng(1).normal(size=(count, 4))


# ---- the same functions in NumPy ---------------------------------------------------------------------------------------


def sigmoid(z: float) -> float:
    return 1.0 / (1.0 + np.exp(-z))


def gap(split: problem.Split, x: np.ndarray, level: float) -> tuple[float, np.ndarray]:
    """The difference of the groups' mean sigmoids at one threshold, and its gradient."""
    value, gradient = 0.0, np.zeros(len(x))
    for group, sign in ((split.protected, 1), (split.unprotected, -1)):
        for row in group.astype(float):
            share = sigmoid(row @ x - level)
            value += sign * share / len(group)
            gradient += sign * share * (1 - share) * row / len(group)
    return value, gradient


def fairness(split: problem.Split, x: np.ndarray, levels: np.ndarray) -> tuple[float, np.ndarray]:
    """R and a subgradient."""
    value, gradient = max((gap(split, x, level) for level in levels), key=lambda found: abs(found[0]))
    return abs(value), np.sign(value) * gradient


def hinge(split: problem.Split, x: np.ndarray) -> tuple[float, np.ndarray]:
    """L and a subgradient."""
    value, gradient = 0.0, np.zeros(len(x))
    for row, label in zip(split.x.astype(float), split.y, strict=True):
        margin = 1 - label * (row @ x)
        value += max(margin, 0.0) / len(split.y)
        gradient -= (margin > 0) * label * row / len(split.y)
    return value, gradient


def clipped(x: np.ndarray) -> tuple[float, np.ndarray]:
    """SCAD and a subgradient, piece by piece."""
    value, gradient = 0.0, np.zeros(len(x))
    for i, size in enumerate(np.abs(x)):
        piece = (2 * size, 2.0) if size <= 1 else (-(size**2) + 4 * size - 1, 4 - 2 * size) if size <= 2 else (3.0, 0.0)
        value += piece[0]
        gradient[i] = np.sign(x[i]) * piece[1]
    return value, gradient


# ---- the problems ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "by_hand"),
    [
        (problem.unfairness(small(), LEVELS), lambda x: fairness(small(), x, LEVELS)),
        (problem.hinge_loss(small()), lambda x: hinge(small(), x)),
    ],
    ids=["unfairness", "hinge loss"],
)
def test_values_and_subgradients_match_numpy(function, by_hand):
    evaluate = jax.jit(jax.value_and_grad(function))
    for x in points():
        value, gradient = evaluate(jnp.asarray(x, jnp.float32))
        expected, slope = by_hand(x)
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)


def test_scad_has_three_pieces_that_meet():
    for x in ([0.0, 0.5, -0.9, 1.0], [1.5, -1.7, 2.0, -2.0], [2.5, -9.0, 0.3, 1.2]):
        assert float(parity.scad(jnp.array(x))) == pytest.approx(clipped(np.array(x))[0], rel=1e-6)
    for end in (1.0, 2.0):
        below, above = (float(parity.scad(jnp.array([end + step]))) for step in (-1e-4, 1e-4))
        assert abs(above - below) < 1e-3


def test_the_modulus_is_that_of_equation_77_and_bounds_the_curvature_that_is_used():
    split, total = small(), 0.0
    for group in (split.protected, split.unprotected):
        total += sum(float(row @ row) for row in group) / (4 * len(group))
    assert split.modulus == pytest.approx(total, rel=1e-5)
    worst = 0.0
    for x in [*points(20), *points(20, 0.1)]:
        for level in LEVELS:
            second = np.zeros((4, 4))
            for group, sign in ((split.protected, 1), (split.unprotected, -1)):
                for row in group.astype(float):
                    share = sigmoid(row @ x - level)
                    second += sign * share * (1 - share) * (1 - 2 * share) * np.outer(row, row) / len(group)
            worst = max(worst, float(np.linalg.norm(second, 2)))
    assert 0.2 * split.curvature < worst < split.curvature < split.modulus


def test_the_minimal_hinge_loss_is_exact_and_its_minimizer_the_shortest():
    split = small()
    doubled = np.concatenate([split.x, split.x[:, :1]], axis=1)
    x, least = problem.smallest_hinge(doubled, split.y)
    weights = cp.Variable(4)
    exact = cp.Problem(cp.Minimize(cp.sum(cp.pos(1 - cp.multiply(split.y, split.x @ weights))) / 40)).solve()
    assert least == pytest.approx(exact, abs=1e-7)
    assert x[0] == pytest.approx(x[4], abs=1e-9)
    assert hinge(split, x[:4] + np.array([x[4], 0, 0, 0]))[0] == pytest.approx(least, abs=1e-6)


def test_thresholds_reach_half_the_range_beyond_the_scores():
    levels = problem.thresholds_around(np.array([1.0, -2.0, 4.0]), 400)
    assert (len(levels), levels[0], levels[-1]) == (400, -5.0, 7.0)
    np.testing.assert_allclose(np.diff(levels), 12.0 / 399)


@pytest.fixture
def files(tmp_path, monkeypatch):
    generated.install(tmp_path, monkeypatch)


@pytest.mark.usefixtures("files")
def test_two_thirds_of_the_examples_are_for_the_loss_and_the_rest_is_split_by_group():
    split, names = problem.split_data("compas", 90), tr.datasets.load("compas").features
    inside = names.index("race=Caucasian")
    assert len(split.x) == len(split.y) == 60
    assert len(split.protected) + len(split.unprotected) == 30
    assert split.protected[:, inside].all()
    assert not split.unprotected[:, inside].any()
    rows = np.concatenate([split.x, split.protected, split.unprotected])
    ages = tr.datasets.load("compas").all()["x"]
    assert {tuple(row) for row in rows} <= {tuple(row) for row in ages}


@pytest.mark.usefixtures("files")
def test_the_roc_problem_has_the_papers_start_ball_and_slack(monkeypatch):
    monkeypatch.setattr(problem, "split_data", lambda name, examples: small())
    found, start, slack = problem.make.__wrapped__("small", 40, 25)
    exact, least = problem.smallest_hinge(small().x, small().y)
    np.testing.assert_allclose(start, exact, rtol=1e-6)
    assert slack == pytest.approx(0.001 * least)
    (loss,) = found.constraints
    assert (loss.kind, float(loss.high)) == ("at_most", pytest.approx(1.001 * least))
    edge = 5.0 * start / np.linalg.norm(start) * np.linalg.norm(exact)
    np.testing.assert_allclose(found.domain.project(jnp.asarray(2.0 * edge)), edge, rtol=1e-5)
    np.testing.assert_allclose(found.domain.project(jnp.asarray(0.9 * edge)), 0.9 * edge, rtol=1e-5)


@pytest.mark.parametrize(("label", "from_erm"), [("a9a", False), ("COMPAS", True)])
def test_the_parity_problem_starts_at_0_or_at_the_halved_erm_solution(monkeypatch, label, from_erm):
    monkeypatch.setattr(parity, "split_data", lambda name, examples: small())
    found, start, slack = parity.make.__wrapped__(label, 40)
    exact = problem.smallest_hinge(small().x, small().y)[0]
    scale = float(np.linalg.norm(start) / np.linalg.norm(exact))
    np.testing.assert_allclose(start, scale * exact, rtol=1e-5)
    assert fairness(small(), start, np.zeros(1))[0] <= slack == float(found.constraints[0].high)
    if from_erm:
        assert np.log2(scale) == pytest.approx(round(np.log2(scale)), abs=1e-5)
        assert fairness(small(), 2 * start, np.zeros(1))[0] > slack
    else:
        assert scale == 0.0


@pytest.mark.by_default("a9a")
@needs_real_files
@pytest.mark.parametrize("label", config.DATA)
def test_the_stored_moduli_are_those_of_the_data(label):
    split = problem.split_data(config.DATA[label], config.EXAMPLES)
    assert config.MODULI[label] == pytest.approx(split.modulus, rel=1e-6)


@pytest.mark.parametrize("name", ["roc-fairness", "demographic-parity"])
def test_parts_are_listed_without_reading_data(name, monkeypatch):
    def read(*_):
        raise AssertionError("data were read")

    for module in (problem, parity):
        monkeypatch.setattr(module, "split_data", read)
    assert len(available()[name].parts(False)) == 6


def test_every_method_has_eight_settings_with_the_papers_inner_steps():
    for module, inner, modulus, weight in ((config, 100, 0.5, 1.0), (parity_config, 600, 3.0, 3.0)):
        grids = module.grids(modulus)
        assert {len(grid) for grid in grids.values()} == {8}
        for label in (config.IPP_SSG, config.IPP_CONEX):
            assert {(m.proximal_weight, m.inner_steps) for m in grids[label]} == {(weight, inner)}
            assert len(set(map(repr, grids[label]))) == 8
    for label in (parity_config.SMALL_IPP_SSG, parity_config.SMALL_IPP_CONEX):
        assert {(m.proximal_weight, m.inner_steps) for m in grids[label]} == {(2.0, 600)}


@pytest.mark.parametrize(("module", "steps", "every"), [(config, 5_000, 10), (parity_config, 50_000, 100)])
def test_runs_have_the_papers_length_and_near_stationarity_at_some_records(module, steps, every):
    assert module.FULL.steps == steps
    for size in (module.FULL, module.QUICK):
        assert size.steps % size.records == 0
        assert {0, size.records} <= set(size.near) <= set(range(size.records + 1))
    assert module.FULL.steps // module.FULL.records == every


# ---- near-stationarity -------------------------------------------------------------------------------------------------


def cutting_planes(f, g, center, weight, modulus, row_weight, radius=np.inf) -> np.ndarray:
    """x̂ of (4): the convex parts f + modulus/2 ‖· − x‖² and g + row_weight/2 ‖· − x‖² cut by tangents, by another solver."""
    y, heights, slopes, rows, row_slopes = center, [], [], [], []
    for _ in range(60):
        step = y - center
        for oracle, extra, values, gradients in ((f, modulus, heights, slopes), (g, row_weight, rows, row_slopes)):
            value, gradient = oracle(y)
            gradients.append(gradient + extra * step)
            values.append(value + 0.5 * extra * step @ step - gradients[-1] @ y)
        point, top = cp.Variable(len(center)), cp.Variable()
        bounds = [
            top >= np.array(heights) + np.array(slopes) @ point,
            np.array(rows) + np.array(row_slopes) @ point <= 0,
        ]
        bounds += [cp.norm(point) <= radius] * (radius < np.inf)
        aim = top + 0.5 * (weight - modulus) * cp.sum_squares(point - center)
        cp.Problem(cp.Minimize(aim), bounds).solve(solver=cp.CLARABEL)
        y, before = np.asarray(point.value), y
        if np.linalg.norm(y - before) < 1e-7:
            break
    return y


@cache
def roc_and_bound() -> tuple[tr.Problem, float]:
    bound = 1.05 * problem.smallest_hinge(small().x, small().y)[1]
    return tr.Problem(
        problem.unfairness(small(), LEVELS),
        tr.at_most(problem.hinge_loss(small()), bound, name="loss"),
        domain=tr.domains.L2Ball(1.5),
    ), bound


@cache
def parity_problem() -> tr.Problem:
    loss = problem.hinge_loss(small())
    return tr.Problem(
        lambda x: loss(x) + LAMBDA * parity.scad(x),
        tr.at_most(problem.unfairness(small(), np.zeros(1)), KAPPA, name="parity"),
    )


@pytest.mark.full
def test_near_stationarity_of_the_roc_problem_agrees_with_another_solver():
    roc, bound = roc_and_bound()
    weight = 1.5 * small().modulus
    near = NearStationarity(roc, weight, small().curvature, convex=True)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = hinge(small(), x)
        return value - bound, slope

    start = problem.smallest_hinge(small().x, small().y)[0]
    for x in (start, start + 0.3, 3.0 * start):
        inside = np.asarray(roc.domain.project(jnp.asarray(x)), float)
        expected = cutting_planes(
            lambda y: fairness(small(), y, LEVELS), loss, inside, weight, small().modulus, 0.0, radius=1.5
        )
        distance = float(np.linalg.norm(expected - inside))
        assert near(inside, None) == pytest.approx(distance, rel=5e-3)
        np.testing.assert_allclose(inside + near.step(inside), expected, atol=5e-3 * distance)


def test_near_stationarity_under_parity_agrees_with_another_solver():
    weight = 1.5 * small().modulus
    near = NearStationarity(parity_problem(), weight, 2 * LAMBDA, convex=False)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        (loss, slope), (penalty, own) = hinge(small(), x), clipped(x)
        return loss + LAMBDA * penalty, slope + LAMBDA * own

    def difference(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = fairness(small(), x, np.zeros(1))
        return value - KAPPA, slope

    for far in (0.0, 0.5, 2.0):
        x = far * points(1)[0]
        while (beyond := difference(x))[0] > -KAPPA / 2:  # into the constraint, where (4) has a solution for sure
            x = x - (beyond[0] + 0.6 * KAPPA) * beyond[1] / (beyond[1] @ beyond[1])
        expected = cutting_planes(objective, difference, x, weight, weight / 1.5, weight)
        assert near(x, None) == pytest.approx(np.linalg.norm(expected - x), rel=5e-3)


@pytest.mark.full
def test_near_stationarity_agrees_with_the_last_of_2500_switching_subgradient_steps_as_in_the_paper():
    roc, _ = roc_and_bound()
    weight = 1.5 * small().modulus
    x = np.asarray(roc.domain.project(jnp.asarray(problem.smallest_hinge(small().x, small().y)[0], jnp.float32)))
    inner, reached = tr.methods.SwitchingSubgradient(step_size=0.1, tolerance=1e-5, rule="diminishing"), []
    method = tr.methods.ProximalPoint(inner, proximal_weight=weight, inner_steps=5000, constraints="convex")
    tr.solve(roc, x, method, steps=5000, record=2500, callback=lambda record: reached.append(record["x"]))
    lengths = [float(np.linalg.norm(point - x)) for point in reached[1:]]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.01)
    found = NearStationarity(roc, weight, small().curvature, convex=True)(x, None)
    assert found == pytest.approx(lengths[1], rel=0.01)
