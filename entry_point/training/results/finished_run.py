"""What a run has at its end, for the files that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from entry_point.config.train_config import TrainConfig
from entry_point.contract.metrics_line import Metric
from entry_point.contract.run_folder import RunFolder
from entry_point.data.sources.source import Source
from entry_point.training.devices import Devices
from entry_point.training.evaluation import Evaluation
from entry_point.training.measure.totals import Totals
from entry_point.training.results.summary import run_name
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FinishedRun:
    """A run that has trained to its end."""

    folder: RunFolder
    config: TrainConfig
    yaml: str
    """The configuration as text, without credentials."""
    devices: Devices
    task: Task
    metric: Metric
    """The metric that chose the best checkpoint."""
    network: nn.Module
    val: Source
    evaluation: Evaluation
    """Of `network` on `val`."""
    totals: Totals
    draw_samples: Callable[[], Figure]
    """Draws training samples."""

    @property
    def title(self) -> str:
        value = self.metric.show(self.evaluation.metrics.get(self.metric.name))
        model = self.config.model.name
        return f"{run_name(self.folder)}: {model}, validation {self.metric.label} {value}"
