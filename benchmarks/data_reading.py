"""Reading: indexed JPEGs in shards against the same bytes as files, page cache warm.

    python -m benchmarks.data_reading [images]

Photographs (crops of what scikit-image and scikit-learn ship) are indexed once and written under
many names, as files and as shards. Each round reads whole epochs of random resized crops of 224
pixels with every way, in alternating order; CPU seconds count, since machines are shared.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.data_photographs import indexed_photographs
from entry_point.data import DataConfig, PipelineConfig, build_loader, open_source
from entry_point.data.index import (
    COLUMNS,
    Description,
    Rows,
    Shard,
    Split,
    write_description,
    write_index,
)
from entry_point.data.packing.tar import TarWriter

ROUNDS = 5
PER_SHARD = 2000
BATCH = 64


def write_files(root: Path, photographs: list[tuple[bytes, int, int]], count: int) -> None:
    for i in range(count):
        folder = root / "train" / f"class{i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:06d}.jpg").write_bytes(photographs[i % len(photographs)][0])


def write_shards(root: Path, photographs: list[tuple[bytes, int, int]], count: int) -> None:
    (root / "train").mkdir(parents=True)
    shards, rows = [], []
    for number, first in enumerate(range(0, count, PER_SHARD)):
        file = root / "train" / f"shard-{number:06d}.tar"
        with file.open("wb") as opened:
            tar = TarWriter(opened)
            for i in range(first, min(first + PER_SHARD, count)):
                data, height, width = photographs[i % len(photographs)]
                offset = tar.add(f"class{i % 10}/{i:06d}.jpg", data)
                row = (f"class{i % 10}/{i:06d}", i % 10, number, offset, len(data), height, width)
                rows.append((*row, 1, 4, zlib.crc32(data), i))
            tar.finish()
        shards.append(Shard(file.name, file.stat().st_size, min(PER_SHARD, count - first)))
    columns: Rows = {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}
    split = Split(shards, write_index(root / "train", [columns]))
    classes = [f"class{i}" for i in range(10)]
    write_description(root, Description(classes, {"train": split}, "benchmark"))


def epoch_reader(root: Path, kind: str, access: str, engine: str) -> Callable[[int], float]:
    """A function that reads one epoch and returns images per CPU second of this process."""
    data = DataConfig(format=kind, root=str(root), access=access)
    source = open_source(data, "train", root)
    workers = 1 if engine == "threads" else 0  # all work in this process, where it is measured
    pipeline = PipelineConfig(engine=engine, num_workers=workers)
    loader = build_loader(source, data, pipeline, split="train", batch_size=BATCH, seed=0)

    def read(epoch: int) -> float:
        start = time.process_time()
        images = sum(len(batch.images) for batch in loader.epoch(epoch))
        return images / (time.process_time() - start)

    return read


def main(count: int) -> None:
    torch.set_num_threads(1)  # as in DataLoader workers; more would spin and cost CPU seconds
    with tempfile.TemporaryDirectory() as folder:
        photographs = indexed_photographs()
        files, shards = Path(folder, "files"), Path(folder, "shards")
        write_files(files, photographs, count)
        write_shards(shards, photographs, count)
        ways = {
            "files, pillow": epoch_reader(files, "folder", "map", "pillow"),
            "files, operator per image": epoch_reader(files, "folder", "map", "workers"),
            "files, batch operator": epoch_reader(files, "folder", "map", "threads"),
            "shards, mapped": epoch_reader(shards, "shards", "map", "threads"),
            "shards, streamed": epoch_reader(shards, "shards", "stream", "threads"),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for epoch in range(ROUNDS):
            for name, read in ways.items():
                if name != "files, pillow" or epoch == 0:  # known to be slow: once is enough
                    rates[name].append(read(epoch))
    base = statistics.median(rates["files, batch operator"])
    size = sum(len(data) for data, _, _ in photographs) / len(photographs) / 1000
    sys.stdout.write(f"{count} images of {size:.0f} KB, {ROUNDS} rounds\n")
    for name, values in rates.items():
        rate = statistics.median(values)
        sys.stdout.write(f"{name:28} {rate:7.0f} images per CPU second  {rate / base:5.2f}x\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
