"""The checks that every entry point shares."""

import jax
import numpy as np
import pytest

from tightrope import arguments


@pytest.mark.parametrize("value", [0, -3])
def test_a_positive_int_is_above_zero(value):
    with pytest.raises(ValueError, match=f"owner: steps must be a positive integer, got {value}"):
        arguments.positive_int("owner", "steps", value)


@pytest.mark.parametrize("value", [True, 1.0, "3", None])
def test_a_positive_int_is_an_int(value):
    with pytest.raises(TypeError, match="owner: steps must be a positive integer, got"):
        arguments.positive_int("owner", "steps", value)


@pytest.mark.parametrize(
    ("value", "limits"),
    [
        (0.0, {"low": 0.0}),
        (2.0, {"low": 0.0, "high": 2.0}),
        (np.nan, {"low": 0.0, "closed": "["}),
        (np.inf, {"low": 0.0}),
        (-0.1, {"low": 0.0, "high": 1.0, "closed": "[]"}),
    ],
)
def test_a_number_outside_its_range_is_refused(value, limits):
    with pytest.raises(ValueError, match=r"owner: share must be .*got"):
        arguments.number("owner", "share", value, **limits)


def test_closed_ends_are_allowed():
    assert arguments.number("owner", "share", 0, low=0.0, high=1.0, closed="[]") == 0.0
    assert arguments.number("owner", "share", 1, low=0.0, high=1.0, closed="[]") == 1.0


def test_arrays_and_traced_numbers_are_numbers():
    arguments.numbers("owner", "radius", np.array([1.0, 2.0]), low=0.0)
    jax.jit(lambda r: arguments.numbers("owner", "radius", r, low=0.0))(1.0)
    with pytest.raises(ValueError, match="radius"):
        arguments.numbers("owner", "radius", np.array([1.0, -2.0]), low=0.0)
    with pytest.raises(TypeError, match="radius must be a number, got 'wide'"):
        arguments.numbers("owner", "radius", "wide", low=0.0)


def test_a_misspelled_name_gets_the_nearest_one():
    assert arguments.did_you_mean("truncated-momentun", ["TruncatedMomentum", "ExactPenalty"]) == (
        "; did you mean 'TruncatedMomentum'?"
    )
    assert arguments.did_you_mean("xyz", ["TruncatedMomentum"]) == ""
