"""The demonstration: a classifier learned from biased decisions, without and with a bound on what it owes to the group.

Everything is made on the spot. The people have two features and belong to group A or B; the recorded decisions favor A in
two ways: group B is poorer, and a quarter of its positive decisions were turned down. Both classifiers are learned on one
half of the people; what is reported about them is measured on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from ..experiments.plots import FONT, boundary, history
from ..problems.data import Dataset
from ..problems.problem import Problem, between
from ..runs.result import Result
from ..runs.solving import solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS = 4000
"""People in each half."""
STEPS = 20_000
BATCH = 64
BOUND = 0.05
"""The covariance of group and score must lie within ± this."""
DRAWN = 500
"""People in the picture: more would hide each other."""
FEATURES = ("wealth", "test result")


@dataclass(frozen=True, eq=False)
class People:
    """Who applied and what was decided, one entry a person.

    Attributes:
        features: wealth and test result.
        in_b: whether the person belongs to group B.
        accepted: the recorded decision, which the classifier learns.
    """

    features: Float[np.ndarray, "rows 2"]
    in_b: Bool[np.ndarray, " rows"]
    accepted: Bool[np.ndarray, " rows"]


@dataclass(frozen=True)
class Outcome:
    """What a classifier does to people it has not seen.

    Attributes:
        accuracy: share of the recorded decisions that it repeats.
        selected: share of each group that it accepts.
        rule: the p%-rule: the smaller of these shares as a percentage of the larger; 100 is parity.
        covariance: of the group and the score, what the constraint bounds.
        error: standard error of `covariance`, from the number of people.
        violation: how far `covariance` is outside its bounds.
    """

    accuracy: float
    selected: dict[str, float]
    rule: float
    covariance: float
    error: float
    violation: float


@dataclass(frozen=True, eq=False)
class Demo:
    """Both classifiers: the runs that found them, and what they do on the half they were not learned on.

    Attributes:
        learned_on: the half that both were learned on.
        held_out: the other half.
        results: by 'unconstrained' and 'constrained', the runs.
        outcomes: by the same names, measured on `held_out`.
        trained: by the same names, measured on `learned_on`, where the constraint was asked for.
    """

    learned_on: People
    held_out: People
    results: dict[str, Result]
    outcomes: dict[str, Outcome]
    trained: dict[str, Outcome]


def people(rows: int, seed: int) -> People:
    """Make people whose recorded decisions are biased against group B.

    Args:
        rows: how many.
        seed: of the random numbers.

    Example:
        >>> from tightrope import demo
        >>> crowd = demo.people(1000, seed=0)
        >>> bool(crowd.accepted[crowd.in_b].mean() < crowd.accepted[~crowd.in_b].mean())
        True
    """
    random = np.random.default_rng(seed)
    in_b = random.random(rows) < 0.4
    wealth = random.normal(0.6, 1.0, rows) - 1.5 * in_b
    test = random.normal(0.0, 1.0, rows)
    deserved = 0.9 * wealth + 1.8 * test + random.logistic(size=rows) > 0
    turned_down = in_b & (random.random(rows) < 0.25)
    return People(np.stack([wealth, test], axis=1), in_b, deserved & ~turned_down)


def scores(weights: Any, features: Any) -> Any:
    """The score of each person, linear in the features; a positive one means accepted.

    Args:
        weights: one for each feature, then the constant.
        features: one row a person.

    Example:
        >>> import numpy as np
        >>> from tightrope import demo
        >>> demo.scores(np.array([1.0, 2.0, 0.5]), np.array([[1.0, 1.0]]))
        array([3.5])
    """
    return features @ weights[:-1] + weights[-1]


def loss(weights: Any, batch: dict[str, Any]) -> Any:
    """The logistic loss, a mean over the batch.

    Args:
        weights: as in `scores`.
        batch: rows of `features`, `sign` (±1, the recorded decision) and `group`.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope import demo
        >>> round(float(demo.loss(jnp.zeros(3), {"features": jnp.ones((1, 2)), "sign": jnp.ones(1)})), 3)
        0.693
    """
    return jnp.mean(jax.nn.softplus(-batch["sign"] * scores(weights, batch["features"])))


def covariance(weights: Any, batch: dict[str, Any]) -> Any:
    """The covariance of the group and the score, a mean over the batch.

    Args:
        weights: as in `scores`.
        batch: rows as in `loss`; `group` is 1 for B and 0 for A, less its mean.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope import demo
        >>> batch = {"features": jnp.array([[1.0, 0.0], [-1.0, 0.0]]), "group": jnp.array([0.5, -0.5])}
        >>> float(demo.covariance(jnp.array([1.0, 0.0, 0.0]), batch))
        0.5
    """
    return jnp.mean(batch["group"] * scores(weights, batch["features"]))


def problems(learned_on: People) -> dict[str, Problem]:
    """The two problems: the loss alone, and the loss with the covariance bounded.

    Args:
        learned_on: whom to learn from.

    Example:
        >>> from tightrope import demo
        >>> demo.problems(demo.people(100, seed=0))["constrained"]
        Problem(objective 'loss', constraints: covariance (between), domain Reals)
    """
    sign, group = np.where(learned_on.accepted, 1.0, -1.0), learned_on.in_b - learned_on.in_b.mean()
    data = Dataset({"features": learned_on.features, "sign": sign, "group": group}, BATCH)
    bounded = between(covariance, -BOUND, BOUND, data=data)
    return {"unconstrained": Problem(loss, data=data), "constrained": Problem(loss, bounded, data=data)}


def measure(weights: Any, crowd: People) -> Outcome:
    """What the classifier with these weights does to these people, in NumPy, apart from the library's own certificate.

    Args:
        weights: as in `scores`.
        crowd: the people to judge.

    Example:
        >>> from tightrope import demo
        >>> outcome = demo.measure([0.0, 1.0, 0.0], demo.people(1000, seed=0))
        >>> outcome.rule > 80 and outcome.violation == 0.0
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
        rule=100 * min(selected.values()) / most if most > 0 else 100.0,  # nobody selected: the groups are alike
        covariance=float(products.mean()),
        error=float(products.std() / np.sqrt(len(products))),
        violation=max(abs(float(products.mean())) - BOUND, 0.0),
    )


