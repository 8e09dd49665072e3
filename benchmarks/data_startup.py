"""Start-up: opening an index of a million samples, and the first batch of a resumed epoch.

python -m benchmarks.data_startup
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import measure
from benchmarks.data_photographs import indexed_photographs
from benchmarks.data_reading import write_shards
from entry_point.data import DataConfig, PipelineConfig, build_loader, open_source
from entry_point.data.index import Description, Rows, Shard, Split, write_index
from entry_point.data.index import write_description as describe
from entry_point.data.sampling import EpochPlan

ROUNDS = 5
SAMPLES, SHARDS, LENGTH = 1_000_000, 400, 100_000


def write_large_index(root: Path) -> None:
    """An index of a million samples in shards that are as large as it says, and empty."""
    (root / "train").mkdir(parents=True)
    each = SAMPLES // SHARDS

    def parts() -> Iterator[Rows]:
        for number in range(SHARDS):
            rows = np.arange(number * each, (number + 1) * each)
            size = np.full(each, 500)
            yield {
                "key": [f"n{row % 1000:08d}/n{row % 1000:08d}_{row}" for row in rows],
                "label": rows % 1000,
                "shard": np.full(each, number),
                "offset": (rows - rows[0]) * LENGTH,
                "length": np.full(each, LENGTH),
                "height": size,
                "width": size,
                "orientation": np.ones(each),
                "interval": size,
                "crc32": rows,
                "digest": rows,
            }

    checksum = write_index(root / "train", parts())
    shards = [Shard(f"shard-{number:06d}.tar", each * LENGTH, each) for number in range(SHARDS)]
    for shard in shards:
        with (root / "train" / shard.file).open("wb") as file:
            file.truncate(shard.bytes)
    classes = [f"n{label:08d}" for label in range(1000)]
    describe(root, Description(classes, {"train": Split(shards, checksum)}, "benchmark"))


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start_rows(root: Path) -> list[list[object]]:
    """In a process of its own: memory that was used before hides what is used now."""
    command = [sys.executable, "-m", "benchmarks.data_startup", str(root)]
    rows: list[list[object]] = json.loads(subprocess.check_output(command))
    return rows


def open_index(root: Path) -> list[list[object]]:
    data = DataConfig(format="shards", root=str(root))
    before, start = peak_megabytes(), time.perf_counter()
    source = open_source(data, "train", root)
    opened = time.perf_counter() - start
    next(EpochPlan(len(source), 256, 0, True).batches(0))
    ordered = time.perf_counter() - start - opened
    return [
        [f"index of {len(source)} samples opened", f"{opened:.2f} s"],
        ["order of its first epoch", f"{ordered:.2f} s"],
        ["memory of both", f"{peak_megabytes() - before:.0f} MB"],
    ]


def resume_rows(root: Path) -> list[list[object]]:
    data = DataConfig(format="shards", root=str(root))
    source = open_source(data, "train", root)
    pipeline = PipelineConfig(engine="threads", num_workers=1)
    loader = build_loader(source, data, pipeline, split="train", batch_size=16, seed=0)
    steps = loader.steps_per_epoch
    next(loader.epoch(0))
    places = (0, steps // 4, steps // 2, steps - 1)
    times: dict[int, list[float]] = {step: [] for step in places}
    for _ in range(ROUNDS):
        for step in places:
            start = time.perf_counter()
            next(loader.epoch(1, step))
            times[step].append(time.perf_counter() - start)
    loader.close()
    return [
        [f"first batch from step {step} of {steps}", f"{1e3 * statistics.median(found):.0f} ms"]
        for step, found in times.items()
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder, "few"), indexed_photographs(), 20_000)
        rows = resume_rows(Path(folder, "few"))
        write_large_index(Path(folder, "many"))
        rows = start_rows(Path(folder, "many")) + rows
    title = "Starting: a large index, a resumed epoch"
    method = (
        "By the clock, files in the page cache. Resumed epochs: batches of 16 from 20,000 packed "
        f"photographs, one thread, medians of {ROUNDS} alternating rounds. {measure.versions([])}."
    )
    table = measure.table(["", ""], rows)
    sys.stdout.write(measure.write("data-startup", title, method, [table]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(open_index(Path(sys.argv[1]))))
    else:
        main()
