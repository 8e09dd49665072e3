"""Loaders of small samples, and what they give, for the tests."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch
from entry_point.data.loader import Loader, build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.order import Plan
from entry_point.data.sources.source import Source
from tests.entry_point.data.engines.every_engine import Way, pipeline_of

SIDE, SEED = 48, 4


def source_of(root: Path, split: str = "train", **data: Any) -> Source:
    return open_source(DataConfig(root=str(root), **data), split, root)


def loader_of(
    images: Source | Path,
    engine: Way = "threads",
    split: str = "train",
    *,
    workers: int = 1,
    batch_size: int = 12,
    plan: Plan | None = None,
    spec: dict[str, Any] | None = None,
    **data: Any,
) -> Loader:
    """Of a source, or of a split of the dataset in a folder. `spec` has more of its LoaderSpec."""
    if isinstance(images, Path):
        data["root"] = str(images)
    config = DataConfig(**{"image_size": SIDE, "resize": SIDE + 8, **data})
    source = open_source(config, split, images) if isinstance(images, Path) else images
    pipeline, more = pipeline_of(engine, num_workers=workers), {"seed": SEED, **(spec or {})}
    return build_loader(source, LoaderSpec(config, pipeline, split, batch_size, **more), plan=plan)


def epoch_of(loader: Loader, epoch: int = 0, start_step: int = 0) -> list[Batch]:
    """The batches, after which the loader is closed."""
    with closing(loader):
        return list(loader.epoch(epoch, start_step))


def images_of(batches: Iterable[Batch]) -> Tensor:
    return torch.cat([batch.images for batch in batches])


def indices_of(batches: Iterable[Batch]) -> list[int]:
    return [int(index) for batch in batches for index in batch.indices]
