"""A picture of training samples as the model gets them: cropped, augmented and mixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.config.train_config import TrainConfig
from entry_point.contract.printable import printable
from entry_point.data.loader import Loader, build_loader
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.source import Source
from entry_point.training.augmentation import BatchAugmentation, seed_step
from entry_point.training.devices import Devices
from entry_point.training.input import device_batches
from entry_point.training.normalize import Normalize
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 24
_COLUMNS = 8
_LONGEST, _LINES = 24, 4
_INCHES = 1.6


def first_samples_alone(
    config: TrainConfig, train: Source, spec: LoaderSpec, task: Task, devices: Devices
) -> Figure:
    """`first_samples` by this process alone: those that read for training may hang.

    Every engine gives the same samples. Raises DataError if they cannot be read.
    """
    pipeline = PipelineConfig("workers", "pillow", num_workers=0)
    with closing(build_loader(train, replace(spec, pipeline=pipeline))) as loader:
        return first_samples(config, loader, task, train.classes, devices)


def first_samples(
    config: TrainConfig,
    loader: Loader,
    task: Task,
    classes: Sequence[str],
    devices: Devices,
    *,
    epoch: int = 0,
) -> Figure:
    """The first samples of this rank in an epoch. Ends the epoch that the loader reads.

    `classes` are the source's. Raises DataError if the samples cannot be read.
    """
    batch = next(iter(loader.epoch(epoch, 0)))
    normalize = Normalize(config.data.mean, config.data.std).to(devices.device)
    made = next(device_batches([batch], devices.device, normalize))
    seed_step(devices, config.trainer.seed, 0)
    images, labels = BatchAugmentation(config, task)(made.images, made.labels)
    shown = to_rgb(images[:MOST].float().cpu(), config.data)
    captions = [caption(label, classes, task.takes) for label in labels[:MOST].cpu()]
    return draw_samples(list(shown), captions)


def to_rgb(images: Tensor, data: DataConfig) -> Tensor:
    """The model's input, float `(..., 3, H, W)`, as RGB from 0 to 1: `(..., H, W, 3)`."""
    pixels = images.movedim(-3, -1) * torch.tensor(data.std) + torch.tensor(data.mean)
    return pixels.clamp(0, 1)


def caption(label: Tensor, names: Sequence[str], takes: str) -> str:
    """A sample's class, its labels with their shares if it is mixed, or its numbers."""
    if not label.ndim:
        return _short(names[int(label)])
    pairs = zip(names, label.tolist(), strict=True)
    if takes == "numbers":
        return "\n".join(_short(f"{name} {value:.3g}") for name, value in islice(pairs, _LINES))
    held = sorted((-value, name) for name, value in pairs if value >= 0.01)
    named = [name if value <= -0.99 else f"{name} {-value:.2f}" for value, name in held]
    return _short(", ".join(named))


def draw_samples(images: Sequence[Tensor], captions: Sequence[str]) -> Figure:
    """A grid of RGB images from 0 to 1, each `(H, W, 3)` of one size."""
    from matplotlib.figure import Figure  # a second of imports, which training can do without

    ratio = images[0].shape[1] / images[0].shape[0]
    columns = min(max(1, round(_COLUMNS / ratio)), len(images))
    count = math.ceil(len(images) / columns)
    size = (_INCHES * ratio * columns, (_INCHES + 0.2) * count)
    figure = Figure(figsize=size, layout="constrained")
    for number, (image, text) in enumerate(zip(images, captions, strict=True), 1):
        axes = figure.add_subplot(count, columns, number)
        axes.imshow(image.numpy())
        # A class may be called `$x$`, which is a formula to matplotlib.
        axes.set_title(text, fontsize=7, parse_math=False)
        axes.axis("off")
    return figure


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
