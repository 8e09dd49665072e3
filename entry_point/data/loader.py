"""From settings to sources and loaders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.batch_maker import BatchMaker, MakeImages
from entry_point.data.engines.workers import WorkerLoader
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.order import EpochPlan, Plan
from entry_point.data.sources.demo import ensure_demo
from entry_point.data.sources.folder import SPLITS, FolderSource
from entry_point.data.sources.source import Source

CHANNEL = "training"
CPU = torch.device("cpu")


class Loader(Protocol):
    """Batches of one split for one rank; the only state is (epoch, step)."""

    steps_per_epoch: int

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]: ...

    def close(self) -> None: ...


def open_source(data: DataConfig, split: str, channels: Path) -> Source:
    """The split's images; `channels` is the folder that holds the input channels.

    Raises DataError where they are neither there nor in `data.root`, or cannot be used.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split}: must be one of {SPLITS}")
    root = _channel(data, channels) if data.root is None else Path(data.root)
    if data.format == "shards" and data.access == "stream":
        from entry_point.data.sources.stream import StreamSource

        index_root = Path(data.index_root) if data.index_root else root
        return StreamSource(root, index_root, split, all_here=not data.sharded_by_host)
    if data.format == "shards":
        from entry_point.data.sources.shards import ShardSource

        return ShardSource(root, split)
    if data.format == "demo":
        ensure_demo(root, data.demo)
    return FolderSource(root, split)


def _channel(data: DataConfig, channels: Path) -> Path:
    """Where the platform leaves the data set that `data.root` does not name."""
    folder = channels / CHANNEL
    if not folder.exists():
        holds = "train/<class>/ and val/<class>/"
        if data.format == "shards":
            holds = "what `make dataset` wrote"
        raise DataError(
            f"data.root is not set, and there is no input channel {CHANNEL!r}: add "
            f"data.root=FOLDER, or in a container the channel {CHANNEL!r}; it must hold {holds}"
        )
    return folder


def build_loader(
    source: Source,
    data: DataConfig,
    pipeline: PipelineConfig,
    *,
    split: str,
    batch_size: int,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    device: torch.device = CPU,
    profile: bool = False,
) -> Loader:
    """Random crops in random order for `train`; every sample once, centre-cropped, for `val`.

    Batches for a CUDA `device` are in pinned memory or, as DALI's, on it.
    The same settings and seed give the same samples with any engine and any number of workers.
    With `profile` batches say what their making took.
    """
    train = split == "train"
    plan: Plan
    if data.access == "stream":
        plan = _stream_plan(source, data, train, batch_size, seed, rank, world_size)
    else:
        plan = EpochPlan(len(source), batch_size, seed, train, rank, world_size)
    images = image_maker(data, pipeline, device)
    make_batch = BatchMaker(source, CropPlanner(data, train, seed), images, profile)
    return start_loader(make_batch, plan, data, pipeline, device)


def start_loader(
    make_batch: BatchMaker,
    plan: Plan,
    data: DataConfig,
    pipeline: PipelineConfig,
    device: torch.device = CPU,
) -> Loader:
    """The engine that has `plan`'s batches made, in threads or processes."""
    if pipeline.engine in ("threads", "dali"):
        from entry_point.data.engines.threads import ThreadLoader

        return ThreadLoader(make_batch, plan, data, pipeline, device)
    if pipeline.engine == "subprocess":
        from entry_point.data.engines.child_process import ChildLoader

        return ChildLoader(make_batch, plan, data, pipeline, device)
    return WorkerLoader(make_batch, plan, data, pipeline, device)


def _stream_plan(
    source: Source,
    data: DataConfig,
    train: bool,
    batch_size: int,
    seed: int,
    rank: int,
    world_size: int,
) -> Plan:
    from entry_point.data.plan.stream_order import Share, StreamPlan, share_of_host
    from entry_point.data.sources.stream import StreamSource

    assert isinstance(source, StreamSource)
    share = Share(rank, world_size)
    if data.sharded_by_host:
        share = share_of_host(source)
    return StreamPlan(
        source,
        share,
        batch_size=batch_size,
        seed=seed,
        train=train,
        window_shards=data.window_shards,
    )


def image_maker(
    data: DataConfig, pipeline: PipelineConfig, device: torch.device = CPU
) -> MakeImages:
    """The engine's way from bytes to images."""
    if pipeline.engine == "dali":
        return _dali(data, pipeline, device)
    if data.transform_on == "cpu":
        from entry_point.data.decode.stall import SampleBySample

        return SampleBySample(_pixel_maker(pipeline.engine, data))
    return _pixel_maker(pipeline.engine, data)


def _dali(data: DataConfig, pipeline: PipelineConfig, device: torch.device) -> MakeImages:
    if data.transform != "imagenet":
        raise ConfigError(
            f"data.transform={data.transform}: pipeline=dali cannot make it, pipeline=threads can"
        )
    import custom_op

    custom_op.load()
    try:
        from entry_point.data.decode.dali_images import DaliImages
    except ImportError as error:
        raise ConfigError(
            f"pipeline.engine=dali: NVIDIA DALI cannot be loaded ({error}); "
            "`python3 launch/environment.py job dali` installs it (Python 3.11 or newer), in an "
            "image `make image EXTRAS=dali`"
        ) from error
    return DaliImages(max(1, pipeline.worker_count()), device)


def _pixel_maker(engine: str, data: DataConfig) -> MakeImages:
    """The engine's way from bytes to pixels; Pillow's needs no operator and so no compiler."""
    if engine == "pillow":
        from entry_point.data.decode.pillow_images import pillow_images

        return pillow_images
    import custom_op

    custom_op.load()  # once, before there are workers
    if engine == "workers" and data.color == "rgb":
        from entry_point.data.decode.operator_single import operator_images

        return operator_images
    from entry_point.data.decode.operator_batch import batch_images

    return batch_images
