"""`tradeoff`: the least objective as a function of the bound of one constraint."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, PyTree

from ..arguments import check_type, did_you_mean
from ..methods.base import Method
from ..problems.constraints import Constraint
from ..problems.problem import Problem, with_bounds
from ..tables import Table
from .fitting import check_can_draw, check_no_streams, check_problem, fit
from .options import Stop
from .result import Result
from .solving import solve

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

logger = logging.getLogger("tightrope")


@dataclass(repr=False)
class Tradeoff:
    """What `tradeoff` returns: a Result for each bound, in the order asked for.

    With F* the least objective and t the bound, dF*/dt is the multiplier with a sign: a tighter bound costs `multiplier` per
    unit. It is −μ for `at_most` and `between` (±t), μ for `at_least`, −λ for `equals`.

    Attributes:
        constraint: the name of the constraint.
        kind: its kind: 'equals', 'at_most', 'at_least' or 'between'.
        bounds: the bounds, one number or one pair (low, high) for each result.
        results: the results; fewer than asked for if the last of them was interrupted.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> curve = tr.tradeoff(problem, jnp.zeros(2), "budget", [0.0, 1.0, 3.0], steps=200)
        >>> curve.objective.round(3), curve.slope.round(3)
        (array([2. , 0.5, 0. ]), array([-2., -1., -0.]))
    """

    constraint: str
    kind: str
    bounds: Float[np.ndarray, " points"] | Float[np.ndarray, "points 2"]
    results: list[Result]

    @property
    def objective(self) -> Float[np.ndarray, " points"]:
        """The objective of each answer."""
        return np.array([result.objective for result in self.results])

    @property
    def multiplier(self) -> Float[np.ndarray, " points"] | Float[np.ndarray, "points entries"]:
        """The constraint's multiplier at each answer; one per entry if its function returns a vector."""
        return np.array([result.multipliers[self.constraint] for result in self.results])

    @property
    def slope(self) -> Float[np.ndarray, " points"]:
        """The derivative dF*/dt of the curve at each point, from the multipliers.

        For pairs it is the derivative with respect to the end that is active. Where the answer is not feasible it is NaN.
        """
        each = self.multiplier.reshape(len(self.results), -1)
        if self.kind == "at_least":
            each = -each
        if self.kind == "between" and self.bounds.ndim == 1:  # both ends move, and away from each other
            each = np.abs(each)
        infeasible = [result.certificate.verdict == "infeasible" for result in self.results]
        return np.where(infeasible, np.nan, -each.sum(axis=1))

    @property
    def violation(self) -> Float[np.ndarray, " points"]:
        """The largest violation of a constraint at each answer."""
        return np.array([result.violation for result in self.results])

    @property
    def feasible(self) -> Bool[np.ndarray, " points"]:
        """Whether each answer is certified feasible."""
        return np.array([result.certificate.verdict == "feasible" for result in self.results])

    def to_pandas(self) -> pd.DataFrame:
        """One row per bound: the bound (or low and high), and what came out."""
        import pandas as pd

        columns = {"bound": self.bounds} if self.bounds.ndim == 1 else _named(["low", "high"], self.bounds)
        each = self.multiplier.reshape(len(self.results), -1)
        columns |= {"objective": self.objective}
        columns |= _named(
            ["multiplier"] if each.shape[1] == 1 else [f"multiplier {i}" for i in range(each.shape[1])], each
        )
        columns |= {"slope": self.slope, "violation": self.violation, "feasible": self.feasible}
        rest = {name: [getattr(result, name) for result in self.results] for name in ("success", "status", "steps")}
        return pd.DataFrame(columns | rest)

    def plot(self) -> Figure:
        """Plot the objective against the bounds, with its slopes from the multipliers, with Matplotlib.

        Returns:
            The figure; a notebook shows it, and `figure.savefig("tradeoff.png")` writes a file.
        """
        from .plots import tradeoff_figure

        return tradeoff_figure(self)

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        header = ("bound", "objective", "slope", "violation", "feasible?", "status")
        values = zip(self.bounds, self.slope, self.results, strict=True)
        rows = [
            (
                ", ".join(f"{end:g}" for end in np.atleast_1d(bound)),
                f"{result.objective:.4g}",
                f"{slope:.4g}",
                f"{result.violation:.2g}",
                result.certificate.verdict,
                f"{result.status}{', success' * result.success}",
            )
            for bound, slope, result in values
        ]
        return Table(f"Objective against the bound of {self.constraint} ({self.kind})", rows, header)


