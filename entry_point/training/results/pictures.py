"""Pictures: a run's curves over its steps, and training samples as the model gets them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from entry_point.config.data_config import DataConfig
from entry_point.config.train_config import TrainConfig
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.pillow import PillowDecoder
from entry_point.data.engines.batch_maker import BatchMaker
from entry_point.data.loader import build_loader
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.sources.source import Source
from entry_point.job.devices import Devices
from entry_point.job.known_tasks import Metric
from entry_point.job.text import printable
from entry_point.training.augmentation import BatchAugmentation, seed_step
from entry_point.training.input import loader_spec
from entry_point.training.models import Normalize
from entry_point.training.results.log import Record, column, training_records, validation_records
from entry_point.training.tasks.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The training loss may be smoothed, weighted, and of blended images.
TRAINING = "training (training loss, random crops)"
TRAIN, VALIDATION, WAIT = "#2b6cb0", "#c05621", "#9b2c2c"
SAMPLES = 24
_COLUMNS = 8
_MAX_CHARACTERS, _MAX_LINES = 24, 4
_SAMPLE_INCHES = 1.6


def draw(records: Sequence[Record], title: str, metric: Metric) -> Figure:
    """Returns a figure of four panels over the training step, one of them for `metric`."""
    # Not above: takes a second to import.
    from matplotlib.figure import Figure

    train, validation = training_records(records), validation_records(records)
    measured = [record for record in validation if metric.key in record]
    figure = Figure(figsize=(10, 6.4))
    figure.suptitle(title)
    # Fixed, because matplotlib's automatic layout takes longer than the drawing.
    places = {"left": 0.07, "right": 0.98, "top": 0.89, "bottom": 0.13, "hspace": 0.2}
    (loss, quality), (speed, wait) = figure.subplots(2, 2, sharex=True, gridspec_kw=places)
    _plot(loss, train, "loss", TRAIN, label=TRAINING)
    _plot(loss, validation, "val_loss", VALIDATION, marker="o", label="validation")
    _scale_losses(loss)
    _plot(quality, measured, metric.key, VALIDATION, marker="o", scale=metric.scale)
    if metric.percent:
        quality.set_ylim(0, 101)
    _plot(speed, train, "images_per_s", TRAIN)
    speed.set_ylim(bottom=0)
    _plot(wait, train, "data_wait_pct", WAIT)
    wait.set_ylim(0, max([5.0, *(1.1 * value for value in column(train, "data_wait_pct"))]))
    # Names are above the axes: beside them, long names would overlap.
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
    figure.legend(frameon=False, loc="lower center", ncols=3)
    return figure


def _plot(
    axes: Any, records: Sequence[Record], key: str, color: str, *, scale: float = 1, **style: Any
) -> None:
    """Draw one key over the steps: a line, or a point for a single record."""
    if len(records) == 1:
        style["marker"] = "o"
    values = [scale * value for value in column(records, key)]
    axes.plot(column(records, "step"), values, color=color, **style)


def _scale_losses(axes: Any) -> None:
    """Use a log scale, because an untrained model's validation loss can be far above the others."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(LogLocator(subs=(1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter("{x:g}")
    least, most = axes.get_ylim()
    # Over several powers of ten, labels between them would overlap.
    axes.yaxis.set_minor_formatter("{x:g}" if most < 100 * least else "")


def first_samples(config: TrainConfig, train: Source, task: Task, devices: Devices) -> Figure:
    """Returns the first samples of this rank in the first epoch, drawn by the task.

    Every engine gives the same samples. Raises DataError if they cannot be read.
    """
    with closing(build_loader(train, loader_spec(config, devices, "train"))) as loader:
        batch = next(iter(loader.epoch(0, 0)))
        pixels, labels = batch.images.to(devices.device), batch.labels.to(devices.device)
        normalize = Normalize(*config.data.normalization).to(devices.device)
        seed_step(devices, config.trainer.seed, 0)
        images, labels = BatchAugmentation(config, task)(normalize(pixels), labels)
    shown, labels = to_rgb(images[:SAMPLES].float().cpu(), config.data), labels[:SAMPLES].cpu()
    drawn = [
        task.draw(image, label, image.height) for image, label in zip(shown, labels, strict=True)
    ]
    captions = [caption(label, train.classes, task.takes) for label in labels]
    return draw_samples(drawn, captions, [*zip(task.names, task.colors, strict=False)])


