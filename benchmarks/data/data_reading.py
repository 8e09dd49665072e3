"""Reading from shards and from files, with a warm page cache: docs/results/data-reading.md.

`python -m benchmarks.data.data_reading [IMAGES]`. JPEGs and their side indexes are written under
many names, as files and as shards. The contenders alternate in one process and one thread: they
decode random resized crops from the end of a shuffled epoch, or only read the bytes of as many
images. Then each step of making a batch is timed.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import count, cycle, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import measure
from benchmarks.sample_photographs import IndexedPhotograph, indexed_photographs
from entry_point.config.data_config import Access, DataConfig, Engine, PipelineConfig
from entry_point.config.part import Part
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.decode import OperatorDecoder
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.packing.pack import add_member
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.order import EpochPlan
from entry_point.data.plan.samples import Ints, Samples
from entry_point.data.sources.dataset_description import (
    Description,
    Shard,
    Split,
    write_description,
)
from entry_point.data.sources.shard_table import write_table
from entry_point.data.sources.shards import COLUMNS, SIDE_MEMBER
from entry_point.data.sources.side_index_store import FOLDER_INDEX, write_folder_index
from entry_point.data.sources.source import Source, read_images

PER_SHARD = 500
BATCH = 64
STEPS = 60
"""Batches per round."""
ROUNDS = 5
FILES, SHARDS = "files", "shards, mapped"
TITLE = "Reading shards and files with a warm page cache"
CROPS: dict[str, dict[str, Any]] = {
    "96 pixels from 5 % to 40 %": {
        "image_size": 96,
        "scale": [0.05, 0.4],
    },
    "64 pixels from 5 % to 20 %": {"image_size": 64, "scale": [0.05, 0.2]},
}
"""Settings of `data` for crops that cost less to decode."""
DECODE = "decode, crop, resize, flip"
STAGES = ("read", "sizes", "boxes and flips", DECODE)


def write_files(root: Path, photographs: list[IndexedPhotograph], count: int) -> None:
    rows = []
    for i in range(count):
        photograph = photographs[i % len(photographs)]
        path = f"train/class{i % 10}/{i:06d}.jpg"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(photograph.jpeg)
        rows.append((path, photograph.side_index))
    write_folder_index(root / FOLDER_INDEX, root, rows)


def write_shards(root: Path, photographs: list[IndexedPhotograph], count: int) -> None:
    (root / "train").mkdir(parents=True)
    shards, rows, keys = [], list[dict[str, int]](), []
    for number, first in enumerate(range(0, count, PER_SHARD)):
        file = root / "train" / f"shard-{number:06d}.tar"
        with file.open("wb") as opened, tarfile.open(fileobj=opened, mode="w") as tar:
            numbers = range(first, min(first + PER_SHARD, count))
            for i in numbers:
                data, index, height, width = photographs[i % len(photographs)]
                keys.append(f"class{i % 10}/{i:06d}.jpg".encode())
                offset = add_member(tar, opened, keys[-1].decode(), data)
                row = {"label": i % 10, "shard": number, "offset": offset, "length": len(data)}
                row |= {"height": height, "width": width, "orientation": 1}
                rows.append(row | {"crc32": zlib.crc32(data), "side_length": len(index)})
            indexes = [photographs[i % len(photographs)].side_index for i in numbers]
            place = add_member(tar, opened, SIDE_MEMBER, b"".join(indexes))
            for row in rows[first:]:
                row["side_offset"] = place
                place += row["side_length"]
        shards.append(Shard(file.name, file.stat().st_size, len(numbers), 0))
    columns = {
        name: np.array([row[name] for row in rows], number) for name, number in COLUMNS.items()
    }
    split = Split(shards, write_table(root / "train" / Part().index, columns, keys))
    classes = [f"class{i}" for i in range(10)]
    write_description(root, Description(classes, {"train": split}, "benchmark", ""))


def write_parquet(root: Path, photographs: list[IndexedPhotograph], count: int) -> None:
    """As Hugging Face's datasets: row groups of 100 images."""
    root.mkdir()
    for first in range(0, count, 10 * PER_SHARD):
        numbers = range(first, min(first + 10 * PER_SHARD, count))
        jpegs = (photographs[i % len(photographs)].jpeg for i in numbers)
        images = [
            {"bytes": jpeg, "path": f"{i}.jpg"} for i, jpeg in zip(numbers, jpegs, strict=True)
        ]
        table = pa.table({"image": images, "label": [f"class{i % 10}" for i in numbers]})
        pq.write_table(table, root / f"{first:06d}.parquet", row_group_size=100)


def batches(
    root: Path, kind: str, access: Access = "map", engine: Engine = "threads", **crops: Any
) -> Callable[[], None]:
    """Returns a function that makes only the last STEPS batches of the next epoch."""
    data = DataConfig(format=kind, root=str(root), access=access, **crops)
    source = open_source(data, "train", root)
    pipeline = PipelineConfig(engine=engine, num_workers=int(engine == "threads"))
    loader = build_loader(source, LoaderSpec(data, pipeline, "train", BATCH, seed=0))
    first, epochs = loader.steps_per_epoch - STEPS, count()
    return lambda: _use(loader.epoch(next(epochs), first))


