"""Epochs of random samples of 224 pixels, as `pipeline=threads` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks import measure
from benchmarks.sample_photographs import tensor
from custom_op import index_jpeg
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.decode import OperatorDecoder
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.samples import Samples
from entry_point.data.sources.source import Encoded

SIDE, BATCH = 224, 64
Epoch = Callable[[], None]
"""Makes all samples of the next epoch."""


def of_files(files: Sequence[bytes], *, indexed: bool = False, batch: int) -> Epoch:
    """Returns the epochs of encoded images in memory; `indexed` JPEGs have side indexes."""
    decoder, planner = OperatorDecoder(), CropPlanner(DataConfig(image_size=SIDE), True, 0)
    tensors = [tensor(file) for file in files]
    indexes = [index_jpeg(file) for file in tensors] if indexed else None
    epochs = count()

    def epoch() -> None:
        number = next(epochs)
        for start in range(0, len(files), batch):
            some = slice(start, start + batch)
            encoded = Encoded(tensors[some], indexes and indexes[some])
            samples = Samples.of(number, np.arange(start, start + len(encoded)))
            plan = planner.plan(samples, *decoder.sizes(encoded))
            decoder.decode(encoded, plan, reused_memory)

    return epoch


def of_dataset(
    data: DataConfig, *, workers: int = 1, last: int | None = None, makes_indexes: bool = True
) -> Epoch:
    """Returns the epochs of a dataset, or only their `last` batches."""
    spec = LoaderSpec(data, PipelineConfig("threads", num_workers=workers), "train", BATCH, seed=0)
    source = open_source(data, "train", Path())
    if not makes_indexes:
        source.index_store = None
    loader, epochs = build_loader(source, spec), count()
    first = 0 if last is None else loader.steps_per_epoch - last
    return lambda: measure.use(loader.epoch(next(epochs), first))
