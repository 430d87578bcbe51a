"""The command line: a demonstration, runs from a terminal, and lists of what there is; a module for each command."""

from __future__ import annotations

from typing import Annotated

try:
    import rich  # noqa: F401
    import typer
except ImportError:
    raise SystemExit("tightrope: the command line needs Typer and Rich: pip install 'tightrope[cli]'") from None

from .. import __version__
from .compare import compare
from .demo import demo
from .lists import show_methods, show_problems
from .reproduce import reproduce
from .solve import solve

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Minimize an expectation under constraints, from samples.

    Start with [bold]tightrope demo[/bold]: half a minute, no data needed.
    """
    if version:
        typer.echo(f"tightrope {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


for command in (demo, solve, reproduce, compare):
    app.command()(command)
app.command("methods")(show_methods)
app.command("problems")(show_problems)
