"""Many runs at once: every method, setting and seed, as lanes of one compiled program per method, or over an executor."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ..arguments import described, positive_int, seed_number
from ..figures import Against
from ..methods.base import Method
from ..problems.lifting import unlifted, vector_of
from ..problems.probing import check_answer
from ..problems.problem import Problem
from ..tables import Table
from .finished import FinishedRuns
from .fitting import Fitted, check_can_draw, check_no_streams, check_problem, fit
from .options import Record, Stop, as_record, check_stop
from .progress import progress_bar
from .result import Result
from .run import first_point
from .spreading import Lane, Shared, check_executor, divide, name_of, run_lanes, spread

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SHOWN = 30
"""Runs in the table of a sweep."""

logger = logging.getLogger("tightrope")


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
        """The lowest objective among the runs that are feasible to their tolerance; the least violation where none is.

        Violations within the tolerance count with what they are worth, by the multipliers.
        """
        return min(self.results, key=_rank)

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

    def plot(self, against: Against = "samples") -> Figure:
        """Plot objective, largest violation and stationarity of the iterates, with Matplotlib.

        There is one curve per method and setting, the mean over seeds, in a band of one standard deviation.

        Args:
            against: the horizontal axis: 'steps', 'samples' or 'seconds'; steps instead of samples if none are drawn.

        Returns:
            The figure; a notebook shows it, and `figure.savefig("sweep.png")` writes a file.
        """
        from .plots import sweep_figure

        return sweep_figure(self, against)

    def __repr__(self) -> str:
        return f"SweepResult({len(self.results)} runs; {self._best_in_words()})"

    def __str__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _best_in_words(self) -> str:
        best = self.best()
        label = next(label for label, r in zip(labels(self.results), self.results, strict=True) if r is best)
        return f"best: {label}, objective {best.objective:.4g}, violation {best.violation:.2g}"

    def _table(self) -> Table:
        header = ("method", "seed", "objective", "violation", "stationarity", "status")
        rows = [
            (
                label,
                str(r.seed),
                f"{r.objective:.4g}",
                f"{r.violation:.2g}",
                f"{r.stationarity:.2g}",
                f"{r.status}{', success' * r.success}",
            )
            for label, r in zip(labels(self.results), self.results[:SHOWN], strict=False)
        ]
        more = len(self.results) - len(rows)
        note = self._best_in_words() + (f"; {more:,} more runs: see to_pandas()" if more else "")
        return Table(f"Sweep of {len(self.results):,} runs", rows, header, note)


def _rank(result: Result) -> tuple[float, float]:
    """What `SweepResult.best` compares: the excess over the tolerance, then the objective with what violations are worth."""
    certificate = result.certificate
    relative = max((e.value for e in certificate.relative_violation.values()), default=0.0)
    worth = sum(
        float(np.max(np.abs(certificate.multipliers[name]), initial=0.0)) * e.value
        for name, e in certificate.violation.items()
    )
    excess, objective = np.nan_to_num([relative - certificate.tolerance, result.objective + worth], nan=np.inf)
    return max(float(excess), 0.0), float(objective)


def sweep(
    problem: Problem,
    x0: PyTree[Any],
    methods: Method | type[Method] | str | Sequence[Method | type[Method] | str | None] | None,
    *,
    steps: int,
    seeds: int | Iterable[int],
    record: int | Record | None = None,
    stop: Stop | None = None,
    executor: Executor | None = None,
    part_size: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> SweepResult:
    """Run methods and settings over seeds, together on one device, or in parts over the workers of an executor.

    Runs whose methods differ in numbers alone are lanes of one program, so 256 seeds cost far less than 256 calls of `solve`.

    Args:
        problem: what is solved.
        x0: where every run starts.
        methods: one method or several; a grid is a list: `[Method(step_size=s) for s in (0.1, 0.3)]`. None chooses one, as
            `solve` does.
        steps: how many steps each run takes.
        seeds: how many seeds (0, 1, …), or the seeds themselves.
        record: as in `solve`.
        stop: the tolerances of success; a part of the runs stops when all of its runs meet them.
        executor: a `concurrent.futures.Executor` whose workers run the parts: a `ProcessPoolExecutor` that spawns, or
            `client.get_executor()` of a Dask client. Functions and data are sent by cloudpickle.
        part_size: the most runs of a part, which are lanes of one program. None: with an executor, runs that can share a
            part are divided evenly over its workers; without one, they are one part.
        checkpoint: a folder to keep finished runs in; the same call goes on from them, also with another executor, and with
            more methods or seeds. If a part fails in a worker, the others are finished before its error is raised.
        progress: show a progress bar of the runs; None: if stderr is a terminal.

    Returns:
        A `SweepResult`, in the order asked for. Ctrl-C ends a part that runs here with the status 'interrupted'; if parts are
        left, KeyboardInterrupt is raised.

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
    check_executor(executor)
    part_size = None if part_size is None else positive_int("sweep", "part_size", part_size)
    listed = _seeds(seeds)
    settings = [fit("sweep", problem, x0, method, steps) for method in _several(methods)]
    record = as_record("sweep", record, settings[0].steps, problem.sources, settings[0].original.rows.raw_size)
    store = None if checkpoint is None else FinishedRuns(checkpoint, settings, record, stop)
    lanes = [Lane(place, seed) for place in range(len(settings)) for seed in listed]
    results = {} if store is None else _finished(store, lanes)
    x, _ = first_point(settings[0])
    methods = [fitted.method for fitted in settings]
    shared = Shared(problem, x0, np.asarray(x), methods, settings[0].steps, record, stop)

    def keep(part: list[Lane], found: list[Result]) -> None:
        for lane, result in zip(part, found, strict=True):
            results[lane] = result
            if store is not None:
                store.save(lane, result)
        show(len(results), "")

    with progress_bar(progress, len(set(lanes)), "sweep") as show:
        show(len(results), "")
        parts = divide(methods, [lane for lane in dict.fromkeys(lanes) if lane not in results], part_size, executor)
        if executor is None:
            _run_here(settings, shared, parts, keep)
        else:
            spread(executor, shared, parts, keep, go_on=store is not None)
    fitted = settings[0]
    found = SweepResult([_of_user(fitted, results[lane]) for lane in lanes])
    check_answer(fitted.problem, fitted.parameters, fitted.original.data, vector_of(fitted.parameters, found.best().x))
    return found


