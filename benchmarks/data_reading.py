"""Reading: indexed JPEGs in shards against the same bytes as files, page cache warm.

    python -m benchmarks.data_reading [images]

Photographs (crops of what scikit-image and scikit-learn ship) are indexed once and written under
many names, as files and as shards. Ways take turns: each time they make random resized crops of 224
pixels from the next part of a shuffled epoch, and, beside that, only read the bytes of as many
images. All happens in one process, on one thread.
"""

from __future__ import annotations

import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from itertools import count, cycle, islice
from pathlib import Path

import numpy as np
import torch

from benchmarks import measure
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

PER_SHARD = 2000
BATCH = 64
STEPS = 60
"""Batches per turn."""
ROUNDS = 5


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


def batches(root: Path, kind: str, access: str) -> Callable[[], None]:
    """A function that makes the next STEPS batches of endless epochs."""
    data = DataConfig(format=kind, root=str(root), access=access)
    source = open_source(data, "train", root)
    pipeline = PipelineConfig(engine="threads", num_workers=1)
    loader = build_loader(source, data, pipeline, split="train", batch_size=BATCH, seed=0)
    coming = (batch for epoch in count() for batch in loader.epoch(epoch))
    return lambda: _use(islice(coming, STEPS))


def bytes_only(root: Path, kind: str) -> Callable[[], None]:
    """A function that reads as many images, in random order, and decodes none."""
    source = open_source(DataConfig(format=kind, root=str(root)), "train", root)
    order = cycle(np.random.default_rng(0).permutation(len(source)).tolist())
    # The sum touches what the operator would: of a mapped file, nothing is read before that.
    return lambda: _use(source.read(i)[::64].sum() for i in islice(order, STEPS * BATCH))


def _use(items: Iterator[object]) -> None:
    for _ in items:
        pass


def main(images: int) -> None:
    torch.set_num_threads(1)  # as in DataLoader workers; more would spin and cost CPU seconds
    with tempfile.TemporaryDirectory() as folder:
        photographs = indexed_photographs()
        files, shards = Path(folder, "files"), Path(folder, "shards")
        write_files(files, photographs, images)
        write_shards(shards, photographs, images)
        ways = {
            "files": batches(files, "folder", "map"),
            "shards, mapped": batches(shards, "shards", "map"),
            "shards, streamed": batches(shards, "shards", "stream"),
            "files, bytes only": bytes_only(files, "folder"),
            "shards, mapped, bytes only": bytes_only(shards, "shards"),
        }
        milliseconds = measure.cpu_milliseconds(ways, works=STEPS * BATCH, rounds=ROUNDS)
    size = sum(len(data) for data, _, _ in photographs) / len(photographs) / 1000
    title = "Reading shards and files, page cache warm"
    method = (
        f"{images} indexed photographs of {size:.0f} KB on average; random resized crops of 224 "
        f"pixels by the batch operator, one thread; CPU ms per image, medians of {ROUNDS} "
        f"alternating rounds. {measure.versions(['spdl-core'])}."
    )
    base = milliseconds["files"]
    rows = [[name, value, f"{base / value:.2f}x"] for name, value in milliseconds.items()]
    measure.bars("data-reading", title, "CPU ms per image", milliseconds, ours="shards")
    table = measure.table(["way", "CPU ms per image", "throughput of files"], rows)
    sys.stdout.write(measure.write("data-reading", title, method, [table]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
