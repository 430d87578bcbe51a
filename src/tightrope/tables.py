"""Tables of text, for terminals and for notebooks."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

TEXT_WIDTH = 100
"""Characters per line of the last cell of a row, and of a note, in a terminal."""
LEFT = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'
"""Colors are those of the notebook, light or dark."""


class Table(NamedTuple):
    """A title, rows of cells, and a note below them; it prints in aligned columns and shows in notebooks.

    In a terminal a long text in the last column goes on below itself.

    Attributes:
        title: the first line.
        rows: the cells of each row; the first of them is its label.
        header: the names of the columns; empty: they have none.
        note: text below, in lines.

    Example:
        >>> print(Table("Two numbers", [("one", "1.5"), ("another", "2")], note="Both are small."))
        Two numbers
          one      1.5
          another  2
          Both are small.
    """

    title: str
    rows: Sequence[Sequence[str]]
    header: Sequence[str] = ()
    note: str = ""

    def __str__(self) -> str:
        rows = [line for row in [*([self.header] if self.header else []), *self.rows] for line in _lines_of(row)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([self.title, *(f"  {line}" for line in [*lines, *_wrapped(self.note)])])

    def _repr_html_(self) -> str:
        """The table for notebooks; every text is escaped."""
        header = "".join(_cell("th", name) for name in self.header)
        rows = ["".join([_cell("th", row[0]), *(_cell("td", cell) for cell in row[1:])]) for row in self.rows]
        lines = [f"<thead><tr>{header}</tr></thead>" if header else "", *(f"<tr>{row}</tr>" for row in rows)]
        title, note = (html.escape(text) for text in (self.title, self.note))
        below = f"<p>{note}</p>" if note else ""
        return f"<div><p><b>{title}</b></p><table>{''.join(lines)}</table>{below}</div>"


def _lines_of(row: Sequence[str]) -> list[list[str]]:
    """The row, and rows below it for what does not fit into its last cell."""
    *cells, last = row
    first, *more = _wrapped(last) or [""]
    return [[*cells, first], *([*("" for _ in cells), line] for line in more)]


def _wrapped(text: str) -> list[str]:
    """The lines of a text; one that fits is left as it is."""
    if len(text) <= TEXT_WIDTH:
        return [text] if text else []
    return textwrap.wrap(text, TEXT_WIDTH, break_long_words=False, break_on_hyphens=False)


def _cell(tag: str, text: str) -> str:
    return f"<{tag} {LEFT}>{html.escape(text)}</{tag}>"
