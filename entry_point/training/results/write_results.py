"""What a finished run leaves in its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from entry_point.config.train_config import TrainConfig
from entry_point.contract.run_folder import RunFolder
from entry_point.data.sources.source import Source
from entry_point.training.evaluation import Evaluation
from entry_point.training.measure.totals import Totals
from entry_point.training.results.about import about, run_name
from entry_point.training.results.model_files import save_model, save_program
from entry_point.training.results.plot import save_plot
from entry_point.training.results.report import write_report

logger = logging.getLogger(__name__)


def write_results(
    run: RunFolder,
    config: TrainConfig,
    yaml: str,
    *,
    model: nn.Module,
    val: Source,
    evaluation: Evaluation,
    totals: Totals,
    devices: str,
) -> None:
    """Write model/ and output/data/; `evaluation` is the model's, over `val`."""
    save_model(run, model, list(val.classes), yaml)
    accuracy = f"validation accuracy {100 * evaluation.accuracy:.2f} %"
    title = f"{run_name(run)}: {config.model.name}, {accuracy}"
    smoothed = config.optim.label_smoothing > 0
    training = "training (smoothed labels, random crops)" if smoothed else "training"
    with _doing_without("summary.png"):
        save_plot(totals.records, title, training, run.output_data / "summary.png")
    if not config.trainer.report:
        return
    with _doing_without("model.pt2"):
        save_program(run, model, config.data)
    with _doing_without("report.html"):
        write_report(
            run.output_data / "report.html",
            title=title,
            about=about(run, totals, devices),
            training=training,
            evaluation=evaluation,
            source=val,
            totals=totals,
            config_yaml=yaml,
        )


@contextmanager
def _doing_without(name: str) -> Iterator[None]:
    """The weights are safe by now: what cannot be added to them is no reason to lose the job."""
    try:
        yield
    except Exception as error:
        logger.warning("no %s: %s", name, str(error).partition("\n")[0] or repr(error))
