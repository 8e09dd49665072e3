"""Writes what a finished run leaves in its folder."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from entry_point import inference
from entry_point.config.train_config import TrainConfig
from entry_point.contract.metrics_line import Metric
from entry_point.contract.run_folder import RunFolder
from entry_point.data.sources.source import Source
from entry_point.training.devices import Devices
from entry_point.training.evaluation import Evaluation
from entry_point.training.measure.totals import Totals
from entry_point.training.results import onnx_file
from entry_point.training.results.model_files import TRAINING_CONFIG, save_model, save_program
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
    save_model(run, model, task.names, yaml)
    value = metric.show(evaluation.metrics.get(metric.name))
    title = f"{run_name(run)}: {config.model.name}, validation {metric.label} {value}"
    with _optional("summary.png"):
        save_plot(totals.records, title, metric, run.output_data / "summary.png")
    if not config.trainer.report:
        return
    with _optional("model.pt2"):
        save_program(run, model, config.data, task.export)
    if config.trainer.onnx:
        with _optional(onnx_file.NAME):
            onnx_file.save_onnx(run, model, config.data, task.export)
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
    code = run.model / "code"
    described = ("classes.json", TRAINING_CONFIG, inference.SETTINGS)
    for path in (
        *(run.model / name for name in (*described, inference.PROGRAM, onnx_file.NAME)),
        *(code / name for name in ("inference.py", "requirements.txt")),
        *(run.output_data / name for name in ("report.html", "summary.png")),
    ):
        path.unlink(missing_ok=True)
    shutil.rmtree(code / "__pycache__", ignore_errors=True)  # left by whoever imported inference.py
    if code.is_dir() and not any(code.iterdir()):
        code.rmdir()


@contextmanager
def _optional(name: str) -> Iterator[None]:
    """Log a failure to write `name`, and continue: the weights are already saved."""
    try:
        yield
    except Exception as error:
        logger.warning("no %s: %s", name, str(error).partition("\n")[0] or repr(error))
