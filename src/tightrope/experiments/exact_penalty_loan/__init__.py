"""Exact penalty against three other methods on loan data that substitute for the paper's (paper 3, Figure 2)."""

import pandas as pd

from ..base import Check, Experiment
from ..exact_penalty_bank import COLUMNS, parts_on
from ..exact_penalty_bank.claims import comparison, same_parameters, sensitivity
from ..exact_penalty_bank.config import CHOSEN

ABOUT = """
SUBSTITUTE DATA. The paper's loan data set (128,375 examples, n = 250) is unavailable; this is LendingClub's public statistics
for 2007 to 2011: 42,535 examples with n = 137 features that were known when a loan was made.

The problem, the budget, the measurements and what the paper leaves open are as in exact-penalty-bank. Every method has the
parameters of exact-penalty-bank: nothing is tuned on these data. A0, a0 and the draws have another width and therefore other
values.

Sensitivity: nine settings around them, step size and initial penalty × ½, 1, 2; the band there is over settings and seeds.

The quick version has ExactPenalty and TwoPhaseMomentum alone.
"""


def check_claims(runs: dict[str, pd.DataFrame]) -> list[Check]:
    """Check the claims about Figure 2."""
    frame, neighbors = runs["loan"], runs["loan, sensitivity"]
    return [*comparison(frame, neighbors), sensitivity(neighbors), same_parameters(frame, neighbors)]


experiment = Experiment(
    name="exact-penalty-loan",
    title="Exact penalty on loan data (a substitute)",
    paper="paper 3, Figure 2",
    about=ABOUT,
    parts=lambda quick: parts_on("loan", quick, {label: (method,) for label, method in CHOSEN.items()}),
    claims=check_claims,
    columns=COLUMNS,
)
