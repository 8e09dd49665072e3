"""The built-in tasks, for programs without torch: launchers check a configuration and name the
metrics to SageMaker before there is a job.

The rest of a task is its class: `task.name=regression` is `Regression` in
entry_point/training/tasks/regression.py. Your own task is named by a dotted path, and has no row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A number that an evaluation computes from all validation samples."""

    name: str
    """Letters, digits and underscores. Log lines and metrics.jsonl have it as `val_<name>`,
    SageMaker as `validation:<name>`."""
    label: str
    """The name in texts: `top-5 accuracy`."""
    higher_is_better: bool = True
    percent: bool = False
    """Whether 0.5 is shown as `50.00 %`."""

    @property
    def key(self) -> str:
        """The metric's key in a record."""
        return f"val_{self.name}"

    @property
    def scale(self) -> float:
        """Factor by which a value is multiplied to be shown."""
        return 100.0 if self.percent else 1.0

    def show(self, value: float | None) -> str:
        """Returns the value as text; `-` for None."""
        if value is None:
            return "-"
        return f"{self.scale * value:.2f} %" if self.percent else f"{value:.4g}"

    def is_better(self, value: float | None, than: float | None) -> bool:
        """Returns whether `value` beats `than`; None and NaN never do."""
        if value is None or math.isnan(value):
            return False
        return than is None or (value > than if self.higher_is_better else value < than)


LOSS = Metric("loss", "loss", higher_is_better=False)
"""The metric that every task has."""


@dataclass(frozen=True)
class KnownTask:
    """Properties of a task that are needed where its class cannot be imported."""

    takes: Literal["class", "labels", "numbers", "targets"]
    """See `Task.takes`. It also decides how a table's whole numbers, and names without separators,
    are read."""
    losses: tuple[str, ...]
    """Words of `task.loss`, the default first."""
    metrics: tuple[Metric, ...]
    """See `Task.metrics`."""
    kwargs: tuple[str, ...] = ()
    """Keys of `task.kwargs`."""
    clip_norm: float | None = None
    """Default of `optim.clip_norm`: unbounded losses diverge with rates that suit bounded ones."""


TASKS: dict[str, KnownTask] = {
    "classification": KnownTask(
        takes="class",
        losses=("cross_entropy", "focal"),
        metrics=(
            Metric("accuracy", "accuracy", percent=True),
            Metric("balanced_accuracy", "balanced accuracy", percent=True),
            Metric("top5_accuracy", "top-5 accuracy", percent=True),
        ),
        kwargs=("gamma",),
    ),
    "multilabel": KnownTask(
        takes="labels",
        losses=("binary_cross_entropy", "focal"),
        metrics=(
            Metric("map", "mean average precision", percent=True),
            Metric("f1_micro", "F1 (micro)", percent=True),
            Metric("f1_macro", "F1 (macro)", percent=True),
        ),
        kwargs=("gamma", "threshold"),
    ),
    "regression": KnownTask(
        takes="numbers",
        losses=("squared_error", "absolute_error", "huber"),
        metrics=(
            Metric("mae", "mean absolute error", higher_is_better=False),
            Metric("rmse", "root mean square error", higher_is_better=False),
            Metric("r2", "R2"),
        ),
        clip_norm=1.0,
    ),
    "segmentation": KnownTask(
        takes="targets",
        losses=("cross_entropy",),
        metrics=(
            Metric("miou", "mean IoU", percent=True),
            Metric("pixel_accuracy", "pixel accuracy", percent=True),
        ),
    ),
}

ALL_METRICS = (LOSS, *(metric for task in TASKS.values() for metric in task.metrics))
