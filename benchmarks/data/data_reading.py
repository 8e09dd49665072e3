"""Reading from shards and from files, with a warm page cache: docs/results/data-reading.md.

JPEGs are written under many names, as files with side indexes, as shards and as Parquet. The
contenders alternate in one process and one thread: they decode random resized crops from the end of
a shuffled epoch, or only read the bytes of as many images.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import measure
from benchmarks.sample_photographs import write_classes
from custom_op import to_baseline
from entry_point.config.data_config import Access, DataConfig, PipelineConfig
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.packing.index_folder import index_folder
from entry_point.data.packing.pack import pack
from tests.photographs import write_photo_folder

IMAGES, BATCH, ROUNDS = 20_000, 64, 5
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


def batches(root: Path, kind: str, access: Access = "map") -> Callable[[], None]:
    """Returns a function that makes only the last STEPS batches of the next epoch."""
    data = DataConfig(format=kind, root=str(root), access=access)
    pipeline = PipelineConfig(engine="threads", num_workers=1)
    source = open_source(data, "train", root)
    loader = build_loader(source, LoaderSpec(data, pipeline, "train", BATCH, seed=0))
    first, epochs = loader.steps_per_epoch - STEPS, count()
    return lambda: _use(loader.epoch(next(epochs), first))


def bytes_only(root: Path, kind: str) -> Callable[[], None]:
    """Returns a function that reads as many images in random order and decodes none."""
    source = open_source(DataConfig(format=kind, root=str(root)), "train", root)
    order = cycle(np.random.default_rng(0).permutation(len(source)).tolist())
    # The sum touches every page: a mapped file is not read before it is touched.
    return lambda: _use(source.read(i)[::64].sum() for i in islice(order, STEPS * BATCH))


def _use(items: Iterable[object]) -> None:
    for _ in items:
        pass


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
        ways = {
            FILES: batches(files, "folder"),
            "shards, mapped": batches(shards, "shards"),
            "shards, streamed": batches(shards, "shards", "stream"),
            "Parquet, streamed": batches(parquet, "parquet"),
            "files, bytes only": bytes_only(files, "folder"),
            "shards, mapped, bytes only": bytes_only(shards, "shards"),
        }
        ms = measure.cpu_milliseconds(ways, works=STEPS * BATCH, rounds=ROUNDS)
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
