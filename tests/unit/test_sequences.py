"""Confidence sequences hold at all times together, and do not depend on how examples come in batches."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from tightrope.certificates.sequences import FIRST_NORMAL, NARROWEST, BoundedSequence, NormalSequence, normal_reach

RISK, STREAMS, EXAMPLES = 0.1, 2000, 600
RNG = np.random.default_rng(0)
BOUNDED = {
    "rare": (RNG.random((EXAMPLES, STREAMS)) < 0.02, 0.02),
    "coins": (RNG.random((EXAMPLES, STREAMS)) < 0.5, 0.5),
    "uniform": (RNG.random((EXAMPLES, STREAMS)), 0.5),
}
NORMAL = {
    "normal": (RNG.normal(size=(EXAMPLES, STREAMS)), 0.0),
    "exponential": (RNG.exponential(size=(EXAMPLES, STREAMS)), 1.0),
}


def bounded(streams, risk=RISK):
    return BoundedSequence.start(np.zeros(streams), np.ones(streams), risk)


def misses(after, truth):
    return np.mean((after.least > truth) | (after.greatest < truth))


@pytest.mark.parametrize("law", BOUNDED)
def test_in_most_streams_no_interval_of_bounded_values_ever_misses(law):
    """`least` and `greatest` are the tightest ends of all times, so a miss at any time is counted."""
    values, truth = BOUNDED[law]
    assert misses(bounded(STREAMS).after(values), truth) <= RISK + 3 * math.sqrt(RISK * (1 - RISK) / STREAMS)


@pytest.mark.parametrize("law", NORMAL)
def test_in_most_streams_no_asymptotic_interval_ever_misses(law):
    values, truth = NORMAL[law]
    after = NormalSequence.start(STREAMS, RISK).after(values)
    assert misses(after, truth) <= RISK + 3 * math.sqrt(RISK * (1 - RISK) / STREAMS)


@pytest.mark.parametrize("start", [bounded(3), NormalSequence.start(3, RISK)], ids=["bounded", "normal"])
def test_batches_of_any_sizes_give_the_same_sequence_as_one_example_at_a_time(start):
    values = np.random.default_rng(1).random((300, 3))
    one = start.after(values)
    parts = start
    for part in np.split(values, [1, 2, 90, 99, 230]):
        parts = parts.after(part)
    single = start
    for value in values:
        single = single.after(value[None])
    for found in (parts, single):
        assert found.examples == 300
        for name in ("mean", "least", "greatest"):
            assert np.allclose(getattr(found, name), getattr(one, name), rtol=1e-10, atol=1e-12)


def test_intervals_only_shrink_and_what_is_kept_does_not_grow():
    for after in (bounded(4), NormalSequence.start(4, RISK)):
        kept = sum(np.size(leaf) for leaf in jax.tree.leaves(after))
        for _ in range(5):
            before, after = after, after.after(np.random.default_rng(2).random((50, 4)))
            assert (after.least >= before.least).all()
            assert (after.greatest <= before.greatest).all()
            assert sum(np.size(leaf) for leaf in jax.tree.leaves(after)) == kept


def test_bounded_sequences_are_those_of_a_transcription_example_by_example():
    """The equations of the module docstring, one number at a time."""
    values, low, high = np.random.default_rng(3).uniform(-1.0, 3.0, 200), -1.0, 3.0
    unit, log = (values - low) / (high - low), math.log(2.0 / RISK)
    least, greatest, weight, weighted, cost, squares = low, high, 0.0, 0.0, 0.0, 0.0
    for i, value in enumerate(unit, start=1):
        guess, variance = (0.5 + unit[: i - 1].sum()) / i, (0.25 + squares) / i
        bet = min(0.5, math.sqrt(2.0 * log / (variance * i * math.log(i + 1))))
        weight, weighted = weight + bet, weighted + bet * value
        cost += (-math.log(1.0 - bet) - bet) * (value - guess) ** 2
        squares += (value - (0.5 + unit[:i].sum()) / (i + 1)) ** 2
        center, reach = weighted / weight, (log + cost) / weight
        least = max(least, low + (high - low) * (center - reach))
        greatest = min(greatest, low + (high - low) * (center + reach))
    found = BoundedSequence.start(np.array([low]), np.array([high]), RISK).after(values[:, None])
    assert (found.least[0], found.greatest[0]) == pytest.approx((least, greatest), rel=1e-9)


def test_at_the_end_of_the_asymptotic_interval_the_mixture_reaches_its_threshold():
    n, risk = np.array([500.0]), 0.05
    distance = n * normal_reach(n, risk)  # S, in standard deviations
    growth = 1.0 + n * _rate(risk)
    assert np.exp(_rate(risk) * distance**2 / (2 * growth)) / np.sqrt(growth) == pytest.approx(1.0 / risk)


def test_the_asymptotic_interval_is_narrowest_where_it_should_be():
    """Among all mixtures the chosen one is narrowest at NARROWEST."""
    growth = 1.0 + NARROWEST * _rate(0.05) * np.linspace(0.5, 2.0, 151)
    widths = np.sqrt(2.0 * growth / (NARROWEST * (growth - 1.0)) * np.log(np.sqrt(growth) / 0.05))
    assert np.linspace(0.5, 2.0, 151)[widths.argmin()] == pytest.approx(1.0)
    assert normal_reach(np.array([float(NARROWEST)]), 0.05)[0] == pytest.approx(widths.min())


def _rate(risk):
    """r: n r = u solves u = log((1 + u)/risk²) at n = NARROWEST, by fixed-point iteration."""
    u = 1.0
    for _ in range(100):
        u = math.log((1.0 + u) / risk**2)
    return u / NARROWEST


def test_nothing_is_said_of_unbounded_values_before_the_first_hundred():
    few = NormalSequence.start(1, RISK).after(np.zeros((FIRST_NORMAL - 1, 1)))
    assert (few.least[0], few.greatest[0]) == (-np.inf, np.inf)
    assert few.after(np.ones((1, 1))).greatest[0] < np.inf
