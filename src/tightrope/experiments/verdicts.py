"""Counting verdicts: on which basis each claim of a paper holds, and what is reported beside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .base import Check

BASES = (
    "Basis: as printed, with the paper's constants or grids, iterations and measure, as far as it states them; tuned, with "
    "constants that we tuned, the way the paper says it tuned its own; ours, an extension or a measure of ours, which is "
    "reported beside the claims and not counted."
)
"""What the bases mean."""


class Tally(NamedTuple):
    """Numbers of claims: each claim of a paper is counted once, under the first of the first three that applies.

    Attributes:
        printed: claims that hold as printed.
        tuned: claims that hold only with constants that we tuned.
        failed: claims that do not hold.
        ours: checks of our own, reported beside the papers' claims.
        ours_held: those of them that hold.
    """

    printed: int = 0
    tuned: int = 0
    failed: int = 0
    ours: int = 0
    ours_held: int = 0

    @property
    def claims(self) -> int:
        """The number of the papers' claims."""
        return self.printed + self.tuned + self.failed

    def __str__(self) -> str:
        """The numbers in a sentence or two."""
        text = f"{self.printed} of {self.claims} claims hold as printed"
        if self.tuned:
            text += f", {self.tuned} only with tuned constants"
        if self.failed:
            text += f", {self.failed} do{'es' * (self.failed == 1)} not"
        if self.ours:
            checks, hold = "check" + "s" * (self.ours > 1), "hold" + "s" * (self.ours_held == 1)
            text += f". Of {self.ours} {checks} of our own, {self.ours_held} {hold}"
        return text + "."


def tally(checks: Iterable[Check]) -> Tally:
    """The tally of an experiment's checks.

    Example:
        >>> printed, tuned = Check("x is lower", 2, holds=False), Check("x is lower", 1, holds=True, basis="tuned")
        >>> print(tally([printed, tuned, Check("x falls", 0, holds=True)]))
        1 of 2 claims hold as printed, 1 only with tuned constants.
    """
    ours, best = [], {}
    for check in checks:
        if check.basis == "ours":
            ours.append(check.holds)
        else:
            rank = 2 if not check.holds else 0 if check.basis == "as printed" else 1
            best[check.claim] = min(rank, best.get(check.claim, rank))
    printed, tuned, failed = (list(best.values()).count(rank) for rank in range(3))
    return Tally(printed, tuned, failed, len(ours), sum(ours))


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of several experiments' tallies.

    Example:
        >>> total([Tally(printed=1), Tally(printed=2, failed=1)]).claims
        4
    """
    return Tally(*map(sum, zip(*tallies, strict=True)))
