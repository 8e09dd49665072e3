"""What a finished run leaves beside its model: the plot and a self-contained page."""

from __future__ import annotations

import base64
import io
import logging
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torchvision
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, ImageOps
from torch import nn

from entry_point.config.data_config import DataConfig
from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source, read_image
from entry_point.job.devices import Devices
from entry_point.job.known_tasks import LOSS, TASKS, Metric
from entry_point.job.metrics_line import PERCENTILES
from entry_point.job.run_folder import RunFolder
from entry_point.job.text import printable
from entry_point.job.whole_file import replacing, write_text
from entry_point.training.evaluation import Evaluation
from entry_point.training.results.log import (
    column,
    format_milliseconds,
    training_records,
)
from entry_point.training.results.pictures import draw, first_samples_alone, with_targets
from entry_point.training.results.summary import run_facts, run_name
from entry_point.training.results.totals import Totals
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

TEMPLATE, SUMMARY = "report.html.jinja", "summary.png"
THUMBNAIL = 120
WORST = 12


@dataclass(frozen=True)
class FinishedRun:
    """A run that has trained to its end."""

    folder: RunFolder
    config: TrainConfig
    yaml: str
    """The configuration as text."""
    devices: Devices
    task: Task
    metric: Metric
    """The metric that chose the best checkpoint."""
    network: nn.Module
    train: Source
    val: Source
    evaluation: Evaluation
    """Of `network` on `val`."""
    totals: Totals
    show: Callable[[str, Figure], None]
    """Gives a picture and its name to the loggers."""

    @property
    def title(self) -> str:
        model = self.config.model.name
        return f"{run_name(self.folder)}: {model}, validation {self.validation}"

    @property
    def validation(self) -> str:
        """The metric and its value."""
        value = self.metric.show(self.evaluation.metrics.get(self.metric.name))
        return f"{self.metric.label} {value}"


def write_results(run: FinishedRun) -> None:
    """Write output/data/, on the first rank."""
    if not run.devices.is_first:
        return
    folder, config = run.folder, run.config
    remove_results(folder)
    with _optional(SUMMARY), replacing(folder.output_data / SUMMARY) as temporary:
        curves = draw(run.totals.records, run.title, run.metric)
        curves.savefig(temporary, dpi=110, format="png")
    if not config.trainer.report:
        return
    samples: Figure | None = None
    with _optional("picture of training samples"):
        samples = first_samples_alone(config, run.train, run.task, run.devices)
    with _optional("report.html"):
        write_report(folder.output_data / "report.html", run, samples)
    if samples is not None:
        run.show("training samples", samples)  # last: it is drawn in other threads


def remove_results(run: RunFolder) -> None:
    """Remove what an earlier start left beside its weights: not all of it may be written again."""
    for name in ("report.html", SUMMARY):
        (run.output_data / name).unlink(missing_ok=True)


@contextmanager
def _optional(name: str) -> Iterator[None]:
    """Log a failure to write `name`, and continue: the weights are already saved."""
    try:
        yield
    except Exception as error:
        logger.warning("no %s: %s", name, str(error).partition("\n")[0] or repr(error))


def write_report(path: Path, run: FinishedRun, samples: Figure | None) -> None:
    """Write the page of a run, with its summary.png if there is one.

    `samples` shows training samples; None: no such picture.
    """
    totals, evaluation = run.totals, run.evaluation
    picture = run.folder.output_data / SUMMARY
    numbers = {
        f"validation {label}": value for label, value in _metrics(run.task, evaluation).items()
    }
    if totals.training_seconds:
        numbers["training images/s"] = f"{totals.images_per_s:.0f}"
        numbers["of training time waiting for data"] = f"{totals.data_wait_pct:.1f} %"
    _write_page(
        path,
        title=run.title,
        about=run_facts(run.folder, totals, run.devices),
        numbers=numbers,
        curves=_embedded("png", picture.read_bytes()) if picture.is_file() else None,
        losses=losses_differ_by(run.config),
        stalls=_stalls(totals),
        samples=samples and _data_url("jpeg", samples.savefig, dpi=100, pil_kwargs={"quality": 80}),
        config=run.yaml,
        **_of_evaluation(run.task, evaluation, run.val, run.network, run.config.data),
    )


