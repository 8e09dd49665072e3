"""Loaders of packed datasets, and their samples."""

from pathlib import Path
from typing import Any

from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from tests.entry_point.data.engines.every_engine import Way, pipeline_of


def loader_of(
    root: Path,
    engine: Way = "threads",
    split: str = "train",
    *,
    rank: int = 0,
    world_size: int = 1,
    batch_size: int = 8,
    **data: Any,
) -> Loader:
    config = DataConfig(format="shards", root=str(root), image_size=48, resize=56, **data)
    pipeline = pipeline_of(engine, num_workers=1)
    return build_loader(
        open_source(config, split, root),
        LoaderSpec(config, pipeline, split, batch_size, seed=9, rank=rank, world_size=world_size),
    )


def epoch_of(loader: Loader, epoch: int = 0, start_step: int = 0) -> list[Batch]:
    batches = list(loader.epoch(epoch, start_step))
    loader.close()
    return batches


def indices_of(batches: list[Batch]) -> list[int]:
    return [int(index) for batch in batches for index in batch.indices]
