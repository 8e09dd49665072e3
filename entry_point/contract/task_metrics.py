"""The metrics of the known tasks: their names in log lines, and how people read them."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
        """The value as people read it; `-` for None."""
        if value is None:
            return "-"
        return f"{self.scale * value:.2f} %" if self.percent else f"{value:.4g}"

    def is_better(self, value: float | None, than: float | None) -> bool:
        """Whether `value` beats `than`; None and NaN never do."""
        if value is None or math.isnan(value):
            return False
        return than is None or (value > than if self.higher_is_better else value < than)


LOSS = Metric("loss", "loss", higher_is_better=False)
"""Every task has it."""

METRICS_OF: dict[str, tuple[Metric, ...]] = {
    "classification": (
        Metric("accuracy", "accuracy", percent=True),
        Metric("balanced_accuracy", "balanced accuracy", percent=True),
        Metric("top5_accuracy", "top-5 accuracy", percent=True),
    ),
    "multilabel": (
        Metric("map", "mean average precision", percent=True),
        Metric("f1_micro", "F1 (micro)", percent=True),
        Metric("f1_macro", "F1 (macro)", percent=True),
    ),
    "regression": (
        Metric("mae", "mean absolute error", higher_is_better=False),
        Metric("rmse", "root mean square error", higher_is_better=False),
        Metric("r2", "R2"),
    ),
}
"""Task -> its metrics, that which checkpoints track by default first."""
