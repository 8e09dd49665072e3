"""Writes one self-contained page on the run: curves, step times, the task's tables, mistakes."""

from __future__ import annotations

import base64
import html
import io
import logging
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torchvision
from PIL import Image, ImageOps

from entry_point.contract.metrics_line import LOSS, PERCENTILES, Metric
from entry_point.contract.printable import printable
from entry_point.contract.whole_file import write_text
from entry_point.data.sources.source import Source
from entry_point.training.evaluation import Evaluation
from entry_point.training.measure.totals import Totals
from entry_point.training.results.metrics_log import (
    Record,
    column,
    format_milliseconds,
    training_records,
)
from entry_point.training.results.plot import draw
from entry_point.training.tasks.task import Table, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

THUMBNAIL = 120
WORST = 12

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em;
       color: #1a202c; }
h1 { margin-bottom: 0; font-size: 1.6em; overflow-wrap: anywhere; text-wrap: balance }
h2 { margin-top: 2em; border-bottom: 1px solid #cbd5e0 }
.numbers { display: flex; flex-wrap: wrap; gap: 1em 2.5em; margin: 1em 0 }
.numbers div { max-width: 130px } .numbers b { display: block; font-size: 1.8em;
white-space: nowrap } .wide { overflow-x: auto } img.plot { width: 100%; min-width: 700px }
table { border-collapse: collapse } .matrix td, .matrix th { padding: 3px 7px; text-align: right;
font-size: 12px; white-space: nowrap }
.mistakes { display: flex; flex-wrap: wrap; gap: 1em } figure { margin: 0; width: 150px }
figcaption { font-size: 12px; overflow-wrap: anywhere } pre { background: #f7fafc; padding: 1em;
overflow-x: auto } .meter { display: flex; height: 22px; width: 100%; background: #2b6cb0 }
.meter i { background: #9b2c2c; height: 100% } .facts td { padding-right: 2em }
"""


def write_report(
    path: Path,
    *,
    title: str,
    facts: Mapping[str, str],
    task: Task,
    metric: Metric,
    evaluation: Evaluation,
    source: Source,
    totals: Totals,
    samples: Figure | None,
    config_yaml: str,
) -> None:
    """Write the page.

    `source` is the validation split behind `evaluation`, and `facts` distinguish this run from
    others. The curves show `metric`. `samples` shows training samples; None: no such picture.
    """
    validation = {
        f"validation {label}": value for label, value in _metrics(task, evaluation).items()
    }
    sections = [
        _facts(facts),
        _numbers(validation | _speed(totals)),
        _curves(totals.records, title, metric),
        _stall_meter(totals),
        *map(_table, task.tables(evaluation.scores)),
        _mistakes(task, evaluation, source),
        _training_samples(samples),
        f"<h2>Environment</h2>{_facts(_environment())}",
        f"<h2>Configuration</h2><pre>{html.escape(config_yaml)}</pre>",
    ]
    _write_page(path, title, sections)


def write_evaluation(
    path: Path,
    title: str,
    facts: Mapping[str, str],
    task: Task,
    evaluation: Evaluation,
    source: Source,
) -> None:
    """Write a page on an evaluation of `source`: metrics, tables and the worst predictions."""
    sections = [
        _facts(facts),
        _numbers(_metrics(task, evaluation)),
        *map(_table, task.tables(evaluation.scores)),
        _mistakes(task, evaluation, source),
        f"<h2>Environment</h2>{_facts(_environment())}",
    ]
    _write_page(path, title, sections)


def _write_page(path: Path, title: str, sections: Sequence[str]) -> None:
    name = html.escape(title)
    write_text(
        path,
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title>'
        f"<style>{STYLE}</style></head><body><h1>{name}</h1>{''.join(sections)}</body></html>\n",
    )


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


def _numbers(numbers: Mapping[str, str]) -> str:
    """In large type, with their labels."""
    cells = "".join(
        f"<div><b>{value}</b>{html.escape(label)}</div>" for label, value in numbers.items()
    )
    return f'<div class="numbers">{cells}</div>'


def _curves(records: Sequence[Record], title: str, metric: Metric) -> str:
    buffer = io.BytesIO()
    draw(records, title, metric).savefig(buffer, format="png", dpi=100)
    picture = _data_url("image/png", buffer.getvalue())
    return f"<h2>Curves</h2>{_plot('curves', picture)}"


def _plot(what: str, picture: str) -> str:
    return f'<div class="wide"><img class="plot" alt="{what}" src="{picture}"></div>'


def _stall_meter(totals: Totals) -> str:
    waits = [float(value) for value in column(training_records(totals.records), "data_wait_pct")]
    if not waits:
        return ""
    share = totals.data_wait_pct
    head = "".join(f"<th>p{percentile}</th>" for percentile in PERCENTILES)
    rows = "".join(
        f"<tr><th>{part.replace('_', ' ')}</th>"
        + "".join(f"<td>{format_milliseconds(value)}</td>" for value in values)
        + "</tr>"
        for part, values in totals.parts.items()
    )
    steps = "all steps since the last start" if len(totals.steps) else "median epoch"
    table = (
        f"<p>Step-time percentiles (ms), {steps}:</p>"
        f'<table class="matrix"><tr><th></th>{head}</tr>{rows}</table>'
    )
    return (
        f"<h2>Stall meter</h2><p>Training waited for data {share:.1f} % of its time; in the worst "
        f"log interval, {max(waits):.1f} %.</p>"
        f'<div class="meter"><i style="width:{min(100.0, share):.2f}%"></i></div>'
        + (f"<p><b>{html.escape(totals.verdict)}</b></p>{table}" if rows else "")
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.head)
    rows = "".join(f"<tr>{_cells(row, table.shaded)}</tr>" for row in table.rows)
    note = f"<p>{html.escape(table.note)}</p>" if table.note else ""
    return (
        f"<h2>{html.escape(table.title)}</h2>{note}"
        f'<div class="wide"><table class="matrix"><tr>{head}</tr>{rows}</table></div>'
    )


def _cells(row: Sequence[str | int | float], shaded: bool) -> str:
    name, *values = row
    cells = [f"<th>{html.escape(str(name))}</th>"]
    if not shaded:
        return "".join([*cells, *(f"<td>{html.escape(str(value))}</td>" for value in values)])
    counts = [int(value) for value in values]
    total = max(1, sum(counts))
    cells += (
        f'<td style="background:rgba(43,108,176,{count / total:.2f});'
        f'color:{"white" if count > total / 2 else "inherit"}">{count or ""}</td>'
        for count in counts
    )
    return "".join(cells)


def _mistakes(task: Task, evaluation: Evaluation, source: Source) -> str:
    worst = [
        (int(evaluation.indices[row]), caption)
        for row, caption in task.mistakes(evaluation.scores, WORST)
    ]
    figures = "".join(
        f'<figure><img alt="" src="{_thumbnail(source, index)}"><figcaption>'
        f"{html.escape(caption)}<br>{html.escape(source.key(index))}</figcaption></figure>"
        for index, caption in worst
    )
    return f'<h2>Worst predictions</h2><div class="mistakes">{figures or "None."}</div>'


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
    return _data_url("image/jpeg", buffer.getvalue())


def _training_samples(figure: Figure | None) -> str:
    if figure is None:
        return ""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="jpeg", dpi=100, pil_kwargs={"quality": 80})
    picture = _data_url("image/jpeg", buffer.getvalue())
    return (
        "<h2>Training samples</h2>"
        "<p>The first of the first epoch: cropped, augmented and mixed as for the model.</p>"
        f"{_plot('training samples', picture)}"
    )


def _facts(facts: Mapping[str, str]) -> str:
    cells = "".join(f"<tr><td>{n}</td><td>{html.escape(v)}</td></tr>" for n, v in facts.items())
    return f'<table class="facts">{cells}</table>'


def _environment() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
        "CUDA": torch.version.cuda or "none",
    }


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
