"""The pipelines' results on disk: a plot, a Markdown file and one HTML page that needs no other."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from benchmarks.measure import machine, versions
from benchmarks.pipelines.run_case import STAGES
from benchmarks.pipelines.table import (
    Measurement,
    advice,
    best_of_each,
    rates_table,
    ratios_table,
)

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

TITLE = "Pipelines: how fast batches come"
_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:62em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .7em;border-bottom:1px solid #ccc;"
    "text-align:right}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
    ".advice{padding:.7em 1em;background:#eef6ee;border-left:4px solid #393}"
)
_PACKAGES = ("torchvision", "Pillow", "spdl-core", "spdl-io", "nvidia-dali-cuda120")


@dataclass(frozen=True)
class Page:
    images: str
    """Which were read."""
    batch_size: int
    image_size: int
    rounds: int
    measured: Sequence[Measurement]

    def write(self, stem: Path) -> str:
        """Writes STEM.md and STEM.png; returns the Markdown."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        plot(self.measured, stem.with_suffix(".png"))
        text = self._markdown(f"{stem.name}.png")
        stem.with_suffix(".md").write_text(text)
        return text

    def write_html(self, stem: Path) -> None:
        """Writes STEM.html, with STEM.png and the tables inside."""
        stem.with_suffix(".html").write_text(self._html(stem.with_suffix(".png")))

    def _method(self) -> str:
        return (
            f"{self.images}. Random resized crops of {self.image_size} pixels in batches of "
            f"{self.batch_size}; medians of {self.rounds} alternating rounds, each run in a "
            "process of its own. Stages build on one another: images made, handed over as "
            "batches, normalised by the training process on the CPU; or, the last, copied to the "
            "GPU where there is one and normalised there instead. CPU and "
            "memory are those of the process and its children; memory leaves out mapped files, and "
            "the pipeline's is what came on top of the process as it was before (mostly torch). "
            f"{machine()}; {versions(_PACKAGES)}."
        )

    def _markdown(self, plot_name: str) -> str:
        return "\n".join(
            [
                f"# {TITLE}\n\n{self._method()}\n",
                rates_table(self.measured),
                ratios_table(self.measured),
                f"**Recommendation.** {advice(self.measured)}\n",
                f"![{TITLE}]({plot_name})\n",
            ]
        )

    def _html(self, picture: Path) -> str:
        data = base64.b64encode(picture.read_bytes()).decode()
        parts = [
            f"<h1>{TITLE}</h1>",
            f'<p class="advice"><b>Recommendation.</b> {_inline(advice(self.measured))}</p>',
            f'<img alt="{TITLE}" src="data:image/png;base64,{data}">',
            _html_table(rates_table(self.measured)),
            "<h2>Best of each way</h2>",
            _html_table(ratios_table(self.measured)),
            f"<p>{html.escape(self._method())}</p>",
        ]
        head = f'<meta charset="utf-8"><title>{TITLE}</title><style>{_STYLE}</style>'
        return f"<!doctype html><html><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def plot(measured: Sequence[Measurement], file: Path) -> None:
    """Images per second over workers, by stage for the best of each way, and CPU and memory."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.5))
    best = best_of_each(measured)
    for way in (one.way for one in best):
        of_way = [one for one in measured if one.way == way]
        workers, rates = [one.workers for one in of_way], [one.rate for one in of_way]
        axes[0, 0].plot(workers, rates, marker="o", label=way)
    axes[0, 0].set(title="All stages", xlabel="workers", ylabel="images/s", ylim=(0, None))
    axes[0, 0].set_xticks(sorted({one.workers for one in measured}))
    axes[0, 0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    names = [f"{one.way} ({one.workers})" for one in best]
    _by_stage(axes[0, 1], best, names)
    axes[1, 0].barh(names, [one.cpu_ms for one in best], color="tab:gray")
    axes[1, 0].set(title="CPU ms per image")
    axes[1, 1].barh(names, [one.own_megabytes for one in best], color="tab:gray")
    axes[1, 1].set(title="Memory of the pipeline in MB")
    for bars in (axes[0, 1], axes[1, 0], axes[1, 1]):
        bars.invert_yaxis()
    figure.tight_layout()
    figure.savefig(file, dpi=80)
    plt.close(figure)


def _by_stage(axes: Axes, best: Sequence[Measurement], names: Sequence[str]) -> None:
    stages = STAGES[: len(best[0].result.images_per_second)]
    height = 0.8 / len(stages)
    for number, stage in enumerate(stages):
        rates = [one.result.images_per_second[number] for one in best]
        places = [place + number * height for place in range(len(best))]
        axes.barh(places, rates, height, label=stage)
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(best))], names)
    axes.set(title="By stage, best workers of each", xlabel="images/s")
    axes.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, -0.15), ncols=2)


def _html_table(markdown: str) -> str:
    head, _, *rows = (line.strip("| \n").split(" | ") for line in markdown.splitlines())
    lines = [_html_row("th", head), *(_html_row("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _html_row(cell: str, values: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{html.escape(v)}</{cell}>' for v in values)}</tr>"


def _inline(markdown: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(markdown, quote=False))
