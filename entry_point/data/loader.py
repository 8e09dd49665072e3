"""Sources and loaders, built from the config.

A LoaderSpec becomes batches of its split by four parts, which `build_loader` puts together:

    Plan        decides which images each step takes              plan/
    BatchMaker  makes a batch: reads, plans, decodes              engines/batch_maker.py, decode/
    Engine      makes the batches of coming steps ahead           engines/
    Loader      yields the batches, and counts damaged images     here
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import custom_op
from entry_point.config.commands import check_command
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.decode import BatchDecoder, OperatorDecoder
from entry_point.data.decode.own_augment import OwnAugmentation
from entry_point.data.decode.pillow import PillowDecoder
from entry_point.data.engines.batch_maker import BatchMaker, Engine, Outcome
from entry_point.data.errors import DataError
from entry_point.data.loader_spec import CPU, LoaderSpec
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.order import EpochPlan, Plan, RangePlan, draw_weights
from entry_point.data.plan.policies import build_augmenter
from entry_point.data.plan.stream_order import StreamPlan
from entry_point.data.retries import without_retries
from entry_point.data.sources.dataset import Dataset, open_dataset
from entry_point.data.sources.folder import Tree, split_folders
from entry_point.data.sources.source import Source
from entry_point.data.sources.stream import StreamSource
from entry_point.job.run_folder import data_channels
from entry_point.job.text import printable

CHANNEL = "training"
# DALI's host threads only parse JPEGs when a GPU decodes; its own default is 4 to 8.
_DALI_THREADS = 8


log = logging.getLogger(__name__)


class Loader:
    """Yields the batches of one split for one rank; the only state is (epoch, step).

    The engine makes the first batches of the next epoch in `spec.epochs` while the last ones of the
    current epoch are used, so that the pipeline never drains.

    Logs each damaged image, and raises DataError above `data.max_bad_fraction`: this rank's damaged
    images since the epoch began or resumed, as a fraction of the rank's whole epoch. `Batch.damage`
    lists the same images.
    """

    def __init__(self, plan: Plan, maker: BatchMaker, engine: Engine, spec: LoaderSpec) -> None:
        self.steps_per_epoch = plan.steps_per_epoch
        self._plan, self._maker, self._engine, self._spec = plan, maker, engine, spec
        self._outcomes: Iterator[Outcome] = iter(())
        self._places: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None
        """Epoch and step of the engine's next outcome; `_places` yields the later ones."""
        self._reader = ThreadPoolExecutor(1, "shard-reader")
        if spec.decodes_here:
            plan.read_ahead(self._reader)
        self._closed = False

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yields the epoch's batches from `start_step` on; skipped steps cost nothing.

        Takes effect when the first batch is requested; it then ends any epoch still being read.
        """
        if self._closed:
            raise RuntimeError("the loader is closed")
        if self._next != (epoch, start_step):
            self._stop()
            self._start(epoch, start_step)
        damaged: set[str] = set()
        for step in range(start_step, self.steps_per_epoch):
            if self._next != (epoch, step):  # another epoch was started meanwhile
                return
            self._next = None  # unknown, if an exception interrupts the wait
            outcome = next(self._outcomes)
            if isinstance(outcome, Exception):
                self._stop()
                raise outcome
            self._next = next(self._places, None)
            self._check(outcome, epoch, damaged)
            yield outcome
        if self._next is None:
            self._stop()

    def close(self) -> None:
        """End the threads and processes."""
        self._closed = True
        self._stop()
        with without_retries():
            self._reader.shutdown(cancel_futures=True)
        self._maker.decoder.close()

    def _start(self, epoch: int, start_step: int) -> None:
        """Start making batches of the epoch from `start_step` on, and of all epochs after it."""
        later = [(each, 0) for each in self._spec.epochs if each > epoch]
        starts, steps = [(epoch, start_step), *later], self.steps_per_epoch
        self._outcomes = self._engine.start(
            (each, indices) for each, first in starts for indices in self._plan.batches(each, first)
        )
        self._places = ((each, step) for each, first in starts for step in range(first, steps))
        self._next = next(self._places, None)

    def _stop(self) -> None:
        """Stop the engine, and drop the batches and bytes that were prepared ahead."""
        self._next, self._outcomes = None, iter(())
        self._engine.stop()
        self._plan.release()

    def _check(self, batch: Batch, epoch: int, damaged: set[str]) -> None:
        """Log the batch's damaged images that are not in `damaged`, and add them to it."""
        for image in batch.damage:
            if image.key not in damaged:
                damaged.add(image.key)
                log.warning("epoch %d, skipped %s: %s", epoch, image.key, image.reason)
        data, samples = self._spec.data, self._plan.samples_per_epoch
        if len(damaged) > data.max_bad_fraction * samples:
            raise DataError(
                f"{len(damaged)} damaged images in epoch {epoch}, more than "
                f"data.max_bad_fraction={data.max_bad_fraction} of {samples}; the last is "
                f"{batch.damage[-1].key}; {check_command(data)}"
            )


