"""Training input: both splits, this rank's loaders, and the batches on its device."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import repeat

import torch
from torch.profiler import record_function

from entry_point.config.train_config import TrainConfig
from entry_point.data.batch import Batch
from entry_point.data.loader import build_decoder, build_loader
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.dataset import Dataset, gap_lines, require_shared_classes
from entry_point.job.devices import Devices, RunAhead
from entry_point.job.stop import StopRequest
from entry_point.job.text import counted
from entry_point.training.models import Normalize

_NAMED = {"class": "class", "labels": "label", "numbers": "target", "targets": "class"}
logger = logging.getLogger(__name__)

Prepare = Callable[[torch.Tensor], torch.Tensor]
"""A loader's images, on the device -> the input of the model."""


@dataclass(frozen=True)
class DeviceBatch:
    """One batch, ready for the model."""

    images: torch.Tensor
    """fp32 or bf16 `(N, 3, S, S)`, channels_last; prepared, on the device."""
    labels: torch.Tensor
    """int64 `(N,)`; float32 `(N, names)` for several labels or numbers; on the device."""
    indices: torch.Tensor
    """int64 `(N,)`: the samples' numbers in their source, on the CPU."""
    damaged: int
    """Number of images that could not be decoded."""
    wait: float
    """Seconds that the training process was blocked waiting for this batch."""
    cpu_s: float = math.nan
    """Seconds of CPU time that its input took, see Batch."""


class TrainingInput:
    """The sources and loaders of both splits.

    Raises:
        DataError: the splits cannot be read, or share no class.
    """

    def __init__(
        self, config: TrainConfig, dataset: Dataset, devices: Devices, stop: StopRequest
    ) -> None:
        self._config, self._devices, self._stop = config, devices, stop
        self.train, self.val = dataset.source("train"), dataset.source("val")
        self.has_test = "test" in dataset.splits
        if self.has_test:
            logger.info("the split test is kept out of training")
        require_shared_classes(self.train, self.val, dataset.val_from)
        for line in gap_lines({"train": self.train, "val": self.val}) if devices.is_first else ():
            logger.warning("%s", line)
        self.classes = list(self.train.classes)
        normalize = Normalize(*config.data.normalization, devices.input_dtype)
        self.normalize = normalize.to(devices.device)
        spec = loader_spec(config, devices, "train")
        decoder = build_decoder(spec)  # shared by both loaders: DALI's has threads and GPU memory
        self.train_loader = build_loader(self.train, spec, decoder)
        self.val_loader = build_loader(self.val, loader_spec(config, devices, "val"), decoder)
        self._kept = deque[tuple[tuple[int, int], Batch]](maxlen=0)

    def describe(self) -> str:
        """Returns the numbers of images and classes and the image sizes, in one line."""
        data = self._config.data
        sizes = list(dict.fromkeys([size for _, size in data.progressive] or [data.image_size]))
        text = (
            f"{len(self.train):,} training and {len(self.val):,} validation images, "
            f"{counted(len(self.classes), _NAMED[self.train.kind])}, "
            f"{' then '.join(f'{size} x {size}' for size in sizes)} pixels"
        )
        if data.image_size != sizes[-1]:
            text += f", validation {data.image_size} x {data.image_size}"
        if len(sizes) > 1 and self._config.trainer.compile:
            text += f"; torch.compile compiles for each of {len(sizes)} sizes"
        return text

    def train_batches(self, epoch: int, step: int) -> Iterator[Batch]:
        """Yields the batches of `epoch` from `step` on."""
        for number, batch in enumerate(self._read(epoch, step), step):
            self._kept.append(((epoch, number), batch))
            yield batch

    def keep_last(self, count: int) -> None:
        """Keep the last `count` batches of `train_batches` for `last_batches`."""
        self._kept = deque(maxlen=count)

    def last_batches(self, end: int, count: int) -> Iterator[Batch]:
        """Yields the `count` training batches before the step `end` of the run.

        Batches from before a resume are not kept, and are read again.
        """
        kept = dict(self._kept)
        epoch, first = divmod(end - count, self.train_loader.steps_per_epoch)
        again = self._read(epoch, first)
        for step in range(first, first + count):
            yield kept.get((epoch, step)) or next(again)

    def _read(self, epoch: int, step: int) -> Iterator[Batch]:
        loader = self.train_loader
        if self._config.trainer.diagnose == "one_batch":
            return repeat(next(iter(loader.epoch(0, 0))), loader.steps_per_epoch - step)
        return loader.epoch(epoch, step)

    def to_device(
        self, batches: Iterable[Batch], *, training: bool = True
    ) -> Iterator[DeviceBatch]:
        """Put a loader's batches on the device, normalized.

        Raises Stopped if a batch cannot be read, or ReadError while several ranks train, as these
        wait for each other's gradients.
        """
        may_stop = not training or self._devices.world_size == 1
        return device_batches(
            batches,
            self._devices.device,
            self.normalize,
            waiting=self._stop.reading if may_stop else nullcontext,
        )

    def close(self) -> None:
        """End the loaders' threads and processes."""
        self.train_loader.close()
        self.val_loader.close()


def loader_spec(config: TrainConfig, devices: Devices, split: str) -> LoaderSpec:
    """Returns the specification of this rank's loader of a split."""
    trainer = config.trainer
    return LoaderSpec(
        config.data,
        config.pipeline,
        split,
        trainer.batch_size // devices.world_size,
        trainer.seed,
        devices.rank,
        devices.world_size,
        devices.device,
        augment=config.augment,
        epochs=range(trainer.epochs) if split == "train" else trainer.evaluated_epochs,
    )


def device_batches(
    batches: Iterable[Batch],
    device: torch.device,
    prepare: Prepare,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[DeviceBatch]:
    """Copy a loader's batches to the device as uint8, and prepare them there.

    Each batch is awaited in the context `waiting`. On a GPU, copying and preparing run on a side
    stream beside the previous step's kernels, and the host stays at most two batches ahead.
    """
    stream = _copy_stream(device) if device.type == "cuda" else None
    ahead = RunAhead(device)
    iterator = iter(batches)
    while True:
        start = time.perf_counter()
        with record_function("data_wait"), waiting():
            batch = next(iterator, None)
        if batch is None:
            return
        wait = time.perf_counter() - start
        with torch.cuda.stream(stream):
            with record_function("copy"):
                labels, pixels = (
                    # From a GPU to the CPU, a non-blocking copy would return before it is complete.
                    tensor.to(device, non_blocking=stream is not None)
                    for tensor in (batch.labels, batch.images)
                )
            with record_function("prepare"):
                images = prepare(pixels).contiguous(memory_format=torch.channels_last)
        if stream is not None:
            if batch.images.is_cuda:
                batch.images.record_stream(stream)
            current = torch.cuda.current_stream(stream.device)
            current.wait_stream(stream)
            for tensor in (images, labels):
                tensor.record_stream(current)
        damaged = len(batch.damage)
        yield DeviceBatch(images, labels, batch.indices, damaged, wait, batch.cpu_s)
        ahead.wait()


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns one stream for all epochs: torch caches freed memory per stream."""
    return torch.cuda.Stream(device)