@torch.inference_mode()
def with_targets(
    image: Image.Image, task: Task, network: nn.Module, source: Source, index: int, data: DataConfig
) -> Image.Image:
    """Returns the RGB image, and beside it the image with its target and with the model's answer.

    `index` is the image's number in the source, whose kind is `targets`; `network` is in eval mode.
    """
    planner, device = CropPlanner(data, train=False, seed=0), next(network.parameters()).device
    make = BatchMaker(source, planner, PillowDecoder(data.gray_bits))
    batch = make(0, np.array([index]), reused_memory)
    normalize = Normalize(*data.normalization).to(device)
    (output,), (target,) = network(normalize(batch.images.to(device))).float().cpu(), batch.labels
    targets = (target, task.answered(output, target))
    whole = Image.new("RGB", (3 * image.width, image.height))
    pictures = (image, *(task.draw(image, each, data.image_size) for each in targets))
    for place, picture in enumerate(pictures):
        whole.paste(picture, (place * image.width, 0))
    return whole


def to_rgb(images: Tensor, data: DataConfig) -> list[Image.Image]:
    """Returns the model's input, float `(N, 3, H, W)`, as RGB images."""
    mean, std = map(torch.tensor, data.normalization)
    pixels = (images.movedim(1, -1) * std + mean).clamp(0, 1)
    return [Image.fromarray(each) for each in (255 * pixels).round().byte().numpy()]


def caption(label: Tensor, names: Sequence[str], takes: str) -> str:
    """Returns a sample's class, its labels with their shares if it is mixed, or its numbers.

    Returns an empty text for targets, which are drawn instead.
    """
    if takes == "targets":
        return ""
    if not label.ndim:
        return _short(names[int(label)])
    pairs = zip(names, label.tolist(), strict=True)
    if takes == "numbers":
        return "\n".join(_short(f"{name} {value:.3g}") for name, value in islice(pairs, _MAX_LINES))
    held = sorted((-value, name) for name, value in pairs if value >= 0.01)
    named = [name if value <= -0.99 else f"{name} {-value:.2f}" for value, name in held]
    return _short(", ".join(named))


def draw_samples(
    images: Sequence[Image.Image], captions: Sequence[str], legend: Sequence[tuple[str, str]] = ()
) -> Figure:
    """Returns a grid of RGB images of one size, above a legend of names and colors."""
    # Not above: takes a second to import.
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    ratio = images[0].width / images[0].height
    columns = min(max(1, round(_COLUMNS / ratio)), len(images))
    count = math.ceil(len(images) / columns)
    height = (_SAMPLE_INCHES + 0.2) * count + 0.15 * math.ceil(len(legend) / columns)
    figure = Figure(figsize=(_SAMPLE_INCHES * ratio * columns, height), layout="constrained")
    for number, (image, text) in enumerate(zip(images, captions, strict=True), 1):
        axes = figure.add_subplot(count, columns, number)
        axes.imshow(image)
        # matplotlib would read a class called `$x$` as a formula.
        axes.set_title(text, fontsize=7, parse_math=False)
        axes.axis("off")
    if legend:
        patches = [Patch(facecolor=color, label=_short(name)) for name, color in legend]
        below = figure.legend(
            handles=patches, loc="outside lower left", ncols=columns, fontsize=7, frameon=False
        )
        for written in below.get_texts():
            written.set_parse_math(False)
    return figure


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
