"""`loggers=[tensorboard]`: event files in output/data/tensorboard."""

from __future__ import annotations

import textwrap
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from entry_point.job.metrics_line import STEP_TIMES
from entry_point.job.whole_file import naming
from entry_point.training.results.log import Record
from entry_point.training.results.loggers import LoggedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tag(key: str) -> str:
    """Returns the tag of a record's value; TensorBoard groups tags by the part before the slash."""
    if key in STEP_TIMES:
        return f"step_time/{key}"
    return f"validation/{key[4:]}" if key.startswith("val_") else f"train/{key}"


def hide_writer_traceback(failed: threading.ExceptHookArgs) -> None:
    """Print no traceback of TensorBoard's writer thread, whose error the next call also raises. For
    `threading.excepthook`."""
    if not type(failed.thread).__module__.startswith("tensorboard."):
        threading.__excepthook__(failed)


class TensorBoardLogger:
    """Writes scalars, pictures, and the configuration of each start. A resumed run hides scalars
    that earlier processes wrote for later steps."""

    def __init__(self, run: LoggedRun) -> None:
        # Only the first rank needs it.
        from torch.utils.tensorboard.writer import SummaryWriter

        threading.excepthook = hide_writer_traceback
        self._folder = run.folder.tensorboard
        first = run.resumed_at + 1 if run.resumed_at else 0
        yaml = OmegaConf.to_yaml(OmegaConf.create(asdict(run.config)))
        with naming(self._folder):
            self._events = SummaryWriter(str(self._folder), purge_step=first)
            self._events.add_text("config", textwrap.indent(yaml, "    "), run.resumed_at)

    def log(self, record: Record) -> None:
        with naming(self._folder):
            for key, value in record.items():
                if key not in ("epoch", "step"):
                    self._events.add_scalar(tag(key), value, int(record["step"]))

    def show(self, name: str, figure: Figure) -> None:
        with naming(self._folder):
            self._events.add_figure(name, figure, close=False)

    def close(self) -> None:
        with naming(self._folder):
            self._events.close()
