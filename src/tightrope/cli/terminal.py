"""Output of the command line: tables as wide as the terminal, errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show(content: Table | Text | str) -> None:
    """Print to the width of the terminal (80 columns in a pipe), with brackets taken literally."""
    Console(markup=False, highlight=False).print(content)


def table(*titles: str, lines: bool = False) -> Table:
    """An empty table with these column titles, optionally with lines between its rows."""
    made = Table(box=box.SIMPLE_HEAD, show_lines=lines, header_style="bold")
    for title in titles:
        made.add_column(title, overflow="fold")
    return made


def fail(message: str) -> NoReturn:
    """Print an error message and exit with status 2."""
    typer.echo(f"tightrope: {message}", err=True)
    raise typer.Exit(2)


@contextmanager
def one_line_errors(source: str) -> Iterator[None]:
    """Turn any exception raised inside into a one-line error; for code of the user's, which may raise anything."""
    try:
        yield
    except Exception as error:
        fail(f"{source} raised {type(error).__name__}: {error}")
