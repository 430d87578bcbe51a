"""Constraints on rates: how often a classifier says yes, or errs, in each group of examples.

A classifier says yes where its score is positive. The rate of a group is a mean over ALL examples: the mean of
weight · [score > 0], where the weight is 1[in the group] / (share of the group), computed once from all data by `groups`. So it
is no ratio of sums over a batch, which would be biased.

A rate is a step function of the parameters, and its derivative is 0 or does not exist. In the steps of a method, and in every
derivative, sigmoid(score / TEMPERATURE) is in the place of [score > 0]. Everything that is reported, the certificate above all,
is the rate itself. The two differ, so an answer that meets a bound on the surrogate may miss that on the rate, or stay further
below it than it has to. `rates.solve` closes this gap. It is not a part of `tightrope.solve`, which is one run of one method on
one problem.
"""

from .constraints import (
    TEMPERATURE,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    error_rate,
    false_positive_rate,
    group_loss,
    precision,
    selection_rate,
    true_positive_rate,
)
from .group_weights import Groups, groups
from .solving import solve

__all__ = [
    "TEMPERATURE",
    "Groups",
    "demographic_parity",
    "equal_opportunity",
    "equalized_odds",
    "error_rate",
    "false_positive_rate",
    "group_loss",
    "groups",
    "precision",
    "selection_rate",
    "solve",
    "true_positive_rate",
]
