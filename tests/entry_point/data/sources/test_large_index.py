"""The memory that opening a large packed split takes.

`python -m tests.entry_point.data.sources.test_large_index SMALL LARGE map|stream` prints the
megabytes that LARGE takes. The process is new: its memory shows no earlier peak. It opens SMALL
first, which imports, and perhaps compiles, what is needed.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest

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
from tests import forkserver

SAMPLES, BYTES_EACH = 500_000, 160
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


def growth(root: Path, access: Access) -> float:
    """How many megabytes opening a split and ordering its first epoch take at most (Linux)."""
    data = DataConfig(format="shards", root=str(root), access=access)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _status_megabytes("VmRSS")
    source = open_source(data, "train", root)
    plan: Plan = EpochPlan(len(source), 256, 0, True)
    if isinstance(source, StreamSource):
        plan = StreamPlan(source, 0, 1, batch_size=256, seed=0, train=True)
    next(plan.batches(0))
    return _status_megabytes("VmHWM") - before


def _status_megabytes(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    write_large_index(root / "small", PER_SHARD)
    write_large_index(root / "large", SAMPLES)
    return root


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's clear_refs")
@pytest.mark.parametrize("access", ["map", "stream"])
def test_large_index_takes_little_memory_until_the_first_epoch_order_is_known(
    indexes: Path, access: Access, tmp_path: Path
) -> None:
    """The goal is 200 MB for a million samples; the limit here is stricter."""
    output, _ = forkserver.start(
        ["-m", __name__, str(indexes / "small"), str(indexes / "large"), access], tmp_path / "log"
    ).communicate(60)
    assert float(output) * 1e6 <= SAMPLES * BYTES_EACH


if __name__ == "__main__":
    small, large, access = sys.argv[1:]
    growth(Path(small), cast(Access, access))
    sys.stdout.write(str(growth(Path(large), cast(Access, access))))
