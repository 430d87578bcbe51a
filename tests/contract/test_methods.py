"""The contract of every method: it takes what it says it takes, in every dtype and structure, alone or as a lane.

By default most methods run on their main kind of problem alone, and the other checks are tried on a few methods.
"""

from __future__ import annotations

import jax
import pytest

import tightrope as tr
from tightrope.testing import CHECKS, check_runs
from tightrope.testing.examples import KINDS, accepted, main_kind

METHODS = sorted(tr.methods.available())
MAIN_CHECKS = ("declares", "refuses", "runs")
EVERY_CHECK = ("AdaptivePenalty", "StochasticFrankWolfe")
"""Methods put through every check by default too; every method runs in lanes in tests/convergence."""

SOLVED = (
    "AdaptiveLagrangian",
    "ConservativeFrankWolfe",
    "ConservativeSaddle",
    "ExactPenalty",
    "GradientDescentAscent",
    "LinearizedALM",
    "LinearizedPenalty",
    "MatrixFreePenalty",
    "SwitchingSubgradient",
    "TruncatedMomentum",
)
"""Methods that `solve` runs, and resumes, by default too: ours and the papers'. The others are solved in tests/convergence."""
MORE_CHECKS = (
    "AdaptiveLagrangian-counts",
    "ExactPenalty-counts",
    "SwitchingSubgradient-counts",
    "TruncatedMomentum-pytrees",
)
"""More by default. The counts of all methods are compared with the equations in tests/paper."""

FREE = {"no constraints", "free affine equality"}
DETERMINISTIC = {"no constraints", "deterministic equality", "deterministic inequalities"}
AFFINE = {"free affine equality", "affine equality"}
STOCHASTIC = {"stochastic inequality", "stochastic equality"}
CONVEX = {"no constraints", "deterministic inequalities", "stochastic inequality"}
MINIMIZED = {"deterministic inequalities", "stochastic inequality", "a set without projection"}

TAKES = {  # what each method says in its docstring
    "AdaptiveLagrangian": DETERMINISTIC | AFFINE | STOCHASTIC,
    "AdaptivePenalty": DETERMINISTIC | AFFINE | STOCHASTIC,
    "MatrixFreePenalty": DETERMINISTIC | AFFINE | STOCHASTIC,
    "LinearizedALM": FREE,
    "LinearizedPenalty": DETERMINISTIC | AFFINE | STOCHASTIC,
    "TruncatedMomentum": DETERMINISTIC | AFFINE,
    "ExactPenalty": DETERMINISTIC | AFFINE | STOCHASTIC,
    "SwitchingSubgradient": CONVEX | AFFINE,
    "ConservativeSaddle": CONVEX,
    "ConservativeFrankWolfe": MINIMIZED,
    "TwoPhaseMomentum": DETERMINISTIC | AFFINE | STOCHASTIC,
    "InexactALM": DETERMINISTIC | AFFINE | STOCHASTIC,
    "MomentumALM": DETERMINISTIC | AFFINE,
    "ConstraintExtrapolation": CONVEX | AFFINE,
    "ProximalPoint": CONVEX | AFFINE,
    "DriftPlusPenalty": CONVEX,
    "StochasticFrankWolfe": MINIMIZED,
    "CooperativeApproximation": CONVEX | AFFINE,
    "StochasticSQP": FREE | {"deterministic equality"},
    "SmoothedLagrangian": DETERMINISTIC | AFFINE | STOCHASTIC,
    "GradientDescentAscent": DETERMINISTIC | AFFINE | STOCHASTIC,
}


def test_every_method_says_here_what_it_takes():
    assert sorted(TAKES) == METHODS


@pytest.mark.parametrize("name", METHODS)
def test_it_takes_what_its_docstring_says_and_nothing_else(name):
    assert set(accepted(tr.methods.by_name(name))) == TAKES[name]
    assert TAKES[name] < set(KINDS)


@pytest.mark.by_default(
    *(f"*-{check}" for check in MAIN_CHECKS),
    *(f"{name}-*" for name in EVERY_CHECK),
    *(f"{name}-{check}" for name in SOLVED for check in ("solves", "resumes")),
    *MORE_CHECKS,
)
@pytest.mark.parametrize(
    ("name", "check"),
    [pytest.param(name, check, id=f"{name}-{check.__name__[6:]}") for name in METHODS for check in CHECKS],
)
def test_the_contract(name, check):
    method = tr.methods.by_name(name)
    if check is check_runs:
        check_runs(method, [main_kind(method)])
    else:
        check(method)


@pytest.mark.full
@pytest.mark.parametrize("name", [pytest.param(name, id=f"{name}-every kind") for name in METHODS])
def test_it_runs_on_every_kind_of_problem_that_it_takes(name):
    check_runs(tr.methods.by_name(name))


def wrong(rule):
    """A method class that breaks this rule of the contract: the checks have to notice."""

    def step(self, oracle, state, draw):
        new, info = tr.methods.GradientDescentAscent.step(self, oracle, state, draw)
        if rule == "counts":
            info = info._replace(constraint_values=info.constraint_values + 1)
        if rule == "wasted":
            new = new._replace(x=new.x + 0.0 * oracle.grad(state.x, draw.samples["joint"]))
        if rule == "outside":
            new = new._replace(x=new.x + 10.0)
        return new, info

    def init(self, oracle, x, draw, steps):
        state = tr.methods.GradientDescentAscent.init(self, oracle, x, draw, steps)
        rows = sum(leaf.shape[0] for leaf in jax.tree.leaves(oracle.data))
        return state._replace(dual=(state.dual, jax.numpy.zeros(rows))) if rule == "state" else state

    return type(
        "Wrong", (tr.methods.GradientDescentAscent,), {"step": step, "init": init, "__doc__": "Broken on purpose."}
    )


@pytest.mark.parametrize(
    ("rule", "check"), [("counts", "counts"), ("wasted", "counts"), ("outside", "runs"), ("state", "state")]
)
def test_a_method_that_breaks_a_rule_is_caught(rule, check):
    (check,) = [c for c in CHECKS if c.__name__ == f"check_{check}"]
    with pytest.raises(AssertionError):
        check(wrong(rule))
