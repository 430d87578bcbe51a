"""The time per step: alternating runs of all methods, so that other load on the machine affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import pandas as pd

from ...methods import Method
from ...runs.solving import solve
from ..base import Entry

RECORDS = 5


class InTurn:
    """`rounds` runs of each method, in turn, with `steps` steps each.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> ssg = tr.methods.SwitchingSubgradient()
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0))
        >>> turns = InTurn(lambda: (problem, jnp.ones(2)), {"SSG": ssg}, steps=10, rounds=2)
        >>> turns.of_entry(Entry("SSG", (ssg,)))["step"].tolist()
        [2, 4, 6, 8, 10, 2, 4, 6, 8, 10]
    """

    def __init__(self, make: Callable[[], Any], methods: Mapping[str, Method], steps: int, rounds: int):
        self.make, self.methods, self.steps, self.rounds = make, methods, steps, rounds

    @cached_property
    def frame(self) -> pd.DataFrame:
        """By entry and round (column `seed`), the microseconds per step so far, at a few records."""
        problem, x0, *_ = self.make()
        found = []
        for number in range(self.rounds):
            for label, method in self.methods.items():
                run = solve(problem, x0, method, steps=self.steps, record=self.steps // RECORDS, progress=False)
                times = run.history.to_pandas().iloc[1:][["step", "samples", "seconds"]]
                found.append(
                    times.assign(entry=label, seed=number, microseconds=1e6 * times["seconds"] / times["step"])
                )
        return pd.concat(found, ignore_index=True)

    def of_entry(self, entry: Entry) -> pd.DataFrame:
        """The rows of the frame that belong to one entry."""
        return self.frame.query("entry == @entry.label").drop(columns="entry")
