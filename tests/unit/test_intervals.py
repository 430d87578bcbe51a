"""Confidence intervals: they contain the mean, stay in the range, shrink with more examples, and hold as often as promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tightrope.certificates.intervals import (
    bounded_mean,
    examples_to_decide,
    place_bet,
    student_width,
    violation_interval,
)

SHARES = st.lists(st.floats(0.0, 1.0, width=32), min_size=4, max_size=40)
RISKS = st.floats(1e-6, 0.5)


def interval(values, low, high, risk, pilot=None):
    """The interval of one entry; without a pilot, the reversed values serve as one."""
    values = np.asarray(values, float)[:, None]
    pilot = values[::-1] if pilot is None else np.asarray(pilot, float)[:, None]
    low, high = np.full(1, low, float), np.full(1, high, float)
    bet = place_bet(pilot, low, high, len(values), risk)
    spread = np.mean((values - bet.center) ** 2, axis=0)
    ends = bounded_mean(values.mean(axis=0), spread, len(values), bet, low, high, risk)
    return tuple(float(end[0]) for end in ends)


@given(SHARES, RISKS)
def test_the_interval_contains_the_sample_mean_and_stays_in_the_range(shares, risk):
    low, high = interval(shares, 0.0, 1.0, risk)
    assert 0.0 <= low <= np.mean(shares) <= high <= 1.0


@given(SHARES, RISKS, st.integers(2, 50))
def test_more_examples_of_the_same_kind_make_it_narrower(shares, risk, times):
    """Repeating the examples keeps their mean and spread, and the pilot stays the same."""
    few = interval(shares, 0.0, 1.0, risk, pilot=shares)
    many = interval(shares * times, 0.0, 1.0, risk, pilot=shares)
    assert many[1] - many[0] <= few[1] - few[0] + 1e-12


@given(SHARES, RISKS)
def test_a_smaller_risk_makes_it_wider(shares, risk):
    sure, less = interval(shares, 0.0, 1.0, risk / 10), interval(shares, 0.0, 1.0, risk)
    assert sure[0] <= less[0] + 1e-12
    assert sure[1] >= less[1] - 1e-12


@given(SHARES, RISKS, st.floats(-100.0, 100.0), st.floats(0.01, 100.0), st.booleans())
def test_it_moves_with_shifts_scales_and_reflections_of_the_values(shares, risk, shift, scale, turned):
    factor = -scale if turned else scale
    moved = [shift + factor * share for share in shares]
    ends = sorted([shift, shift + factor])
    found = interval(moved, *ends, risk)
    expected = sorted(shift + factor * end for end in interval(shares, 0.0, 1.0, risk))
    assert found == pytest.approx(expected, abs=1e-9 * (abs(shift) + scale) + 1e-10)


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_equal_values_still_give_a_width_of_the_order_of_one_over_n(value):
    low, high = interval([value] * 1000, 0.0, 1.0, 0.05)
    assert 1e-3 < high - low < 2e-2


def test_a_range_far_from_zero_widens_the_interval_by_rounding_alone():
    near = interval([0.25, 0.75] * 5000, 0.0, 1.0, 0.05)
    far = interval([1e9 + 0.25, 1e9 + 0.75] * 5000, 1e9, 1e9 + 1, 0.05)
    wider = (far[1] - far[0]) - (near[1] - near[0])
    assert 1e-3 < wider < 3e-3  # 1e-12 of 1e9, on both sides


def test_at_the_ends_of_the_interval_the_supermartingales_reach_their_threshold():
    """Each of the two supermartingales of the module docstring is 2/risk there."""
    values, low, high = np.random.default_rng(0).uniform(size=(300, 1)), np.zeros(1), np.ones(1)
    bet = place_bet(values[:100], low, high, 200, 0.05)
    kept = values[100:]
    ends = bounded_mean(kept.mean(axis=0), np.mean((kept - bet.center) ** 2, axis=0), 200, bet, low, high, 0.05)
    cost = -np.log(1 - bet.size) - bet.size
    for sign, end in zip((1.0, -1.0), ends, strict=True):
        won = np.sum(sign * bet.size * (kept - end) - cost * (kept - bet.center) ** 2)
        assert won == pytest.approx(np.log(2 / 0.05), rel=1e-9)


@pytest.mark.parametrize("p", [0.01, 0.3])
@pytest.mark.parametrize("examples", [50, 2000])
def test_bounds_hold_for_any_number_of_examples_and_are_not_much_wider_than_the_central_limit(p, examples):
    """2000 repeats at risk 0.1: the rate of misses must be at most 0.1 + 3 standard errors."""
    rng, risk, repeats = np.random.default_rng(0), 0.1, 2000
    low, high = np.zeros(repeats), np.ones(repeats)
    values, pilot = (rng.random((n, repeats)) < p for n in (examples, 200))
    bet = place_bet(pilot, low, high, examples, risk)
    ends = bounded_mean(
        values.mean(axis=0), np.mean((values - bet.center) ** 2, axis=0), examples, bet, low, high, risk
    )
    misses = np.mean((ends[0] > p) | (ends[1] < p))
    assert misses <= risk + 3 * np.sqrt(risk * (1 - risk) / repeats)
    if examples == 2000:
        limit = 2 * stats.norm.isf(risk / 2) * np.sqrt(p * (1 - p) / examples)
        assert np.median(ends[1] - ends[0]) < 3 * limit


def test_student_width_is_the_quantile_of_the_t_distribution_also_for_tiny_risks():
    assert student_width(0.05, 64) == pytest.approx(stats.t.isf(0.025, 63))
    assert student_width(1e-20, 64) == pytest.approx(stats.t.isf(5e-21, 63))


@given(st.floats(-5, 5), st.floats(0, 3), st.floats(-2, 2), st.floats(0, 2), st.floats(0, 1))
@settings(max_examples=200)
def test_violation_interval_contains_the_violation_of_every_number_in_the_interval(low, width, least, room, share):
    high, greatest = low + width, least + room
    nearest, farthest = violation_interval(low, high, least, greatest)
    inside = low + share * width
    excess = max(least - inside, inside - greatest, 0.0)
    assert nearest - 1e-12 <= excess <= farthest + 1e-12
    assert 0.0 <= nearest <= farthest


def test_examples_to_decide_follow_the_hardest_entry_or_the_clearest_violation():
    reach = np.array([0.1, 0.1])
    assert examples_to_decide(np.array([-0.05, -0.02]), reach, 0.0, 100) == 2 * 100 * 25 - 100
    assert examples_to_decide(np.array([0.05, 0.02]), reach, 0.0, 100) == 2 * 100 * 4 - 100
    assert examples_to_decide(np.array([0.05, -0.001]), reach, 0.0, 100) == 2 * 100 * 4 - 100
    assert examples_to_decide(np.zeros(1), np.ones(1), 0.0, 100) > 1e10  # at the tolerance itself no number is enough
