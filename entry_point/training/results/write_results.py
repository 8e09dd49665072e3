"""Writes what a finished run leaves in its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from entry_point.config.train_config import TrainConfig
from entry_point.contract.metrics_line import Metric
from entry_point.contract.run_folder import RunFolder
from entry_point.data.sources.source import Source
from entry_point.model_folder import save_model
from entry_point.training.devices import Devices
from entry_point.training.evaluation import Evaluation
from entry_point.training.measure.totals import Totals
from entry_point.training.results import onnx_file
from entry_point.training.results.plot import save_plot
from entry_point.training.results.report import write_report
from entry_point.training.results.summary import run_facts, run_name
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)


def write_results(
    run: RunFolder,
    config: TrainConfig,
    yaml: str,
    devices: Devices,
    *,
    task: Task,
    metric: Metric,
    model: nn.Module,
    val: Source,
    evaluation: Evaluation,
    totals: Totals,
    samples: Callable[[], Figure],
) -> None:
    """Write model/ and output/data/, on the first rank; `evaluation` is the model's on `val`.

    `metric` is in the title and the plot. `samples` draws training samples for the report.
    """
    if not devices.is_first:
        return
    _remove_results(run)
    save_model(run.model, model, task, val.classes, config, yaml)
    value = metric.show(evaluation.metrics.get(metric.name))
    title = f"{run_name(run)}: {config.model.name}, validation {metric.label} {value}"
    with _optional("summary.png"):
        save_plot(totals.records, title, metric, run.output_data / "summary.png")
    if config.trainer.onnx:
        with _optional(onnx_file.NAME):
            onnx_file.save_onnx(run.model, model, config.data, task.export)
    if not config.trainer.report:
        return
    figure: Figure | None = None
    with _optional("picture of training samples"):
        figure = samples()
    with _optional("report.html"):
        write_report(
            run.output_data / "report.html",
            title=title,
            facts=run_facts(run, totals, devices),
            task=task,
            metric=metric,
            evaluation=evaluation,
            source=val,
            totals=totals,
            samples=figure,
            config_yaml=yaml,
        )


def _remove_results(run: RunFolder) -> None:
    """Remove what an earlier start left beside its weights: not all of it may be written again."""
    for path in (
        run.model / onnx_file.NAME,
        *(run.output_data / name for name in ("report.html", "summary.png")),
    ):
        path.unlink(missing_ok=True)


@contextmanager
def _optional(name: str) -> Iterator[None]:
    """Log a failure to write `name`, and continue: the weights are already saved."""
    try:
        yield
    except Exception as error:
        logger.warning("no %s: %s", name, str(error).partition("\n")[0] or repr(error))
