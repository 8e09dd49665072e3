"""What was measured of the pipelines, as a table and as advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measure import table
from benchmarks.pipelines.run_case import STAGES, Result

ON_FILES = "threads, on the files"
ENGINES = ("pillow", "workers", "threads", "subprocess", "dali")
BASELINE = "pillow"
_AS_FAST = 0.95


@dataclass(frozen=True)
class Measurement:
    """One way with one number of workers."""

    way: str
    workers: int
    result: Result

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
        """Of the pipeline: what the process had before it began is not counted."""
        return self.result.megabytes - self.result.idle_megabytes


def best_of_each(measured: Sequence[Measurement]) -> list[Measurement]:
    """Each way with the number of workers that gave the most images per second."""
    best: dict[str, Measurement] = {}
    for one in measured:
        if one.way not in best or one.rate > best[one.way].rate:
            best[one.way] = one
    return list(best.values())


def rates_table(measured: Sequence[Measurement]) -> str:
    """All that was measured."""
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
    head = ["way", "workers", *(f"{stage}, images/s" for stage in stages)]
    return table([*head, "CPU ms per image", "MB of the pipeline", "MB in all"], rows)


def ratios_table(measured: Sequence[Measurement]) -> str:
    """The best of each way against the best of the baseline."""
    best = best_of_each(measured)
    base = next((one for one in best if one.way == BASELINE), best[0])
    rows = [
        [
            one.way,
            one.workers,
            f"{one.rate / base.rate:.2f}x",
            f"{one.cpu_ms / base.cpu_ms:.2f}x",
            f"{one.own_megabytes / base.own_megabytes:.2f}x",
            f"{one.result.megabytes / base.result.megabytes:.2f}x",
        ]
        for one in best
    ]
    head = ["way", "best workers", f"images/s of {base.way}'s", "CPU per image", "memory", "in all"]
    return table(head, rows)


def advice(measured: Sequence[Measurement]) -> str:
    """The setting to use on this machine, and why. Of equals, the one that takes least CPU."""
    best = best_of_each(measured)
    engines = [one for one in measured if one.way in ENGINES]
    if not engines:
        return "No engine of this repository was measured."
    fastest = max(one.rate for one in engines)
    chosen = min(
        (one for one in engines if one.rate >= _AS_FAST * fastest),
        key=lambda one: (round(one.cpu_ms, 2), one.workers),
    )
    text = (
        f"Use `data=shards data.root=... pipeline={chosen.way} "
        f"pipeline.num_workers={chosen.workers}`: {chosen.rate:.0f} images/s, "
        f"{chosen.cpu_ms:.2f} ms of CPU per image. "
    )
    base = next((one for one in best if one.way == BASELINE), None)
    if base is not None and chosen.way != BASELINE:
        text += (
            f"That is {chosen.rate / base.rate:.1f} times the best of `{BASELINE}` for "
            f"{chosen.cpu_ms / base.cpu_ms:.2f} of its CPU and "
            f"{chosen.own_megabytes / base.own_megabytes:.2f} of its memory. "
        )
    return (
        text
        + _packing(best)
        + (
            f"A model that takes fewer than {chosen.rate:.0f} images/s, and leaves these cores to "
            "the pipeline, does not wait for data."
        )
    )


def _packing(best: Sequence[Measurement]) -> str:
    """What packed images bring, where the same ones were read as files."""
    packed = next((one for one in best if one.way == "threads"), None)
    files = next((one for one in best if one.way == ON_FILES), None)
    if packed is None or files is None:
        return ""
    return (
        f"`make dataset` makes these shards: with them `threads` gave "
        f"{packed.rate / files.rate:.2f} times the {files.rate:.0f} images/s of the files as they "
        "are. "
    )
