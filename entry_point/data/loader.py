"""Builds sources and loaders from the config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch

import custom_op
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import Crop, DataConfig, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.any_format import AnyFormat
from entry_point.data.decode.decoder import Decoder
from entry_point.data.decode.operator import OperatorDecoder
from entry_point.data.decode.own_augment import OwnAugmentation
from entry_point.data.engines.feed import (
    After,
    BatchMaker,
    CheckedLoader,
    Engine,
    Feed,
    PartReader,
    nothing_after,
)
from entry_point.data.errors import DataError
from entry_point.data.loader_spec import CPU, LoaderSpec
from entry_point.data.plan.augment.augmenter import build_augmenter
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.order import EpochPlan, Plan, RangePlan, draw_weights
from entry_point.data.plan.stream_order import StreamPlan
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.formats import open_format
from entry_point.data.sources.source import Source
from entry_point.data.sources.stream import StreamSource
from entry_point.data.sources.unlabeled import Stretch

CHANNEL = "training"
_HOLDS = {
    "folder": "train/<class>/ and val/<class>/",
    "manifest": "a table of paths and labels",
    "shards": "the output of `make dataset`",
    "masks": "train/{images,masks}, val/{images,masks} and classes.txt",
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
    decoder: Decoder | None = None,
    plan: Plan | None = None,
) -> Loader:
    """The loader that `spec` describes; `decoder` and `plan` replace the spec's.

    The same spec gives the same samples with any engine and any number of workers.
    """
    (loader,) = build_loaders([(source, spec)], decoder=decoder, plan=plan)
    return loader


def build_prediction_loader(
    stretch: Stretch,
    image_size: int,
    resize: int,
    pipeline: PipelineConfig,
    batch_size: int,
    device: torch.device = CPU,
    crop: Crop = "center",
) -> Loader:
    """Images of any size and format, each cropped once, in order.

    They are resized to a shorter side of `resize` and cropped to `image_size`, or squashed to it.
    `Batch.indices` are numbers in the stretch's source. Images that are not complete are left out
    and listed in `Batch.damage`.
    """
    data = DataConfig(image_size=image_size, resize=resize, crop=crop, max_bad_fraction=1.0)
    spec = LoaderSpec(data, pipeline, "val", batch_size, seed=0, device=device)
    plan = RangePlan(stretch.samples, batch_size)
    return build_loader(stretch.source, spec, build_decoder(spec), plan)


def build_loaders(
    splits: Sequence[tuple[Source, LoaderSpec]],
    after: After = nothing_after,
    decoder: Decoder | None = None,
    plan: Plan | None = None,
) -> list[Loader]:
    """The loaders of several splits, which share one engine and are read one part at a time.

    While the last batches of a part are used, those of the part `after` it are made.
    """
    first = splits[0][1]
    decoder = decoder or build_decoder(first)
    plans = {spec.split: plan or _plan(source, spec) for source, spec in splits}
    makers = {spec.split: _batch_maker(source, spec, decoder) for source, spec in splits}
    feed = Feed(makers, plans, after)
    parts = PartReader(feed, _engine(feed, first))
    return [CheckedLoader(parts, spec.split, plans[spec.split], spec.data) for _, spec in splits]


def _batch_maker(source: Source, spec: LoaderSpec, decoder: Decoder) -> BatchMaker:
    augmenter = build_augmenter(spec.augment, spec.data.mean)
    planner = CropPlanner(spec.data, spec.train, spec.seed, augmenter)
    own = OwnAugmentation(spec.augment) if spec.augment.per == "sample" else None
    return BatchMaker(source, planner, decoder, own)


def _plan(source: Source, spec: LoaderSpec) -> Plan:
    if isinstance(source, StreamSource):
        return StreamPlan(
            source,
            spec.rank,
            spec.world_size,
            batch_size=spec.batch_size,
            seed=spec.seed,
            train=spec.train,
        )
    weights = None
    if spec.data.balance and spec.train:
        weights = draw_weights(source.kind, source.labels, len(source.classes))
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
    from entry_point.data.engines.workers import WorkerEngine

    return WorkerEngine(feed, spec)


def build_decoder(spec: LoaderSpec) -> Decoder:
    """The decoder of `pipeline`. Pillow needs no operator and therefore no compiler."""
    if spec.pipeline.engine == "dali":
        return AnyFormat(_dali(spec))
    if spec.pipeline.decoder == "pillow":
        from entry_point.data.decode.pillow import PillowDecoder  # torchvision takes a second

        return PillowDecoder()
    custom_op.load()  # once, before any worker starts
    return AnyFormat(OperatorDecoder())


def _dali(spec: LoaderSpec) -> Decoder:
    custom_op.load()
    try:
        from entry_point.data.decode.dali import DaliDecoder
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
    return DaliDecoder(threads, spec.device)
