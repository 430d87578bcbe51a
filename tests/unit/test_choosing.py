"""The choice of the answer among candidates."""

from __future__ import annotations

import numpy as np

from tightrope.certificates.choosing import Candidate, choose_candidate, merit, rank_key


def point(objective, violation, stationarity=0.1):
    """A candidate with one constraint, whose scale is 1."""
    return Candidate(objective, np.array([violation]), np.ones(1), stationarity)


WEIGHTS = np.array([1.0])


def test_merit_is_the_exact_penalty_function_or_infinite():
    assert merit(3.0, np.array([0.5]), WEIGHTS) == 4.0
    assert merit(np.nan, np.array([0.5]), WEIGHTS) == np.inf
    assert merit(1.0, np.array([np.inf]), WEIGHTS) == np.inf


def test_a_slightly_violated_good_point_beats_a_feasible_bad_one():
    assert choose_candidate([point(10.0, 0.0), point(1.0, 0.01)], WEIGHTS, 1e-3, 10.0) == 1


def test_a_feasible_point_that_is_a_little_worse_beats_one_that_is_not_feasible():
    """Weights below the multipliers: 1 + 2 · 0.1 · 0.01 is below 1.2, but the progress was 9."""
    assert choose_candidate([point(1.2, 0.0005), point(1.0, 0.01)], np.array([0.1]), 1e-3, 10.0) == 0
    assert choose_candidate([point(2.0, 0.0005), point(1.0, 0.01)], np.array([0.1]), 1e-3, 10.0) == 1


def test_a_grossly_violated_point_does_not_win_by_its_objective():
    assert choose_candidate([point(1.0, 0.0), point(0.0, 5.0)], WEIGHTS, 1e-3, 10.0) == 0


def test_among_equals_feasibility_then_stationarity_decide():
    equals = [point(1.0, 0.002, 0.01), point(1.0, 0.0005, 0.5), point(1.0, 0.0, 0.2)]
    assert choose_candidate(equals, WEIGHTS, 1e-3, 10.0) == 2


def test_a_point_that_is_not_finite_is_never_chosen_over_a_finite_one():
    assert choose_candidate([point(np.nan, 0.0), point(5.0, 1.0)], WEIGHTS, 1e-3, 10.0) == 1


def test_no_objective_makes_up_for_a_gross_violation():
    """Multipliers near a solution do not apply to points far away: with them 1 + 2 · 0.1 · 3 is below 1.9."""
    assert choose_candidate([point(1.0, 3.0), point(1.9, 0.0)], np.array([0.1]), 1e-3, 1.0) == 1
    weights, gross = np.array([0.1]), np.array([0.1])
    assert rank_key(point(1.9, 0.009), weights, gross) < rank_key(point(1.0, 3.0), weights, gross)
    assert choose_candidate([point(5.0, 3.0), point(1.0, 4.0)], np.array([0.1]), 1e-3, 1.0) == 1
