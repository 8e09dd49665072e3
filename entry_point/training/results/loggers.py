"""Opens the loggers that `loggers` names, and isolates training from their errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from entry_point.config.resolve import resolve
from entry_point.config.train_config import LOGGERS, TrainConfig
from entry_point.job.run_folder import RunFolder
from entry_point.training.results.log import Logger, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long a job that ends waits for a logger to take the last records."""


@dataclass(frozen=True)
class LoggedRun:
    """The first argument of a logger's class."""

    name: str
    """The platform's name of the job, else the name of the run folder."""
    folder: RunFolder
    """Write files to `folder.output_data`, or to `folder.checkpoints` to keep them in a restart."""
    config: TrainConfig
    earlier: Sequence[Record]
    """The records up to the checkpoint that this process resumes from; later steps are repeated."""
    resumed_at: int = 0
    """The step of that checkpoint; 0 in a run that starts from scratch."""


def open_loggers(run: LoggedRun) -> list[Logger]:
    """Open the loggers of the run's config, which `require_named_parts` has checked; log a line for
    one that fails, and leave it out."""
    run.folder.create()
    opened: list[Logger] = []
    for name in run.config.loggers:
        build, word = resolve("loggers", LOGGERS.get(name, name), {}), name.rpartition(".")[2]
        try:
            made = build(run, **run.config.logger_kwargs.get(word, {}))
        except Exception as error:
            _log_failure(name, error)
        else:
            opened.append(_Guarded(name, made))
    return opened


class _Guarded:
    """Feeds a logger in a thread, so that neither its errors nor a slow server delay training."""

    def __init__(self, name: str, guarded: Any) -> None:
        self._name, self._logger = name, guarded
        self._calls: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        """Calls to make: the method's name, and its arguments; None at the end."""
        self._thread = threading.Thread(target=self._feed, name=f"logger {name}", daemon=True)
        self._thread.start()

    def log(self, record: Record) -> None:
        if self._thread.is_alive():
            self._calls.put(("log", {**record}))  # a copy, as your logger may change it

    def show(self, name: str, figure: Figure) -> None:
        if hasattr(self._logger, "show"):
            self._calls.put(("show", name, figure))

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            logger.warning(
                "logger %s did not take the last records within %g s; the job ends without it",
                self._name,
                PATIENCE_S,
            )

    def _feed(self) -> None:
        try:
            for method, *arguments in iter(self._calls.get, None):
                getattr(self._logger, method)(*arguments)
            self._logger.close()
        except Exception as error:
            _log_failure(self._name, error)


def _log_failure(name: str, error: Exception) -> None:
    reason = str(error).partition("\n")[0] or repr(error)
    logger.warning("logger %s failed and is off; the job continues: %s", name, reason)
