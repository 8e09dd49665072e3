"""The tasks of the project as programs without torch know them: a launcher checks a configuration,
and names the metrics to SageMaker, before there is a job.

The rest of a task is its class: `task.name=regression` is `Regression` in
entry_point/training/tasks/regression.py. Your own task has a dotted path for its name, and no row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One number that an evaluation computes from all validation samples."""

    name: str
    """Letters, digits and underscores. Log lines and metrics.jsonl have it as `val_<name>`,
    SageMaker as `validation:<name>`."""
    label: str
    """What people read: `top-5 accuracy`."""
    higher_is_better: bool = True
    percent: bool = False
    """Show 0.5 as `50.00 %`."""

    @property
    def key(self) -> str:
        """Its key in a record."""
        return f"val_{self.name}"

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.percent else 1.0

    def show(self, value: float | None) -> str:
        """Returns the value as people read it; `-` for None."""
        if value is None:
            return "-"
        return f"{self.scale * value:.2f} %" if self.percent else f"{value:.4g}"

    def is_better(self, value: float | None, than: float | None) -> bool:
        """Returns whether `value` beats `than`; None and NaN never do."""
        if value is None or math.isnan(value):
            return False
        return than is None or (value > than if self.higher_is_better else value < than)


LOSS = Metric("loss", "loss", higher_is_better=False)
"""Every task has it."""


@dataclass(frozen=True)
class KnownTask:
    """What is known of a task before its class can be imported."""

    takes: Literal["class", "labels", "numbers", "targets"]
    """See `Task.takes`. It also says how whole numbers, and names without separators, are read in a
    table."""
    losses: tuple[str, ...]
    """Words of `task.loss`, the default first."""
    metrics: tuple[Metric, ...]
    """See `Task.metrics`."""
    kwargs: tuple[str, ...] = ()
    """Keys of `task.kwargs`."""
    clip_norm: float | None = None
    """Default of `optim.clip_norm`. With rates that suit bounded losses, unbounded ones diverge."""


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
