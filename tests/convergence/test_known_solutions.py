"""Every method, untuned, comes to the known solutions of the zoo as near as its theory says, over 16 seeds at once."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import tightrope as tr

STEPS, SEEDS = 20_000, 16

SMOOTH = [  # unique solution and multipliers, smooth functions
    "linear_on_circle",
    "noisy_sphere",
    "lens",
    "outside_the_ball",
    "three_bands",
    "line_in_l1_ball",
    "fair_logistic_regression",
]
NONSMOOTH = ["l1_budget", "weighted_medians"]


@cache
def solved(problem_name: str, method_name: str):
    problem, x0, solution = tr.zoo.every()[problem_name]()
    method = tr.methods.by_name(method_name)()
    found = tr.sweep(problem, x0, method, steps=STEPS, seeds=SEEDS, record=STEPS // 5).results
    return problem, x0, solution, found


def pairs(names, *methods):
    return [(name, method) for name in names for method in methods]


def takes(problem_name, method_name):
    from tightrope.reformulate import refusal

    return refusal(tr.zoo.every()[problem_name]()[0], tr.methods.by_name(method_name)) is None


def distance(x, y):
    return float(np.linalg.norm(ravel_pytree(jax.tree.map(lambda a, b: a - b, x, y))[0]))


def size(multipliers):
    return max((float(np.max(np.abs(m))) for m in multipliers.values()), default=0.0)


METHODS = ("TruncatedMomentum", "SwitchingSubgradient", "GradientDescentAscent")
CASES = [case for case in pairs(SMOOTH + NONSMOOTH, *METHODS) if takes(*case)]


def decided_by_noise(problem_name, method_name):
    """Switching on small batches of values: Theorem A.14 asks for batches as large as T, and promises nothing here."""
    stochastic = any(c.data is not None for c in tr.zoo.every()[problem_name]()[0].constraints)
    return method_name == "SwitchingSubgradient" and stochastic


@pytest.mark.parametrize(("problem_name", "method_name"), [case for case in CASES if not decided_by_noise(*case)])
def test_the_violation_is_what_the_methods_theory_leaves(problem_name, method_name):
    """Truncated momentum: λ*/ρ_K, in every seed. Switching: ε_t of the recorded half, in every seed (exact values) or on
    average. Descent-ascent: K^(-1/2) times the multipliers' and the start's scale, on average.
    """
    _, _, solution, found = solved(problem_name, method_name)
    violations = np.array([r.violation for r in found])
    settings = found[0].settings
    if method_name == "TruncatedMomentum":
        assert violations.max() <= 2.0 * size(solution.multipliers) / (settings["penalty"] * np.sqrt(STEPS)) + 1e-4
    elif method_name == "SwitchingSubgradient":
        assert violations.max() <= settings["tolerance"] / np.sqrt(STEPS / 2)
    else:
        scale = max(1.0, *(float(r.history["violation"][0]) for r in found))
        assert violations.mean() <= 2.0 * scale / np.sqrt(STEPS)


@pytest.mark.parametrize(("problem_name", "method_name"), CASES)
def test_the_objective_is_within_the_rate_of_the_optimum(problem_name, method_name):
    """Below it by no more than the multipliers times the violation (convexity, or the exact penalty near a solution), above
    it by no more than K^(-1/2) times what there was to gain, with a factor 10 for the constants of the theorems.
    """
    _, _, solution, found = solved(problem_name, method_name)
    gaps = np.array([r.objective - solution.objective for r in found])
    certificates = [r.certificate for r in found]
    noise = np.array([2.0 * (c.objective.high - c.objective.value) for c in certificates]) + 1e-4
    weight = sum(np.sum(np.abs(m)) for m in solution.multipliers.values())
    allowed = np.array([weight * c.largest_violation.high for c in certificates])
    assert (gaps >= -allowed - noise).all()
    to_gain = max(1.0, abs(found[0].history["objective"][0] - solution.objective))
    assert gaps.mean() <= 10.0 * to_gain / np.sqrt(STEPS) + noise.max()


@pytest.mark.parametrize(("problem_name", "method_name"), [case for case in CASES if case[0] in SMOOTH])
def test_x_and_multipliers_come_to_the_known_ones(problem_name, method_name):
    """Strongly convex near the solution, so distances are square roots of gaps: K^(-1/4), a twelfth here."""
    _, x0, solution, found = solved(problem_name, method_name)
    scale = max(1.0, distance(x0, solution.x))
    assert np.mean([distance(r.x, solution.x) for r in found]) <= scale * STEPS**-0.25
    for name, expected in solution.multipliers.items():
        mean = np.mean([r.multipliers[name] for r in found], axis=0)
        np.testing.assert_allclose(mean, expected, atol=2.0 * max(1.0, size(solution.multipliers)) * STEPS**-0.25)


@pytest.mark.parametrize("method_name", ["TruncatedMomentum", "GradientDescentAscent"])
def test_a_rank_deficient_jacobian_is_no_obstacle(method_name):
    _, _, solution, found = solved("repeated_row", method_name)
    assert np.mean([distance(r.x, solution.x) for r in found]) <= STEPS**-0.25


def test_feasibility_of_a_degenerate_constraint_falls_at_the_rate_of_its_exponent():
    """C = x³ has θ = 5/3: with θ unknown ‖c‖² falls like k^(-min(1/2, 1/θ)); fitted over the last decade, in every seed."""
    problem, x0, _ = tr.zoo.flat_power()
    found = tr.sweep(problem, x0, tr.methods.TruncatedMomentum(), steps=STEPS, seeds=SEEDS, record=STEPS // 100).results
    worst = np.max([r.history["violation"] for r in found], axis=0) ** 2
    steps = found[0].history["step"]
    late = steps >= STEPS // 10
    slope = np.polyfit(np.log(steps[late]), np.log(worst[late]), 1)[0]
    assert slope <= -0.5 + 0.05


def test_an_infeasible_problem_ends_near_the_least_violation_and_is_not_called_feasible():
    problem, x0, solution = tr.zoo.circle_and_wall()
    result = tr.solve(problem, x0, tr.methods.TruncatedMomentum(), steps=STEPS)
    assert not result.success
    assert result.certificate.verdict == "infeasible"
    assert solution.violation - 1e-3 <= result.violation <= 1.5 * solution.violation
