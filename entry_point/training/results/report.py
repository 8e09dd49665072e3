"""Writes one self-contained page on the run: curves, step times, confusion, worst mistakes."""

from __future__ import annotations

import base64
import html
import io
import logging
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torchvision
from PIL import Image

from entry_point import inference
from entry_point.contract.metrics_line import PERCENTILES
from entry_point.contract.printable import printable
from entry_point.contract.whole_file import write_text
from entry_point.data.errors import DataError
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

logger = logging.getLogger(__name__)

THUMBNAIL = 120
LARGEST_MATRIX = 40
MOST_CONFUSED = 20

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em;
       color: #1a202c; }
h1 { margin-bottom: 0 } h2 { margin-top: 2em; border-bottom: 1px solid #cbd5e0 }
.numbers { display: flex; gap: 3em; margin: 1em 0 } .numbers b { display: block; font-size: 1.8em }
img.plot { width: 100% } table { border-collapse: collapse }
.matrix td, .matrix th { padding: 3px 7px; text-align: right; font-size: 12px }
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
    training: str,
    evaluation: Evaluation,
    source: Source,
    totals: Totals,
    config_yaml: str,
) -> None:
    """Write the page.

    `source` is the validation split behind `evaluation`, `facts` distinguish this run from others,
    and `training` labels the training loss.
    """
    classes = list(source.classes)
    sections = [
        _table(facts),
        _numbers(evaluation, totals),
        _curves(totals.records, title, training),
        _stall_meter(totals),
        _confusion(evaluation.pairs, classes),
        _mistakes(evaluation, source, classes),
        f"<h2>Environment</h2>{_table(_environment())}",
        f"<h2>Configuration</h2><pre>{html.escape(config_yaml)}</pre>",
    ]
    name = html.escape(title)
    write_text(
        path,
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{STYLE}</style></head><body><h1>{name}</h1>{''.join(sections)}</body></html>\n",
    )


def _numbers(evaluation: Evaluation, totals: Totals) -> str:
    numbers = {
        "validation accuracy": f"{100 * evaluation.accuracy:.2f} %",
        "validation loss": f"{evaluation.loss:.4g}",
    }
    if totals.training_seconds:
        numbers["training images/s"] = f"{totals.images_per_s:.0f}"
        numbers["of training time waiting for data"] = f"{totals.data_wait_pct:.1f} %"
    cells = "".join(f"<div><b>{value}</b>{name}</div>" for name, value in numbers.items())
    return f'<div class="numbers">{cells}</div>'


def _curves(records: Sequence[Record], title: str, training: str) -> str:
    buffer = io.BytesIO()
    draw(records, title, training).savefig(buffer, format="png", dpi=100)
    picture = _data_url("image/png", buffer.getvalue())
    return f'<h2>Curves</h2><img class="plot" alt="curves" src="{picture}">'


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


def _confusion(pairs: torch.Tensor, classes: list[str]) -> str:
    """`pairs` as in Evaluation."""
    if len(classes) > LARGEST_MATRIX:
        return _most_confused(pairs, classes)
    confusion = torch.zeros(len(classes), len(classes), dtype=torch.int64)
    confusion[pairs[:, 0], pairs[:, 1]] = pairs[:, 2]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in classes)
    rows = []
    for name, counts in zip(classes, confusion.tolist(), strict=True):
        total = max(1, sum(counts))
        cells = "".join(
            f'<td style="background:rgba(43,108,176,{count / total:.2f});'
            f'color:{"white" if count > total / 2 else "inherit"}">{count or ""}</td>'
            for count in counts
        )
        rows.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
    return (
        "<h2>Confusion matrix</h2><p>Rows are the true classes, columns the predicted ones.</p>"
        f'<table class="matrix"><tr><th></th>{head}</tr>{"".join(rows)}</table>'
    )


def _most_confused(pairs: torch.Tensor, classes: list[str]) -> str:
    """For many classes: the most frequent confusions."""
    wrong = pairs[pairs[:, 0] != pairs[:, 1]]
    most = wrong[wrong[:, 2].argsort(descending=True, stable=True)[:MOST_CONFUSED]]
    rows = "".join(
        f"<tr><td>{html.escape(classes[true])}</td><td>{html.escape(classes[predicted])}</td>"
        f"<td>{count}</td></tr>"
        for true, predicted, count in most.tolist()
    )
    return (
        "<h2>Most frequent confusions</h2>"
        '<table class="matrix"><tr><th>true</th><th>predicted</th><th>images</th></tr>'
        f"{rows}</table>"
    )


def _mistakes(evaluation: Evaluation, source: Source, classes: list[str]) -> str:
    figures = "".join(
        f'<figure><img alt="" src="{_thumbnail(source, mistake.index)}"><figcaption>'
        f"<b>{html.escape(classes[mistake.label])}</b>, predicted "
        f"{html.escape(classes[mistake.predicted])} (loss {mistake.loss:.2f})<br>"
        f"{html.escape(source.key(mistake.index))}</figcaption></figure>"
        for mistake in evaluation.worst
    )
    return f'<h2>Worst mistakes</h2><div class="mistakes">{figures or "None."}</div>'


def _thumbnail(source: Source, index: int) -> str:
    """A data URL; gray if the image can no longer be read, or not by Pillow."""
    try:
        image = inference.read_image(source.read(index).numpy().tobytes())
    except (DataError, OSError, ValueError) as error:
        logger.warning("no thumbnail of %s: %s", source.key(index), printable(str(error)))
        image = Image.new("RGB", (THUMBNAIL, THUMBNAIL), "#cbd5e0")
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return _data_url("image/jpeg", buffer.getvalue())


def _table(facts: Mapping[str, str]) -> str:
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
