"""The log lines that carry metrics, and the regular expressions that read them back.

The trainer prints these lines. SageMaker, like any reader of CloudWatch, finds the numbers with
`METRIC_REGEXES`.
"""

from __future__ import annotations

import math

_NUMBER = r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"

STEP_PARTS = ("data_wait", "copy", "compute", "step")
"""The measured parts of a step; `step` is the whole."""
PERCENTILES = (50, 90, 99)
STEP_TIMES = [f"{part}_ms_p{percentile}" for part in STEP_PARTS for percentile in PERCENTILES]

METRICS: dict[str, str] = {
    "epoch": "epoch",
    "step": "step",
    "train:loss": "loss",
    "train:lr": "lr",
    "train:images_per_s": "images_per_s",
    "train:data_wait_pct": "data_wait_pct",
    "validation:loss": "val_loss",
    "validation:accuracy": "val_accuracy",
    "validation:best_accuracy": "best_accuracy",
    "train:headspace": "headspace",
    **{f"train:{key}": key for key in STEP_TIMES},
}
"""Metric name in SageMaker -> key in the log line."""

METRIC_REGEXES: dict[str, str] = {
    name: rf"(?:^|\s){key}={_NUMBER}(?:\s|$)" for name, key in METRICS.items()
}
"""Metric name -> regular expression whose one group is the number. SageMaker takes at most 40
expressions of at most 500 characters. NaN and infinity match none of them."""


def format_metrics(values: dict[str, float | int]) -> str:
    """`{"epoch": 1, "loss": 0.5}` -> `epoch=1 loss=0.5`: six significant digits, keys in order."""
    return " ".join(f"{key}={_format(value)}" for key, value in values.items())


def _format(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.6g}" if math.isfinite(value) else str(value)
