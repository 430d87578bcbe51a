"""Many runs at once: every method, setting and seed, as lanes of one compiled program per method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ..arguments import positive_int, seed_number
from ..methods import Method
from ..methods.selection import check_accepts
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from .options import Record, Stop, as_record
from .progress import Interrupts
from .result import Result
from .run import Run
from .solving import resolve

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
    methods: Method | type[Method] | str | Sequence[Method | type[Method] | str],
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
        methods: one method or several; a grid is a list: `[Method(step_size=s) for s in (0.1, 0.3)]`.
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
    steps = positive_int("sweep", "steps", steps)
    listed = [
        seed_number("sweep", "seeds", s)
        for s in (range(positive_int("sweep", "seeds", seeds)) if isinstance(seeds, int) else seeds)
    ]
    if not listed:
        raise ValueError("sweep: seeds is empty; expected at least one")
    several = [methods] if isinstance(methods, Method | type | str) else list(methods)
    if not several:
        raise ValueError("sweep: methods is empty; expected at least one")
    parameters = Parameters(x0, owner="sweep")
    settings = [resolve(problem, method, parameters)[0] for method in several]
    for method in settings:
        check_accepts(problem, method)
    results: dict[int, list[Result]] = {}
    for group in _groups(settings):
        run = _lanes(problem, parameters, [settings[i] for i in group], steps, listed, record, stop)
        found = _finish(run)
        for place, i in enumerate(group):
            results[i] = found[place * len(listed) : (place + 1) * len(listed)]
    return SweepResult([result for i in range(len(settings)) for result in results[i]])


def _groups(settings: list[Method]) -> list[list[int]]:
    """The numbers of the methods that can share a program: alike but for their numbers."""
    groups: dict[Any, list[int]] = {}
    for i, method in enumerate(settings):
        groups.setdefault(jax.tree.structure(method), []).append(i)
    return list(groups.values())


def _lanes(
    problem: Problem,
    parameters: Parameters,
    settings: list[Method],
    steps: int,
    seeds: list[int],
    record: int | Record | None,
    stop: Stop | None,
) -> Run:
    """A run with one lane for each setting and seed."""
    each = [method for method in settings for _ in seeds]
    stacked = jax.tree.map(lambda *numbers: jnp.stack([jnp.asarray(n, parameters.dtype) for n in numbers]), *each)
    return Run(
        problem,
        parameters,
        stacked,
        steps=steps,
        seeds=seeds * len(settings),
        record=as_record(record, steps, problem.sources),
        stop=stop,
        lanes=True,
    )


def _finish(run: Run) -> list[Result]:
    with Interrupts() as interrupts:
        moments = [run.now()]
        while True:
            for _ in run.make_records(moments):
                pass
            if (status := run.status(interrupts)) is not None:
                return run.finish(status, [])
            moments = run.advance()
