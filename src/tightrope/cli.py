"""The command line: a demonstration, runs from a terminal, and lists of what there is."""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np
from jax.flatten_util import ravel_pytree

import tightrope as tr

from . import demo as demonstration
from .parameters import Parameters
from .reformulate import check_accepts
from .validate import check_functions

try:
    import typer
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError:
    raise SystemExit("tightrope: the command line needs Typer and Rich: pip install 'tightrope[cli]'") from None

if TYPE_CHECKING:
    from .experiments.base import Entry, Experiment, Outcome

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

WIDE = 160
"""Columns from which on the list of methods is a table."""
METHODS = {
    "The default": tr.methods.OURS,
    "From the papers": tr.methods.PAPERS,
    "Compared with them": tr.methods.COMPARED,
}
LEGEND = (
    "∇f, ∇g: gradient of the objective, of one constraint; c: values of all constraints; J: their Jacobian; Jᵀy, Jd: "
    "products with it; k, K: steps so far, steps of a run.",
    "[reconstructed]: the rule, or the part that is named, is not quoted from a public source; the docstring of the "
    "method's module says what was filled in.",
)

Steps = Annotated[int, typer.Option(min=1, metavar="N", help="How many steps a run takes.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, metavar="N", help="The same seed gives the same run.")]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Minimise an expectation under constraints, from samples.

    Start with [bold]tightrope demo[/bold]: half a minute, no data needed.
    """
    if version:
        typer.echo(f"tightrope {tr.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the picture; made if need be.")] = Path("tightrope-demo"),
    steps: Steps = demonstration.STEPS,
    seed: Seed = 0,
) -> None:
    """Learn a fair classifier from biased decisions, on data made on the spot.

    Solves it without and with a bound on the covariance of group and score,
    prints what both classifiers do to people they have not seen, and draws
    them, in about half a minute.

    \b
    Examples:
      tightrope demo
      tightrope demo --seed 3 --out /tmp/demo
    """
    if importlib.util.find_spec("matplotlib") is None:
        _fail("demo draws with Matplotlib: pip install 'tightrope[all]'")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _fail(f"--out must be a folder that can be written to, got {str(out)!r}: {error.strerror}")
    began = time.perf_counter()
    shown = demonstration.run(steps, seed)
    picture = out / "demo.png"
    demonstration.figure(shown).savefig(picture)
    _print(_demo_table(shown))
    _print(_demo_words(shown))
    typer.echo(f"\nThe constrained run, on the half that it learns from:\n{shown.results['constrained']}")
    took, loops = time.perf_counter() - began, sum(result.seconds for result in shown.results.values())
    typer.echo(f"\nThe picture is in {picture}. All took {took:.0f} s with compilation, the steps {loops:.1f} s of it.")


@app.command()
def solve(
    target: Annotated[str, typer.Argument(help="A problem of the zoo, or file.py:object.", show_default=False)],
    method: Annotated[str | None, typer.Option(help="A name from `tightrope methods`; otherwise chosen.")] = None,
    steps: Steps = 10_000,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="Save the result here (.npz); read it with tightrope.load.")] = None,
) -> None:
    """Solve a problem and print the result.

    TARGET is a name from [bold]tightrope problems[/bold], or file.py:object, where
    the object is (problem, x0), or (problem, x0, solution) with a
    tightrope.zoo.Solution, or a function that returns one of these.

    \b
    Examples:
      tightrope solve linear_on_circle
      tightrope solve lens --method SwitchingSubgradient --steps 50000
      tightrope solve my_problem.py:make --out result.npz
    """
    if out is not None and not out.absolute().parent.is_dir():
        _fail(f"--out must lie in a folder that exists, got {str(out)!r}")
    problem, x0, solution = _case(target)()
    chosen = None if method is None else _by_name(method, "--method")
    try:
        result = tr.solve(problem, x0, chosen, steps=steps, seed=seed)
    except (TypeError, ValueError) as error:
        _fail(str(error))
    typer.echo(result)
    if out is not None:
        with _told(f"saving to {out}"):
            result.save(out)
        typer.echo(f"  saved: read it with tightrope.load({str(out)!r})")
    if solution is not None:
        with _told("comparing with the solution"):
            _print(_against(result, solution))


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment, see --list.", show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short version, too short to judge the claims by.")] = False,
    out: Annotated[Path, typer.Option(help="Results go to a folder in it.")] = Path("tightrope-reproduction"),
    show: Annotated[bool, typer.Option("--list", help="List the experiments and leave.")] = False,
    summary: Annotated[Path | None, typer.Option(help="Write the claims of all full runs here and leave.")] = None,
) -> None:
    """Run an experiment of the papers and check their claims.

    Writes the runs (Parquet), figures (PNG, SVG), checks.json with every
    claim, and report.html, which has all of it in one file. A run that was
    stopped goes on where it stopped when it is asked for again. Data sets are
    downloaded, or read from the folder in TIGHTROPE_DATA.

    \b
    Examples:
      tightrope reproduce --list
      tightrope reproduce rates --quick
      tightrope reproduce exact-penalty-bank --out results
    """
    base, report = _report_modules()
    experiments = base.every()
    if summary is not None:
        with _told(f"writing {summary}"):
            summary.write_text(report.summary(base.committed()), encoding="utf-8")
        return
    if show:
        _print(_experiment_table(experiments.values()))
        return
    if name not in experiments:
        hint = _hint(name or "", experiments)
        _fail(f"NAME must be an experiment from `tightrope reproduce --list`, got {name!r}{hint}")
    outcome = _run(experiments[name], out, quick)
    table = _table("claim", "measured", "holds")
    for check in outcome.checks:
        table.add_row(check.claim, report.in_words(check.measured), "yes" if check.holds else "no")
    _print(table)
    held = sum(check.holds for check in outcome.checks)
    short = " The quick version is too short to judge them by." * quick
    typer.echo(f"{held} of {len(outcome.checks)} claims hold.{short}\nThe report is {outcome.folder / 'report.html'}")


@app.command()
def compare(
    target: Annotated[str, typer.Argument(help="A problem of the zoo, or file.py:object.", show_default=False)],
    methods: Annotated[str, typer.Option(metavar="A,B,…", help="Names from `tightrope methods`.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of each method.")] = 16,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Steps of every run; 10000 if not said.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows every run draws, in place of steps.")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="[METHOD.]NAME=V1,V2,…", help="Values to try; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Results go to a folder in it.")] = Path("tightrope-comparison"),
) -> None:
    """Compare methods on a problem of your own.

    TARGET is what [bold]tightrope solve[/bold] takes. Every run has the same budget. With
    --grid, all combinations of the values are tried on one more seed with
    that budget, and the best of each method goes on to the final runs: the
    least objective at the end where the violation is within 0.001 · max(1,
    violation at the start). Writes what [bold]tightrope reproduce[/bold] writes.

    \b
    Examples:
      tightrope compare lens --methods SwitchingSubgradient,AdaptivePenalty
      tightrope compare my_problem.py:make --methods TwoPhaseMomentum,ExactPenalty \\
          --samples 20000 --seeds 5 --grid TwoPhaseMomentum.step_size=0.01,0.1
    """
    base, report = _report_modules()
    if steps is not None and samples is not None:
        _fail("--steps and --samples are two ways to say the same; give one of them")
    classes = dict.fromkeys(_by_name(name.strip(), "--methods") for name in methods.split(","))
    entries = tuple(_entries(list(classes), grid or []))
    make = _case(target)
    _check_methods(*make()[:2], entries)
    part = base.Part(
        target,
        make,
        entries,
        steps=steps or (None if samples else 10_000),
        samples=samples,
        seeds=seeds,
        score=base.feasible_objective,
        score_text="the least objective at the end where the violation is within 0.001 · max(1, violation at the start), "
        "and the least violation where it is so nowhere; shown as (excess of the violation, objective)",
    )
    experiment = base.Experiment(
        name=Path(target).name.replace(".py:", "-"),
        title=f"{target}: {', '.join(entry.label for entry in entries)}",
        paper="",
        about="Methods compared by `tightrope compare`. What is not tuned is what each method estimates for itself.",
        parts=lambda quick: [part],
        claims=lambda runs: [],
    )
    outcome = _run(experiment, out, quick=False)
    columns = ["objective", "violation", "stationarity", "samples", "seconds"]
    table = _table(f"mean ± sd of {seeds} runs" if seeds > 1 else "", *columns)
    for label, ends in report.finals(outcome.frames[target], columns).items():
        table.add_row(label, *(report.number(*ends[column]) for column in columns))
    _print(table)
    typer.echo(f"The report is {outcome.folder / 'report.html'}")


@app.command("methods")
def show_methods() -> None:
    """List the methods: paper, problems they take, guarantee, cost of a step.

    \b
    Example:
      tightrope methods | less
    """
    width = Console().width
    for title, methods in METHODS.items():
        _print(Text(title, "bold underline"))
        if width < WIDE:
            _print(_method_blocks(methods, width))
        else:
            _print(_method_table(methods))
    for note in LEGEND:
        _print(textwrap.fill(note, width))


@app.command("problems")
def show_problems() -> None:
    """List the zoo: problems with known solutions, for `tightrope solve`.

    \b
    Example:
      tightrope problems
    """
    table = _table("problem", "what it is")
    table.columns[0].no_wrap = True
    for name, make in tr.zoo.every().items():
        table.add_row(name, (make.__doc__ or "").strip().partition("\n")[0])
    _print(table)


# ---------------------------------------------------------------------- what is asked for


def _fail(message: str) -> NoReturn:
    typer.echo(f"tightrope: {message}", err=True)
    raise typer.Exit(2)


def _hint(name: str, names: Iterable[str]) -> str:
    """The names that are spelt most like this one, in words."""
    plain = {each.lower(): each for each in names}
    near = [plain[match] for match in difflib.get_close_matches(name.lower(), plain, n=3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _by_name(name: str, option: str) -> type[tr.methods.Method]:
    try:
        return tr.methods.by_name(name)
    except ValueError:
        hint = _hint(name, tr.methods.every())
        _fail(f"{option} must be a name from `tightrope methods`, got {name!r}{hint}")


def _report_modules() -> tuple[Any, Any]:
    """The modules that run experiments and write reports, which need what the library itself does not."""
    needed = [name for name in ("pandas", "pyarrow", "matplotlib", "plotly") if importlib.util.find_spec(name) is None]
    if needed:
        _fail(f"this command needs {', '.join(needed)}: pip install 'tightrope[all]'")
    from . import report
    from .experiments import base

    return base, report


def _run(experiment: Experiment, out: Path, quick: bool) -> Outcome:
    from .experiments.base import run_experiment

    try:
        return run_experiment(experiment, out, quick)
    except (TypeError, ValueError, OSError) as error:
        _fail(f"{experiment.name}: {error}")
    except KeyboardInterrupt:
        typer.echo(f"tightrope: stopped; the same command goes on from what is in {out / experiment.name}", err=True)
        raise typer.Exit(130) from None


def _entries(classes: list[type[tr.methods.Method]], grid: list[str]) -> Iterator[Entry]:
    """Each method with all combinations of the values that are meant for it."""
    from .experiments.base import Entry

    asked = [_grid(each, classes) for each in grid]
    for cls in classes:
        named = {name: values for owner, name, values in asked if owner in ("", cls.__name__) and name in _numbers(cls)}
        settings = [dict(zip(named, values, strict=True)) for values in itertools.product(*named.values())]
        with _told(f"--grid for {cls.__name__}"):
            methods = tuple(cls(**values) for values in settings)
        note = f"--grid of {', '.join(named)}" if named else "nothing of it was in --grid" if grid else "its own"
        yield Entry(cls.__name__, methods, note)


def _grid(text: str, classes: list[type[tr.methods.Method]]) -> tuple[str, str, list[float]]:
    """The method ('': each that has it), the hyper-parameter and the values of a --grid."""
    name, equals, listed = text.partition("=")
    owner, _, name = name.strip().rpartition(".")
    try:
        values = [float(value) for value in listed.split(",")]
    except ValueError:
        values = []
    if not equals or not values:
        _fail(f"--grid must be [METHOD.]NAME=V1,V2,… with numbers, got {text!r}")
    owner = _by_name(owner, "--grid").__name__ if owner else ""
    meant = [cls for cls in classes if owner in ("", cls.__name__)]
    known = {each: None for cls in meant for each in _numbers(cls)}
    if name not in known:
        of = ", ".join(cls.__name__ for cls in meant) or f"{owner}, which is not among --methods"
        _fail(
            f"--grid must name a number of {of}; got {name!r}, expected one of {', '.join(known)}{_hint(name, known)}"
        )
    return owner, name, values


def _numbers(cls: type[tr.methods.Method]) -> list[str]:
    """The names of a method's hyper-parameters that are numbers."""
    return [spec.name for spec in fields(cls) if "low" in spec.metadata]  # pyright: ignore[reportArgumentType]


def _check_methods(problem: tr.Problem, x0: Any, entries: Iterable[Entry]) -> None:
    """Say at once, before anything is run, that a method does not take the problem."""
    try:
        check_functions(problem, Parameters(x0))
        for entry in entries:
            check_accepts(problem, entry.grid[0])
    except (TypeError, ValueError) as error:
        _fail(str(error))


def _case(target: str) -> partial[tuple[tr.Problem, Any, tr.zoo.Solution | None]]:
    """Gives the problem, where to start, and the solution where one is known."""
    zoo = tr.zoo.every()
    if target in zoo:
        return partial(zoo[target])
    file, colon, name = target.rpartition(":")
    if not colon:
        expected = "TARGET must be a name from `tightrope problems` or file.py:object"
        _fail(f"{expected}, got {target!r}{_hint(target, zoo)}")
    return partial(_own, Path(file), name)


def _own(file: Path, name: str) -> tuple[tr.Problem, Any, tr.zoo.Solution | None]:
    return _checked(f"{file}:{name}", _object(file, name))


def _object(file: Path, name: str) -> Any:
    """The object of this name in a Python file, which may import its neighbours; a function is called."""
    if not file.is_file():
        _fail(f"TARGET must be file.py:object, and there is no file {str(file)!r}")
    spec = importlib.util.spec_from_file_location("tightrope_target", file)
    if spec is None or spec.loader is None:
        _fail(f"TARGET must be file.py:object, and {str(file)!r} is not a Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.absolute().parent))
    with _told(str(file)):
        spec.loader.exec_module(module)
    if not hasattr(module, name):
        _fail(f"{file} has no object {name!r}{_hint(name, vars(module))}")
    found = getattr(module, name)
    with _told(f"{file}:{name}"):
        return found() if callable(found) else found


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever is raised inside becomes one line; `what` comes from the user and may raise anything."""
    try:
        yield
    except Exception as error:
        _fail(f"{what} raised {type(error).__name__}: {error}")


def _checked(target: str, found: Any) -> tuple[tr.Problem, Any, tr.zoo.Solution | None]:
    if not (isinstance(found, tuple) and len(found) in (2, 3) and isinstance(found[0], tr.Problem)):
        _fail(f"{target} must be (problem, x0) or (problem, x0, solution), got {type(found).__name__}")
    problem, x0, *rest = found
    solution = rest[0] if rest else None
    if not isinstance(solution, tr.zoo.Solution | None):
        _fail(f"{target}: the solution must be a tightrope.zoo.Solution, got {type(solution).__name__}")
    return problem, x0, solution


# ---------------------------------------------------------------------- what is printed


def _print(what: Table | Text | str) -> None:
    """Print as wide as the terminal is, 80 columns in a pipe; brackets are brackets, not markup."""
    Console(markup=False, highlight=False).print(what)


def _table(*titles: str, lines: bool = False) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=lines, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _experiment_table(experiments: Iterable[Experiment]) -> Table:
    table = _table("experiment", "paper", "what it shows")
    table.columns[0].no_wrap = True
    for experiment in experiments:
        table.add_row(experiment.name, experiment.paper, experiment.title)
    return table


def _method_blocks(methods: Iterable[type[tr.methods.Method]], width: int) -> Text:
    text = Text()
    for method in methods:
        text.append(f"\n{method.__name__}\n", "bold")
        facts = method.reference, _takes(method.accepts), method.guarantee, method.cost
        for label, fact in zip(("paper", "takes", "guarantee", "a step"), facts, strict=True):
            line = textwrap.fill(f"  {label:11}{fact}", width, subsequent_indent=13 * " ", break_on_hyphens=False)
            text.append(line + "\n")
    return _marked(text)


def _method_table(methods: Iterable[type[tr.methods.Method]]) -> Table:
    table = _table("method and its paper", "problems it takes", "guarantee", "cost of a step", lines=True)
    table.expand = True
    for column, ratio in zip(table.columns, (7, 6, 8, 5), strict=True):
        column.ratio = ratio
    for method in methods:
        title = _marked(Text.assemble((method.__name__, "bold"), "\n", method.reference))
        table.add_row(title, _takes(method.accepts), method.guarantee, method.cost)
    return table


def _marked(text: Text) -> Text:
    """The text, with what is reconstructed in colour."""
    text.highlight_regex(r"\[[^]]*reconstructed\]", "yellow")
    return text


def _takes(accepts: tr.methods.Accepts) -> str:
    """What a method declares about its problems, in words."""
    kinds = ["equalities"] * (accepts.equalities == "any") + ["inequalities"] * accepts.inequalities
    data = "with or without data" if accepts.stochastic else "without data"
    sets = {
        "projection": "sets with a projection",
        "lmo": "sets with a linear minimiser",
        "everywhere": "no set, x free",
    }[accepts.needs]
    affine = ["affine equalities"] * (accepts.equalities == "affine")
    return "; ".join([*affine, *([f"{' and '.join(kinds)} {data}"] if kinds else []), sets])


def _against(result: tr.Result, solution: tr.zoo.Solution) -> Table:
    """The result beside what is known."""
    table = _table("", "found", "known", "difference")
    if not solution.feasible:
        _compare(table, "violation (no point is feasible)", result.violation, solution.violation)
        return table
    _compare(table, "objective", result.objective, solution.objective)
    for name, known in (solution.multipliers or {}).items():
        for i, pair in enumerate(zip(np.ravel(result.multipliers[name]), np.ravel(known), strict=True)):
            _compare(table, f"multiplier of {name}" + (f"[{i}]" if np.size(known) > 1 else ""), *pair)
    distance = np.linalg.norm(ravel_pytree(result.x)[0] - ravel_pytree(solution.x)[0])
    table.add_row("x" if solution.unique else "x (there are other solutions)", "", "", f"{distance:.2e} away")
    return table


def _compare(table: Table, label: str, found: float, known: float) -> None:
    table.add_row(label, f"{found:.6g}", f"{known:.6g}", f"{found - known:+.2e}")


def _demo_table(shown: demonstration.Demo) -> Table:
    table = _table("on the held-out half", *shown.outcomes)
    for column in table.columns[1:]:
        column.justify = "right"
    outcomes, trained, runs = shown.outcomes.values(), shown.trained.values(), shown.results.values()
    table.add_row("accuracy", *(f"{outcome.accuracy:.1%}" for outcome in outcomes))
    for group in ("A", "B"):
        table.add_row(f"accepted of group {group}", *(f"{outcome.selected[group]:.1%}" for outcome in outcomes))
    table.add_row("p%-rule (100 % is parity)", *(f"{outcome.rule:.1f} %" for outcome in outcomes))
    table.add_row("covariance of group and score", *(f"{o.covariance:.3f} ± {2 * o.error:.3f}" for o in outcomes))
    table.add_row("violation of its bound", *(f"{outcome.violation:.2g}" for outcome in outcomes), end_section=True)
    table.add_row("violation on the learning half", *(f"{outcome.violation:.2g}" for outcome in trained))
    table.add_row("steps per second", *(f"{run.steps / run.seconds:,.0f}" for run in runs))
    return table


def _demo_words(shown: demonstration.Demo) -> str:
    without, within = shown.outcomes.values()
    cost = 100 * (within.accuracy - without.accuracy)
    verdict, bound = shown.results["constrained"].certificate.verdict, demonstration.BOUND
    return (
        "Both classifiers learn from decisions that were biased against group B. The constrained one must keep the covariance "
        f"of group and score within ±{bound:g} on the half that it learns from: {verdict}, says its certificate. On people it "
        f"has not seen, the p%-rule goes from {without.rule:.0f} % to {within.rule:.0f} % and accuracy changes by {cost:+.1f} "
        "points; there the bound can only hold up to chance, which is the ± in the table (two standard errors)."
    )