def tradeoff(
    problem: Problem,
    x0: PyTree[Any],
    constraint: str | Constraint,
    bounds: Sequence[Any],
    *,
    steps: int,
    method: Method | type[Method] | str | None = None,
    seed: int = 0,
    stop: Stop | None = None,
    progress: bool | None = None,
) -> Tradeoff:
    """Solve the problem for several bounds of one constraint: what does a tighter bound cost?

    Bounds are arguments of the compiled programs, so all runs share them. A run starts from the answer and the multipliers of
    the bound before it if that was a success, else at x0: where runs end before they have converged, as with networks, each
    bound gets the same start and the same steps, and the points can be compared. A bound that cannot be met is a point with
    the status 'infeasible'. Ctrl-C ends the curve at the bound that was being solved for.

    Args:
        problem: what is solved; the bounds of its other constraints stay.
        x0: where the first run starts, and all that are not started from the answer before.
        constraint: the constraint, or its name.
        bounds: for `at_most`, `at_least` and `equals` the bounds or targets; for `between` numbers b that stand for ±b, or
            pairs (low, high). A constraint function that returns a vector has the same bound for all entries.
        steps: how many steps to take for each bound, at most.
        method: as in `solve`.
        seed: the random seed of every run.
        stop: as in `solve`.
        progress: as in `solve`.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(x**2), tr.at_least(jnp.sum, 1.0, name="supply"))
        >>> print(tr.tradeoff(problem, jnp.zeros(2), "supply", [1.0, 2.0], steps=200).to_pandas()[["bound", "slope"]])
           bound  slope
        0    1.0    1.0
        1    2.0    2.0
    """
    check_problem("tradeoff", problem)
    check_can_draw("tradeoff", problem)
    check_no_streams("tradeoff", problem)
    chosen = _constraint(problem, constraint)
    numbers = _numbers(chosen.kind, bounds)
    fit("tradeoff", problem, x0, method, steps)
    results: list[Result] = []
    last = None
    for number, ends in enumerate(_ends(chosen.kind, numbers)):
        logger.info("tradeoff: bound %s, %d of %d", numbers[number], number + 1, len(numbers))
        at = with_bounds(problem, chosen.name, *ends)
        result = solve(at, x0, method, steps=steps, seed=seed, stop=stop, progress=progress, warm_start=last)
        results.append(result)
        if result.status == "interrupted":
            break
        last = result if result.success else None
    return Tradeoff(chosen.name, chosen.kind, numbers[: len(results)], results)


def _constraint(problem: Problem, given: Any) -> Constraint:
    """The problem's own constraint: it may have been given another name there."""
    check_type("tradeoff", "constraint", given, (str, Constraint), "a constraint of the problem or its name")
    if isinstance(given, Constraint):
        found = [c for c in problem.constraints if c.fn is given.fn and c.low is given.low and c.high is given.high]
    else:
        found = [c for c in problem.constraints if c.name == given]
    if not found:
        names = [c.name for c in problem.constraints]
        name = given if isinstance(given, str) else given.name
        raise ValueError(
            f"tradeoff: constraint must be one of the problem's, got {name!r}{did_you_mean(name, names)}; "
            f"it has {', '.join(names) or 'none'}"
        )
    return found[0]


def _numbers(kind: str, bounds: Any) -> np.ndarray:
    """The bounds as an array: numbers, or pairs for `between`; or an error."""
    expected = "numbers b for ±b, or pairs (low, high)" if kind == "between" else "numbers"
    try:
        found = np.asarray(bounds, float)
    except (TypeError, ValueError):
        raise TypeError(f"tradeoff: bounds must be a sequence of {expected}, got {bounds!r}") from None
    pairs = kind == "between" and found.ndim == 2 and found.shape[1] == 2
    if not found.size or not (pairs or found.ndim == 1):
        raise ValueError(f"tradeoff: bounds must be a sequence of {expected}, got {bounds!r}")
    if np.isnan(found).any() or not (pairs or np.isfinite(found).all()):
        raise ValueError(f"tradeoff: bounds must be finite, got {bounds!r}")
    if kind == "between" and any(low > high for low, high in _ends(kind, found)):
        least = "low ≤ high" if pairs else "b ≥ 0"
        raise ValueError(f"tradeoff: bounds must be {expected}, with {least}, got {bounds!r}")
    return found


def _named(names: list[str], columns: np.ndarray) -> dict[str, np.ndarray]:
    return dict(zip(names, columns.T, strict=True))


def _ends(kind: str, bounds: np.ndarray) -> list[tuple[float, float]]:
    """The ends (low, high) of the constraint for each bound."""
    if bounds.ndim == 2:
        return [(float(low), float(high)) for low, high in bounds]
    of = {
        "equals": lambda b: (b, b),
        "at_most": lambda b: (-math.inf, b),
        "at_least": lambda b: (b, math.inf),
        "between": lambda b: (-b, b),
    }
    return [of[kind](float(bound)) for bound in bounds]
