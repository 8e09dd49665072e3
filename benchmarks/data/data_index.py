"""Plain files whose side indexes are made while they are decoded: docs/results/data-index.md.

The same JPEGs are read in four ways, which alternate in one process with a warm page cache: without
indexes, in a first epoch that makes them, in a second one that uses them, and with indexes that
`make dataset output_format=index` made.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch

from benchmarks import measure
from benchmarks.sample_photographs import many_photographs, write_classes
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources import side_index_store
from entry_point.data.sources.source import Source
from tests.commands import optimize

TITLE = "Side indexes that training makes"
IMAGES, ROUNDS, BATCH = 1920, 15, 64
PLAIN, FIRST, SECOND = "no index", "first epoch: indexes are made", "second epoch: they are used"
INDEXED = "indexed by make dataset"
Epoch = Callable[[], None]


def epochs(root: Path, workers: int, index: bool = True, index_root: str | None = None) -> Epoch:
    """Returns a function that reads the next epoch."""
    data = DataConfig(format="folder", root=str(root), index_root=index_root)
    pipeline = PipelineConfig(engine="threads", num_workers=workers)
    spec = LoaderSpec(data, pipeline, "train", BATCH, seed=0)
    source: Source = open_source(data, "train", root)
    if not index:
        source.index_store = None
    loader, epoch = build_loader(source, spec), count()

    def read() -> None:
        for _ in loader.epoch(next(epoch)):
            pass

    return read


def measured(root: Path, indexed: Path, workers: int) -> dict[str, tuple[float, float]]:
    """Wall-clock and CPU seconds of an epoch: medians of the rounds, without the first."""
    plain = epochs(root, workers, index=False)
    with_index = epochs(root, workers, index_root=str(indexed))
    laps: dict[str, list[tuple[float, float]]] = {n: [] for n in (PLAIN, FIRST, SECOND, INDEXED)}
    for round_number in range(ROUNDS + 1):
        side_index_store.HOST_FOLDER = indexed / f"cache-{workers}-{round_number}"
        making = epochs(root, workers)
        order = [(PLAIN, plain), (FIRST, making), (SECOND, making), (INDEXED, with_index)]
        if round_number % 2:
            # What follows the first epoch runs while the kernel writes its indexes.
            order[2:] = reversed(order[2:])
        for name, epoch in order:
            wall, cpu = time.perf_counter(), time.process_time()
            epoch()
            laps[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    medians = {}
    for name, each in laps.items():
        walls, cpus = zip(*each[1:], strict=True)
        medians[name] = statistics.median(walls), statistics.median(cpus)
    return medians


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root, indexed = Path(folder, "photographs"), Path(folder, "indexed")
        write_classes(root / "train", many_photographs(), IMAGES, classes=10)
        if optimize([f"source={root}", f"output={indexed}", "output_format=index"]):
            raise SystemExit("the files could not be indexed")
        logging.disable(logging.INFO)
        for workers in (1, 2):
            medians = measured(root, indexed, workers)
            for name, (wall, cpu) in medians.items():
                cpu_ms = 1e3 * cpu / IMAGES
                best, plain = medians[INDEXED], medians[PLAIN]
                ratios = (plain[0] / wall, best[0] / wall, plain[1] / cpu, best[1] / cpu)
                rows.append((workers, name, IMAGES / wall, *ratios[:2], cpu_ms, *ratios[2:]))
    header = (
        *("threads", "files", "images/s", "no index = 1", "make dataset = 1"),
        *("CPU ms per image", "no index = 1", "make dataset = 1"),
    )
    method = (
        f"{IMAGES} files of 48 photographs at 533x800, quality 90, 4:2:0; RandomResizedCrop 224, "
        f"batches of {BATCH}; whole epochs with a warm page cache, medians of {ROUNDS} alternating "
        "rounds. Ratios are of speed: more is faster. Goals: the first epoch at least 0.8 of no "
        "index, the second at least 0.95 of the files indexed by `make dataset`."
    )
    measure.write("data-index", "data", TITLE, method, [measure.table(header, rows)])


if __name__ == "__main__":
    main()
