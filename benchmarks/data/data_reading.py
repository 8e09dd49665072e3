"""Reading from shards and from files, with a warm page cache: docs/results/data-reading.md.

JPEGs are written under many names, as files with side indexes, as shards and as Parquet. The
contenders alternate in one process and one thread: they decode random resized crops from the end of
a shuffled epoch, or only read the bytes of as many images.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import measure
from benchmarks.data import epochs
from benchmarks.sample_photographs import write_classes
from custom_op import to_baseline
from entry_point.config.data_config import DataConfig
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.loader import open_source
from entry_point.data.packing.index_folder import index_folder
from entry_point.data.packing.pack import pack
from tests.photographs import write_photo_folder

IMAGES, ROUNDS = 20_000, 5
STEPS = 60
"""Batches per round."""
FILES = "files"
TITLE = "Reading shards and files with a warm page cache"


def write_parquet(root: Path, jpegs: list[bytes]) -> None:
    """As Hugging Face's datasets: row groups of 100 images."""
    root.mkdir()
    for first in range(0, IMAGES, 5000):
        numbers = range(first, min(first + 5000, IMAGES))
        images = [{"bytes": jpegs[i % len(jpegs)], "path": f"{i}.jpg"} for i in numbers]
        table = pa.table({"image": images, "label": [f"class{i % 10}" for i in numbers]})
        pq.write_table(table, root / f"train-{first:06d}.parquet", row_group_size=100)


def bytes_only(data: DataConfig) -> epochs.Epoch:
    """Returns a function that reads as many images in random order and decodes none."""
    source = open_source(data, "train", Path())
    order = cycle(np.random.default_rng(0).permutation(len(source)).tolist())
    # The sum touches every page: a mapped file is not read before it is touched.
    return lambda: measure.use(
        source.read(i)[::64].sum() for i in islice(order, STEPS * epochs.BATCH)
    )


def main() -> None:
    torch.set_num_threads(1)  # as in DataLoader workers; more threads would spin
    with tempfile.TemporaryDirectory() as folder:
        # Crops of eight photographs; size, quality and subsampling vary.
        originals = write_photo_folder(Path(folder, "originals"), train=25, val=0)
        jpegs = [
            to_baseline(torch.from_numpy(np.fromfile(file, np.uint8))).numpy().tobytes()
            for file in sorted(originals.rglob("*.jpg"))
        ]
        files, shards, parquet = (Path(folder, name) for name in (FILES, "shards", "parquet"))
        write_classes(files / "train", jpegs, IMAGES, classes=10)
        index_folder(files, None, OptimizeConfig(output_format="index"))
        pack(files, shards, OptimizeConfig(shard_mb=32))
        write_parquet(parquet, jpegs)
        as_files = DataConfig(format="folder", root=str(files))
        mapped = DataConfig(format="shards", root=str(shards))
        in_parquet = DataConfig(format="parquet", root=str(parquet))
        decoded = partial(epochs.of_dataset, last=STEPS)
        ways = {
            FILES: decoded(as_files),
            "shards, mapped": decoded(mapped),
            "shards, streamed": decoded(replace(mapped, access="stream")),
            "Parquet, streamed": decoded(in_parquet),
            "files, bytes only": bytes_only(as_files),
            "shards, mapped, bytes only": bytes_only(mapped),
        }
        ms = measure.cpu_milliseconds(ways, works=STEPS * epochs.BATCH, rounds=ROUNDS)
    method = (
        f"{IMAGES} photographs with side indexes, {sum(map(len, jpegs)) / len(jpegs) / 1e3:.0f} KB "
        "on average; random resized crops of 224 pixels, one thread; CPU time per image, medians "
        f"of {ROUNDS} alternating rounds. Shards gain more where opening a file costs more, as on "
        "network file systems. Goal: samples from mapped shards at 1.2 times the speed of files. "
        "Parquet files have no side indexes; `make dataset` makes shards of them."
    )
    rows = [[name, value, f"{ms[FILES] / value:.2f}x"] for name, value in ms.items()]
    measure.bars("data-reading", TITLE, "CPU ms per image", ms)
    table = measure.table(["source", "CPU ms per image", "throughput / files"], rows)
    measure.write("data-reading", "data", TITLE, method, [table], ["spdl-core", "pyarrow"])


if __name__ == "__main__":
    main()
