"""Logs a run: lines and a progress bar on the console, all values in metrics.jsonl and to the
loggers."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from entry_point.job.metrics_line import STEP_PARTS, STEP_TIMES, format_metrics, metrics_line
from entry_point.job.run_folder import RunFolder, logs_are_collected
from entry_point.job.whole_file import naming, sync, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

OUR_LOGGERS = ("entry_point", "custom_op", "__main__")
RANK_LOGGERS = ("entry_point.job", "entry_point.data.loader", "entry_point.data.retries")
"""Loggers whose warnings concern one rank, such as damaged images and failed reads of its share.
Warnings of all other loggers are the same on every rank."""
CONSOLE_TEXT = "console_text"
"""The attribute of a log record that holds its text for a terminal."""
Record = dict[str, float | int]


class LineHandler(logging.Handler):
    """Prints log lines above the progress bar.

    Lines are printed unchanged, because other programs parse them; a terminal gets CONSOLE_TEXT
    instead, if a record has it.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        short = getattr(record, CONSOLE_TEXT, "") if self._console.is_terminal else ""
        line = short or self.format(record)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True, emoji=False)


def log_to_stdout(first_rank: bool) -> Console:
    """Send logs to stdout: the first rank's, with libraries' warnings; other ranks' errors, and
    warnings that concern only them."""
    plain = not first_rank or logs_are_collected()
    console = Console(file=sys.stdout, force_terminal=False if plain else None)
    root = logging.getLogger()
    root.handlers[:] = [LineHandler(console)]
    root.setLevel(logging.WARNING if first_rank else logging.ERROR)
    for name in OUR_LOGGERS:
        # Each host builds the operator, and logs it, also hosts without the first rank.
        logs = first_rank or name == "custom_op"
        logging.getLogger(name).setLevel(logging.INFO if logs else logging.ERROR)
    if not first_rank:
        warnings.simplefilter("ignore")
        for name in RANK_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
    return console


@contextmanager
def epoch_bar(
    console: Console, epoch: str, steps: int, done: int
) -> Iterator[Callable[[], object]]:
    """Show a progress bar of `steps` on a terminal. Yields the function that advances it."""
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


class Logger(Protocol):
    """Gets every record of the run, in order.

    With a method `show(name, figure)`, it also gets pictures, as matplotlib figures.
    """

    def log(self, record: Record) -> None:
        """Log a record: `epoch`, `step`, and numbers by name."""

    def close(self) -> None:
        """Close the logger. The run has finished, or was stopped and may be resumed."""


class RunLog:
    """The run's history: its records in order, in metrics.jsonl beside the checkpoints.

    The first rank writes them, logs them, and gives each to the `loggers`. Other ranks have none.
    """

    def __init__(self, run: RunFolder, writes: bool) -> None:
        self.loggers: Sequence[Logger] = ()
        self._run, self._writes = run, writes

    def rewind(self, step: int, epoch: int, text_of_version_1: str = "") -> None:
        """Drop the records after `step`, and the evaluation of `epoch`, which the run resumes in.

        Version 1 kept the records as text in its checkpoints: the history begins with that text if
        there is no file yet.
        """
        if not self._writes:
            return
        self._run.create()
        path = self._run.metrics
        records = read_records(path) if path.is_file() else parse_records(text_of_version_1)
        kept = [
            record
            for record in records
            if record["step"] <= step and (record["epoch"] < epoch or "val_loss" not in record)
        ]
        if kept or path.is_file():
            write_text(path, "".join(map(_json_line, kept)))

    def add(self, *records: Record) -> None:
        """Log records; each has `epoch` and `step`."""
        for record in records if self._writes else ():
            short = _short_form(record)
            # The full line has 300 characters, for the platform's regular expressions only.
            is_long = STEP_TIMES[0] in record and not logs_are_collected()
            logged = short if is_long else metrics_line(record)
            logger.info(logged, extra={CONSOLE_TEXT: short})
            with naming(self._run.metrics), self._run.metrics.open("a", encoding="utf-8") as file:
                file.write(_json_line(record))
            for each in self.loggers:
                each.log(record)

    def show(self, name: str, figure: Figure) -> None:
        """Give a picture to the loggers that have `show`."""
        for each in self.loggers:
            if hasattr(each, "show"):
                each.show(name, figure)

    def records(self) -> list[Record]:
        """Returns the records so far."""
        return read_records(self._run.metrics) if self._writes else []

    def sync(self) -> None:
        """Flush the records to disk, before a checkpoint that relies on them is written."""
        if self._writes and self._run.metrics.is_file():
            sync(self._run.metrics)

    def close(self) -> None:
        """Copy the records to `output/data`, and close the loggers."""
        if self._writes:
            self._run.copy_metrics()
        for each in self.loggers:
            each.close()


def _json_line(record: Record) -> str:
    return json.dumps(record) + "\n"


def read_records(path: Path) -> list[Record]:
    """Returns the records in a metrics.jsonl; none if there is no file."""
    return parse_records(path.read_text("utf-8", "replace")) if path.is_file() else []


def parse_records(text: str) -> list[Record]:
    """Returns the records of a metrics.jsonl, without a last line that a crash left incomplete."""
    records: list[Record] = []
    for line in text.splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def _short_form(record: Record) -> str:
    """Returns a record's line without `[metrics]`, and only medians of an epoch's step times."""
    if STEP_TIMES[0] not in record:
        return format_metrics(record)
    parts = [f"{part} {format_milliseconds(record[f'{part}_ms_p50'])}" for part in STEP_PARTS]
    slowest = format_milliseconds(record["step_ms_p99"])
    place = format_metrics({key: record[key] for key in ("epoch", "step")})
    return f"{place} median ms: {', '.join(parts)} (p99 {slowest})"


def format_milliseconds(value: float) -> str:
    """Returns at least two digits, without an exponent: `0.12`, `12.3`, `1234`."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def training_records(records: Sequence[Record]) -> list[Record]:
    """Returns the records of log intervals."""
    return [r for r in records if "loss" in r]


def validation_records(records: Sequence[Record]) -> list[Record]:
    """Returns the records of evaluations."""
    return [r for r in records if "val_loss" in r]


def column(records: Sequence[Record], key: str) -> list[Any]:
    """Returns the value of `key` in each record."""
    return [record[key] for record in records]
