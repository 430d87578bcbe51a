"""Many runs at once: every method, setting and seed, as lanes of one compiled program per method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..arguments import described, positive_int, seed_number
from ..methods.base import Method
from ..problems.probing import check_answer
from ..problems.problem import Problem
from .fitting import Fitted, check_can_draw, check_no_streams, check_problem, fit
from .options import Record, Stop, as_record, check_stop
from .recording import Recorder
from .result import Result
from .run import first_point, start_run
from .running import Finish, run_to_end

if TYPE_CHECKING:
    import pandas as pd


@dataclass(repr=False)
class SweepResult:
    """What `sweep` returns: a Result for each method, setting and seed, in the order asked for.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> found = tr.sweep(problem, jnp.zeros(2), "GradientDescentAscent", steps=100, seeds=2)
        >>> len(found.results), found.best().method
        (2, 'GradientDescentAscent')
    """

    results: list[Result]

    def best(self) -> Result:
        """The lowest objective among the feasible; the least violation where none is."""
        return min(self.results, key=lambda r: (max(r.violation - r.certificate.tolerance, 0.0), r.objective))

    def to_pandas(self) -> pd.DataFrame:
        """One row a run: method, its settings, seed, and what came out."""
        import pandas as pd

        columns = (
            "objective",
            "violation",
            "stationarity",
            "success",
            "status",
            "output",
            "steps",
            "samples",
            "seconds",
        )
        rows = [
            {"method": r.method, "seed": r.seed} | r.settings | {c: getattr(r, c) for c in columns}
            for r in self.results
        ]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        best = self.best()
        found = f"{best.method}, objective {best.objective:.4g}, violation {best.violation:.2g}"
        return f"SweepResult({len(self.results)} runs; best: {found})"


def sweep(
    problem: Problem,
    x0: PyTree[Any],
    methods: Method | type[Method] | str | Sequence[Method | type[Method] | str | None] | None,
    *,
    steps: int,
    seeds: int | Iterable[int],
    record: int | Record | None = None,
    stop: Stop | None = None,
) -> SweepResult:
    """Run methods and settings over seeds, together on one device.

    Runs whose methods differ in numbers alone are lanes of one program, so 256 seeds cost far less than 256 calls of `solve`.

    Args:
        problem: what is solved.
        x0: where every run starts.
        methods: one method or several; a grid is a list: `[Method(step_size=s) for s in (0.1, 0.3)]`. None chooses one, as
            `solve` does.
        steps: how many steps each run takes.
        seeds: how many seeds (0, 1, …), or the seeds themselves.
        record: as in `solve`.
        stop: the tolerances of success; a group of runs stops when all of its runs meet them.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> grid = [tr.methods.GradientDescentAscent(step_size=s) for s in (0.01, 0.1)]
        >>> tr.sweep(problem, jnp.zeros(2), grid, steps=200, seeds=[3, 5]).to_pandas()["seed"].tolist()
        [3, 5, 3, 5]
    """
    check_problem("sweep", problem)
    check_can_draw("sweep", problem)
    check_no_streams("sweep", problem)
    check_stop("sweep", stop)
    listed = _seeds(seeds)
    settings = [fit("sweep", problem, x0, method, steps) for method in _several(methods)]
    record = as_record("sweep", record, settings[0].steps, problem.sources)
    x, _ = first_point(settings[0])
    results: dict[int, list[Result]] = {}
    for group in _groups(settings):
        lanes = _as_lanes([settings[i] for i in group], len(listed))
        run = start_run(lanes, x, listed * len(group), record.every, lanes=True)
        finish = Finish(run, Recorder(lanes, record, stop or Stop(), run.seeds), stop, [])
        ended = finish.answers(run_to_end(finish))
        for place, i in enumerate(group):
            results[i] = ended[place * len(listed) : (place + 1) * len(listed)]
    found = SweepResult([result for i in range(len(settings)) for result in results[i]])
    parameters = settings[0].parameters
    check_answer(problem, parameters, settings[0].original.data, parameters.ravel(found.best().x))
    return found


def _seeds(seeds: Any) -> list[int]:
    """The seeds as a list."""
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        return list(range(seed_number("sweep", "seeds", positive_int("sweep", "seeds", seeds))))
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise TypeError(f"sweep: seeds must be a number of seeds or the seeds themselves, got {described(seeds)}")
    listed = [seed_number("sweep", "seeds", seed) for seed in seeds]
    if not listed:
        raise ValueError("sweep: seeds is empty; expected at least one")
    return listed


def _several(methods: Any) -> list[Any]:
    """The methods as a list."""
    if methods is None or isinstance(methods, Method | type | str):
        return [methods]
    if not isinstance(methods, Iterable):
        raise TypeError(f"sweep: methods must be a method or a list of methods, got {type(methods).__name__}")
    listed = list(methods)
    if not listed:
        raise ValueError("sweep: methods is empty; expected at least one")
    return listed


def _groups(settings: list[Fitted]) -> list[list[int]]:
    """The numbers of the methods that can share a program: alike but for their numbers."""
    groups: dict[Any, list[int]] = {}
    for i, fitted in enumerate(settings):
        groups.setdefault(jax.tree.structure(fitted.method), []).append(i)
    return list(groups.values())


def _as_lanes(settings: list[Fitted], seeds: int) -> Fitted:
    """One lane for each setting and seed: the method's numbers get a leading axis."""
    dtype = settings[0].parameters.dtype
    each = [fitted.method for fitted in settings for _ in range(seeds)]
    stacked = jax.tree.map(lambda *numbers: jnp.stack([jnp.asarray(n, dtype) for n in numbers]), *each)
    return replace(settings[0], method=stacked)
