"""A picture of training samples as the model gets them: cropped, augmented and mixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from entry_point.config.data_config import DataConfig
from entry_point.config.train_config import TrainConfig
from entry_point.contract.printable import printable
from entry_point.data.decode.stall import BLACK, RGB_TO_YCBCR
from entry_point.data.loader import Loader, build_loader
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.source import Source
from entry_point.training.augmentation import BatchAugmentation, seed_step
from entry_point.training.device_transform import DeviceTransform
from entry_point.training.devices import Devices
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 24
_COLUMNS = 8
_LONGEST = 24
_INCHES = 1.6


def first_samples_alone(
    config: TrainConfig, train: Source, spec: LoaderSpec, task: Task, devices: Devices
) -> Figure:
    """`first_samples` by this process alone: those that read for training may hang.

    Every engine gives the same samples. Raises DataError if they cannot be read.
    """
    pipeline = replace(spec.pipeline, engine="pillow", num_workers=0)
    with closing(build_loader(train, replace(spec, pipeline=pipeline))) as loader:
        return first_samples(config, loader, task, devices)


def first_samples(
    config: TrainConfig, loader: Loader, task: Task, devices: Devices, *, epoch: int = 0
) -> Figure:
    """The first samples of this rank in an epoch. Ends the epoch that the loader reads.

    Raises DataError if they cannot be read.
    """
    batches = iter(loader.epoch(epoch, 0))
    batch = next(batches)
    transform = DeviceTransform(config.data, config.trainer.seed).to(devices.device)
    images, labels, numbers = (
        tensor.to(devices.device) for tensor in (batch.images, batch.labels, batch.indices)
    )
    seed_step(devices, config.trainer.seed, 0)
    augment = BatchAugmentation(config, task)
    images, labels = augment(transform(images, numbers, epoch=epoch), labels)
    shown = to_rgb(images[:MOST].float().cpu(), config.data)
    return draw_samples(shown, [caption(label, task) for label in labels[:MOST].cpu()])


def to_rgb(images: Tensor, data: DataConfig) -> Tensor:
    """The model's input, float `(N, 3, H, W)`, as RGB from 0 to 1: `(N, H, W, 3)`."""
    pixels = images.permute(0, 2, 3, 1) * torch.tensor(data.std) + torch.tensor(data.mean)
    if data.transform == "stall":
        from_ycbcr = torch.linalg.inv(torch.tensor(RGB_TO_YCBCR))
        pixels = (pixels - torch.tensor(BLACK) / 255) @ from_ycbcr.T
    return pixels.clamp(0, 1)


def caption(label: Tensor, task: Task) -> str:
    """A sample's class, its labels with their shares if it is mixed, or its numbers."""
    if not label.ndim:
        return _short(task.names[int(label)])
    pairs = zip(task.names, label.tolist(), strict=True)
    if task.takes == "numbers":
        return _short(", ".join(f"{name} {value:.3g}" for name, value in pairs))
    held = sorted((-value, name) for name, value in pairs if value >= 0.01)
    named = [name if value <= -0.99 else f"{name} {-value:.2f}" for value, name in held]
    return _short(", ".join(named))


def draw_samples(images: Tensor, captions: Sequence[str]) -> Figure:
    """A grid of RGB images from 0 to 1, `(N, H, W, 3)`."""
    from matplotlib.figure import Figure  # a second of imports, which training can do without

    columns = min(_COLUMNS, len(images))
    count = math.ceil(len(images) / columns)
    figure = Figure(figsize=(_INCHES * columns, (_INCHES + 0.2) * count), layout="constrained")
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
