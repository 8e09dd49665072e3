"""A packed split of any size, and a program that opens it.

`python -m tests.entry_point.data.sources.large_index ROOT map|stream` prints a Start as JSON. The
process is new: its memory shows no earlier peak.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np

from entry_point.config.data_config import Access, DataConfig
from entry_point.config.part import Part
from entry_point.data.loader import open_source
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
from entry_point.data.sources.stream import StreamSource

PER_SHARD, LENGTH = 2_500, 100_000


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
    megabytes: float
    """How far the process's resident memory grew at most."""


def start(root: Path, access: Access) -> Start:
    """Open the split and order its first epoch (Linux)."""
    data = DataConfig(format="shards", root=str(root), access=access)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _status_megabytes("VmRSS")
    source = open_source(data, "train", root)
    plan: Plan = EpochPlan(len(source), 256, 0, True)
    if isinstance(source, StreamSource):
        plan = StreamPlan(source, 0, 1, batch_size=256, seed=0, train=True)
    next(plan.batches(0))
    return Start(len(source), _status_megabytes("VmHWM") - before)


def _status_megabytes(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(start(Path(sys.argv[1]), cast(Access, sys.argv[2])))))
