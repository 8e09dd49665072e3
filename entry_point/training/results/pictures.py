"""Pictures: a run's curves over its steps, and training samples as the model gets them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.config.train_config import TrainConfig
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.pillow import PillowDecoder
from entry_point.data.engines.batch_maker import BatchMaker
from entry_point.data.loader import Loader, build_loader
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.sources.source import Source
from entry_point.job.devices import Devices
from entry_point.job.known_tasks import Metric
from entry_point.job.text import printable
from entry_point.training.augmentation import BatchAugmentation, seed_step
from entry_point.training.input import device_batches, loader_spec
from entry_point.training.models import Normalize
from entry_point.training.results.log import (
    Record,
    column,
    training_records,
    validation_records,
)
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# It may be smoothed, weighted, and of blended images.
TRAINING = "training (training loss, random crops)"
TRAIN, VALIDATION, WAIT = "#2b6cb0", "#c05621", "#9b2c2c"
MOST = 24
_COLUMNS = 8
_LONGEST, _LINES = 24, 4
_INCHES = 1.6


def draw(records: Sequence[Record], title: str, metric: Metric) -> Figure:
    """Four panels over the training step; `metric` has one of them."""
    # A second of imports, which training can do without.
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    train, validation = training_records(records), validation_records(records)
    figure = Figure(figsize=(10, 6.4))
    figure.suptitle(title)
    # Layout that matplotlib computes takes longer than all it draws.
    places = {"left": 0.07, "right": 0.98, "top": 0.89, "bottom": 0.13, "hspace": 0.2}
    (loss, quality), (speed, wait) = figure.subplots(2, 2, sharex=True, gridspec_kw=places)
    steps, val_steps = column(train, "step"), column(validation, "step")
    dot = "o" if len(steps) == 1 else ""  # a line needs two points
    loss.plot(steps, column(train, "loss"), dot, color=TRAIN, label=TRAINING)
    loss.plot(val_steps, column(validation, "val_loss"), "o-", color=VALIDATION, label="validation")
    # An untrained model's validation loss can be far above the rest.
    loss.set_yscale("log")
    loss.yaxis.set_minor_locator(LogLocator(subs=(1.5, 2, 3, 5, 7)))
    loss.yaxis.set_major_formatter("{x:g}")
    least, most = loss.get_ylim()
    # Labels between the powers of ten run into each other if there are many powers.
    loss.yaxis.set_minor_formatter("{x:g}" if most < 100 * least else "")
    measured = [record for record in validation if metric.key in record]
    values = [metric.scale * value for value in column(measured, metric.key)]
    quality.plot(column(measured, "step"), values, "o-", color=VALIDATION)
    figure.legend(frameon=False, loc="lower center", ncols=3)
    if metric.percent:
        quality.set_ylim(0, 101)
    speed.plot(steps, column(train, "images_per_s"), dot, color=TRAIN)
    speed.set_ylim(bottom=0)
    wait.plot(steps, column(train, "data_wait_pct"), dot, color=WAIT)
    wait.set_ylim(0, max([5.0, *(1.1 * v for v in column(train, "data_wait_pct"))]))
    # Names are above the axes: beside them, long ones run into each other.
    titles = {
        "loss (log scale)": loss,
        f"validation {metric.label}{' (%)' if metric.percent else ''}": quality,
        "images/s": speed,
        "waiting for data (% of training time)": wait,
    }
    for quantity, axes in titles.items():
        axes.set_title(quantity, loc="left", fontsize="medium")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (speed, wait):
        axes.set_xlabel("step")
    return figure


def first_samples_alone(config: TrainConfig, train: Source, task: Task, devices: Devices) -> Figure:
    """`first_samples` by this process alone: those that read for training may hang.

    Every engine gives the same samples. Raises DataError if they cannot be read.
    """
    alone = replace(config, pipeline=PipelineConfig("workers", "pillow", num_workers=0))
    with closing(build_loader(train, loader_spec(alone, devices, "train"))) as loader:
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
    """Returns the first samples of this rank in an epoch. Ends the epoch that the loader reads.

    `classes` are the source's. Raises DataError if the samples cannot be read.
    """
    batch = next(iter(loader.epoch(epoch, 0)))
    normalize = Normalize(*config.data.normalization).to(devices.device)
    made = next(device_batches([batch], devices.device, normalize))
    seed_step(devices, config.trainer.seed, 0)
    images, labels = BatchAugmentation(config, task)(made.images, made.labels)
    shown, labels = to_rgb(images[:MOST].float().cpu(), config.data), labels[:MOST].cpu()
    if task.takes == "targets":
        drawn = []
        for image, target in zip(shown, labels, strict=True):
            picture = Image.fromarray((255 * image).byte().numpy())
            with_target = np.array(task.draw(picture, target, len(image)))
            drawn.append(torch.from_numpy(with_target) / 255)
        legend = [*zip(task.names, task.colors, strict=False)]
        return draw_samples(drawn, [""] * len(drawn), legend)
    captions = [caption(label, classes, task.takes) for label in labels]
    return draw_samples(list(shown), captions)


@torch.inference_mode()
def with_targets(
    image: Image.Image, task: Task, network: nn.Module, source: Source, index: int, data: DataConfig
) -> Image.Image:
    """Returns the RGB image, and beside it the same with its target and with the model's answer.

    `index` is the image's number in the source, whose kind is `targets`; `network` is in eval mode.
    """
    planner, device = CropPlanner(data, train=False, seed=0), next(network.parameters()).device
    batch = BatchMaker(source, planner, PillowDecoder(data.gray_bits))(
        0, np.array([index]), reused_memory
    )
    normalize = Normalize(*data.normalization).to(device)
    (output,), (target,) = network(normalize(batch.images.to(device))).float().cpu(), batch.labels
    targets = (target, task.answered(output, target))
    whole = Image.new("RGB", (3 * image.width, image.height))
    pictures = (image, *(task.draw(image, each, data.image_size) for each in targets))
    for place, picture in enumerate(pictures):
        whole.paste(picture, (place * image.width, 0))
    return whole


def to_rgb(images: Tensor, data: DataConfig) -> Tensor:
    """Returns the model's input, float `(..., 3, H, W)`, as RGB from 0 to 1: `(..., H, W, 3)`."""
    mean, std = map(torch.tensor, data.normalization)
    pixels = images.movedim(-3, -1) * std + mean
    return pixels.clamp(0, 1)


