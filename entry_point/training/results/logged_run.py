"""What a logger is told about its run when it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from entry_point.config.train_config import TrainConfig
from entry_point.contract.run_folder import RunFolder
from entry_point.training.results.metrics_log import Record


@dataclass(frozen=True)
class LoggedRun:
    """The first argument of a logger's class."""

    name: str
    """The platform's name for the job, else the run folder's name."""
    folder: RunFolder
    """`folder.output_data` is for files; what is in `folder.checkpoints` survives a restart."""
    config: TrainConfig
    earlier: Sequence[Record]
    """The records before the checkpoint that this process resumes from; later ones are repeated."""
