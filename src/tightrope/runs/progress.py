"""The progress bar and Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Self


@contextmanager
def progress_bar(asked: bool | None, steps: int, title: str) -> Iterator[Callable[[int, str], None]]:
    """A function (step, note) that moves the bar; it does nothing if no bar is shown.

    `asked=None` shows one if stderr is a terminal and Rich is installed.
    """
    installed = find_spec("rich") is not None
    if asked and not installed:
        raise ImportError("progress=True needs Rich: pip install 'tightrope[cli]'")
    if not (installed and sys.stderr.isatty() if asked is None else asked):
        yield lambda step, note: None
        return
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
