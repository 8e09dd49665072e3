"""Writes the results of a finished run beside its model: the plot, and a self-contained page."""

from __future__ import annotations

import base64
import io
import logging
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torchvision
from jinja2 import Environment, FileSystemLoader
from PIL import Image
from torch import nn

from entry_point.config.compose import resolved_yaml
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.config.train_config import TrainConfig
from entry_point.data.decode.pillow import read_photo
from entry_point.data.sources.source import Source, read_image
from entry_point.job.devices import Devices
from entry_point.job.known_tasks import LOSS, Metric
from entry_point.job.run_folder import RunFolder
from entry_point.job.text import printable
from entry_point.job.whole_file import replacing, write_text
from entry_point.training.evaluation import Evaluation
from entry_point.training.results.pictures import draw, first_samples, with_targets
from entry_point.training.results.summary import run_facts, run_name, speed_rows
from entry_point.training.results.totals import Totals
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

TEMPLATE, REPORT, SUMMARY = "report.html.jinja", "report.html", "summary.png"
THUMBNAIL_SIDE = 120
MAX_MISTAKES = 12
# Reads in this thread: the threads and processes that read for training may hang.
IN_THIS_THREAD = PipelineConfig("workers", "pillow", num_workers=0)


@dataclass(frozen=True)
class Evaluated:
    """A model, and its evaluation on a split."""

    task: Task
    network: nn.Module
    source: Source
    evaluation: Evaluation
    data: DataConfig
    """The settings by which samples of `source` are made."""

    def numbers(self) -> dict[str, str]:
        """Returns the metrics by their labels."""
        values = self.evaluation.metrics
        metrics = (*self.task.metrics, LOSS)
        return {each.label: each.show(values[each.name]) for each in metrics if each.name in values}


@dataclass(frozen=True)
class FinishedRun:
    """A run that has finished training."""

    folder: RunFolder
    config: TrainConfig
    devices: Devices
    metric: Metric
    """The metric that chose the best checkpoint."""
    train: Source
    exported: Evaluated
    """The exported model, on the validation split."""
    totals: Totals
    show: Callable[[str, Figure], None]
    """Passes a picture and its name to the loggers."""

    @property
    def title(self) -> str:
        value = self.metric.show(self.exported.evaluation.metrics.get(self.metric.name))
        model = self.config.model.name
        return f"{run_name(self.folder)}: {model}, validation {self.metric.label} {value}"


def write_results(run: FinishedRun) -> None:
    """Write the plot and the page to output/data, on the first rank only."""
    if not run.devices.is_first:
        return
    config, curves, samples = run.config, b"", None
    remove_results(run.folder)
    if not config.trainer.report:
        return
    with _optional(SUMMARY), replacing(run.folder.output_data / SUMMARY) as temporary:
        figure = draw(run.totals.records, run.title, run.metric)
        curves = _encode(figure.savefig, "png", dpi=110)
        temporary.write_bytes(curves)
    with _optional("picture of training samples"):
        in_this_thread = replace(config, pipeline=IN_THIS_THREAD)
        samples = first_samples(in_this_thread, run.train, run.exported.task, run.devices)
    with _optional(REPORT):
        jpeg = samples and _encode(samples.savefig, "jpeg", dpi=100, pil_kwargs={"quality": 80})
        write_page(
            run.folder.output_data / REPORT,
            run.title,
            run_facts(run.folder, run.devices),
            run.exported,
            of="validation ",
            curves=_data_url("png", curves) if curves else None,
            speed=speed_rows(run.totals),
            samples=_data_url("jpeg", jpeg) if jpeg else None,
            config=resolved_yaml(config),
        )
    if samples is not None:
        run.show("training samples", samples)  # last, as loggers' threads then draw the figure


def remove_results(run: RunFolder) -> None:
    """Remove the results of an earlier start; not all of them may be written again."""
    for name in (REPORT, SUMMARY):
        (run.output_data / name).unlink(missing_ok=True)


@contextmanager
def _optional(name: str) -> Iterator[None]:
    """Log a failure to write `name`, and continue, as the weights are saved already."""
    try:
        yield
    except Exception as error:
        logger.warning("no %s: %s", name, str(error).partition("\n")[0] or repr(error))


def write_page(
    path: Path,
    title: str,
    facts: Mapping[str, str],
    evaluated: Evaluated,
    *,
    of: str = "",
    **sections: Any,
) -> None:
    """Write the page of an evaluation: metrics, tables and the worst predictions.

    `of` is put before the name of each metric. `sections` has further sections of the template by
    name; those without content are left out. All content is escaped.
    """
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    task = evaluated.task
    page = environment.get_template(TEMPLATE).render(
        title=title,
        about=facts,
        numbers={f"{of}{label}": value for label, value in evaluated.numbers().items()},
        tables=task.tables(evaluated.evaluation.scores),
        has_targets=_has_targets(task),
        legend=[*zip(task.names, task.colors, strict=False)],
        mistakes=[*_mistakes(evaluated)],
        environment={
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "Python": platform.python_version(),
            "system": platform.platform(),
            "CUDA": torch.version.cuda or "none",
        },
        **sections,
    )
    write_text(path, page.lstrip())


def _has_targets(task: Task) -> bool:
    return type(task).draw is not Task.draw


def _mistakes(evaluated: Evaluated) -> Iterator[dict[str, str]]:
    """Yields the worst predictions, each with picture, caption and name of the image."""
    task, source, network = evaluated.task, evaluated.source, evaluated.network
    network.eval()
    for row, caption in task.mistakes(evaluated.evaluation.scores, MAX_MISTAKES):
        index = int(evaluated.evaluation.indices[row])
        picture = _thumbnail(source, index, evaluated.data.gray_bits)
        if _has_targets(task):
            picture = with_targets(picture, task, network, source, index, evaluated.data)
        jpeg = _encode(picture.save, "jpeg", quality=80)
        yield {"picture": _data_url("jpeg", jpeg), "caption": caption, "key": source.key(index)}


def _thumbnail(source: Source, index: int, gray_bits: int) -> Image.Image:
    """Returns a small picture of an image; a gray one if Pillow cannot read it."""
    try:
        image = read_photo(read_image(source, index), gray_bits=gray_bits)
    except Exception as error:  # your own source may raise any error
        logger.warning("no thumbnail of %s: %s", source.key(index), printable(str(error)))
        image = Image.new("RGB", (THUMBNAIL_SIDE, THUMBNAIL_SIDE), "#cbd5e0")
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    return image


def _encode(save: Callable[..., object], kind: str, **options: Any) -> bytes:
    """Returns a figure or image as `png` or `jpeg`, by its method `save`."""
    buffer = io.BytesIO()
    save(buffer, format=kind, **options)
    return buffer.getvalue()


def _data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
