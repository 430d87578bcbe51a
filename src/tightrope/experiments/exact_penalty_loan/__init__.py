"""Exact penalty against three others on loan data, a substitute for the paper's: paper 3, Figure 2."""

import pandas as pd

from ..base import Check, Experiment
from ..exact_penalty_bank import COLUMNS, parts_on
from ..exact_penalty_bank.claims import comparison, same_parameters, sensitivity
from ..exact_penalty_bank.config import CHOSEN

ABOUT = """
SUBSTITUTE DATA. The paper's loan set (128,375 rows, n = 250) is not to be had; this is LendingClub's public statistics for
2007 to 2011, 42,535 rows with n = 137 features that were known when a loan was made.

The problem, the budget, how things are measured and what the paper leaves open are as in exact-penalty-bank. The
parameters are those of exact-penalty-bank, for every method: nothing is tuned on these data. A0, a0 and the draws have another
width and so other numbers.

Sensitivity: nine settings around them, step size and first penalty × ½, 1, 2; the band there is over settings and seeds.

The quick version has ExactPenalty and TwoPhaseMomentum alone.
"""


def claims(runs: dict[str, pd.DataFrame]) -> list[Check]:
    """All of Figure 2."""
    frame, around = runs["loan"], runs["loan, sensitivity"]
    return [*comparison(frame, around), sensitivity(around), same_parameters(frame, around)]


experiment = Experiment(
    name="exact-penalty-loan",
    title="Exact penalty on loan data (a substitute)",
    paper="paper 3, Figure 2",
    about=ABOUT,
    parts=lambda quick: parts_on("loan", quick, {label: (method,) for label, method in CHOSEN.items()}),
    claims=claims,
    columns=COLUMNS,
)
