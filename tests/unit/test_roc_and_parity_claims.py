"""The checks of paper 4's claims, on made-up curves for which they hold and for which they do not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tightrope.experiments.demographic_parity import claims as parity_claims
from tightrope.experiments.demographic_parity import config as parity_config
from tightrope.experiments.roc_fairness import claims, config
from tightrope.experiments.roc_fairness.near import AtRecords


def curves(**entries: dict[str, list[float]]) -> pd.DataFrame:
    """A tidy frame from the columns of each entry; `NAMES` has the entries' full names."""
    steps = [0, 100, 200, 300]
    frames = [
        pd.DataFrame({"entry": NAMES[name], "step": steps, "seed": 0} | columns) for name, columns in entries.items()
    ]
    return pd.concat(frames, ignore_index=True)


NAMES = {"ssg": config.SSG, "static": config.SSG_STATIC, "ipp": config.IPP_SSG, "conex": config.IPP_CONEX}
FEASIBLE, FAR = [0.0, 0.0, 0.0, 0.05], [0.0, 0.0, 0.0, 3.0]


def test_lowest_means_at_the_end_and_at_most_records_among_nearly_feasible_methods():
    low = {"objective": [4.0, 2.0, 1.0, 0.5], "excess": FEASIBLE}
    late = {"objective": [4.0, 3.0, 2.0, 0.6], "excess": FEASIBLE}
    lower = {"objective": [4.0, 1.0, 0.5, 0.1], "excess": FEASIBLE}
    assert claims.lowest("bank", curves(ssg=low, ipp=late), "objective").holds
    assert not claims.lowest("bank", curves(ssg=low, ipp=lower), "objective").holds
    assert claims.lowest("bank", curves(ssg=low, ipp=lower | {"excess": FAR}), "objective").holds
    first = {"objective": [4.0, 1.0, 0.5, 0.9], "excess": FEASIBLE}
    assert not claims.lowest("bank", curves(ssg=low, ipp=first), "objective").holds
    assert claims.feasible("data", curves(ssg=low), config.SSG).holds
    assert not claims.feasible("data", curves(ssg=low | {"excess": FAR}), config.SSG).holds


def test_static_steps_are_not_always_better_where_a_feasible_proximal_method_ends_lower():
    static, ipp = {"objective": [4.0, 2.0, 1.0, 0.5]}, {"objective": [4.0, 2.0, 1.0, 0.4]}
    worse = {"objective": [4.0, 2.0, 1.0, 0.6], "excess": FEASIBLE}

    def holds(excess: list[float]) -> bool:
        frame = curves(static=static | {"excess": FEASIBLE}, ipp=ipp | {"excess": excess}, conex=worse)
        return claims.static_against_proximal({"data": frame}).holds

    assert holds(FEASIBLE)
    assert not holds(FAR)


def test_a_setting_that_is_not_nearly_feasible_scores_worse_than_any_that_is():
    near = curves(ssg={"objective": [4.0, 2.0, 1.0, 0.5], "excess": FEASIBLE})
    far = curves(ssg={"objective": [4.0, 2.0, 1.0, 0.1], "excess": FAR})
    assert claims.score(near) == (0.0, 0.5)
    assert claims.score(near) < claims.score(far)


def test_values_at_equal_iterations_are_interpolated_between_records():
    frame = curves(ssg={"objective": [4.0, 3.0, np.nan, 1.0]}, ipp={"objective": [4.0, np.nan, 2.0, np.nan]})
    table = claims.at_equal_iterations(frame, "objective")
    assert table[config.IPP_SSG].to_dict() == {100: 3.0, 300: 2.0}
    assert claims.ends(frame, "objective") == {config.SSG: 1.0, config.IPP_SSG: 2.0}


def speeds(ssg: str, *others: str) -> pd.DataFrame:
    """SSG needs 85.5, the others 171 and 155 iterations to 95% of the common decrease: the level is 1 − 0.95 · 0.9 = 0.145."""
    values = dict(zip((ssg, *others), ([1.0, 0.0, -1.0], [1.0, 0.5, 0.0], [1.0, 0.2, 0.1]), strict=True))
    return pd.concat(
        [
            pd.DataFrame({"entry": label, "step": [0, 100, 200], "objective": each, "excess": 0.0})
            for label, each in values.items()
        ]
    )


def test_speed_is_the_iterations_to_most_of_the_common_decrease():
    frame = speeds(config.SSG, config.IPP_SSG, config.IPP_CONEX)
    expected = {config.SSG: 85.5, config.IPP_SSG: 171.0, config.IPP_CONEX: 155.0}
    assert claims.iterations(frame, "objective") == pytest.approx(expected)
    far = pd.DataFrame({"entry": config.SSG, "step": [10], "objective": -5.0, "excess": 3.0})
    assert claims.iterations(pd.concat([frame, far]).sort_values("step"), "objective") == pytest.approx(expected)
    between = frame[frame["entry"] == config.SSG].assign(step=[50, 150, 250], objective=np.nan)
    assert claims.iterations(pd.concat([frame, between]).sort_values("step"), "objective") == pytest.approx(expected)


def test_the_fastest_needs_the_fewest_iterations():
    assert claims.fastest("bank", speeds(config.SSG, config.IPP_SSG, config.IPP_CONEX), "objective").holds
    assert not claims.fastest("bank", speeds(config.IPP_SSG, config.SSG, config.IPP_CONEX), "objective").holds


def test_a_little_faster_is_at_most_twice_and_small_weights_are_ours():
    frame = speeds(parity_config.SSG, config.IPP_SSG, config.IPP_CONEX)
    assert parity_claims.a_little_faster("bank", frame, "objective").holds
    ssg = frame["entry"] == parity_config.SSG
    quicker = frame.assign(objective=np.where(ssg, frame["objective"] * 3 - 2, frame["objective"]))
    check = parity_claims.a_little_faster("bank", quicker, "objective")
    assert (check.holds, check.basis) == (False, "as printed")
    small = speeds(parity_config.SSG, parity_config.SMALL_IPP_SSG, parity_config.SMALL_IPP_CONEX)
    check = parity_claims.a_little_faster_than_small_weights("bank", small, "objective")
    assert (check.holds, check.basis) == (True, "ours")


def test_a_rare_metric_is_evaluated_at_its_records_alone():
    seen = []
    rare = AtRecords(lambda x, _: seen.append(x) or x, {0, 3})
    assert [rare(float(x), None) for x in range(5)] == pytest.approx([0.0, np.nan, np.nan, 3.0, np.nan], nan_ok=True)
    assert seen == [0.0, 3.0]


@pytest.mark.parametrize(("time", "holds"), [(5.0, True), (3.0, False), (8.0, False)])
def test_about_twice_is_between_one_and_two_thirds_of_the_time_for_every_other_method(time, holds):
    entries = {config.SSG: time, config.IPP_SSG: 5.0, config.IPP_CONEX: 10.0}
    turns = pd.DataFrame([{"entry": e, "step": s, "microseconds": t} for e, t in entries.items() for s in (1, 2)])
    runs = pd.DataFrame([{"entry": e, "seconds": t} for e, t in entries.items()])
    check = claims.about_twice({"data": turns}, {"data": runs}, (config.SSG, config.IPP_SSG), "why")
    assert check.measured["time per step over that of IPP-ConEx"]["data"][config.SSG] == time / 10
    assert check.holds is holds
