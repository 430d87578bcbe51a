"""The checks of paper 4's claims, on made-up curves for which they hold and for which they do not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tightrope.experiments.demographic_parity import claims as parity_claims
from tightrope.experiments.demographic_parity import config as parity_config
from tightrope.experiments.roc_fairness import claims, config


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


def test_speed_is_the_iterations_to_most_of_the_common_decrease():
    frame = pd.concat(
        [
            pd.DataFrame({"entry": label, "step": [0, 100, 200], "objective": values, "excess": 0.0})
            for label, values in {
                parity_config.SSG: [1.0, 0.0, -1.0],
                config.IPP_SSG: [1.0, 0.5, 0.0],
                config.IPP_CONEX: [1.0, 0.2, 0.1],
            }.items()
        ]
    )
    needed = parity_claims.iterations(frame, "objective")  # the level is 1 − 0.95 · 0.9 = 0.145
    assert needed[parity_config.SSG] == pytest.approx(85.5)
    assert needed[config.IPP_SSG] == pytest.approx(171.0)
    assert needed[config.IPP_CONEX] == pytest.approx(155.0)
    assert parity_claims.faster("bank", frame, "objective").holds
    quicker = frame.assign(
        objective=np.where(frame["entry"] == parity_config.SSG, frame["objective"] * 3 - 2, frame["objective"])
    )
    assert not parity_claims.faster("bank", quicker, "objective").holds


@pytest.mark.parametrize(("time", "holds"), [(5.0, True), (3.0, False), (8.0, False)])
def test_about_half_is_between_one_and_two_thirds_of_the_time(time, holds):
    entries = {config.SSG: time, config.IPP_CONEX: 10.0}
    turns = pd.DataFrame([{"entry": e, "step": s, "microseconds": t} for e, t in entries.items() for s in (1, 2)])
    runs = pd.DataFrame([{"entry": e, "seconds": t} for e, t in entries.items()])
    check = claims.about_half({"data": turns}, {"data": runs}, config.SSG, "why")
    assert check.measured["alternating runs"]["data"][config.SSG] == time / 10
    assert check.holds is holds