def losses_differ_by(config: TrainConfig) -> str:
    """Returns what changes the training loss but not the validation loss, in words."""
    task, optim = config.task, config.optim
    known = TASKS.get(task.name)
    smooths = known and known.takes in ("class", "targets") and task.label_smoothing
    blends = {"MixUp": optim.mixup_alpha, "CutMix": optim.cutmix_alpha}
    parts = [
        "random crops",
        *(["augmented images"] if config.augment.describe() else []),
        *(name for name, alpha in blends.items() if alpha),
        *([f"label smoothing {task.label_smoothing:g}"] if smooths else []),
        *(["class weights"] if task.class_weights else []),
    ]
    return ", ".join(parts)


def write_evaluation(
    path: Path,
    title: str,
    facts: Mapping[str, str],
    task: Task,
    evaluation: Evaluation,
    source: Source,
    network: nn.Module,
    data: DataConfig,
) -> None:
    """Write a page on an evaluation of `network` on `source`: metrics, tables and the worst
    predictions."""
    _write_page(
        path,
        title=title,
        about=facts,
        numbers=_metrics(task, evaluation),
        **_of_evaluation(task, evaluation, source, network, data),
    )


def _write_page(path: Path, **content: Any) -> None:
    """Fill the template: `content` is escaped. Sections without content are left out."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    versions = {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
        "CUDA": torch.version.cuda or "none",
    }
    sections = dict.fromkeys(("curves", "losses", "stalls", "samples", "config"))
    page = environment.get_template(TEMPLATE).render(sections | {"environment": versions} | content)
    write_text(path, page.lstrip())


def _of_evaluation(
    task: Task, evaluation: Evaluation, source: Source, network: nn.Module, data: DataConfig
) -> dict[str, Any]:
    mistakes = [
        (int(evaluation.indices[row]), caption)
        for row, caption in task.mistakes(evaluation.scores, WORST)
    ]
    pictures = [_thumbnail(source, i) for i, _ in mistakes]
    if has_targets := type(task).draw is not Task.draw:
        network.eval()
        pictures = [
            with_targets(picture, task, network, source, i, data)
            for picture, (i, _) in zip(pictures, mistakes, strict=True)
        ]
    return {
        "tables": task.tables(evaluation.scores),
        "has_targets": has_targets,
        "legend": [*zip(task.names, task.colors, strict=False)],
        "mistakes": [
            {
                "picture": _data_url("jpeg", picture.save, quality=80),
                "caption": caption,
                "key": source.key(i),
            }
            for picture, (i, caption) in zip(pictures, mistakes, strict=True)
        ],
    }


def _metrics(task: Task, evaluation: Evaluation) -> dict[str, str]:
    values = evaluation.metrics
    return {
        metric.label: metric.show(values[metric.name])
        for metric in (*task.metrics, LOSS)
        if metric.name in values
    }


def _stalls(totals: Totals) -> dict[str, Any] | None:
    waits = [float(value) for value in column(training_records(totals.records), "data_wait_pct")]
    if not waits:
        return None
    return {
        "share": f"{min(100.0, totals.data_wait_pct):.1f}",
        "worst": f"{max(waits):.1f}",
        "verdict": totals.verdict,
        "percentiles": PERCENTILES,
        "steps": "without the first steps after the last start"
        if len(totals.steps)
        else "median epoch",
        "parts": {
            part.replace("_", " "): list(map(format_milliseconds, values))
            for part, values in totals.parts.items()
        },
    }


def _thumbnail(source: Source, index: int) -> Image.Image:
    """Gray if the image can no longer be read, or not by Pillow."""
    try:
        with Image.open(io.BytesIO(read_image(source, index).numpy().tobytes())) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:  # Pillow raises errors of many types for damaged files
        logger.warning("no thumbnail of %s: %s", source.key(index), printable(str(error)))
        image = Image.new("RGB", (THUMBNAIL, THUMBNAIL), "#cbd5e0")
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    return image


def _data_url(kind: str, save: Callable[..., object], **options: Any) -> str:
    """Returns what a figure's or an image's `save` writes as `png` or `jpeg`."""
    buffer = io.BytesIO()
    save(buffer, format=kind, **options)
    return _embedded(kind, buffer.getvalue())


def _embedded(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
