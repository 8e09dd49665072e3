"""Writes what a finished run leaves in its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from entry_point.contract.run_folder import RunFolder
from entry_point.model_folder import save_model
from entry_point.training.results import onnx_file
from entry_point.training.results.finished_run import FinishedRun
from entry_point.training.results.plot import save_plot
from entry_point.training.results.report import write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)


def write_results(run: FinishedRun) -> None:
    """Write model/ and output/data/, on the first rank."""
    if not run.devices.is_first:
        return
    folder, config = run.folder, run.config
    _remove_results(folder)
    save_model(folder.model, run.network, run.task, run.val.classes, config, run.yaml)
    with _optional("summary.png"):
        plot = folder.output_data / "summary.png"
        save_plot(run.totals.records, run.title, run.metric, plot)
    if config.trainer.onnx:
        with _optional(onnx_file.NAME):
            onnx_file.save_onnx(folder.model, run.network, config.data, run.task.export)
    if not config.trainer.report:
        return
    samples: Figure | None = None
    with _optional("picture of training samples"):
        samples = run.draw_samples()
    with _optional("report.html"):
        write_report(folder.output_data / "report.html", run, samples)


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