def caption(label: Tensor, names: Sequence[str], takes: str) -> str:
    """Returns a sample's class, its labels with their shares if it is mixed, or its numbers."""
    if not label.ndim:
        return _short(names[int(label)])
    pairs = zip(names, label.tolist(), strict=True)
    if takes == "numbers":
        return "\n".join(_short(f"{name} {value:.3g}") for name, value in islice(pairs, _LINES))
    held = sorted((-value, name) for name, value in pairs if value >= 0.01)
    named = [name if value <= -0.99 else f"{name} {-value:.2f}" for value, name in held]
    return _short(", ".join(named))


def draw_samples(
    images: Sequence[Tensor], captions: Sequence[str], legend: Sequence[tuple[str, str]] = ()
) -> Figure:
    """Returns a grid of RGB images from 0 to 1, each `(H, W, 3)` of one size, above the names of
    the legend beside their colors."""
    # A second of imports, which training can do without.
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    ratio = images[0].shape[1] / images[0].shape[0]
    columns = min(max(1, round(_COLUMNS / ratio)), len(images))
    count = math.ceil(len(images) / columns)
    height = (_INCHES + 0.2) * count + 0.15 * math.ceil(len(legend) / columns)
    size = (_INCHES * ratio * columns, height)
    figure = Figure(figsize=size, layout="constrained")
    for number, (image, text) in enumerate(zip(images, captions, strict=True), 1):
        axes = figure.add_subplot(count, columns, number)
        axes.imshow(image.numpy())
        # A class may be called `$x$`, which is a formula to matplotlib.
        axes.set_title(text, fontsize=7, parse_math=False)
        axes.axis("off")
    if legend:
        patches = [Patch(facecolor=color) for _, color in legend]
        names = [_short(name) for name, _ in legend]
        below = figure.legend(
            patches, names, loc="outside lower left", ncols=columns, fontsize=7, frameon=False
        )
        for written in below.get_texts():
            written.set_parse_math(False)
    return figure


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
