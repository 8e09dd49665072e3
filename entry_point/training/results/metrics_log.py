"""Logs every number of the run: as a log line, in metrics.jsonl, and for TensorBoard."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from torch.utils.tensorboard.writer import SummaryWriter

from entry_point.contract.metrics_line import METRICS, STEP_PARTS, STEP_TIMES, format_metrics
from entry_point.contract.run_folder import RunFolder
from entry_point.contract.whole_file import naming, write_text
from entry_point.training.results.console import FOR_PEOPLE

logger = logging.getLogger(__name__)

Record = dict[str, float | int]

_NAMES = {key: name for name, key in METRICS.items()}


class MetricsLog:
    """The run's records in order. The first rank also logs and writes them.

    `earlier` are the records before a resume.
    """

    def __init__(self, run: RunFolder, earlier: Sequence[Record], writes: bool) -> None:
        self.records: list[Record] = list(earlier)
        if writes:
            run.create()
        self._sinks: list[_Sink] = (
            [_LogLines(), _JsonLines(run, earlier), _TensorBoard(run, earlier)] if writes else []
        )

    def add(self, *records: Record) -> None:
        """Log records; each has `epoch` and `step`."""
        for record in records:
            self.records.append(record)
            for sink in self._sinks:
                sink.add(record)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


class _Sink(Protocol):
    def add(self, record: Record) -> None: ...

    def close(self) -> None: ...


class _LogLines:
    def add(self, record: Record) -> None:
        logger.info(format_metrics(record), extra={FOR_PEOPLE: _short_form(record)})

    def close(self) -> None: ...


class _JsonLines:
    def __init__(self, run: RunFolder, earlier: Sequence[Record]) -> None:
        self._path = run.output_data / "metrics.jsonl"
        # Steps after the checkpoint are trained, and logged, again.
        write_text(self._path, "".join(json.dumps(record) + "\n" for record in earlier))
        self._file = self._path.open("a", encoding="utf-8")

    def add(self, record: Record) -> None:
        with naming(self._path):
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def close(self) -> None:
        with naming(self._path):
            self._file.close()


def hide_writer_traceback(failed: threading.ExceptHookArgs) -> None:
    """A `threading.excepthook`: TensorBoard raises the error of its writing thread to us, too."""
    if not type(failed.thread).__module__.startswith("tensorboard."):
        threading.__excepthook__(failed)


class _TensorBoard:
    def __init__(self, run: RunFolder, earlier: Sequence[Record]) -> None:
        threading.excepthook = hide_writer_traceback
        first = int(earlier[-1]["step"]) + 1 if earlier else 0
        lost = not any(run.tensorboard.glob("events.out.tfevents.*"))
        self._folder = run.tensorboard
        with naming(self._folder):
            self._events = SummaryWriter(str(self._folder), purge_step=first)
        for record in earlier if lost else ():
            self.add(record)

    def add(self, record: Record) -> None:
        with naming(self._folder):
            for key, value in record.items():
                if key not in ("epoch", "step"):
                    self._events.add_scalar(_NAMES.get(key, key), value, int(record["step"]))

    def close(self) -> None:
        with naming(self._folder):
            self._events.close()


def _short_form(record: Record) -> str:
    """An epoch's step times in one short line, as medians; other records are short already."""
    if STEP_TIMES[0] not in record:
        return ""
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