def bytes_only(root: Path, kind: str) -> Callable[[], None]:
    """Returns a function that reads as many images in random order and decodes none."""
    source = open_source(DataConfig(format=kind, root=str(root)), "train", root)
    order = cycle(np.random.default_rng(0).permutation(len(source)).tolist())
    # The sum touches every page: a mapped file is not read before it is touched.
    return lambda: _use(source.read(i)[::64].sum() for i in islice(order, STEPS * BATCH))


def _use(items: Iterator[object]) -> None:
    for _ in items:
        pass


def stage_microseconds(sources: Mapping[str, Source]) -> dict[str, dict[str, float]]:
    """CPU microseconds per image for each source and each of STAGES."""
    found: dict[str, list[list[float]]] = {name: [] for name in sources}
    for epoch in range(ROUNDS + 1):
        for name, source in sources.items():
            plan = EpochPlan(len(source), BATCH, seed=0, train=True)
            laps = [_laps(source, epoch, part) for part in islice(plan.batches(epoch), STEPS)]
            found[name].append(
                [sum(lap) * 1e6 / (STEPS * BATCH) for lap in zip(*laps, strict=True)]
            )
    return {
        name: dict(zip(STAGES, np.median(rounds[1:], axis=0).tolist(), strict=True))
        for name, rounds in found.items()
    }


def _laps(source: Source, epoch: int, indices: Ints) -> list[float]:
    """CPU seconds of each of STAGES for one batch, made as BatchMaker does."""
    planner, decoder = CropPlanner(DataConfig(), train=True, seed=0), OperatorDecoder()
    times = [time.process_time()]
    encoded = read_images(source, indices)
    times.append(time.process_time())
    sizes = decoder.sizes(encoded)
    times.append(time.process_time())
    plan = planner.plan(Samples.of(epoch, indices), *sizes)
    times.append(time.process_time())
    decoder.decode(encoded, plan, reused_memory)
    times.append(time.process_time())
    return [end - start for start, end in pairwise(times)]


def main(images: int) -> None:
    torch.set_num_threads(1)  # as in DataLoader workers; more threads would spin
    with tempfile.TemporaryDirectory() as folder:
        photographs = indexed_photographs()
        files, shards, parquet = (Path(folder, name) for name in ("files", "shards", "parquet"))
        write_files(files, photographs, images)
        write_shards(shards, photographs, images)
        write_parquet(parquet, photographs, images)
        ways = {
            FILES: batches(files, "folder"),
            SHARDS: batches(shards, "shards"),
            "shards, streamed": batches(shards, "shards", "stream"),
            "Parquet, streamed": batches(parquet, "parquet"),
            "files, bytes only": bytes_only(files, "folder"),
            "shards, mapped, bytes only": bytes_only(shards, "shards"),
        }
        milliseconds = measure.cpu_milliseconds(ways, works=STEPS * BATCH, rounds=ROUNDS)
        by_crop = {"224 pixels from 8 % to 100 %": milliseconds}
        for crop, settings in CROPS.items():
            pair = {
                FILES: batches(files, "folder", **settings),
                SHARDS: batches(shards, "shards", **settings),
            }
            by_crop[crop] = measure.cpu_milliseconds(pair, works=STEPS * BATCH, rounds=ROUNDS)
        stages = stage_microseconds(
            {
                "files": open_source(DataConfig(root=str(files)), "train", files),
                "shards": open_source(DataConfig("shards", root=str(shards)), "train", shards),
            }
        )
    size = sum(len(each.jpeg) for each in photographs) / len(photographs) / 1000
    sys.stdout.write(_page(images, size, milliseconds, by_crop, stages))


def _page(
    images: int,
    kilobytes: float,
    milliseconds: dict[str, float],
    by_crop: dict[str, dict[str, float]],
    stages: dict[str, dict[str, float]],
) -> str:
    whole = sum(stages["files"].values())
    method = (
        f"{images} photographs with side indexes, {kilobytes:.0f} KB on average; random "
        "resized crops of 224 pixels, one thread; CPU time per image, medians of "
        f"{ROUNDS} alternating rounds. Decoding dominates: the operator takes "
        f"{stages['files'][DECODE] / whole:.0%} of the {whole:.0f} us per image from files. "
        "Shards gain more where opening a file costs more, as on network file systems. Parquet "
        "files have no side indexes; `make dataset` makes shards of them."
    )
    base = milliseconds[FILES]
    rows = [[name, value, f"{base / value:.2f}x"] for name, value in milliseconds.items()]
    plot(milliseconds)
    crops = [
        [crop, ms[FILES], ms[SHARDS], f"{ms[FILES] / ms[SHARDS]:.2f}x"]
        for crop, ms in by_crop.items()
    ]
    split = [[stage, *(found[stage] for found in stages.values())] for stage in STAGES]
    split.append(["all", *(sum(found.values()) for found in stages.values())])
    tables = [
        measure.table(["source", "CPU ms per image", "throughput / files"], rows),
        measure.table(
            ["crop, share of the image", FILES, SHARDS, "speed-up by shards (goal: 1.2x)"], crops
        ),
        measure.table(["CPU us per image", *stages], split),
    ]
    return measure.write("data-reading", "data", TITLE, method, tables, ["spdl-core", "pyarrow"])


def plot(milliseconds: dict[str, float]) -> None:
    measure.bars("data-reading", TITLE, "CPU ms per image", milliseconds)


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    if wanted < STEPS * BATCH:
        sys.exit(f"images={wanted}: must be at least {STEPS * BATCH}")
    main(wanted)
