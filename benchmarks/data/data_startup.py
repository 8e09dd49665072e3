"""Opening an index of a million samples, and resuming an epoch: docs/results/data-startup.md.

Memory is the peak growth of a new process that has already imported everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np

from benchmarks import measure
from benchmarks.data.data_reading import write_shards
from benchmarks.sample_photographs import indexed_photographs
from entry_point.config.data_config import Access, DataConfig, PipelineConfig
from entry_point.config.part import Part
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.order import EpochPlan, Plan
from entry_point.data.plan.stream_order import StreamPlan
from entry_point.data.sources.dataset_description import (
    Description,
    Shard,
    Split,
    write_description,
)
from entry_point.data.sources.shard_table import write_table
from entry_point.data.sources.shards import COLUMNS
from entry_point.data.sources.source import Source
from entry_point.data.sources.stream import StreamSource

ROUNDS = 5
SAMPLES, PER_SHARD, LENGTH = 1_000_000, 2_500, 100_000
ACCESS: tuple[Access, ...] = ("map", "stream")


def write_large_index(root: Path, samples: int) -> None:
    """Write an index of `samples` samples, with sparse shards of the sizes it states."""
    (root / "train").mkdir(parents=True)
    each, shard_count = PER_SHARD, samples // PER_SHARD
    rows, size = np.arange(shard_count * each), np.full(shard_count * each, 500)
    values = {
        "label": rows % 1000,
        "shard": rows // each,
        "offset": rows % each * LENGTH,
        "length": np.full(len(rows), LENGTH),
        "height": size,
        "width": size,
        "orientation": np.ones(len(rows)),
        "crc32": rows,
        "side_offset": np.zeros(len(rows)),
        "side_length": np.zeros(len(rows)),
    }
    columns = {name: values[name].astype(number) for name, number in COLUMNS.items()}
    keys = [f"n{row % 1000:08d}/n{row % 1000:08d}_{row}".encode() for row in rows.tolist()]
    checksum = write_table(root / "train" / Part().index, columns, keys)
    shards = [
        Shard(f"shard-{number:06d}.tar", each * LENGTH, each, 0) for number in range(shard_count)
    ]
    for shard in shards:
        with (root / "train" / shard.file).open("wb") as file:
            file.truncate(shard.bytes)
    classes = [f"n{label:08d}" for label in range(1000)]
    split = Split(shards, checksum)
    write_description(root, Description(classes, {"train": split}, "benchmark", ""))


@dataclass(frozen=True)
class Start:
    """The cost of opening a split and of ordering its first epoch."""

    samples: int
    opened: float
    """Seconds to open the split."""
    ordered: float
    """Seconds to order its first epoch."""
    megabytes: float
    """Peak growth of the process."""


def start(root: Path, access: Access) -> Start:
    """start_here in a new process, whose memory shows no earlier peak."""
    command = [sys.executable, "-m", "benchmarks.data.data_startup", str(root), access]
    return Start(**json.loads(subprocess.check_output(command)))


def start_here(root: Path, access: Access) -> Start:
    data = DataConfig(format="shards", root=str(root), access=access)
    with measure.peak_growth() as growth:
        began = time.perf_counter()
        source = open_source(data, "train", root)
        opened = time.perf_counter()
        plan: Plan = EpochPlan(len(source), 256, 0, True)
        if isinstance(source, StreamSource):
            plan = StreamPlan(source, 0, 1, batch_size=256, seed=0, train=True)
        next(plan.batches(0))
        ordered = time.perf_counter()
    return Start(len(source), opened - began, ordered - opened, growth.megabytes)


def start_rows(root: Path) -> list[list[object]]:
    rows: list[list[object]] = []
    for access in ACCESS:
        found = start(root, access)
        rows += [
            [f"{access}: index of {found.samples} samples, open", f"{found.opened:.2f} s"],
            [f"{access}: order of the first epoch", f"{found.ordered:.2f} s"],
            [f"{access}: peak memory of both", f"{found.megabytes:.0f} MB"],
        ]
    return rows


def resume_rows(root: Path, access: Access) -> list[list[object]]:
    data = DataConfig(format="shards", root=str(root), access=access)
    source = open_source(data, "train", root)
    loader = _loader(source, data)
    steps = loader.steps_per_epoch
    next(loader.epoch(0))
    loader.close()
    times: dict[int, list[float]] = {s: [] for s in (0, steps // 4, steps // 2, steps - 1)}
    for _ in range(ROUNDS):
        for step, found in times.items():
            found.append(_first_batch_seconds(source, data, step))
    return [
        [f"{access}: first batch from step {step} of {steps}", f"{1e3 * median(found):.0f} ms"]
        for step, found in times.items()
    ]


def _loader(source: Source, data: DataConfig) -> Loader:
    pipeline = PipelineConfig(engine="threads", num_workers=1)
    return build_loader(source, LoaderSpec(data, pipeline, "train", 16, seed=0))


def _first_batch_seconds(source: Source, data: DataConfig, step: int) -> float:
    """Seconds with a new loader: a loader in use first finishes its batches."""
    loader = _loader(source, data)
    began = time.perf_counter()
    next(loader.epoch(1, step))
    seconds = time.perf_counter() - began
    loader.close()
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        few, many = Path(folder, "few"), Path(folder, "many")
        write_shards(few, indexed_photographs(), 20_000)
        resumed = [row for access in ACCESS for row in resume_rows(few, access)]
        write_large_index(many, SAMPLES)
        rows = start_rows(many) + resumed
    title = "Opening a large index and resuming an epoch"
    method = (
        "Wall-clock time, warm page cache. Memory: peak growth of a process that has imported "
        "everything. Resumed epochs: batches of 16 from 20,000 packed photographs, one thread, "
        f"new loaders, medians of {ROUNDS} alternating rounds."
    )
    table = measure.table(["", ""], rows)
    sys.stdout.write(measure.write("data-startup", "data", title, method, [table]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(
            json.dumps(asdict(start_here(Path(sys.argv[1]), cast(Access, sys.argv[2]))))
        )
    else:
        main()
