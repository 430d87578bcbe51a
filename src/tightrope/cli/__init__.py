"""The command line: one module per command."""

from __future__ import annotations

from typing import Annotated

try:
    import rich  # noqa: F401
    import typer
except ImportError:
    raise SystemExit("tightrope: the command line needs Typer and Rich: pip install 'tightrope[cli]'") from None

from .. import __version__
from ..problems.persistent_cache import use_default_cache
from .compare import compare_methods
from .demo import run_demo
from .lists import list_methods, list_problems
from .reproduce import reproduce_experiment
from .solve import solve_target

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Minimize an expectation subject to constraints, from samples.

    Start with [bold]tightrope demo[/bold]: half a minute, no data needed.
    """
    use_default_cache()
    if version:
        typer.echo(f"tightrope {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS = {
    "demo": run_demo,
    "solve": solve_target,
    "reproduce": reproduce_experiment,
    "compare": compare_methods,
    "methods": list_methods,
    "problems": list_problems,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
