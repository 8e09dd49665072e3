"""The log lines that carry the metrics, and the regular expressions that parse them.

The trainer prints these lines. SageMaker extracts the numbers with `METRIC_REGEXES`.
"""

from __future__ import annotations

from collections.abc import Iterable

from entry_point.job.known_tasks import ALL_METRICS, LOSS, TASKS

_NUMBER = r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"

STEP_PARTS = ("data_wait", "step")
"""The parts of a step that are measured; `step` is the whole step."""
PERCENTILES = (50, 90, 99)
STEP_TIMES = [f"{part}_ms_p{percentile}" for part in STEP_PARTS for percentile in PERCENTILES]


METRICS: dict[str, str] = {
    "epoch": "epoch",
    "step": "step",
    "train:loss": "loss",
    "train:lr": "lr",
    "train:images_per_s": "images_per_s",
    "train:data_wait_pct": "data_wait_pct",
    **{f"train:{key}": key for key in STEP_TIMES},
    **{f"validation:{metric.name}": metric.key for metric in ALL_METRICS},
}
"""Metric name in SageMaker -> key in the log line."""


MARK = "[metrics]"
"""The first word of lines of metrics, and of no other line, see `printable`."""


def _regex(key: str) -> str:
    return rf"^\[metrics\] (?:.* )?{key}={_NUMBER}(?: |$)"


METRIC_REGEXES: dict[str, str] = {name: _regex(key) for name, key in METRICS.items()}
"""Metrics of the built-in tasks by name: regular expressions whose group is the number. NaN and
infinity do not match."""


def metric_regexes(task: str, own: Iterable[str] = ()) -> dict[str, str]:
    """Returns the expressions for a job of this `task.name`, whose `task.metrics` are `own`.

    SageMaker takes at most 40 of at most 500 characters. A known task gets those of its own
    metrics. A task of your own may inherit any of theirs, so it gets all of them and its own.
    """
    printed = (LOSS, *TASKS[task].metrics) if task in TASKS else ALL_METRICS
    others = {f"validation:{metric.name}" for metric in ALL_METRICS if metric not in printed}
    known = {name: regex for name, regex in METRIC_REGEXES.items() if name not in others}
    return {**known, **{f"validation:{name}": _regex(f"val_{name}") for name in own}}


def metrics_line(values: dict[str, float | int]) -> str:
    """Returns the log line that the platform parses: `[metrics] epoch=1 loss=0.5`."""
    return f"{MARK} {format_metrics(values)}"


def format_metrics(values: dict[str, float | int]) -> str:
    """Returns `epoch=1 loss=0.5` for `{"epoch": 1, "loss": 0.5}`: six significant digits, keys in
    order."""
    texts = {key: str(v) if isinstance(v, int) else f"{v:.6g}" for key, v in values.items()}
    return " ".join(f"{key}={text}" for key, text in texts.items())
