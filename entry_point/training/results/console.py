"""Console output: plain log lines, and on a terminal also a progress bar."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from entry_point.contract.run_folder import logs_are_collected

OUR_LOGGERS = ("entry_point", "custom_op", "__main__")
FOR_PEOPLE = "for_people"
"""The attribute of a log record that holds its form for people."""


class LineHandler(logging.Handler):
    """Prints log lines above the progress bar.

    Lines are printed unchanged, because other programs parse them; on a terminal in the form for
    people, if they have one.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        short = getattr(record, FOR_PEOPLE, "") if self._console.is_terminal else ""
        line = short or self.format(record)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)


def log_to_stdout(first_rank: bool) -> Console:
    """Send logs to stdout: the first rank's, and other ranks' and libraries' warnings."""
    plain = not first_rank or logs_are_collected()
    console = Console(file=sys.stdout, force_terminal=False if plain else None)
    root = logging.getLogger()
    root.handlers[:] = [LineHandler(console)]
    root.setLevel(logging.WARNING)
    for name in OUR_LOGGERS:
        # The process that builds the operator logs it; on other hosts that is not the first rank.
        logs = first_rank or name == "custom_op"
        logging.getLogger(name).setLevel(logging.INFO if logs else logging.WARNING)
    return console


@contextmanager
def epoch_bar(
    console: Console, epoch: str, steps: int, done: int
) -> Iterator[Callable[[], object]]:
    """A progress bar of `steps`, on a terminal only. Yields the function that advances it."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        yield partial(bar.advance, bar.add_task(epoch, total=steps, completed=done))
