"""Every number the run produces: a log line, a line of metrics.jsonl, TensorBoard's events."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.writer import SummaryWriter

from entry_point.contract.metrics_line import METRICS, STEP_PARTS, STEP_TIMES, format_metrics
from entry_point.contract.whole_file import write_text
from entry_point.training.measure.milliseconds import shown_milliseconds
from entry_point.training.results.console import FOR_PEOPLE

logger = logging.getLogger(__name__)

Record = dict[str, float | int]

_NAMES = {key: name for name, key in METRICS.items()}


class MetricsLog:
    """Records in order, on the first rank. `earlier` are those of the run being resumed."""

    def __init__(self, file: Path, tensorboard: Path, earlier: Sequence[Record] = ()) -> None:
        self.records: list[Record] = list(earlier)
        lines = "".join(json.dumps(record) + "\n" for record in self.records)
        # What was logged after the checkpoint will be logged again.
        write_text(file, lines)
        self._file = file.open("a", encoding="utf-8")
        first = int(self.records[-1]["step"]) + 1 if self.records else 0
        restored = not any(tensorboard.glob("events.out.tfevents.*"))
        self._events = SummaryWriter(str(tensorboard), purge_step=first)
        if restored:
            for record in self.records:
                self._plot(record)

    def add(self, record: Record) -> None:
        """Log one record; it has `epoch` and `step`."""
        self.records.append(record)
        logger.info(format_metrics(record), extra={FOR_PEOPLE: _for_people(record)})
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        self._plot(record)

    def _plot(self, record: Record) -> None:
        for key, value in record.items():
            if key not in ("epoch", "step"):
                self._events.add_scalar(_NAMES.get(key, key), value, int(record["step"]))

    def close(self) -> None:
        self._file.close()
        self._events.close()


def _for_people(record: Record) -> str:
    """An epoch's steps in one short line, each part at its median; all else is short as it is."""
    if STEP_TIMES[0] not in record:
        return ""
    parts = [f"{part} {shown_milliseconds(record[f'{part}_ms_p50'])}" for part in STEP_PARTS]
    slowest = shown_milliseconds(record["step_ms_p99"])
    place = format_metrics({key: record[key] for key in ("epoch", "step")})
    return f"{place} median ms: {', '.join(parts)} (p99 {slowest})"


def training_records(records: Sequence[Record]) -> list[Record]:
    """The intervals' records."""
    return [r for r in records if "loss" in r]


def validation_records(records: Sequence[Record]) -> list[Record]:
    """The evaluations' records."""
    return [r for r in records if "val_loss" in r]


def column(records: Sequence[Record], key: str) -> list[Any]:
    """One key of every record."""
    return [record[key] for record in records]
