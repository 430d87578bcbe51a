"""The problem of the demo: a classifier trained on biased decisions, without and with a fairness constraint.

All data are generated. People have two features and belong to group A or B. The recorded decisions favor A in two ways:
group B is poorer, and a quarter of its positive decisions were overturned. Both classifiers are trained on one half of the
people and tested on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ..problems.constraints import between
from ..problems.data import Dataset
from ..problems.problem import Problem
from ..runs.result import Result
from ..runs.solving import solve
from ..runs.tradeoffs import Tradeoff, tradeoff

PEOPLE = 4000
"""People in each half."""
STEPS = 20_000
BATCH = 64
BOUND = 0.05
"""The covariance of group and score must lie within ±BOUND."""
BOUNDS = (0.0, 0.01, 0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.24, 0.28, 0.32)
"""The bounds of the trade-off; the last one is wider than the unconstrained covariance."""
RECORD_EVERY = 4
"""Steps between two records of the constrained run: it converges in a few hundred."""


@dataclass(frozen=True, eq=False)
class People:
    """Applicants and the recorded decisions, one entry per person.

    Attributes:
        features: wealth and test result.
        in_b: whether the person belongs to group B.
        accepted: the recorded decision, which is the label.
    """

    features: Float[np.ndarray, "people 2"]
    in_b: Bool[np.ndarray, " people"]
    accepted: Bool[np.ndarray, " people"]

    def __getitem__(self, part: slice) -> People:
        return People(self.features[part], self.in_b[part], self.accepted[part])


@dataclass(frozen=True)
class Outcome:
    """Measurements of a classifier on some people.

    Attributes:
        accuracy: share of the recorded decisions that it predicts.
        selected: share of each group that it accepts.
        p_rule: the p%-rule: the smaller of these shares as a percentage of the larger; 100 is parity.
        covariance: covariance of group and score, which the constraint bounds.
        error: standard error of `covariance`.
        violation: distance of `covariance` from its bounds; 0 inside them.
    """

    accuracy: float
    selected: dict[str, float]
    p_rule: float
    covariance: float
    error: float
    violation: float


@dataclass(frozen=True, eq=False)
class Demo:
    """The two runs and the measurements of their classifiers, each by 'unconstrained' and 'constrained'.

    Attributes:
        training_half: the people that both classifiers were trained on.
        test_half: the held-out people.
        results: the runs.
        test: outcomes on `test_half`.
        train: outcomes on `training_half`, where the constraint was imposed.
        curve: the constrained problem solved for each of `BOUNDS`.
        along: outcomes on `test_half`, one for each point of the curve.
    """

    training_half: People
    test_half: People
    results: dict[str, Result]
    test: dict[str, Outcome]
    train: dict[str, Outcome]
    curve: Tradeoff
    along: list[Outcome]


def people(count: int, seed: int) -> People:
    """Generate people whose recorded decisions are biased against group B.

    Args:
        count: number of people.
        seed: random seed.

    Example:
        >>> from tightrope.cli import demo_problem
        >>> crowd = demo_problem.people(1000, seed=0)
        >>> bool(crowd.accepted[crowd.in_b].mean() < crowd.accepted[~crowd.in_b].mean())
        True
    """
    random = np.random.default_rng(seed)
    in_b = random.random(count) < 0.4
    wealth = random.normal(0.6, 1.0, count) - 1.5 * in_b
    test = random.normal(0.0, 1.0, count)
    deserved = 0.9 * wealth + 1.8 * test + random.logistic(size=count) > 0
    overturned = in_b & (random.random(count) < 0.25)
    return People(np.stack([wealth, test], axis=1), in_b, deserved & ~overturned)


def scores(weights: Any, features: Any) -> Any:
    """The score of each person, linear in the features; a positive score means accepted.

    Args:
        weights: one per feature, then the intercept.
        features: one row per person.

    Example:
        >>> import numpy as np
        >>> from tightrope.cli import demo_problem
        >>> demo_problem.scores(np.array([1.0, 2.0, 0.5]), np.array([[1.0, 1.0]]))
        array([3.5])
    """
    return features @ weights[:-1] + weights[-1]


def loss(weights: Any, batch: dict[str, Any]) -> Any:
    """The mean logistic loss of a batch.

    Args:
        weights: as in `scores`.
        batch: `features`, `sign` (±1, the recorded decision) and `group`.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.cli import demo_problem
        >>> batch = {"features": jnp.ones((1, 2)), "sign": jnp.ones(1)}
        >>> round(float(demo_problem.loss(jnp.zeros(3), batch)), 3)
        0.693
    """
    return jnp.mean(jax.nn.softplus(-batch["sign"] * scores(weights, batch["features"])))


def covariance(weights: Any, batch: dict[str, Any]) -> Any:
    """The covariance of group and score over a batch.

    Args:
        weights: as in `scores`.
        batch: as in `loss`; `group` is 1 for B and 0 for A, minus its mean.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.cli import demo_problem
        >>> batch = {"features": jnp.array([[1.0, 0.0], [-1.0, 0.0]]), "group": jnp.array([0.5, -0.5])}
        >>> float(demo_problem.covariance(jnp.array([1.0, 0.0, 0.0]), batch))
        0.5
    """
    return jnp.mean(batch["group"] * scores(weights, batch["features"]))


def problems(training_half: People) -> dict[str, Problem]:
    """The two problems: minimize the loss alone, and minimize it with the covariance bounded.

    Args:
        training_half: the people to train on.

    Example:
        >>> from tightrope.cli import demo_problem
        >>> demo_problem.problems(demo_problem.people(100, seed=0))["constrained"]
        Problem(objective 'loss', constraints: covariance (between), domain Reals)
    """
    sign, group = np.where(training_half.accepted, 1.0, -1.0), training_half.in_b - training_half.in_b.mean()
    data = Dataset({"features": training_half.features, "sign": sign, "group": group}, BATCH)
    bounded = between(covariance, -BOUND, BOUND, data=data)
    return {"unconstrained": Problem(loss, data=data), "constrained": Problem(loss, bounded, data=data)}


def measure(weights: Any, crowd: People) -> Outcome:
    """Measure a classifier on some people, in NumPy, independently of the library's certificate.

    Args:
        weights: as in `scores`.
        crowd: the people.

    Example:
        >>> from tightrope.cli import demo_problem
        >>> outcome = demo_problem.measure([0.0, 1.0, 0.0], demo_problem.people(1000, seed=0))
        >>> outcome.p_rule > 80 and outcome.violation == 0.0
        True
    """
    score = scores(np.asarray(weights, float), crowd.features)
    chosen = score > 0
    selected = {"A": float(chosen[~crowd.in_b].mean()), "B": float(chosen[crowd.in_b].mean())}
    products = (crowd.in_b - crowd.in_b.mean()) * score
    most = max(selected.values())
    return Outcome(
        accuracy=float((chosen == crowd.accepted).mean()),
        selected=selected,
        p_rule=100 * min(selected.values()) / most if most > 0 else 100.0,  # nobody selected: parity
        covariance=float(products.mean()),
        error=float(products.std() / np.sqrt(len(products))),
        violation=max(abs(float(products.mean())) - BOUND, 0.0),
    )


def run(steps: int = STEPS, seed: int = 0) -> Demo:
    """Train classifiers on one half of the people, for each bound and without one, and measure them on both halves.

    Args:
        steps: number of steps of each run.
        seed: random seed of the people and of the runs.
    """
    everyone = people(2 * PEOPLE, seed)
    training_half, test_half = everyone[:PEOPLE], everyone[PEOPLE:]
    posed = problems(training_half)
    results = {
        name: solve(problem, jnp.zeros(3), steps=steps, seed=seed, record=RECORD_EVERY, progress=False)
        for name, problem in posed.items()
    }
    curve = tradeoff(posed["constrained"], jnp.zeros(3), "covariance", BOUNDS, steps=steps, seed=seed, progress=False)
    test = {name: measure(result.x, test_half) for name, result in results.items()}
    train = {name: measure(result.x, training_half) for name, result in results.items()}
    along = [measure(result.x, test_half) for result in curve.results]
    return Demo(training_half, test_half, results, test, train, curve, along)
