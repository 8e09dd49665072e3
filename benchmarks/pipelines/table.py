"""The measurements of the pipelines as tables, and the recommended setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure import table
from benchmarks.pipelines.peers import COPIES, PEERS, TURBOLOADER
from benchmarks.pipelines.run_case import DALI_READER, STAGES, Result

ON_FILES = "threads, plain files"
ON_INDEXED = "threads, indexed files"
ENGINES = ("pillow", "workers", "threads", "dali")
BASELINE = "pillow"
LABELS = {
    "pillow": "Pillow + DataLoader",
    "workers": "this template (workers)",
    "threads": "this template (threads)",
    "dali": "this template (dali)",
    "imagefolder": "ImageFolder + DataLoader",
    "torchcodec": "torchcodec + DataLoader",
    "webdataset": "WebDataset",
    "litdata": "LitData",
    "mosaicml": "MosaicML Streaming",
    TURBOLOADER: "TurboLoader",
    DALI_READER: "DALI",
    "spdl.io": "SPDL",
    **{way: f"this template ({way})" for way in (ON_FILES, ON_INDEXED)},
}
"""Names in plots."""
DALI_WAYS = (
    "`dali` is an engine of this template that decodes with DALI; `dali.fn` is DALI with its own "
    "reader, random crop and prefetch, on plain files."
)
PEER_WAYS = (
    "`imagefolder`, `webdataset`, `litdata` and `mosaicml` (MosaicML Streaming) read the same "
    "images in their own formats, set up as their documentation recommends: shuffled, with "
    "persistent worker processes and two batches ahead for each. All four decode with torchvision "
    "to uint8 tensors, and the training process normalizes: both take less CPU time than Pillow's "
    "images and floats from the workers. `torchcodec` is `imagefolder` with torchcodec's decoder, "
    "for which torchvision deprecates its own. Pauses between their epochs are not measured. "
    "`turboloader` (TurboLoader) crops at random, resizes with antialiasing and normalizes in its "
    "own threads, one per core, and may decode at a reduced scale; its batches are floats in all "
    f"stages. It reads a tar file of {COPIES} copies of each image, as it has no longer epochs."
)
_AS_FAST = 0.95


@dataclass(frozen=True)
class Measurement:
    """One engine (`way`) with one number of workers."""

    way: str
    workers: int
    result: Result

    @property
    def label(self) -> str:
        return LABELS[self.way]

    @property
    def rate(self) -> float:
        """Images per second through all stages."""
        return self.result.images_per_second[-1]

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per image through all stages."""
        return self.result.cpu_ms_per_image[-1]

    @property
    def own_megabytes(self) -> float:
        """Memory of the pipeline, without what the process had before."""
        return self.result.megabytes - self.result.idle_megabytes

    @property
    def figures(self) -> tuple[float, ...]:
        """Returns the figures to compare."""
        return self.rate, self.cpu_ms, self.own_megabytes, self.result.megabytes


def best_of_each(measured: Sequence[Measurement]) -> list[Measurement]:
    """Returns each engine with the number of workers that gave the most images per second."""
    best: dict[str, Measurement] = {}
    for one in measured:
        if one.way not in best or one.rate > best[one.way].rate:
            best[one.way] = one
    return list(best.values())


def rates_table(measured: Sequence[Measurement]) -> str:
    """Returns all measurements."""
    stages = STAGES[: len(measured[0].result.images_per_second)]
    rows = [
        [
            one.way,
            one.workers,
            *(f"{rate:.0f}" for rate in one.result.images_per_second),
            f"{one.cpu_ms:.2f}",
            f"{one.own_megabytes:.0f}",
            f"{one.result.megabytes:.0f}",
        ]
        for one in measured
    ]
    head = ["engine", "workers", *(f"{stage}, images/s" for stage in stages)]
    return table([*head, "CPU ms per image", "pipeline MB", "total MB"], rows)


def ratios_table(measured: Sequence[Measurement]) -> str:
    """Returns the best of each engine relative to the best of the baseline."""
    best = best_of_each(measured)
    base = next((one for one in best if one.way == BASELINE), best[0])
    rows = []
    for one in best:
        ratios = [a / b for a, b in zip(one.figures, base.figures, strict=True)]
        rows.append([one.way, one.workers, *(f"{ratio:.2f}x" for ratio in ratios)])
    head = ["engine", "best workers", f"images/s of {base.way}", "CPU per image"]
    return table([*head, "pipeline MB", "total MB"], rows)


def advice(measured: Sequence[Measurement]) -> str:
    """Returns the setting to use on this machine: of equally fast ones, the one with the least CPU
    time."""
    best = best_of_each(measured)
    engines = [one for one in measured if one.way in ENGINES]
    if not engines:
        return "No engine of this template was measured."
    fastest = max(one.rate for one in engines)
    chosen = min(
        (one for one in engines if one.rate >= _AS_FAST * fastest),
        key=lambda one: (round(one.cpu_ms, 2), one.workers),
    )
    text = (
        f"Pack with `make dataset`, then use `data=shards data.root=... pipeline={chosen.way} "
        f"pipeline.num_workers={chosen.workers}`: {chosen.rate:.0f} images/s, "
        f"{chosen.cpu_ms:.2f} CPU ms per image. "
    )
    base = next((one for one in best if one.way == BASELINE), None)
    if base is not None and chosen.way != BASELINE:
        text += (
            f"That is {chosen.rate / base.rate:.1f} times the best of `{BASELINE}`, with "
            f"{chosen.cpu_ms / base.cpu_ms:.2f} of its CPU time and "
            f"{chosen.own_megabytes / base.own_megabytes:.2f} of its memory. "
        )
    return (
        text
        + _others(best, fastest)
        + _packing(best)
        + (
            f"A model that needs fewer than {chosen.rate:.0f} images/s, and leaves these cores to "
            "the pipeline, does not wait for data."
        )
    )


def _others(best: Sequence[Measurement], ours: float) -> str:
    """Returns the fastest loader that is not this template's, and whether it wins."""
    others = [one for one in best if one.way in (DALI_READER, "spdl.io", *PEERS)]
    if not others:
        return ""
    fastest = max(others, key=lambda one: one.rate)
    wins = ", more than any engine of this template" if fastest.rate > ours else ""
    return f"The fastest of the others is {fastest.label}: {fastest.rate:.0f} images/s{wins}. "


def _packing(best: Sequence[Measurement]) -> str:
    """Returns the gain from packing, if the same images were also read as files."""
    rates = {one.way: one.rate for one in best}
    if "threads" not in rates or ON_FILES not in rates:
        return ""
    packed, files = rates["threads"], rates[ON_FILES]
    text = (
        f"`make dataset` packs the images: `threads` was {packed / files:.2f} times as fast as on "
        f"plain files ({files:.0f} images/s). "
    )
    if ON_INDEXED in rates:
        text += f"With `output_format=index`, files were {rates[ON_INDEXED] / files:.2f} times as "
        text += "fast where they lie. "
    return text
