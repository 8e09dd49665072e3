"""The pipelines' results: a Markdown page with its plot, and README's picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import draw_bars, measured_by, write_page
from benchmarks.pipelines.compare import COMPARISON, Compared, compared_table
from benchmarks.pipelines.peers import PEERS
from benchmarks.pipelines.run_case import DALI_READER
from benchmarks.pipelines.table import (
    DALI_WAYS,
    PEER_WAYS,
    Measurement,
    advice,
    best_of_each,
    rates_table,
    ratios_table,
)
from entry_point.job.text import counted

TITLE = "Pipeline engines: throughput, CPU time and memory"
PHONES_BATCH = 8
PHONES = (
    "36 photographs as phones make them (3000x4000, quality 95, 4:2:0, 3.6 MB each), in batches "
    f"of {PHONES_BATCH}:\n"
)
SHOWN = ("threads", DALI_READER, "spdl.io", *PEERS, "pillow")
"""Engines in README's picture from top to bottom, if they were measured."""
INK = {"light": "#1f2328", "dark": "#f0f6fc"}
CPU_TIME = "CPU ms/image (less is better)"
_PACKAGES = (
    "torchvision",
    "Pillow",
    "spdl-core",
    "spdl-io",
    "nvidia-dali-cuda130",
    "webdataset",
    "litdata",
    "mosaicml-streaming",
    "torchcodec",
    "turboloader",
)


@dataclass(frozen=True)
class Page:
    images: str
    """Which images the pipelines read."""
    batch_size: int
    image_size: int
    rounds: int
    measured: Sequence[Measurement]
    phones: Sequence[Measurement] = ()
    """The same of photographs of 12 megapixels."""
    compared: Mapping[str, Compared] = field(default_factory=dict)
    """Loader -> what it delivered."""

    def write(self, stem: Path, plots: Path) -> str:
        """Write STEM.md and PLOTS/<name of STEM>.png; returns the Markdown."""
        picture = plots / f"{stem.name}.png"
        draw(self.measured, picture)
        return write_page(
            stem.with_suffix(".md"),
            TITLE,
            f"**Recommendation.** {advice(self.measured)}",
            f"![{TITLE}]({picture.relative_to(stem.parent)})",
            rates_table(self.measured),
            ratios_table(self.measured),
            *((PHONES, rates_table(self.phones), ratios_table(self.phones)) if self.phones else ()),
            *((COMPARISON, compared_table(self.compared)) if self.compared else ()),
            self._method(),
        )

    def _method(self) -> str:
        return (
            f"{self.images}. Random resized crops of {self.image_size} pixels in batches of "
            f"{self.batch_size}; medians of {counted(self.rounds, 'alternating round')}, each run "
            "in a new process. Stages build on one another: make images; hand batches over; "
            "normalize them in the training process on the CPU, or, in the last stage, copy them "
            "to the GPU and normalize there. CPU time and memory include child processes. malloc "
            "returns no memory to the kernel and has no per-thread caches; otherwise page faults "
            "vary by chance. Memory leaves out mapped files; the pipeline's memory also leaves out "
            "what the process had before (mostly torch). threads and workers are this "
            f"template's engines. {DALI_WAYS} {PEER_WAYS} "
            + measured_by('make bench ARGS="publish=true seconds=1 rounds=3"', _PACKAGES)
        )


def draw(measured: Sequence[Measurement], file: Path) -> None:
    """The best of each engine: throughput, CPU time and memory."""
    best = {f"{one.label}, {one.workers}": one for one in best_of_each(measured)}
    panels = {
        "images/s (more is better)": {name: one.rate for name, one in best.items()},
        CPU_TIME: {name: one.cpu_ms for name, one in best.items()},
        "pipeline MB (less is better)": {name: one.own_megabytes for name, one in best.items()},
    }
    draw_bars(file, panels)


def write_pictures(
    measured: Sequence[Measurement], phones: Sequence[Measurement], folder: Path
) -> None:
    """Write README's pipelines-light.svg and pipelines-dark.svg: others beside `threads`, each with
    its best number of workers, and those of `phones` on photographs of 12 megapixels."""
    best = {one.way: one for one in best_of_each(measured)}
    shown = [best[way] for way in SHOWN if way in best]
    panels = {
        "images/s (more is better)": {one.label: one.rate for one in shown},
        CPU_TIME: {one.label: one.cpu_ms for one in shown},
        "images/s, 12 megapixels": {one.label: one.rate for one in phones},
    }
    for theme, ink in INK.items():
        draw_bars(folder / f"pipelines-{theme}.svg", panels, ink=ink)
