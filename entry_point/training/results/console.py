"""Log lines and a progress bar on a terminal; plain lines, nothing else, anywhere else."""

from __future__ import annotations

import logging
import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

OUR_LOGGERS = ("entry_point", "custom_op", "__main__")
FOR_PEOPLE = "for_people"
"""The attribute of a log record that holds its shorter form."""


class LineHandler(logging.Handler):
    """Prints lines above the progress bar; as they are, since other programs read them, but on a
    terminal in the form for people, where a line has one."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        shown = getattr(record, FOR_PEOPLE, "") if self._console.is_terminal else ""
        line = shown or self.format(record)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)


def make_console(first_rank: bool) -> Console:
    """Send the log to stdout: ours from the first rank; warnings from libraries and other ranks."""
    console = Console(file=sys.stdout)
    root = logging.getLogger()
    root.handlers[:] = [LineHandler(console)]
    root.setLevel(logging.WARNING)
    for name in OUR_LOGGERS:
        # Only the process that builds the operator says so: on another host it is no first rank.
        said = first_rank or name == "custom_op"
        logging.getLogger(name).setLevel(logging.INFO if said else logging.WARNING)
    return console


class EpochBar:
    """A bar of one epoch's steps. Shows itself only on a terminal."""

    def __init__(self, console: Console, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._task: TaskID | None = None

    def start(self, text: str, steps: int, done: int = 0) -> None:
        """Begin a bar of `steps`, replacing the last one."""
        self.stop()
        self._task = self._progress.add_task(text, total=steps, completed=done)
        self._progress.start()

    def advance(self) -> None:
        if self._task is not None:
            self._progress.advance(self._task)

    def stop(self) -> None:
        if self._task is not None:
            self._progress.stop()
            self._progress.remove_task(self._task)
            self._task = None
