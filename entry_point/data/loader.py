"""Builds sources and loaders from the config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import custom_op
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch
from entry_point.data.checked_loader import CheckedLoader, Engine
from entry_point.data.decode.batch_maker import BatchMaker
from entry_point.data.decode.made_images import MakeImages
from entry_point.data.decode.operator_batch import operator_batch_images
from entry_point.data.decode.own_augment import OwnAugmented
from entry_point.data.draw_weights import draw_weights
from entry_point.data.engines.feed import Feed
from entry_point.data.engines.workers import WorkerEngine
from entry_point.data.errors import DataError
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.augment.augmenter import build_augmenter
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.order import EpochPlan, Plan
from entry_point.data.plan.schedule import After, nothing_after
from entry_point.data.plan.stream_order import Share, StreamPlan, share_of_host
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.formats import open_format
from entry_point.data.sources.packed.stream import StreamSource
from entry_point.data.sources.source import Source

CHANNEL = "training"
_HOLDS = {
    "folder": "train/<class>/ and val/<class>/",
    "manifest": "a table of paths and labels",
    "shards": "the output of `make dataset`",
}
# DALI's host threads only parse JPEGs when a GPU decodes; its own default is 4 to 8.
_DALI_THREADS = 8


class Loader(Protocol):
    """Batches of one split for one rank; the only state is (epoch, step)."""

    steps_per_epoch: int

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]: ...

    def close(self) -> None: ...


def open_source(data: DataConfig, split: str, channels: Path) -> Source:
    """The split's images, in `data.root` or else below the folder of the input channels.

    Raises DataError if there are none or they cannot be used.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split}: must be one of {SPLITS}")
    return open_format(data, dataset_root(data, channels), split)


def dataset_root(data: DataConfig, channels: Path) -> Path:
    """`data.root`, or what the platform puts into the input channel. Raises DataError."""
    if data.root is not None:
        return Path(data.root)
    folder = channels / CHANNEL
    if not folder.exists():
        holds = _HOLDS.get(data.format, "what your source reads")
        raise DataError(
            f"data.root is not set and there is no input channel {CHANNEL!r}: add "
            f"data.root=FOLDER, or in a container the channel {CHANNEL!r}; it must hold {holds}"
        )
    return folder


def build_loader(
    source: Source,
    spec: LoaderSpec,
    make_images: MakeImages | None = None,
    plan: Plan | None = None,
) -> Loader:
    """The loader that `spec` describes; `make_images` and `plan` replace the spec's.

    The same spec gives the same samples with any engine and any number of workers.
    """
    (loader,) = _share_engine([(source, spec, plan or _plan(source, spec))], make_images)
    return loader


def build_loaders(splits: Sequence[tuple[Source, LoaderSpec]], after: After) -> list[Loader]:
    """The loaders of several splits, which share one engine and are read one part at a time.

    While the last batches of a part are used, those of the part `after` it are made.
    """
    planned = [(source, spec, _plan(source, spec)) for source, spec in splits]
    return _share_engine(planned, after=after)


def _share_engine(
    splits: Sequence[tuple[Source, LoaderSpec, Plan]],
    make_images: MakeImages | None = None,
    after: After = nothing_after,
) -> list[Loader]:
    first = splits[0][1]
    make_images = make_images or image_maker(first)
    makers, plans = {}, {}
    for source, spec, plan in splits:
        augmenter = build_augmenter(spec.augment, spec.data.mean)
        planner = CropPlanner(spec.data, spec.train, spec.seed, augmenter=augmenter)
        makers[spec.split] = BatchMaker(source, planner, make_images, spec.profile)
        plans[spec.split] = plan
    engine = _engine(Feed(makers, plans, after), first)
    return [CheckedLoader(engine, spec.split, plan, spec.data) for _, spec, plan in splits]


def _plan(source: Source, spec: LoaderSpec) -> Plan:
    if isinstance(source, StreamSource):
        sharded = spec.data.sharded_by_host
        return StreamPlan(
            source,
            share_of_host(source) if sharded else Share(spec.rank, spec.world_size),
            batch_size=spec.batch_size,
            seed=spec.seed,
            train=spec.train,
            window_shards=spec.data.window_shards,
        )
    weights = draw_weights(source) if spec.data.balance and spec.train else None
    return EpochPlan(
        len(source),
        spec.batch_size,
        spec.seed,
        spec.train,
        spec.rank,
        spec.world_size,
        weights,
        spec.data.repeats,
    )


def _engine(feed: Feed, spec: LoaderSpec) -> Engine:
    if spec.pipeline.engine in ("threads", "dali"):
        from entry_point.data.engines.threads import ThreadEngine

        return ThreadEngine(feed, spec)
    return WorkerEngine(feed, spec)


def image_maker(spec: LoaderSpec) -> MakeImages:
    """The engine's decoder: from bytes to images."""
    if spec.pipeline.engine == "dali":
        return _dali(spec)
    make_images = _pixel_maker(spec)
    if spec.augment.per == "sample":
        return OwnAugmented(make_images, spec.augment)
    return make_images


def _dali(spec: LoaderSpec) -> MakeImages:
    custom_op.load()
    try:
        from entry_point.data.decode.dali_images import DaliImages
    except ImportError as error:
        raise ConfigError(
            "pipeline.engine",
            "dali",
            f"cannot load NVIDIA DALI ({error}); install it with `make setup EXTRAS=dali`, or "
            "in an image with `make image EXTRAS=dali`",
        ) from error
    threads = max(1, spec.pipeline.worker_count())
    if spec.pipeline.num_workers is None and spec.device.type == "cuda":
        threads = min(threads, _DALI_THREADS)
    return DaliImages(threads, spec.device)


def _pixel_maker(spec: LoaderSpec) -> MakeImages:
    """Pillow needs no operator and therefore no compiler."""
    if spec.pipeline.engine == "pillow":
        from entry_point.data.decode.pillow_images import pillow_images

        return pillow_images
    custom_op.load()  # once, before any worker starts
    if spec.pipeline.engine == "workers":
        from entry_point.data.decode.operator_single import operator_single_images

        return operator_single_images
    return operator_batch_images
