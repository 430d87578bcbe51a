"""How the command line speaks: tables as wide as the terminal, and what is wrong in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show(what: Table | Text | str) -> None:
    """Print as wide as the terminal is, 80 columns in a pipe; brackets are brackets, not markup."""
    Console(markup=False, highlight=False).print(what)


def table(*titles: str, lines: bool = False) -> Table:
    """An empty table with these titles, with lines between its rows or without."""
    made = Table(box=box.SIMPLE_HEAD, show_lines=lines, header_style="bold")
    for title in titles:
        made.add_column(title, overflow="fold")
    return made


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave."""
    typer.echo(f"tightrope: {message}", err=True)
    raise typer.Exit(2)


@contextmanager
def one_line_errors(what: str) -> Iterator[None]:
    """Whatever is raised inside becomes one line; `what` comes from the user and may raise anything."""
    try:
        yield
    except Exception as error:
        fail(f"{what} raised {type(error).__name__}: {error}")


def hint(name: str, names: Iterable[str]) -> str:
    """The names that are spelt most like this one, in words."""
    plain = {each.lower(): each for each in names}
    near = [plain[match] for match in difflib.get_close_matches(name.lower(), plain, n=3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
