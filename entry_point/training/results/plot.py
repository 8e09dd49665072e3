"""Plots the run: loss, the task's metric, images/s and data wait over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from entry_point.contract.metrics_line import Metric
from entry_point.contract.whole_file import replacing
from entry_point.training.results.metrics_log import (
    Record,
    column,
    training_records,
    validation_records,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# It may be smoothed, weighted, and of blended images.
TRAINING = "training (training loss, random crops)"
TRAIN, VALIDATION, RAW, WAIT = "#2b6cb0", "#c05621", "#718096", "#9b2c2c"


def draw(records: Sequence[Record], title: str, metric: Metric) -> Figure:
    """Four panels over the training step; `metric` has one of them."""
    # A second of imports, which training can do without.
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    train, validation = training_records(records), validation_records(records)
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    figure.suptitle(title)
    (loss, quality), (speed, wait) = figure.subplots(2, 2, sharex=True)
    steps, val_steps = column(train, "step"), column(validation, "step")
    loss.plot(steps, column(train, "loss"), color=TRAIN, label=TRAINING)
    loss.plot(val_steps, column(validation, "val_loss"), "o-", color=VALIDATION, label="validation")
    _call(loss, "loss (log scale)")
    # An untrained model's validation loss can be far above the rest.
    loss.set_yscale("log")
    loss.yaxis.set_minor_locator(LogLocator(subs=(1.5, 2, 3, 5, 7)))
    loss.yaxis.set_major_formatter("{x:g}")
    loss.yaxis.set_minor_formatter("{x:g}")
    measured = [record for record in validation if metric.key in record]
    values = [metric.scale * value for value in column(measured, metric.key)]
    quality.plot(column(measured, "step"), values, "o-", color=VALIDATION)
    raw = [record for record in validation if f"{metric.key}_raw" in record]
    if raw:
        values = [metric.scale * value for value in column(raw, f"{metric.key}_raw")]
        label = "validation without averaged weights"
        quality.plot(column(raw, "step"), values, ".:", color=RAW, label=label)
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    _call(quality, f"validation {metric.label}{' (%)' if metric.percent else ''}")
    if metric.percent:
        quality.set_ylim(0, 101)
    speed.plot(steps, column(train, "images_per_s"), color=TRAIN)
    _call(speed, "images/s")
    speed.set_ylim(bottom=0)
    wait.plot(steps, column(train, "data_wait_pct"), color=WAIT)
    _call(wait, "waiting for data (% of training time)")
    wait.set_ylim(0, max([5.0, *(1.1 * v for v in column(train, "data_wait_pct"))]))
    for axes in (loss, quality, speed, wait):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (speed, wait):
        axes.set_xlabel("step")
    return figure


def _call(axes: Axes, quantity: str) -> None:
    """Name what the axes show above them: beside them, long names run into each other."""
    axes.set_title(quantity, loc="left", fontsize="medium")


def save_plot(records: Sequence[Record], title: str, metric: Metric, path: Path) -> None:
    """Write the plot as PNG."""
    with replacing(path) as temporary:
        draw(records, title, metric).savefig(temporary, dpi=110, format="png")
