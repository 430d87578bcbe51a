"""The progress bar and Ctrl-C."""

from __future__ import annotations

import html
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Self

Show = Callable[[int, str], None]
"""Moves the bar: (step, note)."""
NOTEBOOK_INTERVAL = 0.2
"""The least seconds between two changes of a bar in a notebook."""


@contextmanager
def progress_bar(asked: bool | None, steps: int, title: str) -> Iterator[Show]:
    """A function (step, note) that moves the bar; it does nothing if no bar is shown.

    `asked=None` shows one in a notebook, and in a terminal, which stderr must be, if Rich is installed.
    """
    in_notebook, installed = _in_notebook(), find_spec("rich") is not None
    if asked and not (in_notebook or installed):
        raise ImportError("progress=True needs Rich: pip install 'tightrope[cli]'")
    if not (in_notebook or (installed and sys.stderr.isatty()) if asked is None else asked):
        yield lambda step, note: None
    else:
        with (_notebook_bar if in_notebook else _terminal_bar)(steps, title) as show:
            yield show


def _in_notebook() -> bool:
    """Whether this runs in a kernel of Jupyter's; IPython in a terminal has none."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


@contextmanager
def _notebook_bar(steps: int, title: str) -> Iterator[Show]:
    """A bar of HTML, which needs no widgets; at the end it goes."""
    from IPython.display import HTML, DisplayHandle  # pyright: ignore[reportMissingImports]

    def bar(step: int, note: str) -> Any:
        text = html.escape(f"{step:,}/{steps:,} {note}")
        return HTML(f'{html.escape(title)} <progress value="{step}" max="{steps}"></progress> {text}')

    shown, handle = time.monotonic(), DisplayHandle()
    handle.display(bar(0, ""))

    def show(step: int, note: str) -> None:
        nonlocal shown
        if step == 0 or time.monotonic() - shown >= NOTEBOOK_INTERVAL:
            shown = time.monotonic()
            handle.update(bar(step, note))

    try:
        yield show
    finally:
        handle.update(HTML(""))


@contextmanager
def _terminal_bar(steps: int, title: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    note = TextColumn("{task.fields[note]}")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), note
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=steps, note="")
        yield lambda step, note: bar.update(task, completed=step, note=note)


class Interrupts:
    """Turns Ctrl-C into a flag during a run; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def _interrupt(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: Any) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
