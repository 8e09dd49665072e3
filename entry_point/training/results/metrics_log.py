"""Logs every number of the run: as a log line, in metrics.jsonl, and to the loggers."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from entry_point.contract.metrics_line import STEP_PARTS, STEP_TIMES, format_metrics, metrics_line
from entry_point.contract.run_folder import RunFolder
from entry_point.contract.whole_file import naming, write_text
from entry_point.training.results.console import FOR_PEOPLE

logger = logging.getLogger(__name__)

Record = dict[str, float | int]


class Logger(Protocol):
    """Gets every record of the run, in order."""

    def log(self, record: Record) -> None:
        """`record` has `epoch`, `step`, and numbers by name."""

    def close(self) -> None:
        """The run has ended or was stopped; it may be resumed."""


class MetricsLog:
    """The run's records in order. The first rank also logs and writes them.

    `earlier` are the records before a resume; `loggers` get the later ones.
    """

    def __init__(
        self,
        run: RunFolder,
        earlier: Sequence[Record],
        writes: bool,
        loggers: Sequence[Logger] = (),
    ) -> None:
        self.records: list[Record] = list(earlier)
        self._lines = [_json_line(record) for record in earlier]
        if writes:
            run.create()
        self._sinks: list[Logger] = (
            [_LogLines(), _JsonLines(run, self.text()), *loggers] if writes else []
        )

    def add(self, *records: Record) -> None:
        """Log records; each has `epoch` and `step`."""
        for record in records:
            self.records.append(record)
            self._lines.append(_json_line(record))
            for sink in self._sinks:
                sink.log(record)

    def text(self) -> str:
        """All records as in metrics.jsonl.

        Checkpoints keep this one object: to copy and write tens of thousands takes seconds.
        """
        return "".join(self._lines)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


class _LogLines:
    def log(self, record: Record) -> None:
        logger.info(metrics_line(record), extra={FOR_PEOPLE: _short_form(record)})

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, run: RunFolder, earlier: str) -> None:
        self._path = run.output_data / "metrics.jsonl"
        # Steps after the checkpoint are trained, and logged, again.
        write_text(self._path, earlier)
        self._file = self._path.open("a", encoding="utf-8")

    def log(self, record: Record) -> None:
        with naming(self._path):
            self._file.write(_json_line(record))
            self._file.flush()

    def close(self) -> None:
        with naming(self._path):
            self._file.close()


def _json_line(record: Record) -> str:
    return json.dumps(record) + "\n"


def parse_records(text: str) -> list[Record]:
    """The records of `MetricsLog.text()`."""
    return [json.loads(line) for line in text.splitlines()]


def _short_form(record: Record) -> str:
    """A record without the platform's mark; an epoch's step times as medians."""
    if STEP_TIMES[0] not in record:
        return format_metrics(record)
    parts = [f"{part} {format_milliseconds(record[f'{part}_ms_p50'])}" for part in STEP_PARTS]
    slowest = format_milliseconds(record["step_ms_p99"])
    place = format_metrics({key: record[key] for key in ("epoch", "step")})
    return f"{place} median ms: {', '.join(parts)} (p99 {slowest})"


def format_milliseconds(value: float) -> str:
    """At least two digits, never an exponent: `0.12`, `12.3`, `1234`."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def training_records(records: Sequence[Record]) -> list[Record]:
    """The log intervals' records."""
    return [r for r in records if "loss" in r]


def validation_records(records: Sequence[Record]) -> list[Record]:
    """The evaluations' records."""
    return [r for r in records if "val_loss" in r]


def column(records: Sequence[Record], key: str) -> list[Any]:
    """One key of every record."""
    return [record[key] for record in records]
