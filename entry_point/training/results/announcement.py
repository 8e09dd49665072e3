"""What a run says at its start: what will happen."""

from __future__ import annotations

from torch import nn

from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.source import Source
from entry_point.training.devices import Devices
from entry_point.training.model import count_parameters
from entry_point.training.results.about import revision


def announcement(
    config: TrainConfig,
    devices: Devices,
    model: nn.Module,
    train: Source,
    val: Source,
    steps_per_epoch: int,
) -> list[str]:
    """Lines on code, model, data, pipeline, devices and plan."""
    trainer, data = config.trainer, config.data
    return [
        f"code     {revision() or 'of an unknown revision'}",
        f"model    {config.model.name}, {count_parameters(model):,} parameters",
        f"data     {len(train):,} training and {len(val):,} validation images, "
        f"{len(train.classes)} classes, {data.image_size} x {data.image_size} pixels",
        f"pipeline {config.pipeline.engine}",
        f"devices  {devices.describe()}",
        f"plan     {trainer.epochs} epochs of {steps_per_epoch} steps of "
        f"{trainer.batch_size} images, {config.optim.name}",
    ]
