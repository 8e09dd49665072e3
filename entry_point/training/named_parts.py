"""Looks up what settings name, before the dataset is opened: that may take minutes."""

from __future__ import annotations

from pathlib import Path

from entry_point.config.resolve import resolve
from entry_point.config.train_config import TrainConfig
from entry_point.training.models import require_model, weights_file


def require_named_parts(config: TrainConfig, channels: Path) -> None:
    """Raise ConfigError if a setting names a model, a file of weights or own code that is missing.

    Known words were checked with the configuration.
    """
    require_model(config.model.name)
    if config.model.weights is not None:
        weights_file(config.model, channels)
    named = [
        ("task.name", config.task.name),
        ("task.loss", config.task.loss),
        ("optim.name", config.optim.name),
        ("optim.schedule", config.optim.schedule),
        ("augment.name", config.augment.name),
        *(("loggers", name) for name in config.loggers),
    ]
    for key, name in named:
        if name is not None and "." in name:
            resolve(key, name, {})