def _of_user(fitted: Fitted, result: Result) -> Result:
    """The result of a run with x as the user's pytree."""
    return replace(result, x=unlifted(fitted.parameters.unravel(jnp.asarray(result.x))))


def _finished(store: FinishedRuns, lanes: list[Lane]) -> dict[Lane, Result]:
    """The runs that are finished."""
    loaded = {lane: store.load(lane) for lane in lanes}
    found = {lane: result for lane, result in loaded.items() if result is not None}
    if found:
        logger.info("%d of %d runs are finished in %s", len(found), len(loaded), store.folder)
    return found


def _run_here(
    settings: list[Fitted],
    shared: Shared,
    parts: list[list[Lane]],
    keep: Callable[[list[Lane], list[Result]], None],
) -> None:
    """Run the parts of a sweep one after the other."""
    for number, part in enumerate(parts, 1):
        try:
            found = run_lanes(settings[part[0].place], shared, part)
        except Exception as error:
            error.add_note(f"in a part of a sweep: {name_of(shared, part)}")
            raise
        keep(part, found)
        if number < len(parts) and any(result.status == "interrupted" for result in found):
            raise KeyboardInterrupt(f"the sweep was interrupted in part {number} of {len(parts)}")


def labels(results: list[Result]) -> list[str]:
    """The method of each run, with its settings where runs of the same method differ in them."""
    given = [{name: value for name, value in r.settings.items() if name not in r.constants} for r in results]
    of: dict[str, list[dict[str, Any]]] = {}
    for r, own in zip(results, given, strict=True):
        of.setdefault(r.method, []).append(own)
    return [_label(r.method, own, of[r.method]) for r, own in zip(results, given, strict=True)]


def _label(method: str, own: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """The method, and those of its own settings that others have not."""
    told = [
        f"{name} = {f'{value:.3g}' if isinstance(value, float) else value}"
        for name, value in own.items()
        if any(other.get(name) != value for other in others)
    ]
    return f"{method}: {', '.join(told)}" if told else method


def _seeds(seeds: Any) -> list[int]:
    """The seeds as a list."""
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        return list(range(seed_number("sweep", "seeds", positive_int("sweep", "seeds", seeds))))
    if isinstance(seeds, str | bool) or not _is_list(seeds):
        raise TypeError(f"sweep: seeds must be a number of seeds or the seeds themselves, got {described(seeds)}")
    listed = [seed_number("sweep", "seeds", seed) for seed in seeds]
    if not listed:
        raise ValueError("sweep: seeds is empty; expected at least one")
    return listed


def _several(methods: Any) -> list[Any]:
    """The methods as a list."""
    if methods is None or isinstance(methods, Method | type | str):
        return [methods]
    if not _is_list(methods):
        raise TypeError(f"sweep: methods must be a method or a list of methods, got {type(methods).__name__}")
    listed = list(methods)
    if not listed:
        raise ValueError("sweep: methods is empty; expected at least one")
    return listed


def _is_list(value: Any) -> TypeGuard[Iterable[Any]]:
    """Whether this is a list or the like, and no array that is one number."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0
