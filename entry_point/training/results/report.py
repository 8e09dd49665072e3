"""Writes self-contained pages: on a run, and on the evaluation of a finished model."""

from __future__ import annotations

import base64
import io
import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torchvision
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image, ImageOps

from entry_point.contract.metrics_line import LOSS, PERCENTILES
from entry_point.contract.printable import printable
from entry_point.contract.whole_file import write_text
from entry_point.data.sources.source import Source
from entry_point.training.evaluation import Evaluation
from entry_point.training.measure.totals import Totals
from entry_point.training.results.finished_run import FinishedRun
from entry_point.training.results.metrics_log import (
    column,
    format_milliseconds,
    training_records,
)
from entry_point.training.results.plot import draw
from entry_point.training.results.summary import run_facts
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

TEMPLATE = "report.html.jinja"
THUMBNAIL = 120
WORST = 12


def write_report(path: Path, run: FinishedRun, samples: Figure | None) -> None:
    """Write the page of a run. `samples` shows training samples; None: no such picture."""
    totals, evaluation = run.totals, run.evaluation
    validation = {
        f"validation {label}": value for label, value in _metrics(run.task, evaluation).items()
    }
    _write_page(
        path,
        title=run.title,
        about=run_facts(run.folder, totals, run.devices),
        numbers=validation | _speed(totals),
        curves=_picture(draw(totals.records, run.title, run.metric), "png"),
        stalls=_stalls(totals),
        samples=samples and _picture(samples, "jpeg", pil_kwargs={"quality": 80}),
        config=run.yaml,
        **_of_evaluation(run.task, evaluation, run.val),
    )


def write_evaluation(
    path: Path,
    title: str,
    facts: Mapping[str, str],
    task: Task,
    evaluation: Evaluation,
    source: Source,
) -> None:
    """Write a page on an evaluation of `source`: metrics, tables and the worst predictions."""
    _write_page(
        path,
        title=title,
        about=facts,
        numbers=_metrics(task, evaluation),
        **_of_evaluation(task, evaluation, source),
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
    sections = dict.fromkeys(("curves", "stalls", "samples", "config"))
    page = environment.get_template(TEMPLATE).render(
        sections | {"environment": _environment()} | content
    )
    write_text(path, page.lstrip())


def _of_evaluation(task: Task, evaluation: Evaluation, source: Source) -> dict[str, Any]:
    mistakes = [
        (int(evaluation.indices[row]), caption)
        for row, caption in task.mistakes(evaluation.scores, WORST)
    ]
    return {
        "tables": task.tables(evaluation.scores),
        "mistakes": [
            {"picture": _thumbnail(source, i), "caption": caption, "key": source.key(i)}
            for i, caption in mistakes
        ],
    }


def _metrics(task: Task, evaluation: Evaluation) -> dict[str, str]:
    values = evaluation.metrics
    return {
        metric.label: metric.show(values[metric.name])
        for metric in (*task.metrics, LOSS)
        if metric.name in values
    }


def _speed(totals: Totals) -> dict[str, str]:
    if not totals.training_seconds:
        return {}
    return {
        "training images/s": f"{totals.images_per_s:.0f}",
        "of training time waiting for data": f"{totals.data_wait_pct:.1f} %",
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
        "steps": "all steps since the last start" if len(totals.steps) else "median epoch",
        "parts": {
            part.replace("_", " "): list(map(format_milliseconds, values))
            for part, values in totals.parts.items()
        },
    }


def _thumbnail(source: Source, index: int) -> str:
    """A data URL; gray if the image can no longer be read, or not by Pillow."""
    try:
        with Image.open(io.BytesIO(source.read(index).numpy().tobytes())) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:  # Pillow raises errors of many types for damaged files
        logger.warning("no thumbnail of %s: %s", source.key(index), printable(str(error)))
        image = Image.new("RGB", (THUMBNAIL, THUMBNAIL), "#cbd5e0")
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return _data_url("jpeg", buffer.getvalue())


def _picture(figure: Figure, kind: str, **options: Any) -> str:
    """A data URL of a figure as `png` or `jpeg`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=100, **options)
    return _data_url(kind, buffer.getvalue())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _environment() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
        "CUDA": torch.version.cuda or "none",
    }
