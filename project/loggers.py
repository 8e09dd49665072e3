"""Your own loggers: `loggers=[tensorboard,project.loggers.CsvLogger]`."""

from __future__ import annotations

import csv

from entry_point.training.results.log import Record
from entry_point.training.results.loggers import LoggedRun


class CsvLogger:
    """Writes output/data/metrics.csv, one number per row, for spreadsheets."""

    def __init__(self, run: LoggedRun, name: str = "metrics.csv") -> None:
        self._file = (run.folder.output_data / name).open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(["epoch", "step", "name", "value"])
        for record in run.earlier:
            self.log(record)

    def log(self, record: Record) -> None:
        place = record["epoch"], record["step"]
        self._rows.writerows(
            [*place, name, value] for name, value in record.items() if name not in ("epoch", "step")
        )
        self._file.flush()

    def close(self) -> None:
        self._file.close()
