"""The pipelines' results: a plot and a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

from benchmarks.measure import color, measured_by
from benchmarks.pipelines.compare import COMPARISON, Compared, compared_table
from benchmarks.pipelines.run_case import STAGES
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

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

TITLE = "Pipeline engines: throughput, CPU time and memory"
PHONES_BATCH = 8
PHONES = (
    "36 photographs as phones make them (3000x4000, quality 95, 4:2:0, 3.6 MB each), in batches "
    f"of {PHONES_BATCH}:\n"
)
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
        plots.mkdir(parents=True, exist_ok=True)
        picture = plots / f"{stem.name}.png"
        plot(self.measured, picture)
        parts = [
            f"# {TITLE}\n\n**Recommendation.** {advice(self.measured)}\n",
            f"![{TITLE}]({picture.relative_to(stem.parent)})\n",
            rates_table(self.measured),
            ratios_table(self.measured),
        ]
        if self.phones:
            parts += [PHONES, rates_table(self.phones), ratios_table(self.phones)]
        if self.compared:
            parts += [COMPARISON, compared_table(self.compared)]
        text = "\n".join([*parts, f"{self._method()}\n"])
        stem.with_suffix(".md").write_text(text)
        return text

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


def plot(measured: Sequence[Measurement], file: Path) -> None:
    """Throughput by stage, CPU time and memory of the best of each engine; images/s by workers."""
    plt.rcParams["font.size"] = 11
    best = best_of_each(measured)
    names = [f"{one.label}, {one.workers}" for one in best]
    colors = [color(one.label) for one in best]
    figure, ((stages, cpu), (memory, scaling)) = plt.subplots(2, 2, figsize=(13, 8.5))
    _bars_by_stage(stages, best, names)
    cpu.barh(names, [one.cpu_ms for one in best], color=colors)
    cpu.set(title="CPU time", xlabel="CPU ms per image (less is better)", yticklabels=[])
    memory.barh(names, [one.own_megabytes for one in best], color=colors)
    memory.set(title="Memory of the pipeline", xlabel="MB (less is better)")
    for bars in (stages, cpu, memory):
        bars.invert_yaxis()
    for one in best:
        same = [each for each in measured if each.way == one.way]
        workers, rates = [each.workers for each in same], [each.rate for each in same]
        scaling.plot(workers, rates, marker="o", color=color(one.label))
    title, unit = "Scaling (colors as on the left)", "workers (threads or processes)"
    scaling.set(title=title, xlabel=unit, ylabel="images/s", ylim=(0, None))
    scaling.set_xticks(sorted({one.workers for one in measured}))
    figure.tight_layout()
    figure.savefig(file, dpi=75)
    plt.close(figure)


def _bars_by_stage(axes: Axes, best: Sequence[Measurement], names: Sequence[str]) -> None:
    """One bar per stage in the engine's color, paler for the earlier stages."""
    stages = STAGES[: len(best[0].result.images_per_second)]
    height = 0.8 / len(stages)
    for number in range(len(stages)):
        rates = [one.result.images_per_second[number] for one in best]
        places = [place + number * height for place in range(len(best))]
        shade = (number + 1) / len(stages)
        axes.barh(places, rates, height, color=[(color(one.label), shade) for one in best])
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(best))], names)
    title = "Throughput, with the best number of workers"
    axes.set(title=title, xlabel=f"images/s (more is better): {', '.join(stages)}")