def open_training_set(data: DataConfig, channels: Path) -> Dataset:
    """Returns the training dataset in `data.root`, or else in the input channels below `channels`.

    Raises DataError if there is no dataset or it cannot be used.
    """
    return open_dataset(data, dataset_root(data, channels), for_training=True)


def open_source(data: DataConfig, split: str, channels: Path) -> Source:
    """Returns one split of the training set, see `open_training_set`."""
    return open_training_set(data, channels).source(split)


def dataset_root(data: DataConfig, channels: Path) -> Path:
    """Returns `data.root`, or the platform's input channel. Raises DataError."""
    if data.root is not None:
        return Path(data.root)
    splits = split_folders(Tree(channels)) if channels.is_dir() else {}
    folder = channels / CHANNEL
    # The split `val` may be a separate channel, unless the training channel has splits itself.
    if folder.exists() and ("val" not in splits or split_folders(Tree(folder))):
        return folder
    if "train" in splits:
        return channels
    missing = f"data.root is not set and there is no input channel {CHANNEL!r}"
    if others := data_channels(path.name for path in channels.glob("*") if path.is_dir()):
        raise DataError(
            f"{missing}, but {printable(', '.join(others))}: add data.root={channels / others[0]}, "
            "or data=demo for generated images"
        )
    raise DataError(
        f"{missing}: add data.root=FOLDER, or in a container the channel {CHANNEL!r}, or one for "
        "each split, train and validation"
    )


def build_loader(
    source: Source,
    spec: LoaderSpec,
    decoder: BatchDecoder | None = None,
    plan: Plan | None = None,
) -> Loader:
    """Returns the loader that `spec` describes; `decoder` and `plan` replace the spec's.

    The same spec gives the same samples with any engine and any number of workers.
    """
    plan = plan or _plan(source, spec)
    augmenter = build_augmenter(spec.augment, spec.data.normalization[0])
    planner = CropPlanner(spec.data, spec.train, spec.seed, augmenter)
    own = OwnAugmentation(spec.augment) if spec.augment.per == "sample" else None
    maker = BatchMaker(source, planner, decoder or build_decoder(spec), own)
    return Loader(plan, maker, _engine(maker, spec, plan.steps_per_epoch), spec)


def build_prediction_loader(
    source: Source,
    samples: range,
    trained_on: DataConfig,
    pipeline: PipelineConfig,
    batch_size: int,
    device: torch.device = CPU,
) -> Loader:
    """Returns a loader of the `samples` of a source, in order. Each is cropped once, by the
    validation settings of `trained_on`. Images may have any size and format.

    Damaged images are left out, and listed in `Batch.damage`.
    """
    names = ("image_size", "resize", "crop", "gray_bits")
    of_images = {name: getattr(trained_on, name) for name in names}
    data = DataConfig(**of_images, max_bad_fraction=1.0)
    spec = LoaderSpec(data, pipeline, "val", batch_size, seed=0, device=device)
    return build_loader(source, spec, plan=RangePlan(samples, batch_size))


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


def _engine(maker: BatchMaker, spec: LoaderSpec, steps_per_epoch: int) -> Engine:
    if spec.pipeline.engine in ("threads", "dali"):
        from entry_point.data.engines.threads import ThreadEngine

        return ThreadEngine(maker, spec)
    from entry_point.data.engines.workers import WorkerEngine

    return WorkerEngine(maker, spec, steps_per_epoch)


def build_decoder(spec: LoaderSpec) -> BatchDecoder:
    """Returns the decoder that `spec` asks for. Pillow needs no operator, hence no compiler."""
    if spec.pipeline.engine == "dali":
        return _dali(spec)
    if spec.pipeline.decoder == "pillow":
        return PillowDecoder(spec.data.gray_bits)
    custom_op.load()  # once, before any worker starts
    return OperatorDecoder(spec.data.gray_bits)


def _dali(spec: LoaderSpec) -> BatchDecoder:
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
    return DaliDecoder(threads, spec.device, spec.data.gray_bits)
