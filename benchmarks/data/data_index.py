"""Plain files whose side indexes are made while they are decoded: docs/results/data-index.md.

The same JPEGs are read in four ways, which alternate in one process with a warm page cache: without
indexes, in a first epoch that makes them, in a second one that uses them, and with indexes that
`make dataset output_format=index` made.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.data import epochs
from benchmarks.sample_photographs import many_photographs, write_classes
from entry_point.config.data_config import DataConfig
from entry_point.data.sources import side_index_store
from tests.commands import optimize

TITLE = "Side indexes that training makes"
IMAGES, ROUNDS = 1920, 15
PLAIN, FIRST, SECOND = "no index", "first epoch: indexes are made", "second epoch: they are used"
INDEXED = "indexed by make dataset"


class Making:
    """First epochs, each of a new loader, and later ones of the newest loader."""

    def __init__(self, folder: Path, new_loader: Callable[[], epochs.Epoch]) -> None:
        self._folders = (folder / f"{number}" for number in count())
        self._new_loader = new_loader
        self.first()

    def first(self) -> None:
        side_index_store.HOST_FOLDER = next(self._folders)
        self._epoch = self._new_loader()
        self._epoch()

    def second(self) -> None:
        self._epoch()


def wall_and_cpu() -> NDArray[np.float64]:
    return np.array([time.perf_counter(), time.process_time()])


def measured(root: Path, indexed: Path, workers: int) -> dict[str, NDArray[np.float64]]:
    """Wall-clock and CPU seconds of an epoch: medians of the rounds, without the first."""
    data = DataConfig(format="folder", root=str(root))
    read = partial(epochs.of_dataset, workers=workers)
    making = Making(indexed / f"caches-{workers}", partial(read, data))
    # The kernel still writes indexes of the first epoch while the next contender runs. The order
    # rotates, so this is the second epoch as often as the indexed files.
    contenders = {
        SECOND: making.second,
        FIRST: making.first,
        INDEXED: read(replace(data, index_root=str(indexed))),
        PLAIN: read(data, makes_indexes=False),
    }
    laps = measure.alternate(measure.timed(contenders, wall_and_cpu), ROUNDS + 1)
    return {name: np.median(laps[name][1:], 0) for name in (PLAIN, FIRST, SECOND, INDEXED)}


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
            for name, times in medians.items():
                speeds, cpus = zip(medians[PLAIN] / times, medians[INDEXED] / times, strict=True)
                wall, cpu = times
                row = (IMAGES / wall, *speeds, 1e3 * cpu / IMAGES, *cpus)
                rows.append((workers, name, *map(float, row)))
    header = (
        *("threads", "files", "images/s", "no index = 1", "make dataset = 1"),
        *("CPU ms per image", "no index = 1", "make dataset = 1"),
    )
    method = (
        f"{IMAGES} files of 48 photographs at 533x800, quality 90, 4:2:0; RandomResizedCrop 224, "
        f"batches of {epochs.BATCH}; whole epochs with a warm page cache, medians of {ROUNDS} "
        "alternating rounds. Ratios are of speed: more is faster. Goals: the first epoch at least "
        "0.8 of no index, the second at least 0.95 of the files indexed by `make dataset`."
    )
    measure.write("data-index", "data", TITLE, method, [measure.table(header, rows)])


if __name__ == "__main__":
    main()
