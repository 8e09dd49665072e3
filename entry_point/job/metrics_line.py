"""The metrics, the log lines that carry them, and the regular expressions that read them back.

The trainer prints these lines. SageMaker, like any reader of CloudWatch, finds the numbers with
`METRIC_REGEXES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_NUMBER = r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"

STEP_PARTS = ("data_wait", "copy", "compute", "step")
"""The measured parts of a step; `step` is the whole."""
PERCENTILES = (50, 90, 99)
STEP_TIMES = [f"{part}_ms_p{percentile}" for part in STEP_PARTS for percentile in PERCENTILES]


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
    "segmentation": (
        Metric("miou", "mean IoU", percent=True),
        Metric("pixel_accuracy", "pixel accuracy", percent=True),
    ),
}
"""Task -> its metrics, that which checkpoints track by default first."""

METRICS: dict[str, str] = {
    "epoch": "epoch",
    "step": "step",
    "train:loss": "loss",
    "train:lr": "lr",
    "train:images_per_s": "images_per_s",
    "train:data_wait_pct": "data_wait_pct",
    "train:headspace": "headspace",
    **{f"train:{key}": key for key in STEP_TIMES},
    **{
        f"validation:{metric.name}": metric.key
        for metrics in ((LOSS,), *METRICS_OF.values())
        for metric in metrics
    },
}
"""Metric name in SageMaker -> key in the log line."""


MARK = "[metrics]"
"""The first word of a line of metrics, and of no other line: see `printable`."""


def _regex(key: str) -> str:
    return rf"^\[metrics\] (?:.* )?{key}={_NUMBER}(?: |$)"


METRIC_REGEXES: dict[str, str] = {name: _regex(key) for name, key in METRICS.items()}
"""Metric name -> regular expression whose one group is the number. SageMaker takes at most 40
expressions of at most 500 characters. NaN and infinity match none of them."""


def metric_regexes(own: Iterable[str] = ()) -> dict[str, str]:
    """`METRIC_REGEXES`, and those of an own task's metrics (`task.metrics`)."""
    return {**METRIC_REGEXES, **{f"validation:{name}": _regex(f"val_{name}") for name in own}}


def metrics_line(values: dict[str, float | int]) -> str:
    """The log line that the platform reads: `[metrics] epoch=1 loss=0.5`."""
    return f"{MARK} {format_metrics(values)}"


def format_metrics(values: dict[str, float | int]) -> str:
    """`{"epoch": 1, "loss": 0.5}` -> `epoch=1 loss=0.5`: six significant digits, keys in order."""
    return " ".join(f"{key}={_format(value)}" for key, value in values.items())


def _format(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.6g}" if math.isfinite(value) else str(value)