def run(steps: int = STEPS, seed: int = 0) -> Demo:
    """Learn both classifiers on one half of the people and judge them on the other.

    Args:
        steps: how many each run takes.
        seed: of the people and of the runs.

    Example:
        >>> from tightrope import demo
        >>> shown = demo.run(steps=20)
        >>> sorted(shown.outcomes), len(demo.figure(shown).axes)
        (['constrained', 'unconstrained'], 3)
    """
    everyone = people(2 * ROWS, seed)
    learned_on, held_out = _rows(everyone, slice(None, ROWS)), _rows(everyone, slice(ROWS, None))
    results = {
        name: solve(problem, jnp.zeros(3), steps=steps, seed=seed) for name, problem in problems(learned_on).items()
    }
    outcomes = {name: measure(result.x, held_out) for name, result in results.items()}
    trained = {name: measure(result.x, learned_on) for name, result in results.items()}
    return Demo(learned_on, held_out, results, outcomes, trained)


def figure(shown: Demo) -> Figure:
    """The picture: people with both decision boundaries, and the curves of the constrained run.

    Args:
        shown: what `run` returned; its example draws.
    """
    from matplotlib.figure import Figure

    picture = Figure(figsize=(11.0, 5.6), dpi=150, layout="constrained")
    grid = picture.add_gridspec(1, 2, width_ratios=[1.15, 1.0])
    _draw_people(picture.add_subfigure(grid[0]).subplots(), shown)
    above, below = picture.add_subfigure(grid[1]).subplots(2, 1, sharex=True)
    without = shown.results["unconstrained"].objective, shown.trained["unconstrained"].violation
    for axes, level in zip((above, below), without, strict=True):
        axes.axhline(level, color="black", linestyle="--", linewidth=1.2, label="unconstrained answer")
    history(shown.results["constrained"], axes=[above, below])
    above.set_title("The constrained run,\non the half that it learns from", fontsize=FONT + 1)
    return picture


def _draw_people(axes: Axes, shown: Demo) -> None:
    crowd, lines = _rows(shown.held_out, slice(None, DRAWN)), {}
    for name in ("constrained", "unconstrained"):
        shares = " and ".join(f"{share:.0%} of {group}" for group, share in shown.outcomes[name].selected.items())
        lines[f"{name}: accepts {shares}"] = shown.results[name].x
    boundary(axes, crowd.features, crowd.in_b, crowd.accepted, lines)
    axes.set_xlabel(f"{FEATURES[0]} (standard deviations)", fontsize=FONT)
    axes.set_ylabel(f"{FEATURES[1]} (standard deviations)", fontsize=FONT)
    axes.set_title(
        f"{DRAWN} held-out people and what was decided;\na classifier accepts above its line", fontsize=FONT + 1
    )


def _rows(crowd: People, which: slice) -> People:
    return People(crowd.features[which], crowd.in_b[which], crowd.accepted[which])
