"""Logs a few records as a run does, without training."""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from entry_point.config.train_config import TrainConfig
from entry_point.job.run_folder import RunFolder
from entry_point.training.results.log import Record, RunLog
from entry_point.training.results.loggers import LoggedRun, open_loggers


def losses(*values: float, first: int = 1) -> list[Record]:
    """A record for each loss, from step `first` on."""
    return [{"epoch": 0, "step": step, "loss": loss} for step, loss in enumerate(values, first)]


def log_to(
    folder: Path,
    loggers: Sequence[str],
    new: Sequence[Record],
    resumed_at: int = 0,
    **kwargs: str,
) -> None:
    """Log the records of a start of a run to these loggers; `kwargs` are the last one's."""
    config = TrainConfig(loggers=list(loggers))
    if kwargs:
        config.logger_kwargs = {loggers[-1].rpartition(".")[2]: dict(kwargs)}
    log = RunLog(RunFolder(folder), writes=True)
    log.rewind(resumed_at, epoch=0)
    run = LoggedRun("a-run", RunFolder(folder), config, log.records(), resumed_at)
    log.loggers = open_loggers(run)
    log.add(*new)
    log.close()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Our warnings; other tests of the process may have turned the records' own lines on."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("entry_point")
    ]
